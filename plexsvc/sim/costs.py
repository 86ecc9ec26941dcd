"""Costs of a scheduler's actions in virtual time: the contract between a driver and its models."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from plexsvc.ids import DeploymentId, OperationId
from plexsvc.residency import Residency
from plexsvc.scheduler.core.vocabulary import Fault, OperationKind, Place


class Work(NamedTuple):
    """An operation whose cost is asked for."""

    operation_id: OperationId
    deployment_id: DeploymentId
    kind: OperationKind
    num_tokens: int


class Took(NamedTuple):
    """The time an operation takes, from its order to its outcome and on the ranks."""

    elapsed_us: int
    run_us: int
    fault: Fault | None = None
    is_refusal: bool = False


class Moved(NamedTuple):
    """The time a move of state takes, and the bytes it moves."""

    elapsed_us: int
    nbytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Spawned:
    """When a WPG's ranks answer and the bytes of their state on each device, or why they fail."""

    ready_us: int
    device_bytes: tuple[int, ...]
    fault: Fault | None = None


class Costs(Protocol):
    """A model of the time that actions take."""

    def spawn(
        self, deployment_id: DeploymentId, *, places: Sequence[Place], now_us: int
    ) -> Spawned:
        """Return the outcome of starting a deployment's processes now."""

    def operation(self, work: Work) -> Took:
        """Return the cost of an operation."""

    def move(self, deployment_id: DeploymentId, *, to: Residency | None) -> Moved:
        """Return the cost of moving a deployment's state; `to` is None for a copy elsewhere."""

    def stop_us(self) -> int:
        """Return the time it takes to end a WPG's processes."""

    def forget_us(self) -> int:
        """Return the time it takes to free a WPG's state."""
