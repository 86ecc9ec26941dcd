"""Leases: numbers that only grow, devices that are free only when nothing runs on them."""

from __future__ import annotations

from plexsvc.ids import JobId
from plexsvc.scheduler.api.views.story import explain
from plexsvc.scheduler.core.actions import ForgetWpg, MoveState, StartOperation, StopWpg
from tests.fakes.fake_world import FakeWorld, no_room, op_id


def test_a_victim_on_two_devices_hears_of_no_number_older_than_one_it_knows() -> None:
    world = FakeWorld()
    world.join(train=2)
    world.bring_up("big", devices=2)
    world.bring_up("a")
    world.bring_up("b")
    world.submit("v1", job="big", seq=1)
    world.drain()
    world.submit("a1", job="a", seq=1)
    (first,) = world.orders
    world.report(first, fault=no_room())
    world.submit("b1", job="b", seq=1)
    (second,) = world.orders
    world.report(second, fault=no_room())
    (a,) = (wpg for wpg in world.core.view.wpgs.values() if wpg.job_id == JobId("a"))
    world.fire(f"retry/{a.wpg_id}")
    (third,) = world.orders
    moves = [first, second, third]
    assert [isinstance(move, MoveState) for move in moves] == [True] * 3
    numbers = [move.lease_no for move in moves if isinstance(move, MoveState)]
    assert numbers == sorted(numbers), numbers
    world.drain()
    assert [len(world.answers[op]) for op in world.answers] == [1] * len(world.answers)


def test_a_device_is_free_only_when_the_ranks_that_ran_on_it_are_gone() -> None:
    world = FakeWorld(device_bytes=40)
    world.join()
    world.bring_up("a")
    world.bring_up("b")
    world.submit("a1", job="a", seq=1)
    (stuck,) = world.orders
    assert isinstance(stuck, StartOperation)
    world.submit("b1", job="b", seq=1)
    world.orders.clear()  # it never answers: the ranks compute on
    world.die(stuck.wpg_id)
    (stop,) = world.orders
    assert isinstance(stop, StopWpg), "whoever waits must not start beside what is being stopped"
    (device,) = world.core.view.devices.values()
    assert device.holder == stuck.wpg_id
    b1 = explain(world.core.view, op_id("b1"), now_us=world.now_us)
    assert b1 is not None
    assert any("processes are being stopped" in fact for fact in b1.facts), b1
    world.report(stop)
    assert [type(order) for order in world.orders] == [ForgetWpg, StartOperation]
