"""Switches: instances of several deployments on one rollout device sleep and wake in turn."""

from __future__ import annotations

import heapq
from collections import Counter
from dataclasses import replace

import pytest

from plexsvc.errors import ErrorCode
from plexsvc.ids import JobId, OperationId, WpgId
from plexsvc.residency import Residency
from plexsvc.scheduler.api.views.story import explain_job
from plexsvc.scheduler.core.actions import MoveState, SpawnInstance, SpawnWpg, StartOperation
from plexsvc.scheduler.core.events import InstanceLeft
from plexsvc.scheduler.core.vocabulary import (
    DeploymentState,
    Fault,
    OperationKind,
    OperationState,
    WpgState,
)
from tests.fakes.fake_world import FakeWorld, Order, op_id, wanted
from tests.rigs.core_invariants import check_board

GENERATE, PULL = OperationKind.GENERATE, OperationKind.PULL


@pytest.fixture
def two() -> FakeWorld:
    """One rollout device, which engines of jobs `a` and `b` fill; that of `b` is awake."""
    world = FakeWorld(device_bytes=100)
    world.join(rollout=1)
    for job in "ab":
        world.bring_up(job, "rollout", rollout=True, shared=True)
    return world


def wpg_of(world: FakeWorld, job: str) -> WpgId:
    return next(w.wpg_id for w in world.core.view.wpgs.values() if w.job_id == job)


def residencies(world: FakeWorld) -> str:
    found = {wpg.job_id: wpg.residency for wpg in world.core.view.wpgs.values()}
    return " ".join(found[job] for job in sorted(found))


def generate(world: FakeWorld, name: str, *, seq: int, kind: OperationKind = GENERATE) -> None:
    world.submit(name, job=name[0], to="rollout", seq=seq, kind=kind)


def state(world: FakeWorld, name: str) -> OperationState:
    return world.core.view.operations[op_id(name)].state


def test_engines_of_known_size_switch_only_where_they_do_not_fit_together() -> None:
    world = FakeWorld(device_bytes=100)
    world.join(rollout=1)
    for job, nbytes in (("a", 40), ("b", 60), ("c", 40)):
        world.bring_up(job, "rollout", rollout=True, shared=True, instance_bytes=nbytes)
    assert residencies(world) == "host device device", "the one that was used longest ago sleeps"
    generate(world, "b1", seq=1)
    world.drain()
    generate(world, "a1", seq=1)
    world.drain()
    assert residencies(world) == "device device host"
    device = world.core.view.wpgs[wpg_of(world, "a")].devices[0]
    switches = device.switches
    for seq in (2, 3):
        for job in "ab":
            generate(world, f"{job}{seq}", seq=seq)
            world.drain()
    assert device.switches == switches > 0
    assert residencies(world) == "device device host"


def test_an_instance_joins_where_nobody_need_sleep_for_it() -> None:
    world = FakeWorld(device_bytes=100)
    world.join(rollout=2)
    for job, nbytes in (("a", 90), ("b", 50), ("c", 50)):
        world.bring_up(job, "rollout", rollout=True, shared=True, instance_bytes=nbytes)
    places = {wpg.job_id: wpg.places for wpg in world.core.view.wpgs.values()}
    assert places[JobId("c")] == places[JobId("b")]
    assert residencies(world) == "device device device"


def test_an_instance_that_no_device_has_room_for_is_refused() -> None:
    world = FakeWorld(device_bytes=100)
    world.join(rollout=2)
    world.job("a")
    wide = replace(wanted("a", "rollout", devices=2, rollout=True), is_shared=True)
    assert world.core.view.never([replace(wide, instance_bytes=100)]) is None
    fault = world.core.view.never([replace(wide, instance_bytes=101)])
    assert fault is not None
    assert fault.code is ErrorCode.NO_PLACEMENT
    assert "needs 101 bytes on each of 2 rollout device(s)" in fault.message
    assert "the largest has 100: ask for a smaller kv_cache_bytes" in fault.message


