"""Rollout instances that are lost: spawned again while their deployment stays, not for ever."""

from __future__ import annotations

import pytest

from plexsvc.errors import ErrorCode
from plexsvc.ids import DeploymentId, JobId, NodeId, WpgId
from plexsvc.scheduler.api.views.story import explain_job
from plexsvc.scheduler.core.actions import Action, DeploymentChanged, SpawnInstance, StopWpg
from plexsvc.scheduler.core.events import (
    InstanceLost,
    NodeLost,
    OperationFinished,
    ProcExited,
    TurnsTaken,
)
from plexsvc.scheduler.core.limits import Limits
from plexsvc.scheduler.core.vocabulary import DeploymentState, Fault, OperationKind, Place
from tests.fakes.fake_world import FakeWorld, codes, op_id

R = WpgId("wpg-1-1")
GONE = Fault(code=ErrorCode.WORKER_DIED, message="import error")


@pytest.fixture
def rollout() -> FakeWorld:
    """A rollout deployment with two instances."""
    world = FakeWorld()
    world.join(train=0, rollout=2)
    world.bring_up("a", "rollout", devices=2, rollout=True)
    return world


def generate(world: FakeWorld, seq: int) -> None:
    world.submit(f"g{seq}", job="a", to="rollout", seq=seq, kind=OperationKind.GENERATE)


def state(world: FakeWorld) -> DeploymentState:
    return state_of(world, "a")


def state_of(world: FakeWorld, job: str) -> DeploymentState:
    return world.core.view.deployments[DeploymentId(f"{job}/rollout")].state


def test_a_lost_instance_is_spawned_again_and_nothing_of_the_deployment_ends(
    rollout: FakeWorld,
) -> None:
    generate(rollout, 1)
    assert rollout.die(R, rank=1) == [SpawnInstance(wpg_id=R, rank=1, incarnation=2)]
    story = explain_job(rollout.core.view, JobId("a"), now_us=rollout.now_us)
    assert story is not None
    assert "instance 1 is being started again: rank 1 of wpg-1-1 died" in str(story.facts)
    generate(rollout, 2)
    rollout.drain()
    assert state(rollout) is DeploymentState.READY
    assert not codes(rollout.log)
    assert not rollout.core.view.wpgs[R].absent


def test_the_end_of_the_process_before_is_not_taken_for_that_of_its_successor(
    rollout: FakeWorld,
) -> None:
    rollout.die(R, rank=1)
    late = ProcExited(
        at_us=rollout.tick(), wpg_id=R, incarnation=1, rank=1, exit_code=0, signal=9, log_tail=""
    )
    assert rollout.tell(late) == []
    given_up = InstanceLost(at_us=rollout.tick(), wpg_id=R, rank=1, incarnation=1, fault=GONE)
    assert rollout.tell(given_up) == []


def test_a_spawn_that_fails_is_tried_again_and_then_ends_the_deployment(
    rollout: FakeWorld,
) -> None:
    generate(rollout, 1)
    rollout.die(R)
    for incarnation in (3, 4):
        order = next(order for order in rollout.orders if isinstance(order, SpawnInstance))
        again = SpawnInstance(wpg_id=R, rank=0, incarnation=incarnation)
        assert rollout.report(order, fault=GONE) == [again]
    order = next(order for order in rollout.orders if isinstance(order, SpawnInstance))
    actions = rollout.report(order, fault=GONE)
    assert codes(actions) == [ErrorCode.WORKER_DIED]
    assert StopWpg(wpg_id=R) in actions
    (changed,) = [action for action in actions if isinstance(action, DeploymentChanged)]
    assert changed.fault is not None
    assert "import error; it was spawned again 3 times in 600 s" in changed.fault.message


