"""Events of the scheduler core: facts in the past tense, journaled before the core handles them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from plexsvc.errors import ErrorCode
from plexsvc.ids import DeploymentId, JobId, MoveId, NodeId, OperationId, TenantId, WpgId
from plexsvc.scheduler.core.planning.profiler import KeptProfile
from plexsvc.scheduler.core.vocabulary import (
    DeviceFacts,
    Fault,
    JobState,
    NodeBytes,
    OperationKind,
    Place,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """What all events have in common. `at_us` comes first in every journal body."""

    at_us: int = 0
    """When the core learns of it. Whoever makes an event leaves it out: the driver stamps it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeJoined(Event):
    """A node's agent was described and its lease granted."""

    node_id: NodeId
    devices: tuple[DeviceFacts, ...]
    host_bytes: int
    disk_bytes: int = 0
    """What state may take on its disk, beside the host memory."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeLost(Event):
    """A node's lease ran out: whatever ran there is dead."""

    node_id: NodeId
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class JobSubmitted(Event):
    """A client opened a job."""

    job_id: JobId
    tenant: TenantId
    name: str = ""
    priority: int = 0
    max_slowdown_ppm: int = 0
    """How much longer a cycle may get by sharing; 0: the cluster's default."""

    expected_steps: int = 0
    """How many cycles it says it will train; 0: it did not say."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobEndRequested(Event):
    """The job's controller, an operator or the end of its session ended it."""

    job_id: JobId
    outcome: JobState
    reason: str
    code: ErrorCode | None = None
    """What its operations are refused with; None: `cancelled` or `job_ended`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeploymentRequested(Event):
    """A job wants a model runnable on `num_devices` devices of `device_kind`.

    A rollout deployment is a set of instances, each alone on its device unless it is shared.
    `initialize_id` is the operation id that its `Initialize` will carry.
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
    """With the job's name and tenant, what makes two runs the same for planning."""

    state_bytes: int = 0
    """Estimate of the state of its largest rank; 0: not known."""

    steps_on_host: bool = False
    """Whether processors make its steps, in host memory, while others may use its devices."""

    optimizer_bytes: int = 0
    """Estimate of what is in host memory for that, of its largest rank."""

    version_bytes: int = 0
    """Estimate of that rank's published versions, as many as are kept."""

    shared_model: str = ""
    """The frozen model under its adapters: equal names are equal bytes. It is no part of the state.
    Empty: it has none."""

    model_bytes: int = 0
    """Estimate of that model on its largest rank."""

    is_shared: bool = False
    """Of a rollout: whether its instances may sleep, so that others get their devices in turn."""

    where_it_trains: bool = False
    """Of a shared one: whether its devices are some that its job trains on."""

    instance_bytes: int = 0
    """Of a shared one: what an instance takes of its device; 0: all."""

    is_durable: bool = False
    """Whether it goes on from its last step when its processes die."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeploymentsDeclared(Event):
    """A job wants several models runnable, all of them or none."""

    job_id: JobId
    deployments: tuple[DeploymentRequested, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class WpgReady(Event):
    """Every rank of a WPG answers; `device_bytes` is what each rank's state takes on its device.

    `parked_bytes` is what each process keeps there wherever its state is; empty: nothing.
    `pass_bytes` is what each process computes in while its state is there; empty: nothing.
    `models` names a frozen model that each shares there with others; empty: none.
    """

    wpg_id: WpgId
    device_bytes: tuple[int, ...]
    parked_bytes: tuple[int, ...] = ()
    pass_bytes: tuple[int, ...] = ()
    models: tuple[str, ...] = ()
    model_bytes: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class SpawnFailed(Event):
    """A WPG's processes could not be started."""

    wpg_id: WpgId
    fault: Fault


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcExited(Event):
    """One rank's process ended by itself."""

    wpg_id: WpgId
    incarnation: int
    rank: int
    exit_code: int
    signal: int
    log_tail: str


@dataclass(frozen=True, slots=True, kw_only=True)
class InstanceReady(Event):
    """A rollout instance took the place of one that was lost, and gets samples again."""

    wpg_id: WpgId
    rank: int
    incarnation: int


@dataclass(frozen=True, slots=True, kw_only=True)
class InstanceLost(Event):
    """A rollout instance could not be spawned again, or its manager has given it up."""

    wpg_id: WpgId
    rank: int
    incarnation: int
    fault: Fault


@dataclass(frozen=True, slots=True, kw_only=True)
class InstanceLeft(Event):
    """A generate does without an instance, which sleeps; others may have its device meanwhile."""

    wpg_id: WpgId
    rank: int
    incarnation: int
    operation_id: OperationId


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnsTaken(Event):
    """Instances of a deployment sampled turns, which are no operations, so long all together."""

    wpg_id: WpgId
    device_us: int


