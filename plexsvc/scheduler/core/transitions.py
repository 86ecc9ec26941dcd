"""Legal changes of state; what is not in a table is a bug of ours and says so."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Final, TypeVar

from plexsvc.scheduler.core.vocabulary import OperationState, WpgState

S = TypeVar("S", bound=StrEnum)
T = TypeVar("T", bound=StrEnum)


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
    following = table.get((state, trigger))
    assert following is not None, f"{type(state).__name__} {state} does not know {trigger}"
    return following
