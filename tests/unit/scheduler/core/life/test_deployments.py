"""Deployments: placed at once or later, or refused a place."""

from __future__ import annotations

from plexsvc.errors import ErrorCode
from plexsvc.ids import DeploymentId, NodeId, WpgId
from plexsvc.scheduler.core.actions import (
    DeploymentChanged,
    SpawnWpg,
    StartOperation,
)
from plexsvc.scheduler.core.limits import Limits
from plexsvc.scheduler.core.vocabulary import (
    Place,
)
from tests.fakes.fake_world import FakeWorld, fault_of, op_id

A = WpgId("wpg-1-1")


def test_a_deployment_is_spawned_initialised_and_ready() -> None:
    world = FakeWorld()
    world.join(train=1)
    world.job("a")
    actions = world.deploy("a")
    place = Place(node_id=NodeId("n0"), device=0)
    assert [type(action).__name__ for action in actions] == [
        "JobChanged",
        "DeploymentChanged",
        "SpawnWpg",
        "SetTimer",
        "SetTimer",
    ]
    assert actions[2] == SpawnWpg(
        wpg_id=A, deployment_id=DeploymentId("a/actor"), incarnation=1, places=(place,)
    )
    started = world.report_next(SpawnWpg)
    assert started[-1] == StartOperation(operation_id=op_id("a/actor/init"), wpg_id=A, lease_no=1)
    ready = world.report_next(StartOperation)
    assert [action.state for action in ready if isinstance(action, DeploymentChanged)] == ["ready"]


def test_a_deployment_no_cluster_could_hold_is_refused_with_what_there_is() -> None:
    world = FakeWorld()
    world.join(train=2)
    world.job("a")
    actions = world.deploy("a", devices=4)
    assert fault_of(actions[0]).code == ErrorCode.NO_PLACEMENT
    assert "n0: 2" in fault_of(actions[0]).message


def test_a_rollout_deployment_waits_for_a_free_device() -> None:
    world = FakeWorld()
    world.join(train=0, rollout=1)
    world.bring_up("a", "rollout", rollout=True)
    world.job("b")
    assert world.deploy("b", "rollout", rollout=True) == [], "and no time limit is set"
    world.end("a")
    world.drain()
    assert "wpg-1-2" in world.core.view.wpgs


def test_a_deployment_that_waits_too_long_for_devices_fails() -> None:
    world = FakeWorld(limits=Limits(placement_timeout_us=1))
    world.join(train=0, rollout=1)
    world.bring_up("a", "rollout", rollout=True)
    world.job("b")
    world.deploy("b", "rollout", rollout=True)
    actions = world.fire("place/b/rollout")
    assert fault_of(actions[0]).code == ErrorCode.NO_PLACEMENT
