"""Orders the core gives: imperative; the driver performs them, each outcome is an event.

`ends_by` is the id by which the outcome names its action.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Final

from plexsvc.ids import DeploymentId, JobId, MoveId, NodeId, OperationId, WpgId
from plexsvc.residency import Residency
from plexsvc.scheduler.core.planning.profiler import KeptProfile
from plexsvc.scheduler.core.vocabulary import (
    DeploymentState,
    Fault,
    JobState,
    OperationState,
    Place,
    RelocationStage,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Action:
    """What all orders have in common."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SpawnWpg(Action):
    """Start one process a place, rank i at `places[i]`; ends in `WpgReady` or `SpawnFailed`."""

    ends_by: ClassVar[str] = "wpg_id"
    wpg_id: WpgId
    deployment_id: DeploymentId
    incarnation: int
    places: tuple[Place, ...]
    replaces: WpgId | None = None
    """The WPG of the same deployment that works on until `CutOver`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SpawnInstance(Action):
    """Start a rollout instance in the place of one that is lost, and end that if it still runs.

    Ends in `InstanceReady` or `InstanceLost`.
    """

    wpg_id: WpgId
    rank: int
    incarnation: int
    """Of the new process: it tells its end from that of the one before."""
    place: Place | None = None
    """Where it is to be from now on; None: where the lost one was."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StopWpg(Action):
    """End all processes of a WPG; ends in `WpgStopped`."""

    ends_by: ClassVar[str] = "wpg_id"
    wpg_id: WpgId


@dataclass(frozen=True, slots=True, kw_only=True)
class ForgetWpg(Action):
    """Free all state of a WPG on every tier; ends in `WpgForgotten`."""

    ends_by: ClassVar[str] = "wpg_id"
    wpg_id: WpgId
    lease_no: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StartOperation(Action):
    """Run an operation; ends in `OperationFinished`."""

    ends_by: ClassVar[str] = "operation_id"
    operation_id: OperationId
    wpg_id: WpgId
    lease_no: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CancelOperation(Action):
    """Ask the executor of a running operation to end it early."""

    operation_id: OperationId
    wpg_id: WpgId


@dataclass(frozen=True, slots=True, kw_only=True)
class MoveState(Action):
    """Move a WPG's state to device or host memory; ends in `ResidencyMoved` or `MoveFailed`."""

    ends_by: ClassVar[str] = "move_id"
    wpg_id: WpgId
    move_id: MoveId
    to: Residency
    lease_no: int
    following: tuple[WpgId, ...] = ()
    """Whose parked state is needed after it, the first one first: what is on disk comes back."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CarryState(Action):
    """Copy a WPG's complete state for the ranks that replace it, whose `Initialize` reads it.

    Ends in `StateCarried` or `CarryFailed`.
    """

    ends_by: ClassVar[str] = "move_id"
    deployment_id: DeploymentId
    from_wpg_id: WpgId
    to_wpg_id: WpgId
    initialize_id: OperationId
    move_id: MoveId
    lease_no: int


@dataclass(frozen=True, slots=True, kw_only=True)
class DropCarried(Action):
    """Free the copy of a `CarryState`: nobody will read it (again)."""

    move_id: MoveId


@dataclass(frozen=True, slots=True, kw_only=True)
class CutOver(Action):
    """Let one WPG take another's place: from here on the deployment is where it is."""

    deployment_id: DeploymentId
    from_wpg_id: WpgId
    to_wpg_id: WpgId


@dataclass(frozen=True, slots=True, kw_only=True)
class KeepState(Action):
    """Copy the state that an operation left, for a deployment to start from if its processes die.

    The core does not wait for it; an operation that writes weights does.
    """

    wpg_id: WpgId
    seq: int
    """0: there is a copy, and another node is to have one, too."""
    lease_no: int
    beside: NodeId | None = None
    """Which other node keeps a second copy; None: none has room for it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeploymentLost(Action):
    """Record that a deployment's processes died, and hold the `Initialize` that rebuilds it."""

    deployment_id: DeploymentId
    initialize_id: OperationId
    fault: Fault


@dataclass(frozen=True, slots=True, kw_only=True)
class RelocationChanged(Action):
    """Record and announce how far a relocation is, or why it ended."""

    deployment_id: DeploymentId
    stage: RelocationStage
    places: tuple[Place, ...]
    reason: str
    fault: Fault | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerOperation(Action):
    """Tell whoever waits that the operation is applied."""

    operation_id: OperationId
    queued_us: int
    switch_us: int
    run_us: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RefuseOperation(Action):
    """Tell whoever waits that it was refused or failed; `is_final`: its number is used."""

    operation_id: OperationId
    state: OperationState
    fault: Fault
    is_final: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class DropPayload(Action):
    """Free an operation's staged inputs: nobody will read them again."""

    operation_id: OperationId


@dataclass(frozen=True, slots=True, kw_only=True)
class ReleaseOperation(Action):
    """Forget an operation's answer."""

    operation_id: OperationId


@dataclass(frozen=True, slots=True, kw_only=True)
class DeploymentChanged(Action):
    """Record and announce a deployment's state."""

    deployment_id: DeploymentId
    state: DeploymentState
    wpg_id: WpgId | None
    fault: Fault | None


@dataclass(frozen=True, slots=True, kw_only=True)
class JobChanged(Action):
    """Record and announce a job's state."""

    job_id: JobId
    state: JobState
    reason: str
    device_us: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class KeepProfile(Action):
    """Store a measured cycle, for later submissions of the same kind."""

    kept: KeptProfile


@dataclass(frozen=True, slots=True, kw_only=True)
class SetTimer(Action):
    """Return `TimerFired(key)` at `at_us`; the same key again replaces the time."""

    key: str
    at_us: int


KINDS: Final = frozenset(
    kind
    for kind in list(globals().values())
    if isinstance(kind, type) and issubclass(kind, Action) and kind is not Action
)
"""All kinds of actions."""
