"""What operations teach: the cycle a job would have alone, prefetches by it, bursts kept by it."""

from __future__ import annotations

import pytest

from plexsvc.ids import DeploymentId, JobId, NodeId, ResidentId, TenantId, WpgId
from plexsvc.residency import Residency
from plexsvc.scheduler.core.actions import (
    KeepProfile,
    MoveState,
    SetTimer,
    StartOperation,
)
from plexsvc.scheduler.core.device import contest
from plexsvc.scheduler.core.device.learning import PRIOR_SERVICE_US
from plexsvc.scheduler.core.events import NodeLost, ProfilesLoaded, TimerFired
from plexsvc.scheduler.core.limits import Limits
from plexsvc.scheduler.core.place import demands
from plexsvc.scheduler.core.planning.planner import Planner
from plexsvc.scheduler.core.planning.profile import SECOND_US, Mode, Profile, Segment
from plexsvc.scheduler.core.planning.profiler import KeptProfile, ProfileKey
from plexsvc.scheduler.core.vocabulary import JobState, OperationKind
from tests.fakes.fake_world import FakeWorld, op_id

A, B = WpgId("wpg-1-1"), WpgId("wpg-1-2")
GAP_US, RUN_US = 50_000, 10_000


def start(world: FakeWorld, name: str) -> StartOperation:
    """Report moves until an operation is under way; return its order."""
    while True:
        for order in world.orders:
            if isinstance(order, StartOperation) and order.operation_id == op_id(name):
                return order
        world.report_next(MoveState)


def train(
    world: FakeWorld,
    job: str,
    *,
    cycles: int,
    first_seq: int = 1,
    run_us: int = RUN_US,
    gap_us: int = GAP_US,
) -> int:
    """Run cycles of forward_backward, step, a long gap; return the next number."""
    seq = first_seq
    for _ in range(cycles):
        for kind in (OperationKind.FORWARD_BACKWARD, OperationKind.STEP):
            world.submit(f"{job}{seq}", job=job, seq=seq, kind=kind)
            order = start(world, f"{job}{seq}")
            world.tick(run_us)
            world.report(order)
            seq += 1
        world.tick(gap_us)
    return seq


def profile_of(world: FakeWorld, job: str) -> Profile:
    profile = world.core.view.deployments[DeploymentId(f"{job}/actor")].pattern.cycles.profile
    assert profile is not None
    return profile


def resident(world: FakeWorld, job: str) -> tuple[Planner, ResidentId]:
    cluster = world.core.cluster
    deployment = cluster.deployments[DeploymentId(f"{job}/actor")]
    return demands.planner_of(cluster.placement, deployment)


def planned_profile(world: FakeWorld, job: str) -> Profile:
    planner, key = resident(world, job)
    return planner.group_of(key).residents[key].demand.profile


def test_a_cycle_is_learned_and_kept_for_the_next_run() -> None:
    world = FakeWorld()
    world.join(train=1)
    world.bring_up("a")
    train(world, "a", cycles=3)
    profile = profile_of(world, "a")
    assert [s.phase for s in profile.segments] == ["forward_backward", "step"]
    assert any(isinstance(action, KeepProfile) for action in world.log)
    world.end("a")
    world.drain()
    last = [action.kept for action in world.log if isinstance(action, KeepProfile)][-1]
    assert last.device_bytes == world.device_bytes
    world.bring_up("a")
    assert profile_of(world, "a") == profile


def test_a_completed_run_says_how_long_the_next_of_its_name_will_take() -> None:
    world = FakeWorld()
    world.join(train=1)

    def lasted(job: str, outcome: JobState) -> int:
        world.bring_up(job)
        began_us = world.now_us
        train(world, job, cycles=4)
        ran_us = world.now_us - began_us
        world.end(job, outcome)
        world.drain()
        last = [action.kept for action in world.log if isinstance(action, KeepProfile)][-1]
        assert last.run_us == 0 or abs(last.run_us - ran_us) < 20_000
        return last.run_us

    assert lasted("a", JobState.FAILED) == 0
    once_us = lasted("a", JobState.COMPLETED)
    assert once_us > 0
    assert lasted("a", JobState.CANCELLED) == once_us


def test_a_cold_job_that_says_its_steps_lasts_as_many_measured_cycles() -> None:
    world = FakeWorld()
    world.join(train=1)
    world.job("a", expected_steps=50)
    world.bring_up("a")
    train(world, "a", cycles=3)
    planner = world.core.view.planners["train"]
    resident = ResidentId("a/actor")
    planned = planner.group_of(resident).residents[resident].demand
    assert not planned.is_cold
    assert planned.expected_us == 50 * planned.profile.period_us


