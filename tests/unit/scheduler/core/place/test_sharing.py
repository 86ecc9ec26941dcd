"""Engines that share devices in time: apart or together, as the rounds of their jobs predict."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from plexsvc.ids import DeploymentId, JobId
from plexsvc.scheduler.api.views import unplaced
from plexsvc.scheduler.core.actions import KeepProfile, RelocationChanged
from plexsvc.scheduler.core.events import DeploymentsDeclared
from plexsvc.scheduler.core.limits import Limits
from plexsvc.scheduler.core.place import sharing
from plexsvc.scheduler.core.planning.profile import SECOND_US
from plexsvc.scheduler.core.planning.ring import Course, Turns, play
from plexsvc.scheduler.core.relocate.movers import APART_EVERY_US
from plexsvc.scheduler.core.vocabulary import OperationKind
from tests.fakes.fake_world import FakeWorld, wanted
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
    told = unplaced.why(world.core.view, world.core.view.deployments[DeploymentId("b/rollout")])
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
    world.tick(APART_EVERY_US)
    world.tick(APART_EVERY_US)
    world.submit("a1", job="a", to="rollout", seq=1, kind=OperationKind.GENERATE)
    world.drain()
    reasons = {a.reason for a in world.log if isinstance(a, RelocationChanged)}
    assert reasons == {"its group is over its bounds"}
    nodes = {w.places[0].node_id for w in world.core.view.wpgs.values() if w.is_rollout}
    assert nodes == {"n0", "n1"}


def declare(world: FakeWorld, *jobs: str) -> dict[str, list[int]]:
    """Have jobs ask for both gangs at once; return the devices of each, training first."""
    for job in jobs:
        world.job(job)
        rollout = replace(wanted(job, "rollout", rollout=True), is_shared=True)
        asked = (wanted(job, "actor"), rollout)
        world.tell(DeploymentsDeclared(at_us=world.tick(), job_id=JobId(job), deployments=asked))
        world.drain()
    view = world.core.view
    return {
        job: [
            wpg.places[0].device
            for one in view.jobs[JobId(job)].deployments
            if (wpg := view.wpg_of(view.deployments[one])) is not None
        ]
        for job in jobs
    }


def test_jobs_whose_phases_fit_on_both_pools_share_both() -> None:
    world = pool(train=2, rollout=2)
    record_cycles(world, rollout="rollout", end_s=80, a=40, b=40)
    assert declare(world, "a", "b") == {"a": [0, 2], "b": [0, 2]}


def test_jobs_share_the_pool_on_which_they_fit() -> None:
    world = pool(train=2, rollout=2)
    record_cycles(world, rollout="rollout", a=60, b=60)
    assert declare(world, "a", "b") == {"a": [0, 2], "b": [0, 3]}


def test_training_is_apart_where_sharing_it_too_would_break_a_bound() -> None:
    """On either pool alone nobody would be slower; on both, somebody would by half."""
    world = pool(train=2, rollout=1)
    record_cycles(world, rollout="rollout", end_s=20, a=10)
    record_cycles(world, rollout="rollout", end_s=60, b=30)
    record_cycles(world, rollout="rollout", end_s=90, c=40)
    assert declare(world, "a", "b", "c") == {"a": [0, 2], "b": [0, 2], "c": [1, 2]}


def test_isolated_jobs_share_neither_pool() -> None:
    world = FakeWorld(limits=replace(BOUND, policy="isolated"), device_bytes=100)
    world.join("n0", train=2, rollout=2)
    record_cycles(world, rollout="rollout", long=75, short=25)
    assert declare(world, "long", "short") == {"long": [0, 2], "short": [1, 3]}


def test_rounds_are_played_once_for_all_that_meet(monkeypatch: pytest.MonkeyPatch) -> None:
    world = pool(train=2, rollout=2)
    record_cycles(world, rollout="rollout", a=50, b=50)
    bring_up(world, "a", "b")
    played: list[int] = []

    def noted(jobs: Sequence[Turns]) -> list[Course]:
        played.append(len(jobs))
        return play(jobs)

    monkeypatch.setattr(sharing, "play", noted)
    assert not list(sharing.crowded(world.core.cluster.placement))
    assert played == [2]