def test_an_engine_starts_only_when_the_other_sleeps() -> None:
    world = FakeWorld(device_bytes=100)
    world.join(rollout=1)
    world.bring_up("a", "rollout", rollout=True, shared=True)
    generate(world, "a1", seq=1)
    world.job("b")
    world.deploy("b", "rollout", rollout=True, shared=True)
    assert [type(order) for order in world.orders] == [StartOperation], "while one generates"
    told = explain_job(world.core.view, JobId("b"), now_us=world.now_us)
    assert told is not None
    assert "waits for its device, held by wpg-1-1 of job a" in told.text
    world.report_next(StartOperation)
    assert [type(order) for order in world.orders] == [MoveState], "it goes to sleep first"
    world.report_next(MoveState)
    assert [type(order) for order in world.orders] == [SpawnWpg]
    told = explain_job(world.core.view, JobId("b"), now_us=world.now_us)
    assert told is not None
    assert "waits for its processes to come up" in told.text
    world.drain()
    assert residencies(world) == "host device"


def test_instances_of_two_jobs_take_turns_on_one_device(two: FakeWorld) -> None:
    assert residencies(two) == "host device"
    generate(two, "b1", seq=1)
    generate(two, "a1", seq=1, kind=PULL)
    generate(two, "a2", seq=2)
    assert state(two, "a1") is OperationState.STAGED, "what generates is not cut"
    two.report_next(StartOperation)
    assert residencies(two) == "host offloading"
    two.report_next(MoveState)
    assert residencies(two) == "loading host"
    two.drain()
    assert (state(two, "a2"), residencies(two)) == (OperationState.ANSWERED, "device host")


def test_those_that_do_not_say_so_share_nothing(two: FakeWorld) -> None:
    two.job("c")
    two.deploy("c", "rollout", rollout=True)
    assert [str(d) for d in two.core.view.unplaced] == ["c/rollout"]


def test_one_that_sleeps_and_dies_is_spawned_when_it_has_its_device(two: FakeWorld) -> None:
    generate(two, "b1", seq=1)
    two.die(wpg_of(two, "a"))
    assert [type(order) for order in two.orders] == [StartOperation]
    generate(two, "a1", seq=1)
    two.report_next(StartOperation)
    two.report_next(MoveState)
    two.report_next(MoveState)
    assert [type(order) for order in two.orders] == [StartOperation, SpawnInstance]
    deployment = two.core.view.deployments
    assert all(one.state is DeploymentState.READY for one in deployment.values())


def test_nobody_sleeps_while_one_of_its_instances_starts(two: FakeWorld) -> None:
    two.die(wpg_of(two, "b"))
    generate(two, "a1", seq=1)
    assert [type(order) for order in two.orders] == [SpawnInstance], "it takes memory already"
    two.report_next(SpawnInstance)
    assert residencies(two) == "host offloading"
    two.drain()
    assert state(two, "a1") is OperationState.ANSWERED


def test_a_start_that_fails_leaves_the_device_to_others() -> None:
    world = FakeWorld(device_bytes=100)
    world.join(rollout=1)
    world.bring_up("a", "rollout", rollout=True, shared=True)
    world.job("b")
    world.deploy("b", "rollout", rollout=True, shared=True)
    world.report_next(MoveState)
    generate(world, "a1", seq=1)
    world.die(wpg_of(world, "b"))
    assert state(world, "a1") is OperationState.STAGED, "what started is not gone yet"
    world.orders = [order for order in world.orders if not isinstance(order, SpawnWpg)]
    world.drain()
    assert state(world, "a1") is OperationState.ANSWERED
    assert not [w for w in world.core.view.wpgs.values() if w.state is not WpgState.READY]


def test_one_that_cannot_sleep_is_given_up(two: FakeWorld) -> None:
    generate(two, "a1", seq=1)
    sleeps = two.orders[0]
    assert isinstance(sleeps, MoveState)
    assert sleeps.to is Residency.HOST
    two.report(sleeps, fault=Fault(code=ErrorCode.BAD_REQUEST, message="not on a GPU"))
    two.drain()
    assert state(two, "a1") is OperationState.ANSWERED
    ended = two.core.view.deployments
    assert [str(d) for d, one in ended.items() if one.fault] == ["b/rollout"]


def reserved(world: FakeWorld, job: str, *, devices: int = 1) -> None:
    world.deploy(job, "rollout", rollout=True, where_it_trains=True, devices=devices)


