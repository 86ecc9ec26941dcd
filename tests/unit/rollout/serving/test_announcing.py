"""Announcements of a guest: renewed while it is lent, withdrawn at once when it is not."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from plexclient.wire.v1 import service_pb2
from plexsvc.clock import SystemClock
from plexsvc.errors import ErrorCode, PlexError
from plexsvc.rollout.core.lending import Objectives
from plexsvc.rollout.serving import announcing
from plexsvc.rollout.serving.announcing import LEASE_US, RENEW_US, Announcer
from plexsvc.rollout.serving.config import ServingConfig
from tests.fakes.fake_clock import FakeClock


class Told:
    """A cluster that hears announcements, and refuses them while `refuses`."""

    def __init__(self) -> None:
        self.leases: list[int] = []
        self.refuses, self.is_lent = False, True

    def __call__(self, request: service_pb2.LendInstanceRequest) -> object:
        assert (request.name, request.address, request.model) == ("chat", "host:1", "/m/a")
        self.leases.append(request.lease_us)
        if self.refuses:
            raise PlexError(ErrorCode.UNAVAILABLE, "no answer")
        return None


@asynccontextmanager
async def announced(told: Told, clock: FakeClock) -> AsyncIterator[None]:
    config = ServingConfig(
        model=Path("/m/chat"),
        name="chat",
        objectives=Objectives(ttft_us=1, tpot_us=1),
        socket=Path("/none"),
        guests=(Path("/m/a"),),
    )
    announcer = Announcer(config, 0, "host:1", told, is_lent=lambda: told.is_lent)
    async with asyncio.TaskGroup() as group:
        running = group.create_task(announcer.run(clock))
        yield
        running.cancel()


async def heard(told: Told, clock: FakeClock, *leases: int, within_us: int) -> None:
    """Let time pass until the cluster heard these leases; then it has heard no other."""
    steps = within_us // announcing.LOOK_US + 1
    async with asyncio.timeout(120):
        while len(told.leases) < len(leases):
            if steps > 0:
                await clock.passes(announcing.LOOK_US)
                steps -= 1
            await SystemClock().sleep(1000)  # the call is made by a thread
    assert told.leases == list(leases)


async def test_a_lent_guest_is_announced_and_renewed_and_withdrawn_with_its_owner() -> None:
    told, clock = Told(), FakeClock()
    async with announced(told, clock):
        await heard(told, clock, LEASE_US, within_us=0)
        await heard(told, clock, LEASE_US, LEASE_US, within_us=RENEW_US)
        told.is_lent = False
        seen = [LEASE_US, LEASE_US, 0]
        await heard(told, clock, *seen, within_us=announcing.LOOK_US)
        told.is_lent = True
        await heard(told, clock, *seen, LEASE_US, within_us=announcing.LOOK_US)
    assert told.leases == [*seen, LEASE_US, 0], "an engine that ends is withdrawn"


async def test_a_cluster_that_is_not_there_is_told_again() -> None:
    told, clock = Told(), FakeClock()
    told.refuses = True
    async with announced(told, clock):
        await heard(told, clock, LEASE_US, within_us=0)
        told.refuses = False
        await heard(told, clock, LEASE_US, LEASE_US, within_us=RENEW_US)
    assert told.leases == [LEASE_US, LEASE_US, 0]
