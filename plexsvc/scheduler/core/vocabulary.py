"""The values that the core's events, actions and records share, and the legal changes of state.

A change that is not in a table is a bug of ours and says so.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, Self, TypeVar

from plexsvc.errors import ErrorCode
from plexsvc.ids import NodeId, UnitId

S = TypeVar("S", bound=StrEnum)
T = TypeVar("T", bound=StrEnum)


class OperationKind(StrEnum):
    """What an operation does; the names of the wire's `Operation.body`."""

    INITIALIZE = "initialize"
    FORWARD = "forward"
    FORWARD_BACKWARD = "forward_backward"
    BACKWARD = "backward"
    STEP = "step"
    ZERO_GRAD = "zero_grad"
    PUBLISH = "publish"
    PULL = "pull"
    GENERATE = "generate"
    SAVE = "save"
    LOAD = "load"
    EXPORT = "export"
    STATE_DIGEST = "state_digest"
    NOOP = "noop"
    SEED = "seed"


MANAGED_KINDS: Final = frozenset(
    {
        OperationKind.PUBLISH,
        OperationKind.SAVE,
        OperationKind.EXPORT,
        OperationKind.STATE_DIGEST,
    }
)
"""Kinds that work on managed state wherever it is: they need no device and no lease."""

COPYING_KINDS: Final = MANAGED_KINDS - {OperationKind.PUBLISH}
"""Kinds that work from a copy of the state, which is dropped when they end."""

AFTER_WRITING: Final = COPYING_KINDS | {OperationKind.LOAD}
"""Kinds that wait until the copy that an earlier operation works from is written or hashed: they
make another copy, or read what is being written."""


WRITING_KINDS: Final = frozenset({OperationKind.STEP, OperationKind.LOAD, OperationKind.PULL})
"""Kinds that may change a deployment's parameters."""


class OperationState(StrEnum):
    """Where an operation is in its life."""

    RECEIVED = "received"
    QUEUED = "queued"
    STAGED = "staged"
    GRANTED = "granted"
    RUNNING = "running"
    APPLIED = "applied"
    ANSWERED = "answered"
    RELEASED = "released"
    REFUSED = "refused"
    FAILED = "failed"


class WpgState(StrEnum):
    """What a WPG's processes are doing."""

    SPAWNING = "spawning"
    READY = "ready"
    STOPPING = "stopping"
    FORGETTING = "forgetting"


class DeploymentState(StrEnum):
    """What a job may expect of its deployment."""

    STARTING = "starting"
    READY = "ready"
    FAILED = "failed"
    STOPPED = "stopped"


class RelocationStage(StrEnum):
    """How far a deployment is on its way to other devices."""

    SPAWNING = "spawning"
    WAITING = "waiting"
    CARRYING = "carrying"
    RESTORING = "restoring"
    DONE = "done"
    FAILED = "failed"


class JobState(StrEnum):
    """The life of a job."""

    QUEUED = "queued"
    RUNNING = "running"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class Place:
    """One device of one node: where one rank lives.

    >>> Place.of(Place(node_id=NodeId("node-a"), device=3).unit)
    Place(node_id='node-a', device=3)
    """

    node_id: NodeId
    device: int

    @classmethod
    def of(cls, unit: UnitId) -> Self:
        """Return the device that planning calls `unit`."""
        node_id, _, device = unit.rpartition(":")
        return cls(node_id=NodeId(node_id), device=int(device))

    @property
    def unit(self) -> UnitId:
        """Return the device's name in planning, and wherever people read it: `node-a:3`."""
        return UnitId(f"{self.node_id}:{self.device}")


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeBytes:
    """Bytes of host memory on a node."""

    node_id: NodeId
    nbytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceFacts:
    """What a node says about one of its devices."""

    index: int
    kind: str
    bytes_total: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """Why something was refused or failed; becomes a `PlexError` at the edge."""

    code: ErrorCode
    message: str
    facts: tuple[tuple[str, str], ...] = ()


class OperationTrigger(StrEnum):
    """What moves an operation on."""

    ACCEPTED = "accepted"
    PAYLOAD_ARRIVED = "payload_arrived"
    GRANTED = "granted"
    WITHDRAWN = "withdrawn"
    STARTED = "started"
    APPLIED = "applied"
    ANSWERED = "answered"
    REFUSED = "refused"
    FAILED = "failed"
    RELEASED = "released"


OPERATION_TRANSITIONS: Final = {
    (OperationState.RECEIVED, OperationTrigger.ACCEPTED): OperationState.QUEUED,
    (OperationState.QUEUED, OperationTrigger.PAYLOAD_ARRIVED): OperationState.STAGED,
    (OperationState.STAGED, OperationTrigger.GRANTED): OperationState.GRANTED,
    (OperationState.GRANTED, OperationTrigger.WITHDRAWN): OperationState.STAGED,
    (OperationState.GRANTED, OperationTrigger.STARTED): OperationState.RUNNING,
    (OperationState.RUNNING, OperationTrigger.APPLIED): OperationState.APPLIED,
    (OperationState.APPLIED, OperationTrigger.ANSWERED): OperationState.ANSWERED,
    (OperationState.QUEUED, OperationTrigger.REFUSED): OperationState.REFUSED,
    (OperationState.STAGED, OperationTrigger.REFUSED): OperationState.REFUSED,
    (OperationState.RUNNING, OperationTrigger.REFUSED): OperationState.REFUSED,
    (OperationState.RUNNING, OperationTrigger.FAILED): OperationState.FAILED,
    (OperationState.ANSWERED, OperationTrigger.RELEASED): OperationState.RELEASED,
    (OperationState.REFUSED, OperationTrigger.RELEASED): OperationState.RELEASED,
    (OperationState.FAILED, OperationTrigger.RELEASED): OperationState.RELEASED,
}

TERMINAL: Final = frozenset(
    {
        OperationState.ANSWERED,
        OperationState.REFUSED,
        OperationState.FAILED,
        OperationState.RELEASED,
    }
)
"""States in which whoever asked has had the answer."""


class WpgTrigger(StrEnum):
    """What changes the life of a WPG's processes."""

    CAME_UP = "came_up"
    STOP_ORDERED = "stop_ordered"
    STOPPED = "stopped"


WPG_TRANSITIONS: Final = {
    (WpgState.SPAWNING, WpgTrigger.CAME_UP): WpgState.READY,
    (WpgState.SPAWNING, WpgTrigger.STOP_ORDERED): WpgState.STOPPING,
    (WpgState.READY, WpgTrigger.STOP_ORDERED): WpgState.STOPPING,
    (WpgState.STOPPING, WpgTrigger.STOPPED): WpgState.FORGETTING,
}


def step(table: Mapping[tuple[S, T], S], state: S, trigger: T) -> S:
    """Return the state after `trigger`; a change that is not in the table is a bug."""
    try:
        return table[state, trigger]
    except KeyError:
        raise AssertionError(f"{type(state).__name__} {state} does not know {trigger}") from None
