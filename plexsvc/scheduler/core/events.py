"""Facts the core is told: past tense, each with its time; journaled before they count."""

from __future__ import annotations

from dataclasses import dataclass

from plexsvc.ids import DeploymentId, JobId, MoveId, NodeId, OperationId, TenantId, WpgId
from plexsvc.scheduler.core.planning.profiler import KeptProfile
from plexsvc.scheduler.core.vocabulary import DeviceFacts, Fault, JobState, OperationKind, Place


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeJoined:
    """A node's agent was described and its lease granted."""

    at_us: int
    node_id: NodeId
    devices: tuple[DeviceFacts, ...]
    host_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeLost:
    """A node's lease ran out: whatever ran there is dead."""

    at_us: int
    node_id: NodeId
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class JobSubmitted:
    """A client opened a job."""

    at_us: int
    job_id: JobId
    tenant: TenantId
    name: str = ""
    priority: int = 0
    max_slowdown_ppm: int = 0
    """How much longer a cycle may get by sharing; 0: the cluster's default."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobEndRequested:
    """The job's controller, an operator or the end of its session ended it."""

    at_us: int
    job_id: JobId
    outcome: JobState
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class DeploymentRequested:
    """A job wants a model runnable on `num_devices` devices of `device_kind`.

    A rollout deployment is a set of instances, each alone on its device. `initialize_id` is the
    operation id that its `Initialize` will carry.
    """

    at_us: int
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


@dataclass(frozen=True, slots=True, kw_only=True)
class WpgReady:
    """Every rank of a WPG answers; `device_bytes` is what each rank's state takes on its device."""

    at_us: int
    wpg_id: WpgId
    device_bytes: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class SpawnFailed:
    """A WPG's processes could not be started."""

    at_us: int
    wpg_id: WpgId
    fault: Fault


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcExited:
    """One rank's process ended by itself."""

    at_us: int
    wpg_id: WpgId
    incarnation: int
    rank: int
    exit_code: int
    signal: int
    log_tail: str


@dataclass(frozen=True, slots=True, kw_only=True)
class OperationSubmitted:
    """A router brought an operation; `is_staged` says its inputs are here."""

    at_us: int
    operation_id: OperationId
    job_id: JobId
    deployment_id: DeploymentId
    seq: int
    kind: OperationKind
    after: tuple[OperationId, ...]
    is_staged: bool
    num_tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PayloadStaged:
    """An operation's inputs lie validated in staging memory."""

    at_us: int
    operation_id: OperationId


@dataclass(frozen=True, slots=True, kw_only=True)
class PayloadRefused:
    """An operation's inputs did not pass."""

    at_us: int
    operation_id: OperationId
    fault: Fault


@dataclass(frozen=True, slots=True, kw_only=True)
class OperationFinished:
    """All executors of an operation answered; `is_refusal`: nothing had been changed."""

    at_us: int
    operation_id: OperationId
    fault: Fault | None
    is_refusal: bool
    run_us: int
    digest: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ResidencyMoved:
    """A state manager finished a move."""

    at_us: int
    wpg_id: WpgId
    move_id: MoveId
    nbytes: int
    total_us: int


@dataclass(frozen=True, slots=True, kw_only=True)
class MoveFailed:
    """A move did not happen; the state is where it was."""

    at_us: int
    wpg_id: WpgId
    move_id: MoveId
    fault: Fault


@dataclass(frozen=True, slots=True, kw_only=True)
class WpgStopped:
    """No process of the WPG is left."""

    at_us: int
    wpg_id: WpgId


@dataclass(frozen=True, slots=True, kw_only=True)
class WpgForgotten:
    """No state of the WPG is left on any tier."""

    at_us: int
    wpg_id: WpgId


@dataclass(frozen=True, slots=True, kw_only=True)
class RelocationRequested:
    """Somebody wants a training deployment on other devices, rank i at `places[i]`."""

    at_us: int
    deployment_id: DeploymentId
    places: tuple[Place, ...]
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class StateCarried:
    """A complete copy of a WPG's state lies where the ranks that replace it can read it."""

    at_us: int
    deployment_id: DeploymentId
    move_id: MoveId
    nbytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CarryFailed:
    """No copy was made; the state is where it was."""

    at_us: int
    deployment_id: DeploymentId
    move_id: MoveId
    fault: Fault


@dataclass(frozen=True, slots=True, kw_only=True)
class Acknowledged:
    """The client has every answer up to `seq` of a deployment."""

    at_us: int
    deployment_id: DeploymentId
    seq: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TimerFired:
    """A time set by `SetTimer` has come."""

    at_us: int
    key: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfilesLoaded:
    """The store's profiles of earlier runs, told once before anything is placed."""

    at_us: int
    profiles: tuple[KeptProfile, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeCordoned:
    """An operator wants no further work on a node; with `is_drained`, none at all."""

    at_us: int
    node_id: NodeId
    is_drained: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeUncordoned:
    """An operator lets a node take work again."""

    at_us: int
    node_id: NodeId


@dataclass(frozen=True, slots=True, kw_only=True)
class JobMoveRequested:
    """An operator wants a job's training deployments elsewhere; no node named: wherever best."""

    at_us: int
    job_id: JobId
    node_id: NodeId | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class JobPinned:
    """An operator forbids, or allows again, that repacking moves a job."""

    at_us: int
    job_id: JobId
    is_pinned: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class RepackRequested:
    """An operator wants the groups repacked now."""

    at_us: int


Event = (
    NodeJoined
    | NodeLost
    | JobSubmitted
    | JobEndRequested
    | DeploymentRequested
    | WpgReady
    | SpawnFailed
    | ProcExited
    | OperationSubmitted
    | PayloadStaged
    | PayloadRefused
    | OperationFinished
    | ResidencyMoved
    | MoveFailed
    | WpgStopped
    | WpgForgotten
    | RelocationRequested
    | StateCarried
    | CarryFailed
    | Acknowledged
    | ProfilesLoaded
    | NodeCordoned
    | NodeUncordoned
    | JobMoveRequested
    | JobPinned
    | RepackRequested
    | TimerFired
)
