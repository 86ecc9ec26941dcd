"""The node's lease ends exactly at its deadline, and only the newest scheduler may extend it."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from plexsvc.errors import ErrorCode, PlexError
from plexsvc.node.lease import LOOK_US, LeaseState, NodeLease


class FakeClock:
    """A clock that tests move."""

    def __init__(self) -> None:
        self.now_us = 1000
        self._moved = asyncio.Event()

    def wall_us(self) -> int:
        return self.now_us

    def monotonic_us(self) -> int:
        return self.now_us

    async def sleep(self, duration_us: int) -> None:
        until = self.now_us + duration_us
        while self.now_us < until:
            moved = self._moved
            await moved.wait()

    async def advance(self, duration_us: int) -> None:
        self.now_us += duration_us
        self._moved.set()
        self._moved = asyncio.Event()
        for _ in range(5):
            await asyncio.sleep(0)


class Drill:
    """A lease, its clock, and how often it expired."""

    def __init__(self, tasks: asyncio.TaskGroup) -> None:
        self.clock = FakeClock()
        self.kills = 0
        self.is_cut_off = False
        self.lease = NodeLease(
            self.clock, tasks=tasks, on_expired=self._kill, reaches_any=self._reaches_any
        )

    async def _reaches_any(self, witnesses: Sequence[str]) -> bool:
        assert witnesses == ["other:1"]
        return not self.is_cut_off

    async def _kill(self) -> None:
        self.kills += 1

    def renew(self, *, epoch: int = 1, ttl_us: int = 100) -> None:
        self.lease.renew(epoch=epoch, ttl_us=ttl_us, arrived_us=self.clock.now_us)


async def test_nothing_expires_before_the_first_renewal() -> None:
    async with asyncio.TaskGroup() as tasks:
        drill = Drill(tasks)
        await drill.clock.advance(10**9)
        assert drill.lease.state is LeaseState.NONE
        drill.lease.check_alive()
        assert drill.kills == 0


async def test_it_expires_once_at_arrival_plus_ttl() -> None:
    async with asyncio.TaskGroup() as tasks:
        drill = Drill(tasks)
        drill.renew(ttl_us=100)
        await drill.clock.advance(99)
        assert drill.kills == 0
        await drill.clock.advance(1)
        assert drill.kills == 1
        await drill.clock.advance(1000)
        assert drill.kills == 1


async def test_a_renewal_moves_the_deadline_later_or_earlier() -> None:
    async with asyncio.TaskGroup() as tasks:
        drill = Drill(tasks)
        drill.renew(ttl_us=100)
        await drill.clock.advance(60)
        drill.renew(ttl_us=100)
        await drill.clock.advance(60)
        assert drill.kills == 0
        drill.renew(ttl_us=10)
        await drill.clock.advance(10)
        assert drill.kills == 1


async def test_an_expired_lease_refuses_processes_until_renewed() -> None:
    async with asyncio.TaskGroup() as tasks:
        drill = Drill(tasks)
        drill.renew(ttl_us=100)
        await drill.clock.advance(100)
        with pytest.raises(PlexError) as caught:
            drill.lease.check_alive()
        assert caught.value.code is ErrorCode.UNAVAILABLE
        drill.renew(ttl_us=100)
        drill.lease.check_alive()
        await drill.clock.advance(100)
        assert drill.kills == 2


async def test_a_host_that_is_cut_off_lets_its_ranks_go_when_it_may_be_lost() -> None:
    async with asyncio.TaskGroup() as tasks:
        drill = Drill(tasks)
        renewal = {"epoch": 1, "ttl_us": 5 * LOOK_US, "look_us": LOOK_US, "witnesses": ["other:1"]}
        drill.lease.renew(**renewal, arrived_us=drill.clock.now_us)  # type: ignore[arg-type]
        await drill.clock.advance(LOOK_US)
        await drill.clock.advance(LOOK_US)
        assert drill.kills == 0  # others answer: the service is stopped, and may come back
        drill.is_cut_off = True
        await drill.clock.advance(LOOK_US)
        assert drill.kills == 1
        drill.is_cut_off = False
        drill.lease.renew(**renewal, arrived_us=drill.clock.now_us)  # type: ignore[arg-type]
        await drill.clock.advance(4 * LOOK_US)
        assert drill.kills == 1
        await drill.clock.advance(LOOK_US)
        assert drill.kills == 2


async def test_an_older_scheduler_cannot_extend_it() -> None:
    async with asyncio.TaskGroup() as tasks:
        drill = Drill(tasks)
        drill.renew(epoch=5, ttl_us=100)
        with pytest.raises(PlexError) as caught:
            drill.renew(epoch=4, ttl_us=10**6)
        assert caught.value.code is ErrorCode.STALE_FENCE
        assert caught.value.facts["seen"] == "5"
        await drill.clock.advance(100)
        assert drill.kills == 1


async def test_an_agent_that_nobody_renews_is_orphaned_counted_from_the_last_renewal() -> None:
    async with asyncio.TaskGroup() as tasks:
        drill = Drill(tasks)
        alone = tasks.create_task(drill.lease.orphaned(100))
        await drill.clock.advance(60)
        drill.renew()
        await drill.clock.advance(99)
        assert not alone.done()
        await drill.clock.advance(1)
        assert alone.done()
