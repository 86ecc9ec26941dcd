"""Whatever happens: one executor a device, bytes in budget, order, one answer each, all freed."""

from __future__ import annotations

import os
from collections import Counter
from typing import ClassVar, Final

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule

from plexsvc.errors import ErrorCode
from plexsvc.ids import DeploymentId, JobId, NodeId
from plexsvc.scheduler.core import awaited
from plexsvc.scheduler.core.actions import (
    CarryState,
    MoveState,
    RefuseOperation,
    StartOperation,
)
from plexsvc.scheduler.core.events import (
    Acknowledged,
    CarryFailed,
    JobMoveRequested,
    MoveFailed,
    NodeCordoned,
    NodeLost,
    NodeUncordoned,
    OperationFinished,
    ProcExited,
    RepackRequested,
    SpawnFailed,
)
from plexsvc.scheduler.core.limits import Limits
from plexsvc.scheduler.core.vocabulary import DeploymentState, Fault, JobState, OperationKind
from plexsvc.scheduler.driver.freezing import freeze, thaw
from tests.fakes.fake_world import FakeWorld, Order, no_room, op_id
from tests.rigs.core_invariants import check_board

SLOTS = ("a", "b", "c")
SLOT = st.sampled_from(SLOTS)
SOMETIMES = st.sampled_from([False] * 4 + [True])
RARELY = st.sampled_from([False] * 9 + [True])
NAMES = ("actor", "critic", "rollout")
TRAINING = [
    OperationKind.STEP,
    OperationKind.FORWARD_BACKWARD,
    OperationKind.PUBLISH,
    OperationKind.SAVE,
    OperationKind.STATE_DIGEST,
    OperationKind.LOAD,
]
SAVES = {OperationKind.SAVE, OperationKind.STATE_DIGEST}
ROLLOUT = [OperationKind.GENERATE, OperationKind.GENERATE, OperationKind.PULL]
LIMITS = Limits(
    max_pending_per_wpg=6,
    max_gap=4,
    max_answered_per_deployment=8,
    max_move_tries=2,
    placement_timeout_us=1 << 40,
)
REPEATED = ("drain",)
"""Timers of deployments that find no place off a draining node: they are set again and again."""
HISTORIES: Final = int(os.environ.get("PLEX_CHAOS_HISTORIES") or 25)  # noqa: TID251 - of `make chaos`
"""With takeovers and many faults."""
FAILURES = (ProcExited, NodeLost, MoveFailed, CarryFailed, OperationFinished)
FAULTS = (ErrorCode.INTERNAL, ErrorCode.WINDOW_BROKEN, ErrorCode.NO_ROOM, ErrorCode.WORKER_DIED)


