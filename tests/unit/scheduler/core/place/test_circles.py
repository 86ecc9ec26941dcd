"""Circles: a request that would have jobs wait for each other is refused, any other one waits."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from plexsvc.errors import ErrorCode
from plexsvc.ids import DeploymentId, JobId, NodeId
from plexsvc.scheduler.api.views.story import explain_job
from plexsvc.scheduler.core.events import NodeCordoned, NodeLost, NodeUncordoned
from plexsvc.scheduler.core.limits import Limits
from plexsvc.scheduler.core.place import circles
from plexsvc.scheduler.core.vocabulary import DeploymentState
from tests.fakes.fake_world import FakeWorld

Gone = Callable[[FakeWorld], None]


def state(world: FakeWorld, name: str) -> DeploymentState:
    return world.core.view.deployments[DeploymentId(name)].state


def explained(world: FakeWorld, job: str) -> str:
    story = explain_job(world.core.view, JobId(job), now_us=world.now_us)
    assert story is not None
    return story.text


def two_with_a_policy_each(*, rollout: int) -> FakeWorld:
    world = FakeWorld()
    world.join("n0", train=2, rollout=rollout)
    for job in "ab":
        world.bring_up(job)
    for job in "ab":
        world.bring_up(job, "policy", rollout=True)
    return world


def test_the_request_that_closes_a_circle_is_refused_and_names_it() -> None:
    world = two_with_a_policy_each(rollout=2)
    world.bring_up("a", "judge", rollout=True)
    assert state(world, "a/judge") is DeploymentState.STARTING
    world.bring_up("b", "judge", rollout=True)
    refused = world.core.view.deployments[DeploymentId("b/judge")]
    assert refused.fault is not None
    assert refused.fault.code is ErrorCode.NO_PLACEMENT
    circle = (
        "a holds a/actor, a/policy and waits for a/judge; b holds b/actor, b/policy and waits for "
        "b/judge"
    )
    assert circle in refused.fault.message
    assert circle in explained(world, "b")
    assert "place/b/judge" not in world.timers
    world.end("b")
    world.drain()
    assert state(world, "a/judge") is DeploymentState.READY


def test_who_waits_for_a_job_that_can_end_is_not_refused() -> None:
    world = two_with_a_policy_each(rollout=3)
    world.bring_up("c")
    world.bring_up("c", "policy", rollout=True)
    world.bring_up("a", "judge", rollout=True)
    world.bring_up("b", "judge", rollout=True)
    assert state(world, "a/judge") is DeploymentState.STARTING
    assert state(world, "b/judge") is DeploymentState.STARTING
    world.end("c")
    world.drain()
    assert state(world, "a/judge") is DeploymentState.READY
    world.end("a")
    world.drain()
    assert state(world, "b/judge") is DeploymentState.READY


def test_a_circle_over_training_and_rollout_devices_is_refused() -> None:
    world = FakeWorld(limits=Limits(max_deployments_per_group=1))
    world.join("n0", train=1, rollout=1)
    world.bring_up("a", "policy", rollout=True)
    world.bring_up("b")
    world.bring_up("a")
    assert state(world, "a/actor") is DeploymentState.STARTING
    world.bring_up("b", "policy", rollout=True)
    assert state(world, "b/policy") is DeploymentState.FAILED
    world.end("b")
    world.drain()
    assert state(world, "a/actor") is DeploymentState.READY


def test_training_that_may_be_shared_closes_no_circle() -> None:
    world = FakeWorld(limits=Limits(max_deployments_per_group=2))
    world.join("n0", train=1, rollout=1)
    world.bring_up("a", "policy", rollout=True)
    world.bring_up("b")
    world.bring_up("c")
    world.bring_up("a")
    assert state(world, "a/actor") is DeploymentState.STARTING
    world.bring_up("b", "policy", rollout=True)
    assert state(world, "b/policy") is DeploymentState.STARTING
    world.end("c")
    world.drain()
    world.end("a")
    world.drain()
    assert state(world, "b/policy") is DeploymentState.READY


def test_a_job_that_waits_for_what_it_holds_itself_is_refused() -> None:
    world = FakeWorld()
    world.join("n0", train=1, rollout=3)
    world.bring_up("a")
    world.deploy("a", "policy", devices=2, rollout=True)
    world.drain()
    world.bring_up("a", "judge", devices=2, rollout=True)
    refused = world.core.view.deployments[DeploymentId("a/judge")]
    assert refused.fault is not None
    told = (
        "a/judge would wait for more than all devices, were others gone, hold: a holds a/actor, "
        "a/policy and waits for a/judge"
    )
    assert told in refused.fault.message
    assert world.core.cluster.placement.unplaced == []


def test_a_job_that_asks_bit_by_bit_for_more_than_there_is_is_refused() -> None:
    world = FakeWorld()
    world.join("n0", train=1, rollout=3)
    world.bring_up("x", "policy", devices=3, rollout=True)
    world.bring_up("a", "policy", devices=2, rollout=True)
    world.bring_up("a", "judge", devices=2, rollout=True)
    assert state(world, "a/judge") is DeploymentState.FAILED
    world.end("x")
    world.drain()
    assert state(world, "a/policy") is DeploymentState.READY


def two_that_wait(*, spare: int) -> FakeWorld:
    """Return a world in which a and b hold an instance each, and wait behind what x holds."""
    world = FakeWorld()
    world.join("n0", train=4, rollout=2)
    world.join("n1", train=0, rollout=spare)
    for job in "ab":
        world.bring_up(job)
        world.bring_up(job, "policy", rollout=True)
    world.bring_up("x", "policy", devices=spare, rollout=True)
    for job in "ab":
        world.bring_up(job, "judge", rollout=True)
    assert state(world, "a/judge") is state(world, "b/judge") is DeploymentState.STARTING
    assert "circle" not in explained(world, "a")
    return world


def lose(world: FakeWorld) -> None:
    world.tell(NodeLost(at_us=world.tick(), node_id=NodeId("n1"), reason="silent"))


def close(world: FakeWorld) -> None:
    world.tell(NodeCordoned(at_us=world.tick(), node_id=NodeId("n1")))


@pytest.mark.parametrize("go", [lose, close])
def test_a_circle_that_a_node_closes_is_opened_unless_it_comes_back(go: Gone) -> None:
    world = two_that_wait(spare=1)
    go(world)
    world.end("x")
    world.drain()
    assert state(world, "b/judge") is DeploymentState.STARTING, "the node may come back"
    assert "it is in a circle of waiting jobs (a b)" in explained(world, "a")
    assert world.core.view.awaits("circle/n1")
    world.fire("circle/n1")
    refused = world.core.view.deployments[DeploymentId("b/judge")]
    assert refused.fault is not None
    assert refused.fault.code is ErrorCode.NO_PLACEMENT
    assert "b holds b/actor, b/policy and waits for b/judge" in refused.fault.message
    assert "without nodes that are lost or closed: n1" in refused.fault.message
    assert state(world, "a/judge") is DeploymentState.STARTING, "its circle is open"
    assert "circle" not in explained(world, "a")
    world.end("b")
    world.drain()
    assert state(world, "a/judge") is DeploymentState.READY


def test_a_node_that_is_opened_in_time_opens_its_circle() -> None:
    world = two_that_wait(spare=1)
    close(world)
    world.tell(NodeUncordoned(at_us=world.tick(), node_id=NodeId("n1")))
    assert not world.core.view.awaits("circle/n1")
    world.fire("circle/n1")
    assert state(world, "b/judge") is DeploymentState.STARTING
    world.end("x")
    world.drain()
    assert state(world, "a/judge") is DeploymentState.READY


def test_a_lost_node_without_which_all_find_devices_some_day_refuses_nobody() -> None:
    world = two_that_wait(spare=1)
    world.bring_up("y")
    world.join("n2", train=0, rollout=1)
    lose(world)
    world.drain()
    world.fire("circle/n1")
    assert DeploymentState.FAILED not in {state(world, "a/judge"), state(world, "b/judge")}


def test_engines_that_share_devices_close_no_circle() -> None:
    world = FakeWorld(limits=Limits(max_deployments_per_group=2))
    world.join("n0", train=4, rollout=2)
    for job in "abcd":
        world.bring_up(job)
        world.bring_up(job, "policy", rollout=True, shared=True)
    for job in "ab":
        world.bring_up(job, "judge", rollout=True, shared=True)
        assert state(world, f"{job}/judge") is DeploymentState.STARTING
    for job in "cd":
        world.end(job)
        world.drain()
    assert state(world, "a/judge") is state(world, "b/judge") is DeploymentState.READY


def test_engines_where_their_job_trains_close_no_circle() -> None:
    world = FakeWorld(limits=Limits(max_deployments_per_group=2))
    world.join("n0", train=1, rollout=1)
    world.bring_up("a", "policy", rollout=True)
    world.bring_up("b")
    world.deploy("b", "own", rollout=True, where_it_trains=True)
    world.bring_up("c")
    world.bring_up("a")
    world.bring_up("b", "policy", rollout=True)
    assert state(world, "b/policy") is DeploymentState.STARTING
    world.end("c")
    world.drain()
    assert state(world, "a/actor") is DeploymentState.READY


Asked = tuple[str, str, int, int]

ASKED = st.tuples(
    st.sampled_from("abcd"),
    st.sampled_from(["train", "alone", "shared", "own", "set"]),
    st.integers(1, 2),  # devices
    st.integers(0, 9),  # 0: the job ends instead; 1: the second node is lost, and stays away
)


def ask(world: FakeWorld, at: int, asked: Asked) -> None:
    """Have a job ask for something more."""
    job, kind, devices, else_ = asked
    if else_ == 0 and JobId(job) in world.core.view.jobs:
        world.end(job)
    elif else_ == 1 and NodeId("n1") in world.core.view.nodes:
        lose(world)
        if "circle/n1" in world.timers:
            world.drain()
            world.fire("circle/n1")
    elif kind == "set":
        world.job(f"{job}{at}", priority=else_)
        world.declare(f"{job}{at}", rollout=devices, judge=1)
    elif else_ > 1:
        if JobId(job) not in world.core.view.jobs:
            world.job(job)
        is_engine, is_own = kind != "train", kind == "own"
        world.deploy(
            job,
            f"d{at}",
            devices=devices,
            rollout=is_engine,
            shared=kind == "shared",
            where_it_trains=is_own,
        )
    world.drain()


def played(script: list[Asked]) -> FakeWorld:
    world = FakeWorld(limits=Limits(max_deployments_per_group=2, placement_timeout_us=1 << 50))
    world.join("n0", train=2, rollout=2)
    world.join("n1", train=1, rollout=1)
    for at, asked in enumerate(script):
        ask(world, at, asked)
        if circles_of(world):
            del script[at + 1 :]
    return world


def circles_of(world: FakeWorld) -> list[set[str]]:
    """Return the circles for which requests were refused."""
    faults = [one.fault for one in world.core.view.deployments.values() if one.fault]
    return [
        set(dict(fault.facts)["circle"].split())
        for fault in faults
        if "circle" in dict(fault.facts)
    ]


def waiting(world: FakeWorld) -> set[str]:
    """Return the jobs that wait for devices, but those that wait for their own training's."""
    cluster = world.core.cluster
    unplaced = [cluster.deployments[d] for d in cluster.placement.unplaced]
    return {str(one.job_id) for one in unplaced if not one.where_it_trains}