def test_instances_where_their_job_trains_take_turns_with_it() -> None:
    world = FakeWorld()
    world.join()
    world.bring_up("a")
    reserved(world, "a")
    assert [type(order) for order in world.orders] == [MoveState], "training leaves first"
    world.drain()
    generate(world, "a1", seq=1)
    world.submit("a2", job="a", seq=1)
    assert state(world, "a2") is OperationState.STAGED
    world.drain()
    assert (state(world, "a1"), state(world, "a2")) == (OperationState.ANSWERED,) * 2
    world.end("a")
    world.drain()
    assert not world.core.view.wpgs
    for planner in world.core.view.planners.values():
        check_board(planner.board)


def test_instances_wait_for_as_many_devices_of_their_jobs_training() -> None:
    world = FakeWorld()
    world.join(train=2)
    world.job("a")
    reserved(world, "a", devices=2)
    assert not world.orders
    world.bring_up("a")
    assert [str(d) for d in world.core.view.unplaced] == ["a/rollout"], "it trains on one alone"
    world.bring_up("a", "critic", devices=2)
    assert not world.core.view.unplaced


PHASE_US, MOVE_US = 1_000_000, 20_000
ROUND = {
    OperationKind.FORWARD_BACKWARD: PHASE_US,
    OperationKind.STEP: 10_000,
    OperationKind.PUBLISH: 10_000,
    PULL: 20_000,
    GENERATE: PHASE_US,
}


def round_trips(world: FakeWorld, *, rounds: int) -> int:
    """Play jobs `a` and `b`, each of which submits what comes next when the last has ended.

    Returns how long both took together, in microseconds of the virtual clock.
    """
    left = {job: iter(list(ROUND) * rounds) for job in "ab"}
    seqs: Counter[tuple[str, bool]] = Counter()
    due: list[tuple[int, int, Order]] = []
    ordered: list[Order] = []
    kinds: dict[OperationId, tuple[str, OperationKind]] = {}
    names: list[str] = []

    def submit(job: str) -> None:
        kind = next(left[job], None)
        if kind is not None:
            is_rollout = kind in {PULL, GENERATE}
            seqs[job, is_rollout] += 1
            name = f"{job}{len(kinds)}"
            kinds[op_id(name)] = job, kind
            names.append(name)
            to = "rollout" if is_rollout else "actor"
            world.submit(name, job=job, to=to, seq=seqs[job, is_rollout], kind=kind)

    began_us = world.now_us
    for job in left:
        submit(job)
    while world.orders:
        for order in world.orders:
            if not any(order is known for known in ordered):
                ordered.append(order)
                is_move = not isinstance(order, StartOperation)
                takes_us = MOVE_US if is_move else ROUND[kinds[order.operation_id][1]]
                heapq.heappush(due, (world.now_us + takes_us, len(ordered), order))
        timer = min(world.timers, key=lambda key: world.timers[key], default="")
        if timer and world.timers[timer] < due[0][0]:
            world.fire(timer)
            continue
        at_us, _, order = heapq.heappop(due)
        world.now_us = max(world.now_us, at_us)
        world.report(order)
        if isinstance(order, StartOperation):
            submit(kinds[order.operation_id][0])
    assert len(kinds) == 2 * rounds * len(ROUND)
    assert {state(world, name) for name in names} == {OperationState.ANSWERED}
    return world.now_us - began_us


def test_two_jobs_with_equal_phases_keep_both_devices_busy() -> None:
    world = FakeWorld(device_bytes=100)
    world.join(rollout=1)
    for job in "ab":
        world.bring_up(job)
        world.bring_up(job, "rollout", rollout=True, shared=True)
    rounds = 12
    back_to_back_us = 2 * rounds * sum(ROUND.values())
    assert back_to_back_us > 1.7 * round_trips(world, rounds=rounds)


@pytest.fixture
def long_tail() -> FakeWorld:
    """Engines of `a` on two devices, of `b` and `c` asleep on one of these each; `a` generates."""
    world = FakeWorld(device_bytes=100)
    world.join(rollout=2)
    world.bring_up("a", "rollout", rollout=True, shared=True, devices=2)
    for job in "bc":
        world.bring_up(job, "rollout", rollout=True, shared=True)
    generate(world, "a1", seq=1)
    world.report_next(MoveState)
    world.report_next(MoveState)
    world.report_next(MoveState)
    assert residencies(world) == "device host host"
    generate(world, "b1", seq=1)
    generate(world, "c1", seq=1)
    assert [type(order) for order in world.orders] == [StartOperation]
    return world


