"""What an operation comes after: remembered for its job, whatever others do."""

from __future__ import annotations

import pytest

from plexsvc.errors import ErrorCode
from plexsvc.ids import DeploymentId
from plexsvc.scheduler.core import state
from plexsvc.scheduler.core.actions import RefuseOperation, StartOperation
from plexsvc.scheduler.core.events import Acknowledged
from plexsvc.scheduler.core.vocabulary import OperationKind, OperationState
from tests.fakes.fake_world import FakeWorld, op_id


def acknowledged(world: FakeWorld, job: str, *, operations: int) -> None:
    """Run operations of a job to their release."""
    for seq in range(1, operations + 1):
        world.submit(f"{job}{seq}", job=job, seq=seq)
        world.drain()
    deployment_id = DeploymentId(f"{job}/actor")
    world.tell(Acknowledged(at_us=world.tick(), deployment_id=deployment_id, seq=operations))


def test_what_other_jobs_release_does_not_make_an_after_unknown(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(state, "MAX_REMEMBERED_IDS", 4)
    world = FakeWorld()
    world.join(train=2)
    world.bring_up("a")
    world.bring_up("b")
    acknowledged(world, "a", operations=1)
    acknowledged(world, "b", operations=8)
    actions = world.submit("last", job="a", seq=2, after=("a1",))
    assert [a.operation_id for a in actions if isinstance(a, StartOperation)] == [op_id("last")]


def test_an_operation_of_another_job_is_nothing_that_one_could_come_after() -> None:
    world = FakeWorld()
    world.join(train=2)
    world.bring_up("a")
    world.bring_up("b")
    acknowledged(world, "b", operations=1)
    world.submit("b2", job="b", seq=2)
    for name in ("b1", "b2"):
        seq = {"b1": 1, "b2": 2}[name]
        actions = world.submit(f"after {name}", job="a", seq=seq, after=(name,))
        assert not [a for a in actions if isinstance(a, StartOperation)]


def test_the_wait_for_an_operation_of_another_job_ends() -> None:
    world = FakeWorld()
    world.join(train=2)
    world.bring_up("a")
    world.bring_up("b")
    world.submit("b1", job="b", seq=1)
    world.submit("a1", job="a", seq=1, after=("b1",))
    actions = world.fire(f"after/{op_id('a1').hex()}")
    assert [a.fault.code for a in actions if isinstance(a, RefuseOperation)] == [
        ErrorCode.DEPENDENCY_FAILED
    ]


def windowed() -> FakeWorld:
    """Return a world whose job `a` trains, has an instance, and an engine where it trains."""
    world = FakeWorld(device_bytes=100)
    world.join(train=1, rollout=1)
    world.bring_up("a")
    world.bring_up("a", "rollout", rollout=True)
    world.deploy("a", "reserved", rollout=True, where_it_trains=True)
    world.drain()
    return world


def seed(world: FakeWorld, name: str, *, seq: int, after: str) -> OperationState:
    world.submit(name, job="a", to="reserved", seq=seq, kind=OperationKind.SEED, after=(after,))
    return world.core.view.operations[op_id(name)].state


def generate(world: FakeWorld, name: str, *, seq: int, after: tuple[str, ...] = ()) -> None:
    kind = OperationKind.GENERATE
    world.submit(name, job="a", to="rollout", seq=seq, kind=kind, after=after)


def runs_beside(world: FakeWorld, generate: str, name: str) -> None:
    """Report what is ordered, but the end of a generate, until an operation runs beside it."""
    while world.core.view.operations[op_id(name)].state is not OperationState.RUNNING:
        others = [o for o in world.orders if getattr(o, "operation_id", 0) != op_id(generate)]
        world.report(others[0])


def test_a_seed_begins_when_its_generate_does_and_training_waits_for_its_end() -> None:
    world = windowed()
    world.submit("step", job="a", seq=1)
    generate(world, "g1", seq=1, after=("step",))
    assert seed(world, "s1", seq=1, after="g1") is OperationState.STAGED, (
        "it would hold up the step"
    )
    runs_beside(world, "g1", "s1")
    world.submit("next", job="a", seq=2)
    states = {name: world.core.view.operations[op_id(name)].state for name in ("g1", "s1", "next")}
    assert states == {
        "g1": OperationState.RUNNING,
        "s1": OperationState.RUNNING,
        "next": OperationState.STAGED,
    }
    world.drain()
    assert world.core.view.operations[op_id("next")].state is OperationState.ANSWERED


def test_a_seed_whose_generate_is_over_is_refused_and_its_successors_go_on() -> None:
    world = windowed()
    generate(world, "g1", seq=1)
    world.drain()
    assert seed(world, "s1", seq=1, after="g1") is OperationState.REFUSED
    fault = world.core.view.operations[op_id("s1")].fault
    assert fault is not None
    assert "is over" in fault.message
    generate(world, "g2", seq=2)
    assert seed(world, "s2", seq=2, after="g2") is not OperationState.REFUSED
    world.drain()
    assert world.core.view.operations[op_id("s2")].state is OperationState.ANSWERED


def test_a_seed_that_comes_before_its_generate_waits_for_it() -> None:
    world = windowed()
    assert seed(world, "s1", seq=1, after="g1") is OperationState.STAGED
    generate(world, "g1", seq=1)
    world.drain()
    assert world.core.view.operations[op_id("s1")].state is OperationState.ANSWERED