class AnyHistory(RuleBasedStateMachine):
    """Random events over two nodes; `FakeWorld.tell` checks the invariants after each."""

    def __init__(self) -> None:
        super().__init__()
        self.world = self.new_world()
        self.world.join("n0", train=2, rollout=1)
        self.world.join("n1", train=2, rollout=2)
        self.generation = dict.fromkeys(SLOTS, 0)
        self.next_seq: dict[str, int] = {}
        self.submitted: list[str] = []
        self.count = 0
        for slot in SLOTS:
            self.world.bring_up(
                self.job(slot), "actor", durable=slot == SLOTS[0], steps_on_host=slot == SLOTS[1]
            )

    def new_world(self) -> FakeWorld:
        return FakeWorld(limits=LIMITS)

    def job(self, slot: str) -> str:
        return f"{slot}{self.generation[slot]}"

    @rule(
        slot=SLOT,
        name=st.sampled_from(NAMES),
        devices=st.sampled_from([1, 1, 2]),
        shared=st.integers(0, 2),
        takes=st.sampled_from([0, 40, 60]),
        durable=st.booleans(),
        on_host=st.booleans(),
    )
    def deploy(
        self,
        slot: str,
        name: str,
        devices: int,
        shared: int,
        takes: int,
        durable: bool,
        on_host: bool,
    ) -> None:
        is_rollout = name == "rollout"
        self.world.job(self.job(slot))
        self.world.deploy(
            self.job(slot),
            name,
            devices=1 if is_rollout else devices,
            rollout=is_rollout,
            shared=is_rollout and shared > 0,
            where_it_trains=is_rollout and shared > 1,
            instance_bytes=takes if is_rollout and shared == 1 else 0,
            durable=durable and not is_rollout,
            steps_on_host=on_host and not durable and not is_rollout,
        )

    @rule(
        slot=SLOT,
        name=st.sampled_from(NAMES),
        skip=st.sampled_from([0] * 9 + [1]),
        kind=st.integers(0, 4),
        is_staged=st.sampled_from([True] * 7 + [False]),
        after=st.sampled_from([False, False, True]),
    )
    def submit(
        self, slot: str, name: str, skip: int, kind: int, is_staged: bool, after: bool
    ) -> None:
        job = self.job(slot)
        key = f"{job}/{name}"
        seq = self.next_seq.get(key, 1) + skip
        self.count += 1
        mine = [other for other in self.submitted if other.startswith(f"{job}-")]
        operation = f"{job}-{self.count}"
        kinds = ROLLOUT if name == "rollout" else TRAINING
        self.world.submit(
            operation,
            job=job,
            to=name,
            seq=seq,
            kind=kinds[kind % len(kinds)],
            is_staged=is_staged,
            after=(mine[-1],) if after and mine else (),
        )
        answers = self.world.answers.get(op_id(operation), [])
        if all(isinstance(a, RefuseOperation) and not a.is_final for a in answers) and answers:
            return
        self.next_seq[key] = seq + 1
        self.submitted.append(operation)

    @precondition(lambda self: self.world.orders)
    @rule(data=st.data(), fails=st.sampled_from([False] * 9 + [True]))
    def report(self, data: st.DataObject, fails: bool) -> None:
        order = data.draw(st.sampled_from(self.world.orders))
        fault = None
        if fails and isinstance(order, MoveState | CarryState):
            fault = no_room()
        elif fails and isinstance(order, StartOperation):
            fault = Fault(code=data.draw(st.sampled_from(FAULTS)), message="it broke")
        self.world.report(order, fault=fault)

    @precondition(lambda self: self.saves())
    @rule(data=st.data())
    def copy(self, data: st.DataObject) -> None:
        self.world.copied(data.draw(st.sampled_from(self.saves())))

    def saves(self) -> list[str]:
        """Operations whose state may have been copied, running or over."""
        operations = self.world.core.view.operations
        mine = [(name, operations.get(op_id(name))) for name in self.submitted]
        return [name for name, operation in mine if operation and operation.kind in SAVES]

    @precondition(lambda self: self.world.orders)
    @rule()
    def drain(self) -> None:
        self.world.drain()

    @precondition(lambda self: self.world.timers)
    @rule(data=st.data())
    def fire(self, data: st.DataObject) -> None:
        key = data.draw(st.sampled_from(sorted(self.world.timers)))
        if not key.startswith(("spawn", "watch")) or data.draw(RARELY):
            self.world.fire(key)

    @precondition(lambda self: self.world.core.view.wpgs)
    @rule(data=st.data(), happens=RARELY)
    def die(self, data: st.DataObject, happens: bool) -> None:
        if happens:
            self.world.die(data.draw(st.sampled_from(sorted(self.world.core.view.wpgs))))

    @precondition(lambda self: self.world.core.view.deployments)
    @rule(data=st.data(), choice=st.permutations(range(4)))
    def relocate(self, data: st.DataObject, choice: list[int]) -> None:
        cluster = self.world.core.view
        key = data.draw(st.sampled_from(sorted(cluster.deployments)))
        job, _, name = key.rpartition("/")
        wanted = cluster.deployments[DeploymentId(key)]
        kind = wanted.device_kind
        among = [place for place, device in cluster.devices.items() if device.kind == kind]
        chosen = [among[i] for i in choice if i < len(among)]
        places = tuple(chosen[: wanted.num_devices])
        self.world.relocate(job, name, places=places)

    @rule(happens=RARELY)
    def lose_and_rejoin(self, happens: bool) -> None:
        if happens:
            at_us = self.world.tick()
            self.world.tell(NodeLost(at_us=at_us, node_id=NodeId("n1"), reason="silence"))
            self.world.join("n1", train=2, rollout=2)

    @precondition(lambda self: self.world.core.view.deployments)
    @rule(data=st.data())
    def acknowledge(self, data: st.DataObject) -> None:
        deployment_id = data.draw(st.sampled_from(sorted(self.world.core.view.deployments)))
        seq = self.next_seq.get(deployment_id, 1) - 1
        self.world.tell(Acknowledged(at_us=self.world.tick(), deployment_id=deployment_id, seq=seq))

    @rule(node=st.sampled_from(["n0", "n1"]), what=st.integers(0, 2), happens=SOMETIMES)
    def change_node(self, node: str, what: int, happens: bool) -> None:
        if happens and what:
            cordoned = NodeCordoned(
                at_us=self.world.tick(), node_id=NodeId(node), is_drained=what == 2
            )
            self.world.tell(cordoned)
        elif happens:
            self.world.tell(NodeUncordoned(at_us=self.world.tick(), node_id=NodeId(node)))

    @rule(slot=SLOT, node=st.sampled_from([None, "n0", "n1"]), happens=SOMETIMES)
    def move_job(self, slot: str, node: str | None, happens: bool) -> None:
        if happens:
            to = None if node is None else NodeId(node)
            job_id = JobId(self.job(slot))
            self.world.tell(JobMoveRequested(at_us=self.world.tick(), job_id=job_id, node_id=to))

    @rule(happens=SOMETIMES)
    def repack(self, happens: bool) -> None:
        if happens:
            self.world.tell(RepackRequested(at_us=self.world.tick()))

    @rule(slot=SLOT, outcome=st.sampled_from(list(JobState)[2:]), happens=RARELY)
    def end(self, slot: str, outcome: JobState, happens: bool) -> None:
        if happens:
            self.world.end(self.job(slot), outcome)
            self.generation[slot] += 1

    def teardown(self) -> None:
        """Nobody waits for nothing; then end all: everything was answered exactly once."""
        cluster = self.world.core.view
        self.settle()
        for job in list(cluster.jobs):
            self.world.end(job)
        self.world.drain()
        assert not cluster.jobs
        assert not cluster.wpgs
        assert not cluster.operations
        assert not cluster.deployments
        assert not cluster.unplaced
        assert not cluster.relocating
        assert not self.world.copies
        assert all(not d.ranks and d.holder is None for d in cluster.devices.values())
        for planner in cluster.planners.values():
            check_board(planner.board)
            assert not planner.board.groups
            assert not planner.board.exclusive
            assert not planner.waiting
        for name in self.submitted:
            assert len(self.world.answers[op_id(name)]) == 1, name

    def settle(self) -> None:
        """Let every order and every wait end: nothing of a placed, ready deployment is left."""
        for _ in range(40):
            self.world.drain()
            due = [key for key in sorted(self.world.timers) if not key.startswith(REPEATED)]
            if not due:
                break
            for key in sorted(self.world.timers):
                self.world.fire(key)
        for deployment in self.world.core.view.deployments.values():
            if deployment.state is DeploymentState.READY:
                assert not deployment.pending, (deployment.pending, deployment.waits_for)
        assert not self.world.core.view.unplaced


