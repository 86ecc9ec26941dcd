"""Timers of the core, and their keys on `SetTimer` and `TimerFired`.

A timer's class says what it is for, `of` says whose it is. No other module writes or reads a
key. `machine` has the handler of each class.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, Final, Generic, TypeVar, cast, get_args

from plexsvc.ids import DeploymentId, NodeId, OperationId, WpgId

Id = TypeVar("Id", bound=str | bytes)


@dataclass(frozen=True, slots=True)
class _Timer(Generic[Id]):
    kind: ClassVar[str]
    of: Id

    @property
    def key(self) -> str:
        name = self.of.hex() if isinstance(self.of, bytes) else self.of
        return f"{self.kind}/{name}"


class GapTimer(_Timer[DeploymentId]):
    """Ends the wait for a missing sequence number."""

    kind = "gap"


class PlaceTimer(_Timer[DeploymentId]):
    """Ends the wait of a new deployment for devices."""

    kind = "place"


class ProbeTimer(_Timer[DeploymentId]):
    """Ends the wait for a new deployment's first whole cycle."""

    kind = "probe"


class DrainTimer(_Timer[DeploymentId]):
    """Wakes the core when a deployment that could not move may be asked again."""

    kind = "drain"


class StageTimer(_Timer[OperationId]):
    """Ends the wait for an operation's payload."""

    kind = "stage"


class AfterTimer(_Timer[OperationId]):
    """Ends the wait for an operation named in `after` that nobody has submitted."""

    kind = "after"


class SpawnTimer(_Timer[WpgId]):
    """Ends the wait for processes to come up."""

    kind = "spawn"


class HomelessTimer(_Timer[WpgId]):
    """Ends the wait of a rollout instance that was on a lost node for another device."""

    kind = "homeless"


class RelocateTimer(_Timer[WpgId]):
    """Ends the wait of a relocation to this WPG for a step boundary."""

    kind = "relocate"


class RetryTimer(_Timer[WpgId]):
    """Wakes a WPG whose context switch found no room."""

    kind = "retry"


class LingerTimer(_Timer[WpgId]):
    """Wakes a WPG that left its devices to another's burst for a moment."""

    kind = "linger"


class CircleTimer(_Timer[NodeId]):
    """Ends the time that a lost or closed node has to come back before circles are opened."""

    kind = "circle"


Timer = (
    GapTimer
    | PlaceTimer
    | ProbeTimer
    | DrainTimer
    | HomelessTimer
    | StageTimer
    | AfterTimer
    | SpawnTimer
    | RelocateTimer
    | RetryTimer
    | LingerTimer
    | CircleTimer
)

_KINDS: Final = {
    timer.kind: cast("Callable[[str | bytes], Timer]", timer) for timer in get_args(Timer)
}


def parse(key: str) -> Timer:
    """Return the timer of a key.

    >>> parse("gap/a/actor")
    GapTimer(of='a/actor')
    """
    kind, _, name = key.partition("/")
    is_of_operation = kind in {StageTimer.kind, AfterTimer.kind}
    return _KINDS[kind](bytes.fromhex(name) if is_of_operation else name)
