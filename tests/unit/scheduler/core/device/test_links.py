"""Switches that run at once on one host are known as such: none of them tells what one costs."""

from __future__ import annotations

from dataclasses import replace

import pytest

from plexsvc.ids import NodeId
from plexsvc.residency import Residency
from plexsvc.scheduler.core.actions import MoveState
from plexsvc.scheduler.core.cluster import Devices
from plexsvc.scheduler.core.device import contest, links
from plexsvc.scheduler.core.events import NodeJoined
from plexsvc.scheduler.core.planning.profile import PPM
from plexsvc.scheduler.core.state import Wpg
from plexsvc.scheduler.core.vocabulary import DeviceFacts, OperationKind, Place
from tests.fakes.fake_world import FakeWorld

HALF_US = 500_000
"""How long a move takes alone."""


@pytest.fixture
def world() -> FakeWorld:
    """Two devices of a host, on each of which the states of two jobs take turns."""
    world = FakeWorld()
    world.join(train=2)
    for job in "abcd":
        world.bring_up(job)
    return world


def devices_of(world: FakeWorld) -> Devices:
    return world.core.cluster.devices


def parked(world: FakeWorld) -> list[Wpg]:
    """Return who is not on its device, one on each, in the order of the devices."""
    wpgs = world.core.view.wpgs.values()
    found = [wpg for wpg in wpgs if wpg.residency is Residency.HOST]
    return sorted(found, key=lambda wpg: wpg.places)


class Steps:
    """Numbers the steps of each job."""

    def __init__(self, world: FakeWorld) -> None:
        self.world, self.seqs = world, dict[str, int]()

    def submit(self, wpg: Wpg, kind: OperationKind = OperationKind.STEP) -> None:
        job = str(wpg.job_id)
        self.seqs[job] = seq = self.seqs.get(job, 0) + 1
        self.world.submit(f"{job}{seq}", job=job, seq=seq, kind=kind)

    def switch(self, *wpgs: Wpg, half_us: int = HALF_US) -> None:
        """Bring the state of some in at once; each way takes `half_us`."""
        for wpg in wpgs:
            self.submit(wpg)
        for _ in range(2):
            self.world.now_us += half_us
            for order in [o for o in self.world.orders if isinstance(o, MoveState)]:
                self.world.report(order)
        self.world.drain()


def near(cost_us: int | None, wanted_us: int) -> bool:
    """Return whether a cost is as wanted but for the time that events take."""
    return cost_us is not None and abs(cost_us - wanted_us) < wanted_us // 50


def test_a_switch_alone_tells_what_it_costs(world: FakeWorld) -> None:
    wpg = parked(world)[0]
    Steps(world).switch(wpg)
    assert near(wpg.switch_cost_us, 2 * HALF_US)
    assert wpg.switch_mean_us == wpg.switch_cost_us
    assert devices_of(world).link_share_ppm == {}


def test_a_switch_beside_another_tells_what_both_take_of_the_link(world: FakeWorld) -> None:
    steps, (one, other) = Steps(world), parked(world)
    steps.switch(one)
    steps.switch(*parked(world)[:1])  # back again
    alone_us = one.switch_cost_us
    steps.switch(one, other, half_us=2 * HALF_US)
    assert one.switch_cost_us == alone_us, "it did not run alone"
    assert one.switch_mean_us is not None
    assert alone_us is not None
    assert one.switch_mean_us > alone_us
    assert other.switch_cost_us is None
    assert near(other.switch_mean_us, 4 * HALF_US)
    (share_ppm,) = devices_of(world).link_share_ppm.values()
    assert near(share_ppm, PPM), "twice as long for two: one takes all of the link"


def test_a_switch_is_expected_to_end_later_beside_what_moves_now(world: FakeWorld) -> None:
    steps, devices = Steps(world), devices_of(world)
    one, other = parked(world)
    steps.switch(one)
    steps.switch(parked(world)[0])
    alone_us = one.switch_cost_us
    assert alone_us is not None
    devices.link_share_ppm["n0"] = PPM
    assert links.stretched(devices, one, alone_us) == alone_us
    steps.submit(other)
    assert links.stretched(devices, one, alone_us) == 2 * alone_us
    assert contest.switch_us(devices, one) == alone_us, "the order goes by what it takes alone"
    devices.link_share_ppm["n0"] = PPM // 4
    assert links.stretched(devices, one, alone_us) == alone_us, "the link holds four of them"
    world.drain()
    assert links.stretched(devices, one, alone_us) == alone_us


def test_a_copy_of_state_uses_the_link_too(world: FakeWorld) -> None:
    steps, (one, other) = Steps(world), parked(world)
    steps.submit(other, OperationKind.PUBLISH)
    steps.submit(one)
    assert one.switch is not None
    assert one.switch.most_at_once == 2
    world.drain()
    assert one.switch_cost_us is None


def test_a_copy_that_begins_during_a_switch_counts(world: FakeWorld) -> None:
    steps, (one, other) = Steps(world), parked(world)
    steps.submit(one)
    assert one.switch is not None
    assert one.switch.most_at_once == 1
    steps.submit(other, OperationKind.PUBLISH)
    assert one.switch.most_at_once == 2


@pytest.mark.parametrize(("host", "at_once"), [("machine", 2), ("", 1)])
def test_nodes_share_a_link_if_they_say_so(host: str, at_once: int) -> None:
    world = FakeWorld()
    for name in ("n0", "n1"):
        facts = (DeviceFacts(index=0, kind="train", bytes_total=100),)
        joined = NodeJoined(node_id=NodeId(name), devices=facts, host_bytes=1000, host=host)
        world.tell(replace(joined, at_us=world.tick()))
    for job in "abcd":
        world.bring_up(job)
    steps, (one, other) = Steps(world), parked(world)
    assert one.places == (Place(node_id=NodeId("n0"), device=0),)
    steps.submit(other)
    steps.submit(one)
    assert one.switch is not None
    assert one.switch.most_at_once == at_once
