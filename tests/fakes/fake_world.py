"""A fake world for the scheduler's core: remembers its orders, reports their outcomes at will."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from plexsvc.errors import ErrorCode
from plexsvc.ids import DeploymentId, JobId, MoveId, NodeId, OperationId, TenantId, WpgId
from plexsvc.scheduler.core.actions import (
    Action,
    AnswerOperation,
    CarryState,
    DropCarried,
    ForgetWpg,
    MoveState,
    RefuseOperation,
    RelocationChanged,
    SetTimer,
    SpawnInstance,
    SpawnWpg,
    StartOperation,
    StopWpg,
)
from plexsvc.scheduler.core.events import (
    CarryFailed,
    DeploymentRequested,
    DeploymentsDeclared,
    Event,
    InstanceLost,
    InstanceReady,
    JobEndRequested,
    JobSubmitted,
    MoveFailed,
    NodeJoined,
    OperationFinished,
    OperationSubmitted,
    ProcExited,
    RelocationRequested,
    ResidencyMoved,
    StateCarried,
    StateCopied,
    TimerFired,
    WpgForgotten,
    WpgReady,
    WpgStopped,
)
from plexsvc.scheduler.core.limits import Limits
from plexsvc.scheduler.core.machine import Scheduler
from plexsvc.scheduler.core.place import demands
from plexsvc.scheduler.core.vocabulary import (
    DeviceFacts,
    Fault,
    JobState,
    OperationKind,
    Place,
    RelocationStage,
)
from tests.rigs import core_invariants

Order = SpawnWpg | SpawnInstance | StopWpg | ForgetWpg | StartOperation | MoveState | CarryState


@dataclass(slots=True)
class FakeWorld:
    """Feeds a core; `orders` are those whose outcome has not been reported."""

    limits: Limits = field(default_factory=Limits)
    device_bytes: int = 60
    parked_bytes: int = 0
    pass_bytes: int = 0
    """What a pass of any WPG takes of a device."""
    model_bytes: int = 0
    """A frozen model that all WPGs share on a device."""
    version_bytes: int = 0
    """Reserved for the versions of each rank that trains, unless a deployment says it."""
    now_us: int = 0
    epoch: int = 1
    core: Scheduler = field(init=False)
    orders: list[Order] = field(default_factory=list)
    timers: dict[str, int] = field(default_factory=dict)
    answers: dict[OperationId, list[Action]] = field(default_factory=dict)
    started: list[OperationId] = field(default_factory=list)
    history: list[tuple[Event, list[Action]]] = field(default_factory=list)
    log: list[Action] = field(default_factory=list)
    leases: dict[WpgId, int] = field(default_factory=dict)
    copies: set[MoveId] = field(default_factory=set)
    """Copies of carried state that nobody has dropped."""

    def __post_init__(self) -> None:
        self.core = Scheduler(limits=self.limits, epoch=self.epoch)

    def tell(self, event: Event) -> list[Action]:
        """Hand one event to the core, check every invariant, note what it ordered."""
        actions = self.core.handle(event)
        core_invariants.check(self.core.cluster)
        self.history.append((event, actions))
        for action in actions:
            self._note(action)
        return actions

    def tick(self, by_us: int = 1000) -> int:
        """Let time pass and return it."""
        self.now_us += by_us
        return self.now_us

    def join(
        self,
        node: str = "n0",
        *,
        train: int = 1,
        rollout: int = 0,
        nbytes: int = 100,
        host_bytes: int = 1000,
        disk_bytes: int = 0,
    ) -> None:
        """Add a node."""
        kinds = ["train"] * train + ["rollout"] * rollout
        self.tell(
            NodeJoined(
                at_us=self.tick(),
                node_id=NodeId(node),
                host_bytes=host_bytes,
                disk_bytes=disk_bytes,
                devices=tuple(
                    DeviceFacts(index=i, kind=kind, bytes_total=nbytes)
                    for i, kind in enumerate(kinds)
                ),
            )
        )

    def job(
        self, name: str, *, called: str = "", priority: int = 0, expected_steps: int = 0
    ) -> list[Action]:
        """Open a job."""
        return self.tell(
            JobSubmitted(
                at_us=self.tick(),
                job_id=JobId(name),
                tenant=TenantId("lab"),
                name=called or name,
                priority=priority,
                expected_steps=expected_steps,
            )
        )

    def deploy(
        self,
        job: str,
        name: str = "actor",
        *,
        devices: int = 1,
        rollout: bool = False,
        shared: bool = False,
        where_it_trains: bool = False,
        state_bytes: int = 0,
        version_bytes: int = 0,
        instance_bytes: int = 0,
        durable: bool = False,
        steps_on_host: bool = False,
    ) -> list[Action]:
        """Request a deployment."""
        asked = wanted(job, name, devices=devices, rollout=rollout)
        return self.tell(
            replace(
                asked,
                at_us=self.tick(),
                device_kind="rollout" if rollout and not where_it_trains else "train",
                is_shared=shared or where_it_trains,
                where_it_trains=where_it_trains,
                state_bytes=state_bytes,
                instance_bytes=instance_bytes,
                is_durable=durable,
                steps_on_host=steps_on_host,
                version_bytes=version_bytes or (0 if rollout else self.version_bytes),
            )
        )

    def declare(self, job: str, *, train: int = 1, **instances: int) -> list[Action]:
        """Open a job if need be; declare an actor of `train` devices (0: none) and instances."""
        if JobId(job) not in self.core.view.jobs:
            self.job(job)
        actor = [wanted(job, "actor", devices=train)] if train else []
        others = [
            wanted(job, name, devices=count, rollout=True) for name, count in instances.items()
        ]
        return self.tell(
            DeploymentsDeclared(at_us=self.tick(), job_id=JobId(job), deployments=(*actor, *others))
        )

    def bring_up(
        self,
        job: str,
        name: str = "actor",
        *,
        devices: int = 1,
        rollout: bool = False,
        shared: bool = False,
        instance_bytes: int = 0,
        durable: bool = False,
        steps_on_host: bool = False,
    ) -> None:
        """Open a job if need be, deploy, and report everything until nothing is open."""
        if JobId(job) not in self.core.view.jobs:
            self.job(job)
        self.deploy(
            job,
            name,
            devices=devices,
            rollout=rollout,
            shared=shared,
            instance_bytes=instance_bytes,
            durable=durable,
            steps_on_host=steps_on_host,
        )
        self.drain()

    def submit(
        self,
        name: str,
        *,
        job: str,
        to: str = "actor",
        seq: int,
        kind: OperationKind = OperationKind.STEP,
        after: tuple[str, ...] = (),
        is_staged: bool = True,
    ) -> list[Action]:
        """Submit an operation under a readable name."""
        return self.tell(
            OperationSubmitted(
                at_us=self.tick(),
                operation_id=op_id(name),
                job_id=JobId(job),
                deployment_id=DeploymentId(f"{job}/{to}"),
                seq=seq,
                kind=kind,
                after=tuple(map(op_id, after)),
                is_staged=is_staged,
                num_tokens=0,
            )
        )

    def relocate(self, job: str, to: str = "actor", *, places: tuple[Place, ...]) -> list[Action]:
        """Ask for a deployment to move."""
        return self.tell(
            RelocationRequested(
                at_us=self.tick(),
                deployment_id=DeploymentId(f"{job}/{to}"),
                places=places,
                reason="asked",
            )
        )

    def end(self, job: str, outcome: JobState = JobState.COMPLETED) -> list[Action]:
        """End a job."""
        return self.tell(
            JobEndRequested(at_us=self.tick(), job_id=JobId(job), outcome=outcome, reason="done")
        )

    def report(self, order: Order, *, fault: Fault | None = None) -> list[Action]:
        """Report the outcome of an order."""
        self.orders.remove(order)
        return self.tell(self._outcome(order, fault=fault))

    def report_next(self, kind: type[Order]) -> list[Action]:
        """Report the oldest open order of a kind as done."""
        return self.report(next(order for order in self.orders if isinstance(order, kind)))

    def copied(self, name: str) -> list[Action]:
        """Report that state managers hold a copy of what an operation works from."""
        return self.tell(StateCopied(at_us=self.tick(), operation_id=op_id(name)))

    def die(self, wpg_id: WpgId, *, rank: int = 0) -> list[Action]:
        """Kill a rank."""
        return self.tell(
            ProcExited(
                at_us=self.tick(),
                wpg_id=wpg_id,
                incarnation=self.core.view.wpgs[wpg_id].incarnation_of(rank),
                rank=rank,
                exit_code=0,
                signal=9,
                log_tail="out of luck\n",
            )
        )

    def fire(self, key: str) -> list[Action]:
        """Let a timer's time come."""
        self.now_us = max(self.now_us + 1, self.timers.pop(key))
        return self.tell(TimerFired(at_us=self.now_us, key=key))

    def drain(self) -> None:
        """Report every open order as done until none is left."""
        while self.orders:
            self.report(self.orders[0])

    def places(self, job: str = "a") -> list[str]:
        """Return the devices of a job's actor, which must be booked where it is."""
        view, placement = self.core.view, self.core.cluster.placement
        deployment = view.deployments[DeploymentId(f"{job}/actor")]
        wpg = view.wpg_of(deployment)
        assert wpg is not None
        planner, key = demands.planner_of(placement, deployment)
        where = [place.unit for place in wpg.places]
        assert list(planner.group_of(key).residents[key].units) == where, "booked elsewhere"
        return [str(unit) for unit in where]

    def stages(self) -> list[RelocationStage]:
        """Return how far relocations came, one after another."""
        return [a.stage for a in self.log if isinstance(a, RelocationChanged)]

    def _outcome(self, order: Order, *, fault: Fault | None) -> Event:
        at_us = self.tick()
        failed = None if fault is None else self._failed(order, fault, at_us=at_us)
        return failed or self._done(order, fault, at_us=at_us)

    @staticmethod
    def _failed(order: Order, fault: Fault, *, at_us: int) -> Event | None:
        """Return what tells that an order failed; an operation ends with its fault."""
        match order:
            case CarryState():
                return CarryFailed(
                    at_us=at_us,
                    deployment_id=order.deployment_id,
                    move_id=order.move_id,
                    fault=fault,
                )
            case SpawnInstance():
                return InstanceLost(
                    at_us=at_us,
                    wpg_id=order.wpg_id,
                    rank=order.rank,
                    incarnation=order.incarnation,
                    fault=fault,
                )
            case MoveState():
                return MoveFailed(
                    at_us=at_us, wpg_id=order.wpg_id, move_id=order.move_id, fault=fault
                )
            case _:
                return None

    def _done(self, order: Order, fault: Fault | None, *, at_us: int) -> Event:
        match order:
            case CarryState():
                self.copies.add(order.move_id)
                return StateCarried(
                    at_us=at_us, deployment_id=order.deployment_id, move_id=order.move_id, nbytes=60
                )
            case SpawnWpg():
                asked = self.core.view.deployments.get(order.deployment_id)
                own = 0 if asked is None else asked.instance_bytes
                sizes = (own or self.device_bytes,) * len(order.places)
                parked = (self.parked_bytes,) * len(order.places) if self.parked_bytes else ()
                return WpgReady(
                    at_us=at_us,
                    wpg_id=order.wpg_id,
                    device_bytes=sizes,
                    parked_bytes=parked,
                    pass_bytes=(self.pass_bytes,) * len(sizes) if self.pass_bytes else (),
                    models=("model",) * len(sizes) if self.model_bytes else (),
                    model_bytes=(self.model_bytes,) * len(sizes) if self.model_bytes else (),
                )
            case SpawnInstance():
                return InstanceReady(
                    at_us=at_us,
                    wpg_id=order.wpg_id,
                    rank=order.rank,
                    incarnation=order.incarnation,
                )
            case StopWpg():
                return WpgStopped(at_us=at_us, wpg_id=order.wpg_id)
            case ForgetWpg():
                return WpgForgotten(at_us=at_us, wpg_id=order.wpg_id)
            case StartOperation():
                return OperationFinished(
                    at_us=at_us,
                    operation_id=order.operation_id,
                    fault=fault,
                    is_refusal=False,
                    run_us=500,
                    digest="",
                    wpg_id=order.wpg_id,
                )
            case MoveState():
                return ResidencyMoved(
                    at_us=at_us,
                    wpg_id=order.wpg_id,
                    move_id=order.move_id,
                    nbytes=60,
                    total_us=400,
                )

    def _note(self, action: Action) -> None:
        self.log.append(action)
        if isinstance(action, StartOperation | MoveState):
            assert action.lease_no >= self.leases.get(action.wpg_id, 0), action
            self.leases[action.wpg_id] = action.lease_no
        match action:
            case DropCarried():
                self.copies.remove(action.move_id)
            case (
                SpawnWpg() | SpawnInstance() | StopWpg() | ForgetWpg() | MoveState() | CarryState()
            ):
                self.orders.append(action)
            case StartOperation():
                self.orders.append(action)
                self.started.append(action.operation_id)
            case SetTimer():
                self.timers[action.key] = action.at_us
            case AnswerOperation() | RefuseOperation():
                self.answers.setdefault(action.operation_id, []).append(action)
            case _:
                pass


def wanted(job: str, name: str, *, devices: int = 1, rollout: bool = False) -> DeploymentRequested:
    """Return the request of a deployment."""
    return DeploymentRequested(
        deployment_id=DeploymentId(f"{job}/{name}"),
        job_id=JobId(job),
        initialize_id=op_id(f"{job}/{name}/init"),
        role="rollout" if rollout else "actor",
        backend="noop",
        device_kind="rollout" if rollout else "train",
        num_devices=devices,
        is_rollout=rollout,
        name=name,
    )


def op_id(name: str) -> OperationId:
    """Return a readable operation id."""
    return OperationId(name.encode().ljust(16, b".")[-16:])


def codes(actions: list[Action]) -> list[ErrorCode]:
    """Return the codes of the refusals among actions, in their order."""
    return [action.fault.code for action in actions if isinstance(action, RefuseOperation)]


def no_room() -> Fault:
    """Return a state manager's refusal."""
    return Fault(code=ErrorCode.NO_ROOM, message="host memory is full")


def fault_of(action: Action) -> Fault:
    """Return the fault that an action tells of."""
    fault = getattr(action, "fault", None)
    assert isinstance(fault, Fault), action
    return fault