def test_waiting_is_no_part_of_the_cycle_a_job_has_alone() -> None:
    world = FakeWorld()
    world.join(train=1)
    world.bring_up("a")
    world.bring_up("b")
    seq = train(world, "a", cycles=3)
    alone = profile_of(world, "a")
    for cycle in range(6):
        world.submit(f"b{cycle}", job="b", seq=cycle + 1)
        foreign = start(world, f"b{cycle}")
        world.submit(f"a{seq}", job="a", seq=seq, kind=OperationKind.FORWARD_BACKWARD)
        world.tick(30_000)
        world.report(foreign)
        own = start(world, f"a{seq}")
        world.tick(RUN_US)
        world.report(own)
        world.submit(f"a{seq + 1}", job="a", seq=seq + 1, kind=OperationKind.STEP)
        own = start(world, f"a{seq + 1}")
        world.tick(RUN_US)
        world.report(own)
        seq += 2
        world.tick(GAP_US)
    shared = profile_of(world, "a")
    assert abs(shared.period_us - alone.period_us) * 5 < alone.period_us


def test_the_state_of_the_job_expected_next_is_brought_in_while_the_device_is_idle() -> None:
    world = FakeWorld()
    world.join(train=1)
    world.bring_up("a")
    world.bring_up("b")
    train(world, "a", cycles=3)
    world.submit("b1", job="b", seq=1)
    before = len(world.log)
    world.drain()
    ordered = [a for a in world.log[before:] if isinstance(a, MoveState)]
    assert [(m.wpg_id, m.to) for m in ordered[-2:]] == [
        (B, Residency.HOST),
        (A, Residency.DEVICE),
    ]
    assert world.core.view.prefetches.ordered == 1
    actions = world.submit("a7", job="a", seq=7, kind=OperationKind.FORWARD_BACKWARD)
    assert [a for a in actions if isinstance(a, StartOperation)]
    assert world.core.view.prefetches.hits == 1


