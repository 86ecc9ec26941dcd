"""Timers of the core, and their keys on `SetTimer` and `TimerFired`.

A timer's class says what it is for, its field says whose it is. No other module writes or reads a
key. `machine` has the handler of each class.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Final, Self, get_args

from plexsvc.ids import DeploymentId, NodeId, OperationId, WpgId


@dataclass(frozen=True, slots=True)
class _OfDeployment:
    kind: ClassVar[str]
    deployment_id: DeploymentId

    @property
    def key(self) -> str:
        return f"{self.kind}/{self.deployment_id}"

    @classmethod
    def of(cls, name: str) -> Self:
        return cls(DeploymentId(name))


@dataclass(frozen=True, slots=True)
class _OfOperation:
    kind: ClassVar[str]
    operation_id: OperationId

    @property
    def key(self) -> str:
        return f"{self.kind}/{self.operation_id.hex()}"

    @classmethod
    def of(cls, name: str) -> Self:
        return cls(OperationId(bytes.fromhex(name)))


@dataclass(frozen=True, slots=True)
class _OfWpg:
    kind: ClassVar[str]
    wpg_id: WpgId

    @property
    def key(self) -> str:
        return f"{self.kind}/{self.wpg_id}"

    @classmethod
    def of(cls, name: str) -> Self:
        return cls(WpgId(name))


@dataclass(frozen=True, slots=True)
class _OfNode:
    kind: ClassVar[str]
    node_id: NodeId

    @property
    def key(self) -> str:
        return f"{self.kind}/{self.node_id}"

    @classmethod
    def of(cls, name: str) -> Self:
        return cls(NodeId(name))


class GapTimer(_OfDeployment):
    """Ends the wait for a missing sequence number."""

    kind = "gap"


class PlaceTimer(_OfDeployment):
    """Ends the wait of a new deployment for devices."""

    kind = "place"


class ProbeTimer(_OfDeployment):
    """Ends the wait for a new deployment's first whole cycle."""

    kind = "probe"


class DrainTimer(_OfDeployment):
    """Wakes the core when a deployment that could not move may be asked again."""

    kind = "drain"


class StageTimer(_OfOperation):
    """Ends the wait for an operation's payload."""

    kind = "stage"


class AfterTimer(_OfOperation):
    """Ends the wait for an operation named in `after` that nobody has submitted."""

    kind = "after"


class SpawnTimer(_OfWpg):
    """Ends the wait for processes to come up."""

    kind = "spawn"


class HomelessTimer(_OfWpg):
    """Ends the wait of a rollout instance that was on a lost node for another device."""

    kind = "homeless"


class RelocateTimer(_OfWpg):
    """Ends the wait of a relocation to this WPG for a step boundary."""

    kind = "relocate"


class RetryTimer(_OfWpg):
    """Wakes a WPG whose context switch found no room."""

    kind = "retry"


class LingerTimer(_OfWpg):
    """Wakes a WPG that left its devices to another's burst for a moment."""

    kind = "linger"


class CircleTimer(_OfNode):
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

_KINDS: Final[dict[str, type[Timer]]] = {timer.kind: timer for timer in get_args(Timer)}


def parse(key: str) -> Timer:
    """Return the timer of a key.

    >>> parse("gap/a/actor")
    GapTimer(deployment_id='a/actor')
    """
    kind, _, name = key.partition("/")
    return _KINDS[kind].of(name)
