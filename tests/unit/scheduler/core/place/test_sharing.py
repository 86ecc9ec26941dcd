"""Engines that share devices in time: apart or together, as the rounds of their jobs predict."""

from __future__ import annotations

from plexsvc.ids import DeploymentId
from plexsvc.scheduler.core.actions import KeepProfile, RelocationChanged
from plexsvc.scheduler.core.limits import Limits
from plexsvc.scheduler.core.planning.profile import SECOND_US
from plexsvc.scheduler.core.relocate.packing import PART_EVERY_US
from plexsvc.scheduler.core.vocabulary import OperationKind
from tests.fakes.fake_world import FakeWorld
from tests.rigs.known_cycles import record_cycles

BOUND = Limits(max_slowdown_ppm=1_200_000)


def pool(*, train: int, rollout: int) -> FakeWorld:
    world = FakeWorld(limits=BOUND, device_bytes=100)
    world.join("n0", train=train, rollout=rollout)
    return world


def bring_up(world: FakeWorld, *jobs: str) -> None:
    for job in jobs:
        world.bring_up(job)
        world.bring_up(job, "rollout", rollout=True, shared=True)


def rolls_at(world: FakeWorld) -> dict[str, int]:
    """Return the device of each job's instance."""
    return {
        wpg.job_id: wpg.places[0].device
        for wpg in world.core.view.wpgs.values()
        if wpg.is_rollout and world.core.cluster.is_current(wpg)
    }


def test_jobs_whose_phases_fit_share_a_device_though_another_is_idle() -> None:
    world = pool(train=2, rollout=2)
    record_cycles(world, rollout="rollout", a=50, b=50)
    bring_up(world, "a", "b")
    assert rolls_at(world) == {"a": 2, "b": 2}


def test_jobs_whose_phases_cannot_fit_get_different_devices() -> None:
    world = pool(train=2, rollout=2)
    record_cycles(world, rollout="rollout", a=90, b=90)
    bring_up(world, "a", "b")
    assert rolls_at(world) == {"a": 2, "b": 3}


def test_a_job_waits_rather_than_break_a_bound_and_is_told_so() -> None:
    world = pool(train=2, rollout=1)
    record_cycles(world, rollout="rollout", a=90, b=90)
    bring_up(world, "a", "b")
    assert rolls_at(world) == {"a": 2}
    told = world.core.view.why_waits(world.core.view.deployments[DeploymentId("b/rollout")])
    assert "predicted to keep all bounds (max_slowdown)" in told
    world.end("a")
    world.drain()
    assert rolls_at(world) == {"b": 2}


def test_while_a_cycle_is_not_known_idle_devices_come_first_then_any_that_sleep() -> None:
    world = pool(train=3, rollout=2)
    record_cycles(world, rollout="rollout", a=90, b=90)
    bring_up(world, "cold", "a", "b")
    assert rolls_at(world) == {"cold": 3, "a": 4, "b": 3}


def cycle(world: FakeWorld, job: str, number: int, *, roll_s: int, train_s: int) -> None:
    """Play one cycle of a job: it generates, trains and publishes."""
    kinds = (
        (OperationKind.GENERATE, "rollout", roll_s),
        (OperationKind.STEP, "actor", train_s),
        (OperationKind.PUBLISH, "actor", 0),
        (OperationKind.PULL, "rollout", 1),
    )
    seqs = {"rollout": 2 * number - 1, "actor": 2 * number - 1}
    for kind, to, run_s in kinds:
        world.submit(f"{job}{kind}{number}", job=job, to=to, seq=seqs[to], kind=kind)
        seqs[to] += 1
        while len(world.orders) > 1:
            world.report(world.orders[0])
        world.tick(run_s * SECOND_US)
        world.drain()


def test_a_rollouts_part_of_the_cycle_is_measured_and_kept() -> None:
    world = pool(train=1, rollout=1)
    bring_up(world, "a")
    for number in range(1, 5):
        cycle(world, "a", number, roll_s=60, train_s=39)
    kept = [a.kept for a in world.log if isinstance(a, KeepProfile)]
    (rollout,) = {k.key: k for k in kept if k.key.name == "a/rollout"}.values()
    assert abs(rollout.profile.busy_us - 60 * SECOND_US) < 2 * SECOND_US
    assert abs(rollout.profile.period_us - 100 * SECOND_US) < 2 * SECOND_US


def test_instances_that_met_before_their_cycles_were_known_are_parted_when_they_do_not_fit() -> (
    None
):
    world = pool(train=2, rollout=1)
    bring_up(world, "a", "b")
    assert rolls_at(world) == {"a": 2, "b": 2}
    record_cycles(world, rollout="rollout", a=90, b=90)
    world.join("n1", rollout=1)
    world.tick(PART_EVERY_US)
    world.tick(PART_EVERY_US)
    world.submit("a1", job="a", to="rollout", seq=1, kind=OperationKind.GENERATE)
    world.drain()
    reasons = {a.reason for a in world.log if isinstance(a, RelocationChanged)}
    assert reasons == {"its group is over its bounds"}
    nodes = {w.places[0].node_id for w in world.core.view.wpgs.values() if w.is_rollout}
    assert nodes == {"n0", "n1"}