def test_a_device_is_kept_for_a_burst_that_goes_on_in_a_moment() -> None:
    world = FakeWorld(limits=Limits(prior_switch_us_per_gib=(20_000 << 30) // 60))
    world.join(train=1)
    world.bring_up("b")
    world.bring_up("a")
    seq = train(world, "a", cycles=3)
    world.submit("first", job="a", seq=seq, kind=OperationKind.FORWARD_BACKWARD)
    world.submit("foreign", job="b", seq=1)
    world.tick(RUN_US)
    actions = world.report_next(StartOperation)
    timers = [a for a in actions if isinstance(a, SetTimer) and a.key.startswith("linger/")]
    assert timers
    assert not any(isinstance(a, MoveState) for a in actions)
    then = world.submit("second", job="a", seq=seq + 1, kind=OperationKind.STEP)
    assert [a.operation_id for a in then if isinstance(a, StartOperation)] == [op_id("second")]
    world.tick(RUN_US)
    after = world.report_next(StartOperation)
    assert any(isinstance(a, MoveState) for a in after)


def test_a_burst_that_does_not_go_on_gives_its_device_away() -> None:
    world = FakeWorld(limits=Limits(prior_switch_us_per_gib=(20_000 << 30) // 60))
    world.join(train=1)
    world.bring_up("b")
    world.bring_up("a")
    seq = train(world, "a", cycles=3)
    world.submit("first", job="a", seq=seq, kind=OperationKind.FORWARD_BACKWARD)
    world.submit("foreign", job="b", seq=1)
    world.tick(RUN_US)
    actions = world.report_next(StartOperation)
    timer = next(a for a in actions if isinstance(a, SetTimer) and a.key.startswith("linger/"))
    world.now_us = timer.at_us
    then = world.tell(TimerFired(at_us=world.tick(), key=timer.key))
    assert any(isinstance(a, MoveState) for a in then)


@pytest.mark.parametrize(("waited", "is_kept"), [(5, True), (7, True), (9, False)])
def test_a_burst_is_awaited_as_long_as_it_would_not_be_torn(waited: int, *, is_kept: bool) -> None:
    world = FakeWorld(limits=Limits(prior_switch_us_per_gib=(20_000 << 30) // 60))
    world.join(train=1)
    world.bring_up("b")
    world.bring_up("a")
    seq = train(world, "a", cycles=3)
    world.submit("first", job="a", seq=seq, kind=OperationKind.FORWARD_BACKWARD)
    world.submit("foreign", job="b", seq=1)
    b = world.core.cluster.wpgs[B]
    world.tick(waited * (PRIOR_SERVICE_US + contest.switch_us(world.core.cluster.devices, b)))
    actions = world.report_next(StartOperation)
    lingers = [a for a in actions if isinstance(a, SetTimer) and a.key.startswith("linger/")]
    assert bool(lingers) is is_kept
    assert any(isinstance(a, MoveState) for a in actions) is not is_kept


def test_waits_are_charged_to_who_held_the_device() -> None:
    world = FakeWorld()
    world.join(train=1)
    world.bring_up("a")
    world.bring_up("b")
    world.submit("b1", job="b", seq=1)
    world.submit("a1", job="a", seq=1)
    world.tick(RUN_US)
    world.drain()
    waits = world.core.view.waits
    assert waits[JobId("a"), JobId("b")] >= RUN_US
    assert waits[JobId("a"), JobId("a")] > 0
    assert (JobId("b"), JobId("a")) not in waits


def test_a_job_whose_rollouts_grow_is_planned_anew_and_is_not_late() -> None:
    world = FakeWorld()
    world.join(train=1)
    world.bring_up("a")
    seq, gap_us = train(world, "a", cycles=3), GAP_US
    for _ in range(40):
        seq = train(world, "a", cycles=1, first_seq=seq)
        gap_us = gap_us * 105 // 100
        world.tick(gap_us - GAP_US)
    planner, key = resident(world, "a")
    assert not planner.group_of(key).late
    planned = planned_profile(world, "a")
    assert planned.period_us > 4 * GAP_US
    assert abs(planned.period_us - profile_of(world, "a").period_us) * 7 < planned.period_us


@pytest.mark.parametrize(("gap_us", "is_felt"), [(10_000_000, False), (GAP_US, True)])
def test_a_device_time_that_triples_is_planned_anew_where_anybody_feels_it(
    gap_us: int, *, is_felt: bool
) -> None:
    world = FakeWorld()
    world.join(train=1)
    world.bring_up("a")
    seq = train(world, "a", cycles=4, run_us=0, gap_us=gap_us)
    planned = planned_profile(world, "a")
    train(world, "a", cycles=4, first_seq=seq, run_us=2_000, gap_us=gap_us)
    assert (planned_profile(world, "a") is not planned) is is_felt


def test_a_job_that_pauses_by_itself_is_not_late_and_its_group_stays_open() -> None:
    world = FakeWorld()
    world.join(train=1)
    world.bring_up("a")
    seq = train(world, "a", cycles=5)
    for _ in range(4):
        world.tick(1000 * GAP_US)
        seq = train(world, "a", cycles=1, first_seq=seq)
    cluster = world.core.cluster
    deployment = cluster.deployments[DeploymentId("a/actor")]
    planner, key = demands.planner_of(cluster.placement, deployment)
    assert not planner.group_of(key).late
    assert (planner.board.resident(key).pace_ppm or 0) < 1_100_000


def beside_rollout(world: FakeWorld, *, wait_us: int) -> Profile:
    """Run cycles one step behind rollouts of a fixed length, each waiting for another's device."""
    for cycle in range(1, 13):
        world.submit(f"r{cycle}", job="a", to="rollout", seq=cycle, kind=OperationKind.GENERATE)
        rollout = start(world, f"r{cycle}")
        began_us = world.now_us
        foreign = None
        if wait_us and cycle > 4:
            world.submit(f"b{cycle}", job="b", seq=cycle - 4)
            foreign = start(world, f"b{cycle}")
        world.submit(f"a{cycle}", job="a", seq=cycle, kind=OperationKind.STEP)
        if foreign is not None:
            world.tick(wait_us)
            world.report(foreign)
        own = start(world, f"a{cycle}")
        world.tick(RUN_US)
        world.report(own)
        world.now_us = max(world.now_us, began_us + 4 * GAP_US)
        world.report(rollout)
    return profile_of(world, "a")


def test_a_wait_that_slack_hides_does_not_shorten_the_cycle_a_job_has_alone() -> None:
    periods = []
    for wait_us in (0, GAP_US):
        world = FakeWorld()
        world.join(train=1, rollout=1)
        world.bring_up("b")
        world.bring_up("a")
        world.bring_up("a", "rollout", rollout=True)
        profile = beside_rollout(world, wait_us=wait_us)
        assert profile.mode is Mode.ASYNC1
        periods.append(profile.period_us)
    assert abs(periods[0] - periods[1]) * 10 < periods[0]


@pytest.mark.parametrize(
    ("error_ppm", "duty_ppm"), [(None, 300_000), (0, 200_000), (900_000, 380_000)]
)
def test_a_record_is_planned_as_wrong_as_it_was_last_else_as_records_are(
    error_ppm: int | None, duty_ppm: int
) -> None:
    world = FakeWorld()
    world.join(train=1)
    planning = world.core.cluster.placement
    planning.book.ratio_ppm = 1_500_000
    segments = (Segment(phase="step", offset_us=0, duration_us=20_000),)
    profile = Profile(period_us=100_000, segments=segments, mode=Mode.ASYNC1)
    key = ProfileKey(tenant=TenantId("lab"), model="", layout="", name="a/actor")
    kept = KeptProfile(key=key, profile=profile, at_us=0, error_ppm=error_ppm)
    world.tell(ProfilesLoaded(at_us=world.tick(), profiles=(kept,)))
    world.bring_up("a")
    (group,) = planning.planner("train").board.groups.values()
    assert group.duty_ppm == duty_ppm


def test_a_run_leaves_on_record_how_far_its_first_cycle_passed_the_record() -> None:
    world = FakeWorld()
    world.join(train=1)
    segments = (Segment(phase="forward_backward", offset_us=0, duration_us=RUN_US // 2),)
    profile = Profile(period_us=2 * GAP_US, segments=segments)
    key = ProfileKey(tenant=TenantId("lab"), model="", layout="", name="a/actor")
    world.tell(
        ProfilesLoaded(
            at_us=world.tick(), profiles=(KeptProfile(key=key, profile=profile, at_us=0),)
        )
    )
    world.bring_up("a")
    train(world, "a", cycles=3)
    book = world.core.cluster.placement.book
    kept = book.warm(key, now_us=world.now_us)
    assert kept is not None
    assert (kept.error_ppm or 0) > 900_000
    assert book.error_ppm > 100_000


def test_jobs_that_wait_ask_for_less_once_records_turn_out_to_say_too_much() -> None:
    world = FakeWorld()
    world.join(train=1)
    segments = (Segment(phase="step", offset_us=0, duration_us=8 * RUN_US),)
    profile = Profile(period_us=10 * RUN_US, segments=segments)
    keys = [
        ProfileKey(tenant=TenantId("lab"), model="", layout="", name=f"{name}/actor")
        for name in ("a", "b")
    ]
    records = tuple(KeptProfile(key=key, profile=profile, at_us=0) for key in keys)
    world.tell(ProfilesLoaded(at_us=world.tick(), profiles=records))
    planning = world.core.cluster.placement
    world.bring_up("a")
    world.job("b")
    world.deploy("b")
    (before,) = planning.planner("train").waiting.values()
    planning.book.ratio_ppm = 700_000
    train(world, "a", cycles=3)
    (after,) = planning.planner("train").waiting.values()
    assert before.profile.busy_us == 8 * RUN_US
    assert 4 * RUN_US < after.profile.busy_us < 6 * RUN_US


def run(world: FakeWorld, name: str, *, for_us: int) -> None:
    """Let an operation that was submitted run for so long."""
    order = start(world, name)
    world.tick(for_us)
    world.report(order)


def test_a_rollout_on_its_jobs_training_devices_is_a_part_of_that_cycle() -> None:
    world = FakeWorld(device_bytes=100)
    world.join()
    world.bring_up("a")
    world.deploy("a", "rollout", rollout=True, where_it_trains=True)
    world.drain()
    for step in range(1, 5):
        kind = OperationKind.GENERATE
        world.submit(f"g{step}", job="a", to="rollout", seq=step, kind=kind)
        run(world, f"g{step}", for_us=4 * RUN_US)
        kinds = (OperationKind.FORWARD_BACKWARD, OperationKind.STEP, OperationKind.PUBLISH)
        for number, kind in enumerate(kinds, 3 * step - 2):
            world.submit(f"a{number}", job="a", seq=number, kind=kind)
            run(world, f"a{number}", for_us=RUN_US)
    profile = profile_of(world, "a")
    assert [s.phase for s in profile.segments] == ["generate", "forward_backward", "step"]
    assert profile.mode is Mode.SYNC
    assert 6 * RUN_US <= profile.busy_us < 7 * RUN_US
    assert planned_profile(world, "a").busy_us == profile.busy_us, "it is booked"


def test_a_seeding_window_is_booked_and_training_that_waits_for_its_end_comes_after_it() -> None:
    world = FakeWorld(device_bytes=100)
    world.join(train=1, rollout=1)
    world.bring_up("a")
    world.bring_up("a", "rollout", rollout=True)
    world.deploy("a", "reserved", rollout=True, where_it_trains=True)
    world.drain()
    for step in range(1, 5):
        kind, last = OperationKind.GENERATE, 3 * step
        world.submit(f"g{step}", job="a", to="rollout", seq=step, kind=kind)
        generate = start(world, f"g{step}")
        kind = OperationKind.SEED
        world.submit(f"s{step}", job="a", to="reserved", seq=step, kind=kind, after=(f"g{step}",))
        seed = start(world, f"s{step}")
        world.tick(2 * RUN_US)
        kind = OperationKind.FORWARD_BACKWARD  # a micro-batch, while the window is open
        world.submit(f"a{last - 2}", job="a", seq=last - 2, kind=kind)
        world.tick(2 * RUN_US)
        world.report(seed)
        run(world, f"a{last - 2}", for_us=RUN_US)
        world.report(generate)
        for number, kind in ((last - 1, OperationKind.STEP), (last, OperationKind.PUBLISH)):
            world.submit(f"a{number}", job="a", seq=number, kind=kind)
            run(world, f"a{number}", for_us=RUN_US)
    profile = profile_of(world, "a")
    assert [s.phase for s in profile.segments] == ["seed", "forward_backward", "step"]
    assert profile.mode is Mode.SYNC
    assert 6 * RUN_US <= profile.busy_us < 7 * RUN_US
    seeded, trained, _ = profile.segments
    assert trained.offset_us >= seeded.end_us


def test_a_rollout_does_not_wait_for_more_of_the_training_that_it_follows() -> None:
    world = FakeWorld(device_bytes=100)
    world.join()
    world.bring_up("a")
    world.deploy("a", "rollout", rollout=True, where_it_trains=True)
    world.drain()
    devices = world.core.cluster.devices
    world.submit("a1", job="a", seq=1)
    world.drain()
    world.submit("g1", job="a", to="rollout", seq=1, kind=OperationKind.GENERATE)
    pattern = world.core.cluster.deployments[DeploymentId("a/actor")].pattern
    pattern.last_end_us, pattern.gap_us = world.now_us, 1
    wpg = devices.wpgs[B]
    wpg.switch_cost_us = SECOND_US
    operation = world.core.cluster.queues.operations[op_id("g1")]
    (entry,) = contest.entries(devices, {B: operation})
    assert contest.awaited_until(devices, (A,), entry=entry) == 0
    wpg.job_id = JobId("b")
    assert contest.awaited_until(devices, (A,), entry=entry) > world.now_us


def test_a_probe_counts_what_ran_since_it_began() -> None:
    world = FakeWorld()
    world.join("n0")
    world.join("n1")
    world.bring_up("a", durable=True)
    train(world, "a", cycles=1, run_us=100 * SECOND_US)
    world.tell(NodeLost(at_us=world.tick(), node_id=NodeId("n0"), reason="silence"))
    world.drain()
    assert world.places() == ["n1:0"]
    world.fire("probe/a/actor")
    (group,) = world.core.view.planners["train"].board.groups.values()
    assert group.duty_ppm < 1_000, "nothing ran there"


def test_what_a_job_waited_before_a_deployment_was_there_does_not_shorten_its_run() -> None:
    world = FakeWorld()
    world.join("n0")
    segments = (Segment(phase="step", offset_us=0, duration_us=RUN_US),)
    profile = Profile(period_us=2 * GAP_US, segments=segments)
    key = ProfileKey(tenant=TenantId("lab"), model="", layout="", name="a/critic")
    kept = KeptProfile(key=key, profile=profile, at_us=0)
    world.tell(ProfilesLoaded(at_us=world.tick(), profiles=(kept,)))
    for job in "ab":
        world.bring_up(job)
    world.submit("b1", job="b", seq=1)
    world.submit("a1", job="a", seq=1)
    order = start(world, "b1")
    world.tick(10 * SECOND_US)
    world.report(order)
    world.drain()
    world.join("n1")
    world.deploy("a", "critic")
    world.drain()
    began_us = world.now_us
    world.tick(5 * SECOND_US)
    world.end("a")
    world.drain()
    told = [one.kept for one in world.log if isinstance(one, KeepProfile)]
    assert abs(next(one.run_us for one in told if one.key == key) - 5 * SECOND_US) < 20_000, (
        began_us
    )
