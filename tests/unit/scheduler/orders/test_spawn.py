"""Lives of processes: an instance that is lost is started again under the same WPG."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from plexclient.wire.v1 import operations_pb2
from plexsvc.errors import ErrorCode, PlexError
from plexsvc.ids import WpgId
from plexsvc.scheduler.config import SchedulerConfig
from plexsvc.scheduler.orders import spawn
from plexsvc.scheduler.orders.ranks import Rank
from tests.rigs.scheduler_rig import Rig, start_rig, until

ANSWERED = operations_pb2.OPERATION_STATE_ANSWERED
W = WpgId("wpg-1-1")


async def test_an_instance_that_dies_is_started_again_and_given_to_the_manager(rig: Rig) -> None:
    await rig.job("a")
    await rig.deploy("a", "rollout", role="rollout")
    (agent,) = rig.agents
    await agent.die("wpg-1-1/0")
    await until(lambda: len(rig.rollout.replaced) == 1)
    await agent.die("wpg-1-1/0")
    await until(lambda: len(rig.rollout.replaced) == 2)
    assert agent.incarnations["wpg-1-1/0"] == 3
    assert rig.rollout.replaced == [("a/rollout", 0)] * 2
    assert len({spec.SerializeToString() for spec in agent.specs}) == 1
    assert (await rig.run("a", "generate", name="rollout")).state == ANSWERED
    await rig.end("a")
    assert rig.behaviour.stopped == ["wpg-1-1/0"]
    assert not agent.ranks


async def test_an_instance_that_its_manager_gives_up_is_replaced(rig: Rig) -> None:
    await rig.job("a")
    await rig.deploy("a", "rollout", role="rollout")
    (agent,) = rig.agents
    (rank,) = rig.driver.reach.ranks.of(W)
    rig.rollout.given_up(W, rank.address, "it sent nothing")
    await until(lambda: bool(rig.rollout.replaced))
    assert agent.incarnations["wpg-1-1/0"] == 2
    rig.rollout.given_up(W, rank.address, "it sent nothing")  # it is gone already
    (new,) = rig.driver.reach.ranks.of(W)
    assert new.address != rank.address
    assert (await rig.run("a", "generate", name="rollout")).state == ANSWERED
    assert len(rig.rollout.replaced) == 1


async def test_an_instance_that_never_comes_back_ends_its_deployment_with_the_cause(
    rig: Rig,
) -> None:
    await rig.job("a")
    await rig.deploy("a", "rollout", role="rollout")
    silent = PlexError(ErrorCode.UNAVAILABLE, "the new one does not answer")
    rig.rollout.replace_errors = [silent] * 3
    await rig.agents[0].die("wpg-1-1/0")
    await until(lambda: not rig.driver.cluster.wpgs)
    result = await rig.run("a", "generate", name="rollout")
    assert result.error.code == ErrorCode.DEPLOYMENT_FAILED
    assert "the new one does not answer; it was spawned again 3 times" in result.error.message


async def test_a_wpg_counts_as_stopped_only_when_its_ranks_are_or_its_node_is_lost(
    tmp_path: Path,
) -> None:
    config = SchedulerConfig(connect_retry_us=1000)
    async with start_rig(tmp_path, nodes=[{"train": 1}], config=config) as rig:
        await rig.job("a")
        await rig.deploy("a")
        rig.behaviour.stop_failures = 20
        await rig.end("a")
        assert rig.behaviour.stopped == ["wpg-1-1/0"]
        assert not rig.agents[0].ranks


async def test_a_rank_whose_agent_is_away_for_a_moment_is_spawned_when_it_is_back(
    tmp_path: Path,
) -> None:
    config = SchedulerConfig(connect_retry_us=1000)
    async with start_rig(tmp_path, nodes=[{"train": 2}], config=config) as rig:
        await rig.job("a")
        rig.behaviour.spawn_failures = 6
        await rig.deploy("a", tp=2)
        assert (await rig.run("a", "noop")).state == ANSWERED
        assert len(rig.agents[0].ranks) == 2


async def test_a_wpg_that_is_stopped_while_its_agent_is_away_is_spawned_no_more(
    tmp_path: Path,
) -> None:
    config = SchedulerConfig(connect_retry_us=1000)
    async with start_rig(tmp_path, nodes=[{"train": 1}], config=config) as rig:
        await rig.job("a")
        rig.behaviour.spawn_failures = 1 << 30

        async def deploy_in_vain() -> None:
            with pytest.raises(PlexError):
                await rig.deploy("a")

        async with asyncio.TaskGroup() as group:
            group.create_task(deploy_in_vain())
            await until(lambda: rig.behaviour.spawn_failures < (1 << 30) - 2)
            await rig.end("a")
            await until(lambda: not rig.driver.cluster.wpgs)
        left = rig.behaviour.spawn_failures
        await asyncio.sleep(0.05)
        assert rig.behaviour.spawn_failures == left


@pytest.fixture
def spawned(monkeypatch: pytest.MonkeyPatch) -> tuple[list[Rank], asyncio.Event]:
    """Return the ranks that were spawned, and what lets the scheduler go on with them."""
    ranks: list[Rank] = []
    may_go_on = asyncio.Event()
    real = spawn._spawn_rank

    async def held_back(*args: Any, **kwargs: Any) -> Rank:
        rank = await real(*args, **kwargs)
        ranks.append(rank)
        await may_go_on.wait()
        return rank

    monkeypatch.setattr(spawn, "_spawn_rank", held_back)
    return ranks, may_go_on


async def test_ranks_of_a_wpg_that_is_forgotten_while_it_spawns_are_closed(
    rig: Rig, spawned: tuple[list[Rank], asyncio.Event]
) -> None:
    ranks, may_go_on = spawned
    await rig.job("a")

    async def deploy_in_vain() -> None:
        with pytest.raises(PlexError, match="its job has ended"):
            await rig.deploy("a", tp=2)

    async with asyncio.TaskGroup() as group:
        group.create_task(deploy_in_vain())
        await until(lambda: len(ranks) == 2)
        await rig.end("a")
        await until(lambda: W not in rig.driver.reach.registry.by_wpg)
        may_go_on.set()
        await until(lambda: all(rank.is_closed for rank in ranks))
    assert rig.driver.reach.ranks.of(W) == ()
