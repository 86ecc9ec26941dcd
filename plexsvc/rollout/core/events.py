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
    kind: str = "dedicated"
    is_asleep: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class InstancesReplaced:
    """These dedicated instances took the place of all others of that kind."""

    instances: tuple[InstanceJoined, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class SuccessorJoined:
    """A new process took the place of a lost instance."""

    of: InstanceId
    joined: InstanceJoined


@dataclass(frozen=True, slots=True, kw_only=True)
class InstanceDrained:
    """An instance is to end: its lender wants it back, or somebody asked for that."""

    instance_id: InstanceId


@dataclass(frozen=True, slots=True, kw_only=True)
class InstanceEnded:
    """The process of an instance is no more, and nobody takes its place."""

    instance_id: InstanceId
    because: str


@dataclass(frozen=True, slots=True, kw_only=True)
class InstanceAnswered:
    """An instance was probed or updated, and has this version."""

    instance_id: InstanceId
    version: VersionId
    checksum: str = ""
    refusal: str = ""
    """Why it refused the update."""
    is_unread: bool = False
    """Whether it refused because nobody gave it the version: nothing is wrong with it."""
    is_probe: bool = False
    is_asleep: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class VersionWanted:
    """A deployment is to serve this version from now on."""

    version: VersionId
    wakes: bool = True
    """Whether those that sleep get it, too; else they get it when they wake."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VersionLost:
    """No node has this version any more: only an instance that serves it has it."""

    version: VersionId


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnsHeld:
    """Turns that come from now on wait for the next version, those under way end on this one."""

    is_over: bool = False
    """The version does not come after all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class InstanceCallFailed:
    """A call to an instance broke."""

    instance_id: InstanceId
    because: str
    is_probe: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplesSubmitted:
    """A generate began; each sample comes with this many tokens."""

    operation_id: OperationId
    samples: dict[SampleKey, int]
    prompt_tokens: tuple[int, ...] = ()
    """Length of each prompt."""
    is_turn: bool = False
    """Whether it goes beside the order of operations, one turn of a trajectory at a time."""
    session: str = ""
    """Turns of one session go where its prefix is cached."""
    at_us: int = 0
    """0: not known, and as long ago as the event before."""


@dataclass(slots=True)  # made for every delta of every sample; a frozen one takes thrice the time
class SampleTokens:
    """New tokens of one sample; `position` is the index of the first."""

    key: SampleKey
    position: int
    count: int
    is_last: bool
    is_aborted: bool = False
    """Whether the instance stopped this sample before its end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TokensArrived:
    """An instance sent tokens of some samples."""

    operation_id: OperationId
    instance_id: InstanceId
    arrivals: list[SampleTokens]


@dataclass(frozen=True, slots=True, kw_only=True)
class CallEnded:
    """A call that carried samples to an instance ended, whether they are complete or not."""

    operation_id: OperationId
    call: int
    """Number of the `StartSamples` that ordered it."""
    instance_id: InstanceId
    address: str
    samples: list[SampleKey]
    error: PlexError
    """The cause, if any sample is incomplete."""
    is_garbage: bool = False
    """Whether its instance sent what no engine in order sends: it is not to be trusted again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OperationEnded:
    """A generate is over, for whatever reason; its calls are cancelled."""

    operation_id: OperationId
    at_us: int = 0
    """0: not known, and as long ago as the event before."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTrained:
    """How the step before was trained on, from one generate to the next."""

    train_us: int
    """Training was under way, and its devices did not generate."""
    ended_us: int
    """When the last of it ended."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowOpened:
    """Training devices are there for a generate; their engines join now, kind `reserved`."""

    at_us: int
    operation_id: OperationId
    engines: int
    trained: StepTrained | None = None
    """None: nothing is known of it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowLeft:
    """No engine of the window came, or nobody wants them any more."""

    at_us: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Ticked:
    """A little time went by: loads are measured and balanced."""

    at_us: int


Event: TypeAlias = (
    InstancesReplaced
    | SuccessorJoined
    | InstanceJoined
    | InstanceDrained
    | InstanceEnded
    | InstanceAnswered
    | VersionWanted
    | VersionLost
    | TurnsHeld
    | InstanceCallFailed
    | SamplesSubmitted
    | TokensArrived
    | CallEnded
    | OperationEnded
    | WindowOpened
    | WindowLeft
    | Ticked
)
