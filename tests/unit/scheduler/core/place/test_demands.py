"""Sets: what a job declares together is placed together, and holds nothing while it waits."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from plexsvc.errors import ErrorCode
from plexsvc.ids import DeploymentId, JobId
from plexsvc.scheduler.api.views.story import explain_job
from plexsvc.scheduler.core.events import DeploymentsDeclared
from plexsvc.scheduler.core.limits import Limits
from plexsvc.scheduler.core.vocabulary import DeploymentState, JobState
from tests.fakes.fake_world import FakeWorld, wanted


def state(world: FakeWorld, name: str) -> DeploymentState:
    return world.core.view.deployments[DeploymentId(name)].state


def places(world: FakeWorld, job: str) -> list[int]:
    """Return how many devices each deployment of a job has."""
    view = world.core.view
    mine = [view.deployments[d] for d in view.jobs[JobId(job)].deployments]
    return [len(wpg.places) if (wpg := view.wpg_of(one)) else 0 for one in mine]


def explained(world: FakeWorld, job: str) -> str:
    story = explain_job(world.core.view, JobId(job), now_us=world.now_us)
    assert story is not None
    return story.text


def crowded() -> FakeWorld:
    """Return a world of one training device that nobody shares, and two for instances."""
    world = FakeWorld(limits=Limits(max_deployments_per_group=1, placement_timeout_us=1 << 40))
    world.join("n0", train=1, rollout=2)
    return world


def test_a_set_is_placed_in_one_decision() -> None:
    world = FakeWorld()
    world.join("n0", train=2, rollout=2)
    world.declare("a", train=2, rollout=1, judge=1)
    assert places(world, "a") == [2, 1, 1]
    world.drain()
    assert {state(world, f"a/{name}") for name in ("actor", "rollout", "judge")} == {
        DeploymentState.READY
    }


def test_a_set_whose_instances_find_no_devices_holds_none_for_training() -> None:
    world = FakeWorld(limits=Limits(max_deployments_per_group=1))
    world.join("n0", train=2, rollout=2)
    world.declare("a", rollout=1)
    world.declare("b", rollout=2)
    assert places(world, "b") == [0, 0]
    assert "b/actor, b/rollout are placed together and wait for 2 rollout" in explained(world, "b")
    world.declare("c", rollout=1)
    assert places(world, "c") == [1, 1]
    world.drain()
    for job in "ac":
        world.end(job)
        world.drain()
    assert places(world, "b") == [1, 2]


def test_two_jobs_that_would_have_closed_a_circle_run_one_after_the_other() -> None:
    world = crowded()
    world.declare("a", rollout=1, judge=1)
    world.declare("b", judge=1, rollout=1)
    world.drain()
    assert (places(world, "a"), places(world, "b")) == ([1, 1, 1], [0, 0, 0])
    world.end("a")
    world.drain()
    assert places(world, "b") == [1, 1, 1]


def test_further_training_of_a_set_finds_room_beside_its_lead() -> None:
    world = crowded()
    world.job("a")
    small = wanted("a", "critic")
    large = wanted("a", "actor")
    engine = wanted("a", "rollout", devices=2, rollout=True)
    world.tell(
        DeploymentsDeclared(
            at_us=world.tick(), job_id=JobId("a"), deployments=(engine, small, large)
        )
    )
    assert places(world, "a") == [2, 1, 1]


def test_a_set_that_no_cluster_holds_is_refused_whole() -> None:
    world = crowded()
    world.declare("a", rollout=2, judge=1)
    for name in ("actor", "rollout", "judge"):
        refused = world.core.view.deployments[DeploymentId(f"a/{name}")]
        assert refused.fault is not None
        assert refused.fault.code is ErrorCode.NO_PLACEMENT
        assert "a/rollout and a/judge need 3 rollout" in refused.fault.message
    assert_nothing_is_left(world)


def test_a_set_that_closes_a_circle_is_refused_whole() -> None:
    world = FakeWorld()
    world.join("n0", train=2, rollout=4)
    for job in "ab":
        world.declare(job, rollout=1)
        world.drain()
    world.bring_up("a", "judge", devices=3, rollout=True)
    world.declare("b", train=0, judge=2, second=1)
    for name in ("judge", "second"):
        refused = world.core.view.deployments[DeploymentId(f"b/{name}")]
        assert refused.fault is not None
        assert "circle" in refused.fault.message
    assert world.core.cluster.placement.unplaced == [DeploymentId("a/judge")]


def test_a_set_that_waited_too_long_fails_whole() -> None:
    world = crowded()
    world.declare("a", rollout=1)
    world.declare("b", rollout=1, judge=1)
    world.drain()
    world.fire("place/b/rollout")
    assert {state(world, f"b/{name}") for name in ("actor", "rollout", "judge")} == {
        DeploymentState.FAILED
    }
    assert world.core.cluster.placement.unplaced == []
    assert_nothing_is_left(world, but="a")


def test_a_set_with_a_right_to_devices_is_not_passed_by_others_for_ever() -> None:
    world = FakeWorld()
    world.join("n0", train=4, rollout=2)
    world.declare("a", rollout=1)
    world.job("b", priority=5)
    world.declare("b", rollout=2)
    world.declare("c", rollout=1)
    world.drain()
    assert (places(world, "b"), places(world, "c")) == ([0, 0], [0, 0])
    world.end("a")
    world.drain()
    assert places(world, "b") == [1, 2]


def test_jobs_that_deploy_one_after_another_do_not_hold_up_a_set_that_asked_before() -> None:
    world = FakeWorld()
    world.join("n0", train=6, rollout=4)
    for job in ("x", "y"):
        world.declare(job, rollout=2)
    world.job("b", priority=5)
    world.declare("b", rollout=3)
    world.drain()
    for at in range(3):
        world.bring_up(f"s{at}")
        world.bring_up(f"s{at}", "policy", rollout=True)
        if at == 0:
            world.end("x")
            world.drain()
    assert [places(world, f"s{at}") for at in range(3)] == [[1, 0]] * 3, "they asked later"
    world.end("y")
    world.drain()
    assert places(world, "b") == [1, 3]
    assert sorted(places(world, f"s{at}") for at in range(3)) == [[1, 0], [1, 0], [1, 1]]


def test_who_holds_what_a_set_lacks_passes_it() -> None:
    world = FakeWorld()
    world.join("n0", train=4, rollout=3)
    world.declare("x", rollout=1)
    world.bring_up("a")
    world.bring_up("a", "policy", rollout=True)
    world.job("b", priority=5)
    world.declare("b", rollout=3)
    world.bring_up("a", "judge", rollout=True)
    assert places(world, "a") == [1, 1, 1], "the set cannot do without its device"


def test_who_ends_its_job_takes_its_set_out_of_the_queue() -> None:
    world = crowded()
    world.declare("a", rollout=2)
    world.declare("b", rollout=1)
    world.end("b", JobState.CANCELLED)
    world.drain()
    assert_nothing_is_left(world, but="a")


def assert_nothing_is_left(world: FakeWorld, *, but: str = "") -> None:
    """Assert that nobody but a job has devices, a place in a queue or a WPG."""
    placement = world.core.cluster.placement
    assert placement.unplaced == []
    assert {wpg.job_id for wpg in world.core.cluster.wpgs.values()} <= {but}
    for planner in placement.planners.values():
        assert not planner.waiting
        assert not planner.kept.reservations
        assert all(str(key).startswith(f"{but}/") for key in planner.board.group_of)


Arrival = tuple[int, Sequence[int], int]

ARRIVALS = st.tuples(
    st.sampled_from([0, 1, 1, 2]),  # devices that train
    st.lists(st.integers(1, 3), min_size=1, max_size=3),  # instances of each rollout
    st.integers(0, 3),  # priority
)


@settings(max_examples=150, deadline=None)
@given(st.lists(ARRIVALS, min_size=1, max_size=8), st.data())
@pytest.mark.parametrize("shared", [1, 3])
def test_no_schedule_of_arrivals_leaves_sets_waiting_for_each_other(
    shared: int, arrivals: list[Arrival], data: st.DataObject
) -> None:
    world = FakeWorld(limits=Limits(max_deployments_per_group=shared, placement_timeout_us=1 << 50))
    world.join("n0", train=2, rollout=4)
    for at, (train, instances, priority) in enumerate(arrivals):
        job = f"j{at}"
        world.job(job, priority=priority)
        world.declare(job, train=train, **{f"r{i}": n for i, n in enumerate(instances)})
        assert_all_or_none(world)
        if data.draw(st.booleans(), label=f"answers after {job}"):
            world.drain()
    world.drain()
    while running := sorted(jobs_with(world, placed=True)):
        world.end(data.draw(st.sampled_from(running), label="ends"))
        world.drain()
        assert_all_or_none(world)
    assert jobs_with(world, placed=False) == set()


def jobs_with(world: FakeWorld, *, placed: bool) -> set[str]:
    """Return the live jobs that have devices, or that wait for some."""
    cluster = world.core.cluster
    if placed:
        return {str(wpg.job_id) for wpg in cluster.wpgs.values()}
    return {str(cluster.deployments[d].job_id) for d in cluster.placement.unplaced}


def assert_all_or_none(world: FakeWorld) -> None:
    assert not jobs_with(world, placed=True) & jobs_with(world, placed=False)
