"""Orders of the rollout core; the driver performs them and reports their outcomes as events."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from plexsvc.errors import PlexError
from plexsvc.ids import OperationId, VersionId
from plexsvc.rollout.core.events import InstanceId, SampleKey


@dataclass(frozen=True, slots=True, kw_only=True)
class StartSamples:
    """Continue samples on an instance from their recorded tokens; ends in `CallEnded`."""

    operation_id: OperationId
    call: int
    instance_id: InstanceId
    samples: list[SampleKey]
    version: VersionId
    """The version that the instance must have."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StopSamples:
    """Have an instance abort samples, which go on elsewhere from the tokens that it has sent."""

    operation_id: OperationId
    instance_id: InstanceId
    samples: list[SampleKey]


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordTokens:
    """Record what is new of a `TokensArrived`."""

    operation_id: OperationId
    known: list[int | None]
    """Per arrival: how many of its tokens are recorded already; None drops the arrival."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerSamples:
    """End a generate: all its samples are complete, or `error` says why not."""

    operation_id: OperationId
    losses: int
    """Calls that ended before their samples did."""
    error: PlexError | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SeekInstance:
    """Ask a lost instance in `probe_us`; ends in `InstanceAnswered` or `InstanceSilent`."""

    instance_id: InstanceId
    probe: int
    """Counts the probes since the instance was lost, from 1."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GiveUpInstance:
    """Stop asking for a lost instance.

    The scheduler starts another in the place of a dedicated one; a spot one has been forgotten.
    """

    instance_id: InstanceId
    kind: str
    address: str
    because: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ReleaseInstance:
    """End the process of a drained instance: its samples are elsewhere, and it is forgotten."""

    instance_id: InstanceId
    address: str


@dataclass(frozen=True, slots=True, kw_only=True)
class UpdateInstance:
    """Load a version; ends in `VersionServed`, `VersionRefused` or `InstanceLost`."""

    instance_id: InstanceId
    version: VersionId


@dataclass(frozen=True, slots=True, kw_only=True)
class EndWindow:
    """Free the training devices: the seeding window is over, and none of their engines is left."""

    operation_id: OperationId
    """The generate that they served."""
    seeded_us: int
    """How long the window of this step was open."""
    next_window_us: int | None
    """How long the next one is to be; None: as long as there are samples."""
    most_instances: int | None
    """How many instances elsewhere are worth having; None: not known yet."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaveDevice:
    """Have an instance sleep without which a generate goes on, so that others get its device."""

    instance_id: InstanceId
    address: str
    operation_id: OperationId


SampleOrder: TypeAlias = StartSamples | StopSamples | RecordTokens | AnswerSamples
InstanceOrder: TypeAlias = (
    SeekInstance | GiveUpInstance | ReleaseInstance | UpdateInstance | LeaveDevice
)
Order: TypeAlias = SampleOrder | InstanceOrder | EndWindow
