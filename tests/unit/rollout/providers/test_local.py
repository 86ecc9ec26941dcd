"""Spot devices of the cluster's own nodes."""

from __future__ import annotations

import asyncio

from plexsvc.rollout.core.pool import Fact, SlotCame, SlotGone, SlotNoticed
from plexsvc.rollout.providers.local import LocalProvider
from tests.fakes.fake_clock import FakeClock
from tests.fakes.fake_hosts import FakeHosts


async def test_devices_are_there_while_their_node_is_up_and_open() -> None:
    told: list[Fact] = []
    clock, hosts = FakeClock(), FakeHosts(["n:0", "m:0"])
    provider = LocalProvider(hosts, clock, price=1.5)

    async def until(count: int) -> None:
        while len(told) < count:
            await clock.passes(100_000)

    async with asyncio.TaskGroup() as group:
        running = group.create_task(provider.run(told.append))
        await until(2)
        hosts.places["n:0"] = False
        await until(3)
        hosts.places["n:0"] = True
        await until(4)
        del hosts.places["m:0"]
        await until(5)
        running.cancel()
    assert told == [
        SlotCame(slot_id="n:0", price=1.5),
        SlotCame(slot_id="m:0", price=1.5),
        SlotNoticed(slot_id="n:0"),
        SlotCame(slot_id="n:0", price=1.5),
        SlotGone(slot_id="m:0"),
    ]
