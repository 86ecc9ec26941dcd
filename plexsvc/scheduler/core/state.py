"""Records of the core: nodes, devices, jobs, deployments, WPGs, operations."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from plexsvc.ids import (
    DeploymentId,
    JobId,
    MoveId,
    NodeId,
    OperationId,
    ResidentId,
    TenantId,
    WpgId,
)
from plexsvc.newest import Newest
from plexsvc.residency import TRANSITIONS, Residency, ResidencyTrigger
from plexsvc.scheduler.core.planning.profile import Mode, Profile
from plexsvc.scheduler.core.planning.profiler import CycleProfiler, TokenCost
from plexsvc.scheduler.core.transitions import (
    OPERATION_TRANSITIONS,
    WPG_TRANSITIONS,
    OperationTrigger,
    WpgTrigger,
    step,
)
from plexsvc.scheduler.core.vocabulary import (
    MANAGED_KINDS,
    DeploymentState,
    Fault,
    JobState,
    OperationKind,
    OperationState,
    Place,
    RelocationStage,
    WpgState,
)

HELD = frozenset({RelocationStage.CARRYING, RelocationStage.RESTORING})
"""Stages of a relocation in which the deployment's operations wait."""

MAX_REMEMBERED_IDS: Final = 8192
"""Ids of a job's released operations, and of those turned away, that dependants and late repeats
find."""


@dataclass(slots=True, kw_only=True)
class Device:
    """One device: who may use it, and what it has done since it joined."""

    place: Place
    kind: str
    bytes_total: int
    since_us: int
    ranks: dict[WpgId, int] = field(default_factory=dict)
    """The WPGs that live on it, in the order they came, and which of their ranks does."""
    holder: WpgId | None = None
    last_holder: WpgId | None = None
    held_since_us: int = 0
    """Since when it has its holder, or none."""
    lease_no: int = 0
    busy_us: int = 0
    switch_us: int = 0
    switches: int = 0


@dataclass(slots=True, kw_only=True)
class Node:
    """A node whose lease is held."""

    node_id: NodeId
    host_bytes: int
    devices: list[Place]


@dataclass(slots=True, kw_only=True)
class Operation:
    """One unit of work and how far it is."""

    operation_id: OperationId
    deployment_id: DeploymentId
    job_id: JobId
    seq: int
    kind: OperationKind
    after: tuple[OperationId, ...]
    submitted_us: int
    num_tokens: int = 0
    is_inline: bool = True
    payload_us: int = 0
    """When some of its payload was last known to come; at first, when it was submitted."""

    wpg_id: WpgId | None = None
    """The WPG that runs it, known once it started; of an `Initialize`, from the beginning."""

    state: OperationState = OperationState.RECEIVED
    eligible_us: int | None = None
    granted_us: int = 0
    started_us: int = 0
    finished_us: int = 0
    move_failures: int = 0
    fault: Fault | None = None

    @property
    def needs_device(self) -> bool:
        """Whether it runs only while its WPG holds the lease of its devices."""
        return self.kind not in MANAGED_KINDS

    def apply(self, trigger: OperationTrigger) -> None:
        """Change state by the table."""
        self.state = step(OPERATION_TRANSITIONS, self.state, trigger)


@dataclass(slots=True, kw_only=True)
class Relocation:
    """A deployment's way to other devices; `relocate/relocation.py` says how it goes."""

    wpg_id: WpgId
    """The WPG that will replace the current one."""

    initialize_id: OperationId
    places: tuple[Place, ...]
    reason: str
    started_us: int
    stage: RelocationStage = RelocationStage.SPAWNING
    move_id: MoveId | None = None
    fault: Fault | None = None
    """What ended the WPG that was to arrive."""


@dataclass(slots=True, kw_only=True)
class Pattern:
    """What a deployment's operations taught: its cycle, their cost, when the next one comes."""

    cycles: CycleProfiler = field(default_factory=CycleProfiler)
    costs: dict[OperationKind, TokenCost] = field(default_factory=dict)
    since_us: int = 0
    busy_us: int = 0
    waited_us: int = 0
    """Time its own clock stood still: what it waited for devices, unless its slack hid that."""

    cycle_waits_us: int = 0
    """The part of `waited_us` of the current cycle."""

    noted_us: int = 0
    """When, on its own clock, the cycle began that the planner was last told of."""

    cycle: int = -1
    arrived_us: int = 0
    """When the first operation of the current cycle could have run."""

    interval_us: int = 0
    """How long after another the first operations of cycles come; 0: not known."""

    last_end_us: int | None = None
    gap_us: int | None = None
    """How long after `last_end_us` the next operation is expected."""

    @property
    def profile(self) -> Profile | None:
        """Return the cycle, once it is known."""
        return self.cycles.profile

    @property
    def expected_us(self) -> int | None:
        """Return when the next operation is expected."""
        if self.last_end_us is None or self.gap_us is None:
            return None
        profile = self.profile
        is_beside = profile is not None and profile.mode is Mode.ASYNC1
        if is_beside and self.interval_us and self.cycles.is_last_of_cycle:
            return self.arrived_us + self.interval_us  # rollout went on while training waited
        return self.last_end_us + self.gap_us


