"""Leases that a blocked event loop renews, and how they end."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import pytest

from plexsvc.errors import ErrorCode, PlexError
from plexsvc.scheduler.orders.leases import Leases
from tests.fakes.fake_renewed import FakeRenewed, serving
from tests.rigs.keys import KEYS

PATIENCE_S = 120


def leases(*, lease_us: int = 300_000) -> Leases:
    return Leases(lease_us=lease_us, ttl_us=5, epoch=7, keys=KEYS)


async def test_leases_are_renewed_while_the_event_loop_is_blocked(tmp_path: Path) -> None:
    agent, kept, began_s = FakeRenewed(epoch=7, ttl_us=5), leases(), time.monotonic()
    async with asyncio.TaskGroup() as tasks:
        with serving(agent, tmp_path / "agent") as target:
            keeping = tasks.create_task(kept.keep(target))
            await asyncio.sleep(0)
            for _ in range(5):  # nothing else runs on this loop meanwhile
                assert agent.renewed.acquire(timeout=PATIENCE_S)
            await asyncio.sleep(0)
            assert not keeping.done()
            renewed = kept.renewed(target)
            assert renewed is not None
            assert renewed.reply.state_manager_restarts == 3
            assert began_s < renewed.sent_s < time.monotonic()
            keeping.cancel()
            await kept.close()


async def test_a_lease_that_nobody_renews_is_over(tmp_path: Path) -> None:
    kept = leases(lease_us=30_000)
    with pytest.raises(PlexError) as lost:
        await asyncio.wait_for(kept.keep(f"unix:{tmp_path}/nobody"), PATIENCE_S)
    assert lost.value.code is ErrorCode.UNAVAILABLE
    await kept.close()


async def test_a_lease_that_its_agent_refuses_is_over_at_once(tmp_path: Path) -> None:
    agent, kept = FakeRenewed(epoch=7, ttl_us=5), leases()
    agent.error = PlexError(ErrorCode.STALE_FENCE, "a newer scheduler leads")
    with serving(agent, tmp_path / "agent") as target:
        with pytest.raises(PlexError, match="a newer scheduler leads"):
            await asyncio.wait_for(kept.keep(target), PATIENCE_S)
        await kept.close()
    assert agent.renewed.acquire(blocking=False)
    assert not agent.renewed.acquire(blocking=False)


async def test_a_lease_that_is_not_kept_any_more_is_not_renewed(tmp_path: Path) -> None:
    agent, other = FakeRenewed(epoch=7, ttl_us=5), FakeRenewed(epoch=7, ttl_us=5)
    kept = leases(lease_us=30_000)

    async def looks(at: FakeRenewed, count: int) -> None:
        for _ in range(count):
            assert await asyncio.to_thread(at.renewed.acquire, timeout=PATIENCE_S)

    async with asyncio.TaskGroup() as tasks:
        with (
            serving(agent, tmp_path / "agent") as target,
            serving(other, tmp_path / "other") as elsewhere,
        ):
            keeping = tasks.create_task(kept.keep(target))
            watching = tasks.create_task(kept.keep(elsewhere))
            await looks(agent, 1)
            keeping.cancel()
            await looks(other, 3)
            while agent.renewed.acquire(blocking=False):
                pass
            await looks(other, 3)
            assert not agent.renewed.acquire(blocking=False)
            watching.cancel()
            await kept.close()


async def test_a_renewal_names_agents_of_other_hosts() -> None:
    kept = leases(lease_us=600_000_000)
    targets = ["unix:/run/a", "10.0.0.1:1", "10.0.0.1:2", "10.0.0.2:1"]
    async with asyncio.TaskGroup() as tasks:
        keeping = [tasks.create_task(kept.keep(target)) for target in targets]
        await asyncio.sleep(0)
        assert list(kept.request("10.0.0.1:1").witnesses) == ["10.0.0.2:1"]
        assert list(kept.request("10.0.0.2:1").witnesses) == ["10.0.0.1:1", "10.0.0.1:2"]
        for one in keeping:
            one.cancel()
    await kept.close()
