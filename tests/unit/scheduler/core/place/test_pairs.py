"""Jobs that take turns on two pools: placed on both at once, within their bound, or not at all."""

from __future__ import annotations

from dataclasses import replace

from plexsvc.ids import DeploymentId, JobId
from plexsvc.scheduler.core.actions import SpawnWpg
from plexsvc.scheduler.core.events import DeploymentRequested
from plexsvc.scheduler.core.limits import Limits
from plexsvc.scheduler.core.planning.profile import SECOND_US
from tests.fakes.fake_world import FakeWorld, op_id
from tests.rigs.known_cycles import record_cycles

PARTS = {"roll": "rollout", "actor": "train"}


def ask(world: FakeWorld, job: str, *names: str) -> None:
    """Ask for a job's deployments that take turns, both by default."""
    if JobId(job) not in world.core.view.jobs:
        world.job(job)
    for name in names or PARTS:
        (other,) = PARTS.keys() - {name}
        event = DeploymentRequested(
            at_us=world.tick(),
            deployment_id=DeploymentId(f"{job}/{name}"),
            job_id=JobId(job),
            initialize_id=op_id(f"{job}/{name}/init"),
            role="actor",
            backend="noop",
            device_kind=PARTS[name],
            num_devices=1,
            is_rollout=False,
            name=name,
            takes_turns_with=DeploymentId(f"{job}/{other}"),
        )
        world.tell(event)
    world.drain()


def lives(world: FakeWorld) -> dict[str, int]:
    """Return the device that each deployment was given."""
    return {a.deployment_id: a.places[0].device for a in world.log if isinstance(a, SpawnWpg)}


def test_both_gangs_are_given_at_once_or_none() -> None:
    world = FakeWorld()
    world.join("n0", train=1, rollout=1)
    ask(world, "a", "actor")
    assert lives(world) == {}, "its other half was not asked for yet"
    ask(world, "a", "roll")
    ask(world, "b")
    assert lives(world) == {"a/actor": 0, "a/roll": 1}, "nobody knows how b would get along with a"
    waits = world.core.view.why_waits(world.core.view.deployments[DeploymentId("b/roll")])
    assert "together with b/actor" in waits
    world.end("a")
    world.drain()
    assert lives(world) == {"a/actor": 0, "a/roll": 1, "b/actor": 0, "b/roll": 1}


def test_jobs_whose_phases_fill_each_others_gaps_share_both_pools() -> None:
    world = FakeWorld()
    record_cycles(world, rollout="roll", long=75, short=25)
    world.join("n0", train=2, rollout=2)
    ask(world, "long")
    ask(world, "short")
    assert lives(world) == {"long/actor": 0, "long/roll": 2, "short/actor": 0, "short/roll": 2}


def test_a_job_shares_one_pool_alone_where_the_other_would_break_a_bound() -> None:
    world = FakeWorld(limits=Limits(max_slowdown_ppm=1_200_000))
    record_cycles(world, rollout="roll", a=70, b=70)
    world.join("n0", train=2, rollout=2)
    ask(world, "a")
    ask(world, "b")
    assert lives(world) == {"a/actor": 0, "a/roll": 2, "b/actor": 0, "b/roll": 3}


def test_a_third_job_is_refused_for_the_sake_of_those_it_meets_over_others() -> None:
    world = FakeWorld(limits=Limits(max_slowdown_ppm=1_200_000))
    record_cycles(world, rollout="roll", a=50, b=50, c=50)
    world.join("n0", train=1, rollout=1)
    for job in "abc":
        ask(world, job)
    assert {name.partition("/")[0] for name in lives(world)} == {"a", "b"}


def test_isolated_jobs_share_neither_pool() -> None:
    world = FakeWorld(limits=replace(Limits(), policy="isolated"))
    record_cycles(world, rollout="roll", long=75, short=25)
    world.join("n0", train=2, rollout=2)
    ask(world, "long")
    ask(world, "short")
    assert lives(world) == {"long/actor": 0, "long/roll": 2, "short/actor": 1, "short/roll": 3}


def test_a_job_that_ends_while_it_waits_is_forgotten() -> None:
    world = FakeWorld()
    world.join("n0", train=1, rollout=1)
    ask(world, "a")
    ask(world, "b")
    world.end("b")
    world.drain()
    assert not world.core.view.unplaced


def test_a_job_that_is_left_alone_joins_others_and_its_units_are_idle_again() -> None:
    world = FakeWorld()
    record_cycles(world, rollout="roll", x=75, y=75, z=25)
    world.join("n0", train=2, rollout=2)
    for job in "xyz":
        ask(world, job)
    assert lives(world)["z/roll"] == lives(world)["x/roll"] != lives(world)["y/roll"]
    world.end("x")
    world.drain()
    world.tick(by_us=700 * SECOND_US)
    world.job("later")
    world.drain()
    after = lives(world)
    assert (after["z/roll"], after["z/actor"]) == (after["y/roll"], after["y/actor"])
    boards = [planner.board for planner in world.core.view.planners.values()]
    assert [len(board.idle) for board in boards] == [1, 1]


def test_a_job_shares_one_pool_however_many_groups_refuse_it_on_the_other() -> None:
    world = FakeWorld(limits=Limits(max_slowdown_ppm=1_200_000))
    jobs = [f"j{at}" for at in range(60)]
    record_cycles(world, rollout="roll", **dict.fromkeys(jobs, 59))
    world.join("n0", train=60, rollout=60)
    for job in jobs:
        ask(world, job)
    places = lives(world)
    assert len({places[f"{job}/roll"] for job in jobs}) == 60
    assert len({places[f"{job}/actor"] for job in jobs}) == 30


def test_two_that_are_left_join_others_together() -> None:
    world = FakeWorld()
    jobs = [f"j{at}" for at in range(7)]
    record_cycles(world, rollout="roll", **dict.fromkeys(jobs, 20))
    world.join("n0", train=7, rollout=7)
    for job in jobs:
        ask(world, job)
    before = lives(world)
    assert [before[f"{job}/roll"] for job in jobs] == [before["j0/roll"]] * 5 + [8] * 2
    for job in jobs[:3]:
        world.end(job)
    world.drain()
    world.tick(by_us=700 * SECOND_US)
    world.job("later")
    world.drain()
    assert len({lives(world)[f"{job}/roll"] for job in jobs[3:]}) == 1