def leave(world: FakeWorld, job: str, rank: int, name: str) -> None:
    world.tell(
        InstanceLeft(
            at_us=world.tick(),
            wpg_id=wpg_of(world, job),
            rank=rank,
            incarnation=1,
            operation_id=op_id(name),
        )
    )


def test_another_wakes_on_a_device_that_is_left_before_the_generate_ends(
    long_tail: FakeWorld,
) -> None:
    leave(long_tail, "a", 1, "a1")
    left = long_tail.core.view.wpgs[wpg_of(long_tail, "a")].places[1]
    woken = next(w for w in long_tail.core.view.wpgs.values() if w.move_id and w.places == (left,))
    assert residencies(long_tail).split().count("loading") == 1
    long_tail.report_next(MoveState)
    assert (state(long_tail, "a1"), woken.residency) == (OperationState.RUNNING, "device")
    assert len(long_tail.orders) == 2, "both generate"
    leave(long_tail, "a", 1, "a1")  # told again with the answer
    long_tail.report_next(StartOperation)
    assert residencies(long_tail).split()[0] == "offloading", "it sleeps whole"
    generate(long_tail, "a2", seq=2)
    long_tail.drain()
    assert [state(long_tail, f"{job}1") for job in "abc"] == [OperationState.ANSWERED] * 3
    assert state(long_tail, "a2") is OperationState.ANSWERED


def test_a_job_pays_for_a_device_until_its_instance_has_left_it(long_tail: FakeWorld) -> None:
    view = long_tail.core.view
    (device,) = {d.place: d for d in view.wpgs[wpg_of(long_tail, "a")].devices[1:]}.values()

    def used_us() -> int:
        return sum(one.device_us for one in view.used(now_us=long_tail.now_us)[JobId("a")].values())

    before_us = used_us()
    long_tail.tick(10_000)
    assert used_us() - before_us == 20_000, "it has two"
    leave(long_tail, "a", 1, "a1")
    at_leave_us, busy_us = used_us(), device.busy_us
    long_tail.tick(10_000)
    assert used_us() - at_leave_us == 10_000, "one of them is another's"
    assert (device.busy_us, view.jobs[JobId("a")].device_us) == (busy_us, at_leave_us)


def test_an_instance_that_dies_after_it_left_is_spawned_when_its_device_is_its_own(
    long_tail: FakeWorld,
) -> None:
    leave(long_tail, "a", 1, "a1")
    long_tail.die(wpg_of(long_tail, "a"), rank=1)
    assert not any(isinstance(order, SpawnInstance) for order in long_tail.orders)
    generate(long_tail, "a2", seq=2)
    long_tail.drain()
    assert any(isinstance(action, SpawnInstance) for action in long_tail.log)
    assert state(long_tail, "a2") is OperationState.ANSWERED


def test_what_is_told_of_a_generate_that_ended_changes_nothing(long_tail: FakeWorld) -> None:
    long_tail.report_next(StartOperation)
    long_tail.drain()
    assert state(long_tail, "a1") is OperationState.ANSWERED
    generate(long_tail, "a2", seq=2)
    before = residencies(long_tail)
    leave(long_tail, "a", 1, "a1")
    assert residencies(long_tail) == before
    long_tail.drain()


def test_nobody_leaves_the_last_device_nor_those_that_it_does_not_share() -> None:
    world = FakeWorld(device_bytes=100)
    world.join(rollout=2)
    world.bring_up("a", "rollout", rollout=True, devices=2)
    generate(world, "a1", seq=1)
    leave(world, "a", 1, "a1")
    assert not world.core.view.wpgs[wpg_of(world, "a")].left


def test_one_that_cannot_sleep_for_want_of_room_tries_again_after_a_pause(
    long_tail: FakeWorld,
) -> None:
    long_tail.end("b")
    leave(long_tail, "a", 1, "a1")
    long_tail.report_next(MoveState)
    long_tail.report_next(StartOperation)
    full = Fault(code=ErrorCode.NO_ROOM, message="the host is full")
    order = next(o for o in long_tail.orders if isinstance(o, MoveState))
    assert order.wpg_id == wpg_of(long_tail, "a")
    assert not [a for a in long_tail.report(order, fault=full) if isinstance(a, MoveState)]
    (again,) = [a for a in long_tail.fire(f"retry/{order.wpg_id}") if isinstance(a, MoveState)]
    assert again.wpg_id == order.wpg_id
