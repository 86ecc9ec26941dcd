"""What the driver asks of others: actions beyond this process, and the rollout manager."""

from __future__ import annotations

from typing import Protocol

from plexclient.wire.v1 import worker_pb2
from plexsvc.ids import OperationId
from plexsvc.scheduler.core.actions import (
    CancelOperation,
    CarryState,
    DropCarried,
    DropPayload,
    ForgetWpg,
    MoveState,
    ReleaseOperation,
    SpawnWpg,
    StartOperation,
    StopWpg,
)
from plexsvc.scheduler.core.events import (
    CarryFailed,
    Event,
    MoveFailed,
    OperationFinished,
    SpawnFailed,
    WpgForgotten,
    WpgStopped,
)
from plexsvc.scheduler.core.vocabulary import Fault

ExternalAction = (
    SpawnWpg
    | StopWpg
    | ForgetWpg
    | StartOperation
    | CancelOperation
    | MoveState
    | CarryState
    | DropCarried
    | DropPayload
    | ReleaseOperation
)
"""Actions that reach beyond this process."""


class RolloutPort(Protocol):
    """The rollout manager: the `Worker` service's methods, called without a context."""

    async def Execute(  # noqa: N802 - the wire's name
        self, request: worker_pb2.ExecuteRequest, context: None, /
    ) -> worker_pb2.ExecuteReply:
        """Run an operation of a rollout deployment."""
        ...

    async def Cancel(  # noqa: N802 - the wire's name
        self, request: worker_pb2.CancelRequest, context: None, /
    ) -> worker_pb2.CancelReply:
        """End a generate early."""
        ...

    async def forget(self, deployment_id: str) -> None:
        """End a deployment: drop its records and connections."""
        ...

    def release(self, operation_id: bytes) -> None:
        """Drop the record of an acknowledged operation."""
        ...


def operation_failed(
    operation_id: OperationId, fault: Fault, *, is_refusal: bool = False
) -> OperationFinished:
    """Return the event of an operation that did not succeed."""
    return OperationFinished(
        operation_id=operation_id,
        fault=fault,
        is_refusal=is_refusal,
        run_us=0,
        digest="",
    )


def failure_of(action: ExternalAction, fault: Fault) -> Event | None:  # noqa: PLR0911 - one an action
    """Return the event of an action that broke off; `None` where nobody waits for one."""
    match action:
        case StartOperation():
            return operation_failed(action.operation_id, fault)
        case MoveState():
            return MoveFailed(wpg_id=action.wpg_id, move_id=action.move_id, fault=fault)
        case SpawnWpg():
            return SpawnFailed(wpg_id=action.wpg_id, fault=fault)
        case StopWpg():
            return WpgStopped(wpg_id=action.wpg_id)
        case ForgetWpg():
            return WpgForgotten(wpg_id=action.wpg_id)
        case CarryState():
            return CarryFailed(
                deployment_id=action.deployment_id,
                move_id=action.move_id,
                fault=fault,
            )
        case CancelOperation() | DropPayload() | DropCarried() | ReleaseOperation():
            return None
