"""Events of the rollout core: what happened to one deployment's instances and samples."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NewType, TypeAlias

from plexsvc.errors import PlexError
from plexsvc.ids import OperationId, VersionId

InstanceId = NewType("InstanceId", int)
"""One engine process; a successor at the same address has another id."""

SampleKey: TypeAlias = tuple[int, int]
"""Prompt index, sample index."""


@dataclass(frozen=True, slots=True, kw_only=True)
class InstanceJoined:
    """An instance answered for the first time."""

    instance_id: InstanceId
    address: str
    version: VersionId
    checksum: str = ""
    """Of the version's bytes; empty for the model's own weights."""


@dataclass(frozen=True, slots=True, kw_only=True)
class InstancesReplaced:
    """These instances took the place of all others."""

    instances: tuple[InstanceJoined, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class SuccessorJoined:
    """A new process took the place of a lost instance."""

    of: InstanceId
    joined: InstanceJoined


@dataclass(frozen=True, slots=True, kw_only=True)
class InstanceAnswered:
    """An instance was probed or updated, and has this version."""

    instance_id: InstanceId
    version: VersionId
    checksum: str = ""
    refusal: str = ""
    """Why it refused the update."""
    is_probe: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class VersionWanted:
    """A deployment is to serve this version from now on."""

    version: VersionId


@dataclass(frozen=True, slots=True, kw_only=True)
class InstanceLost:
    """A call to an instance broke."""

    instance_id: InstanceId
    because: str
    is_probe: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplesSubmitted:
    """A generate began; each sample comes with this many tokens."""

    operation_id: OperationId
    samples: dict[SampleKey, int]


@dataclass(slots=True)  # made for every delta of every sample; a frozen one takes thrice the time
class Arrival:
    """New tokens of one sample; `position` is the index of the first."""

    key: SampleKey
    position: int
    count: int
    is_last: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class TokensArrived:
    """An instance sent tokens of some samples."""

    operation_id: OperationId
    arrivals: list[Arrival]


@dataclass(frozen=True, slots=True, kw_only=True)
class CallEnded:
    """A call that carried samples to an instance ended, whether they are complete or not."""

    operation_id: OperationId
    instance_id: InstanceId
    address: str
    samples: list[SampleKey]
    error: PlexError
    """The cause, if any sample is incomplete."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OperationEnded:
    """A generate is over, for whatever reason; its calls are cancelled."""

    operation_id: OperationId


Event: TypeAlias = (
    InstancesReplaced
    | SuccessorJoined
    | InstanceAnswered
    | VersionWanted
    | InstanceLost
    | SamplesSubmitted
    | TokensArrived
    | CallEnded
    | OperationEnded
)
