"""Circles: a request that would have jobs wait for each other is refused, any other one waits."""

from __future__ import annotations

from plexsvc.errors import ErrorCode
from plexsvc.ids import DeploymentId, JobId
from plexsvc.scheduler.core.limits import Limits
from plexsvc.scheduler.core.vocabulary import DeploymentState
from tests.fakes.fake_world import FakeWorld


def state(world: FakeWorld, name: str) -> DeploymentState:
    return world.core.view.deployments[DeploymentId(name)].state


def explained(world: FakeWorld, job: str) -> str:
    story = world.core.view.explain_job(JobId(job), now_us=world.now_us)
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