TestAnyHistory = AnyHistory.TestCase
TestAnyHistory.settings = settings(
    max_examples=60, stateful_step_count=60, deadline=None, suppress_health_check=list(HealthCheck)
)


class AnyTakenOverHistory(AnyHistory):
    """Random events and many faults; other schedulers take over in between.

    Attributes:
        faults: of all histories, by kind.
    """

    faults: ClassVar[Counter[str]] = Counter()

    @rule(dies=st.booleans(), node_lost=SOMETIMES, data=st.data())
    def take_over(self, dies: bool, node_lost: bool, data: st.DataObject) -> None:
        """Freeze the core and thaw another, which repeats what is awaited (`orders/adopt.py`)."""
        world, frozen = self.world, freeze(self.world.core)
        world.core = thaw(frozen)
        assert freeze(world.core) == frozen
        world.core.lead(world.core.cluster.turn.epoch + 1)
        view = world.core.view
        world.orders = []
        before = list(awaited.orders(world.core.cluster))
        world.timers = {key: at for key, at in world.timers.items() if view.awaits(key)}
        if node_lost:
            lost = NodeLost(at_us=world.tick(), node_id=NodeId("n1"), reason="it did not join")
            world.tell(lost)
        for deployment_id in list(view.relocating):
            relocation = view.deployments[deployment_id].relocation
            if relocation is not None:
                fault = Fault(code=ErrorCode.UNAVAILABLE, message="taken over")
                told = SpawnFailed(at_us=world.tick(), wpg_id=relocation.wpg_id, fault=fault)
                world.tell(told)
        if dies and view.wpgs:
            world.die(data.draw(st.sampled_from(sorted(view.wpgs))))
        still = list(awaited.orders(world.core.cluster))
        given = [order for order in before if order in still and order not in world.orders]
        for order in given:
            if isinstance(order, Order):
                world.orders.append(order)
        if node_lost:
            world.join("n1", train=2, rollout=2)
        self.faults["takeovers"] += 1

    def settle(self) -> None:
        """Count what went wrong, too."""
        super().settle()
        for event, _ in self.world.history:
            if isinstance(event, FAILURES) and getattr(event, "fault", True):
                self.faults[type(event).__name__] += 1


TestAnyTakenOverHistory = pytest.mark.timeout(60 + HISTORIES)(AnyTakenOverHistory.TestCase)
TestAnyTakenOverHistory.settings = settings(
    max_examples=HISTORIES,
    stateful_step_count=60,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)


def test_schedulers_took_over_and_much_failed() -> None:
    faults = AnyTakenOverHistory.faults
    print(f"{faults.total()} faults: {dict(faults)}")  # noqa: T201 - of `make chaos`
    assert {"takeovers", "ProcExited", "NodeLost"} <= faults.keys()