@dataclass(slots=True, kw_only=True)
class Deployment:
    """A model a job wants runnable, and the order of its operations.

    It has one *current* WPG, which runs its operations. While it is being relocated, another is
    *coming* (`relocation.wpg_id`). Any further WPG of it is *leaving*: it was replaced, or its
    relocation failed, and it is being stopped.
    """

    deployment_id: DeploymentId
    job_id: JobId
    initialize_id: OperationId
    role: str
    backend: str
    device_kind: str
    num_devices: int
    is_rollout: bool
    name: str = ""
    model: str = ""
    layout: str = ""
    state: DeploymentState = DeploymentState.STARTING
    fault: Fault | None = None
    wpg_id: WpgId | None = None
    """The current WPG."""

    requested_us: int = 0
    next_seq: int = 1
    complete_to: int = 1
    """No number from `next_seq` up to it is missing; the search for a missing one starts there."""
    pending: dict[int, Operation] = field(default_factory=dict)
    consumed: set[int] = field(default_factory=set)
    answered: dict[int, OperationId] = field(default_factory=dict)
    gap_seq: int | None = None
    gap_since_us: int = 0
    waits_for: OperationId | None = None
    pattern: Pattern = field(default_factory=Pattern)
    incarnations: int = 1
    is_window_open: bool = False
    """Whether gradients are accumulated, or an accumulation window is broken."""
    relocation: Relocation | None = None
    relocation_fault: Fault | None = None
    stays_until_us: int = 0
    """Until when it is not asked to move again."""

    @property
    def resident_id(self) -> ResidentId:
        """Return its name in planning."""
        return ResidentId(self.deployment_id)

    @property
    def is_held(self) -> bool:
        """Whether its operations wait for it to arrive on other devices.

        Instances have no window to close, so nothing new starts on them once their successors wait.
        """
        if self.relocation is None:
            return False
        is_waiting = self.relocation.stage is RelocationStage.WAITING
        return self.relocation.stage in HELD or (self.is_rollout and is_waiting)


@dataclass(slots=True, kw_only=True)
class Switch:
    """A lease granted to a WPG whose state is not yet on its devices."""

    operation_id: OperationId | None
    """What it is for; None: a prefetch, nothing waits for it yet."""

    started_us: int
    victims: tuple[WpgId, ...]


@dataclass(slots=True, kw_only=True)
class Wpg:
    """The processes of a deployment, where they are and where their state is."""

    wpg_id: WpgId
    number: int
    """Which of the WPGs of this scheduler it is, counted from the first."""
    deployment_id: DeploymentId
    job_id: JobId
    incarnation: int
    places: tuple[Place, ...]
    is_rollout: bool
    state: WpgState = WpgState.SPAWNING
    initialize: Operation | None = None
    """Its first operation, from when its ranks are up until it starts."""

    devices: tuple[Device, ...] = ()
    """The devices at its places, from when it lives on them."""
    running: dict[OperationId, Operation] = field(default_factory=dict)
    writing: dict[OperationId, Operation] = field(default_factory=dict)
    """What state managers still do with copies of its state, while it goes on."""

    device_bytes: tuple[int, ...] = ()
    parked_bytes: tuple[int, ...] = ()
    residency: Residency = Residency.NONE
    lease_no: int = 0
    move_id: MoveId | None = None
    move_started_us: int = 0
    switch: Switch | None = None
    switch_cost_us: int | None = None
    last_used_us: int = 0
    busy_since_us: int | None = None
    retry_us: int = 0
    is_prefetched: bool = False
    """Its state was brought in ahead, and nothing of it has run since."""
    respawned: dict[int, int] = field(default_factory=dict)
    """Incarnation of each process that was started in the place of a lost one, by rank."""
    respawned_us: dict[int, list[int]] = field(default_factory=dict)
    """When that was, as long as it counts."""
    absent: dict[int, Fault] = field(default_factory=dict)
    """Why instances were lost that are being started again."""

    def incarnation_of(self, rank: int) -> int:
        """Return which process of a rank is the current one."""
        return self.respawned.get(rank, self.incarnation)

    def apply(self, trigger: WpgTrigger) -> None:
        """Change the life of the processes by the table."""
        self.state = step(WPG_TRANSITIONS, self.state, trigger)

    def shift(self, trigger: ResidencyTrigger) -> None:
        """Change residency by the table."""
        self.residency = step(TRANSITIONS, self.residency, trigger)


@dataclass(slots=True, kw_only=True)
class Job:
    """One tenant's run."""

    job_id: JobId
    tenant: TenantId
    state: JobState = JobState.QUEUED
    ending: JobState | None = None
    reason: str = ""
    deployments: list[DeploymentId] = field(default_factory=list)
    device_us: int = 0
    waited_us: int = 0
    """Time its training operations waited for devices, switches included."""

    phase: str = ""
    name: str = ""
    priority: int = 0
    max_slowdown_ppm: int = 0
    expected_steps: int = 0
    """How many cycles it says it will train; 0: it did not say."""

    is_pinned: bool = False
    cycle: int = 0
    """How often it published weights."""

    released: Newest[OperationId, bool] = field(default_factory=lambda: Newest(MAX_REMEMBERED_IDS))
    """Operations whose record is gone, and whether they succeeded."""

    turned_away: Newest[OperationId, Fault] = field(
        default_factory=lambda: Newest(MAX_REMEMBERED_IDS)
    )
    """Operations refused because their deployment is gone: they come in no other try."""


@dataclass(slots=True, kw_only=True)
class Prefetches:
    """What became of switches ordered ahead."""

    ordered: int = 0
    hits: int = 0
    wasted: int = 0