def end_all(world: FakeWorld, *, but: set[str]) -> None:
    """End jobs one after another, and take the cycles of the others as known."""
    while others := sorted({str(j) for j in world.core.view.jobs} - but - waiting(world)):
        world.end(others[0])
        world.drain()
        for key in [k for k in world.timers if k.startswith("probe/")]:
            world.fire(key)
            world.drain()


@settings(max_examples=150, deadline=None)
@given(st.lists(ASKED, min_size=3, max_size=14))
def test_circles_are_those_that_would_wait_for_each_other_for_ever(script: list[Asked]) -> None:
    world = played(script)
    found = circles_of(world)
    if not found:
        end_all(world, but=set())
        held = {str(wpg.job_id) for wpg in world.core.view.wpgs.values()}
        assert not waiting(world) & held, "a circle was not found"
        assert not waiting(world) or NodeId("n1") not in world.core.view.nodes
        return
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(circles, "closed_by", lambda *_: None)
        patched.setattr(circles, "youngest", lambda *_: None)
        twin = played(script)
        circle = found[0]
        end_all(twin, but=circle)
        for job in sorted({str(j) for j in twin.core.view.jobs} - circle):
            twin.end(job)
            twin.drain()
        assert circle <= waiting(twin), "one of them finds devices once all others have ended"