@dataclass(frozen=True, slots=True, kw_only=True)
class OperationSubmitted(Event):
    """A router brought an operation; `is_staged` says its inputs are here."""

    operation_id: OperationId
    job_id: JobId
    deployment_id: DeploymentId
    seq: int
    kind: OperationKind
    after: tuple[OperationId, ...]
    is_staged: bool
    num_tokens: int
    traceparent: str = ""
    """The caller's span (W3C Trace Context), under which `plexctl traces` puts its own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CancelRequested(Event):
    """The client of an operation does not want it any more."""

    operation_id: OperationId


@dataclass(frozen=True, slots=True, kw_only=True)
class ControllerReplaced(Event):
    """Another controller goes on with a job; nobody waits for what the one before had sent."""

    job_id: JobId


@dataclass(frozen=True, slots=True, kw_only=True)
class PayloadStaged(Event):
    """An operation's inputs lie validated in staging memory."""

    operation_id: OperationId


@dataclass(frozen=True, slots=True, kw_only=True)
class PayloadUnderWay(Event):
    """An operation's inputs are arriving: some came since this was said last."""

    operation_id: OperationId


@dataclass(frozen=True, slots=True, kw_only=True)
class PayloadRefused(Event):
    """An operation's inputs did not pass."""

    operation_id: OperationId
    fault: Fault


@dataclass(frozen=True, slots=True, kw_only=True)
class StateCopied(Event):
    """State managers hold a copy of what a managed operation works from: its WPG may go on."""

    operation_id: OperationId


@dataclass(frozen=True, slots=True, kw_only=True)
class OperationFinished(Event):
    """All executors of an operation answered; `is_refusal`: nothing had been changed."""

    operation_id: OperationId
    fault: Fault | None
    is_refusal: bool
    run_us: int
    digest: str
    num_tokens: int = 0
    """Tokens that it read and made."""

    nbytes: int = 0
    """Bytes of its payload and of its result."""

    wpg_id: WpgId | None = None
    """Where it ran; None: not known. Its deployment may have another WPG by now."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ResidencyMoved(Event):
    """A state manager finished a move."""

    wpg_id: WpgId
    move_id: MoveId
    nbytes: int
    total_us: int


@dataclass(frozen=True, slots=True, kw_only=True)
class MoveFailed(Event):
    """A move did not happen; the state is where it was."""

    wpg_id: WpgId
    move_id: MoveId
    fault: Fault


@dataclass(frozen=True, slots=True, kw_only=True)
class WpgStopped(Event):
    """No process of the WPG is left."""

    wpg_id: WpgId


@dataclass(frozen=True, slots=True, kw_only=True)
class WpgForgotten(Event):
    """No state of the WPG is left on any tier."""

    wpg_id: WpgId


@dataclass(frozen=True, slots=True, kw_only=True)
class RelocationRequested(Event):
    """Somebody wants a training deployment on other devices, rank i at `places[i]`."""

    deployment_id: DeploymentId
    places: tuple[Place, ...]
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class StateCarried(Event):
    """A complete copy of a WPG's state lies where the ranks that replace it can read it."""

    deployment_id: DeploymentId
    move_id: MoveId
    nbytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CarryFailed(Event):
    """No copy was made; the state is where it was."""

    deployment_id: DeploymentId
    move_id: MoveId
    fault: Fault


@dataclass(frozen=True, slots=True, kw_only=True)
class Acknowledged(Event):
    """The client has every answer up to `seq` of a deployment."""

    deployment_id: DeploymentId
    seq: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TimerFired(Event):
    """A time set by `SetTimer` has come."""

    key: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfilesLoaded(Event):
    """The store's profiles of earlier runs, told once before anything is placed."""

    profiles: tuple[KeptProfile, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeCordoned(Event):
    """An operator wants no further work on a node; with `is_drained`, none at all."""

    node_id: NodeId
    is_drained: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeUncordoned(Event):
    """An operator lets a node take work again."""

    node_id: NodeId


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeForgotten(Event):
    """A node was lost for so long that nobody dials it any more."""

    node_id: NodeId


@dataclass(frozen=True, slots=True, kw_only=True)
class JobMoveRequested(Event):
    """An operator wants a job's training deployments elsewhere; no node named: wherever best."""

    job_id: JobId
    node_id: NodeId | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class JobPinned(Event):
    """An operator forbids, or allows again, that repacking moves a job."""

    job_id: JobId
    is_pinned: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class RepackRequested(Event):
    """An operator wants the groups repacked now."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VersionsHeld(Event):
    """State managers hold so many bytes of a deployment's versions, room for its next included."""

    deployment_id: DeploymentId
    held: tuple[NodeBytes, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class VersionRead(Event):
    """Processes of a WPG read so many bytes of published state from other hosts."""

    wpg_id: WpgId
    read: tuple[NodeBytes, ...]


KINDS: Final = {
    name: kind
    for name, kind in list(globals().items())
    if isinstance(kind, type) and issubclass(kind, Event) and kind is not Event
}
"""All kinds of events, by the names that journals have."""

Post = Callable[[Event], object]
"""Takes a fact to the core."""