def test_what_is_lost_now_and_then_is_spawned_again_for_ever(rollout: FakeWorld) -> None:
    for _ in range(20):
        rollout.tick(rollout.limits.respawn_window_us // 3)
        rollout.die(R)
        rollout.drain()
    assert state(rollout) is DeploymentState.READY


def test_instances_are_counted_one_by_one(rollout: FakeWorld) -> None:
    for _ in range(rollout.limits.max_respawns):
        for rank in (0, 1):
            rollout.die(R, rank=rank)
            rollout.drain()
    assert state(rollout) is DeploymentState.READY


def test_a_generate_that_lost_too_many_instances_fails_alone(rollout: FakeWorld) -> None:
    generate(rollout, 1)
    lost = OperationFinished(
        at_us=rollout.tick(),
        operation_id=op_id("g1"),
        fault=GONE,
        is_refusal=False,
        run_us=0,
        digest="",
    )
    rollout.orders.clear()
    assert codes(rollout.tell(lost)) == [ErrorCode.WORKER_DIED]
    assert state(rollout) is DeploymentState.READY


def test_an_instance_that_dies_before_its_deployment_is_ready_ends_it() -> None:
    world = FakeWorld()
    world.join(train=0, rollout=1)
    world.job("a")
    world.deploy("a", "rollout", rollout=True)
    assert StopWpg(wpg_id=R) in world.die(R)
    assert state(world) is DeploymentState.FAILED


def test_an_instance_of_a_job_that_ends_is_not_spawned_again(rollout: FakeWorld) -> None:
    generate(rollout, 1)
    rollout.end("a")
    actions = rollout.die(R)
    assert not [action for action in actions if isinstance(action, SpawnInstance)]
    assert StopWpg(wpg_id=R) in actions


def lose_node(world: FakeWorld, node: str) -> list[Action]:
    return world.tell(NodeLost(at_us=world.tick(), node_id=NodeId(node), reason="silence"))


@pytest.fixture
def spread() -> FakeWorld:
    """A rollout deployment with an instance on each of two nodes."""
    world = FakeWorld(limits=Limits(placement_timeout_us=1 << 40))
    world.join("n0", train=0, rollout=1)
    world.join("n1", train=0, rollout=1)
    world.bring_up("a", "rollout", devices=2, rollout=True)
    return world


def places(world: FakeWorld) -> list[str]:
    return [place.unit for place in world.core.view.wpgs[R].places]


def test_an_instance_of_a_lost_node_comes_back_on_an_idle_device_of_its_kind(
    spread: FakeWorld,
) -> None:
    spread.join("n2", train=1, rollout=1)
    there = Place(node_id=NodeId("n2"), device=1)
    generate(spread, 1)
    again = SpawnInstance(wpg_id=R, rank=1, incarnation=2, place=there)
    assert lose_node(spread, "n1") == [again]
    assert places(spread) == ["n0:0", "n2:1"]
    spread.drain()
    assert state(spread) is DeploymentState.READY
    assert not codes(spread.log), "the other instance goes on"
    spread.bring_up("b", "rollout", rollout=True)
    assert state_of(spread, "b") is not DeploymentState.READY, "the device is taken"
    spread.join("n1", train=0, rollout=1)
    spread.drain()
    assert state_of(spread, "b") is DeploymentState.READY, "that of the lost node is free"


def test_an_instance_without_a_device_waits_while_the_others_go_on(spread: FakeWorld) -> None:
    generate(spread, 1)
    spread.tell(NodeLost(at_us=spread.tick(), node_id=NodeId("n1"), reason="silence"))
    story = explain_job(spread.core.view, JobId("a"), now_us=spread.now_us)
    assert story is not None
    assert "instance 1 waits for another device: node n1 is lost" in str(story.facts)
    spread.drain()
    generate(spread, 2)
    spread.drain()
    assert (state(spread), codes(spread.log)) == (DeploymentState.READY, [])
    spread.join("n2", train=0, rollout=1)
    spread.drain()
    assert places(spread) == ["n0:0", "n2:0"]
    assert not spread.core.view.wpgs[R].absent


def test_an_instance_that_waits_comes_back_with_its_node(spread: FakeWorld) -> None:
    lose_node(spread, "n1")
    spread.join("n1", train=0, rollout=1)
    spread.drain()
    assert places(spread) == ["n0:0", "n1:0"]
    assert not spread.core.view.wpgs[R].absent


def test_an_instance_for_which_no_device_comes_free_ends_its_deployment(spread: FakeWorld) -> None:
    lose_node(spread, "n1")
    actions = spread.fire(f"homeless/{R}")
    assert StopWpg(wpg_id=R) in actions
    (changed,) = [action for action in actions if isinstance(action, DeploymentChanged)]
    assert changed.fault is not None
    assert changed.fault.code is ErrorCode.NODE_LOST
    assert "scheduler.placement_timeout_us" in changed.fault.message
    spread.drain()
    assert not spread.core.cluster.placement.homeless


def test_a_timer_of_one_that_came_back_ends_nothing(spread: FakeWorld) -> None:
    lose_node(spread, "n1")
    spread.join("n1", train=0, rollout=1)
    spread.drain()
    assert spread.fire(f"homeless/{R}") == []


def test_turns_are_charged_to_their_job_beside_its_operations(rollout: FakeWorld) -> None:
    generate(rollout, 1)
    rollout.drain()
    job = rollout.core.view.jobs[JobId("a")]
    devices = rollout.core.view.wpgs[R].devices
    charged, busy = job.device_us, [device.busy_us for device in devices]
    rollout.tell(TurnsTaken(at_us=rollout.tick(), wpg_id=R, device_us=3_000_000))
    assert job.device_us == charged + 3_000_000
    assert [device.busy_us for device in devices] == [one + 1_500_000 for one in busy]


def test_turns_of_a_deployment_that_is_gone_are_nobodys(rollout: FakeWorld) -> None:
    job = rollout.core.view.jobs[JobId("a")]
    charged = job.device_us
    late = TurnsTaken(at_us=rollout.tick(), wpg_id=WpgId("wpg-9-9"), device_us=3_000_000)
    assert rollout.tell(late) == []
    assert job.device_us == charged
