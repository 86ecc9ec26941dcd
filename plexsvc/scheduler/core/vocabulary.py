"""The values that the core's events, actions and records share."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final, Self

from plexsvc.errors import ErrorCode
from plexsvc.ids import NodeId, UnitId


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
