"""Faults that the core understands, from errors of any origin, and back to the wire."""

from __future__ import annotations

from typing import Final

from plexclient.wire.errors import from_wire, to_wire
from plexclient.wire.v1 import common_pb2, operations_pb2
from plexsvc.errors import PlexError
from plexsvc.ids import OperationId
from plexsvc.rpc.errors import error_from
from plexsvc.scheduler.core.vocabulary import Fault, OperationState

WIRE_STATES: Final[dict[OperationState, operations_pb2.OperationState]] = {
    OperationState.RECEIVED: operations_pb2.OPERATION_STATE_RECEIVED,
    OperationState.QUEUED: operations_pb2.OPERATION_STATE_QUEUED,
    OperationState.STAGED: operations_pb2.OPERATION_STATE_STAGED,
    OperationState.GRANTED: operations_pb2.OPERATION_STATE_GRANTED,
    OperationState.RUNNING: operations_pb2.OPERATION_STATE_RUNNING,
    OperationState.APPLIED: operations_pb2.OPERATION_STATE_APPLIED,
    OperationState.ANSWERED: operations_pb2.OPERATION_STATE_ANSWERED,
    OperationState.RELEASED: operations_pb2.OPERATION_STATE_RELEASED,
    OperationState.REFUSED: operations_pb2.OPERATION_STATE_REFUSED,
    OperationState.FAILED: operations_pb2.OPERATION_STATE_FAILED,
}


def fault_of(error: PlexError) -> Fault:
    """Return the fault of a `PlexError`."""
    return Fault(code=error.code, message=error.message, facts=tuple(sorted(error.facts.items())))


def fault_from_wire(error: common_pb2.Error) -> Fault:
    """Return the fault of a wire error; a code nobody knows reads as `internal`."""
    return fault_of(from_wire(error))


def fault_of_call(failure: BaseException) -> Fault:
    """Return the fault of a failed call."""
    return fault_of(error_from(failure))


def error_of(fault: Fault) -> PlexError:
    """Return the exception of a fault."""
    return PlexError(fault.code, fault.message, **dict(fault.facts))


def refusal(
    operation_id: OperationId, fault: Fault, *, state: OperationState
) -> operations_pb2.OperationResult:
    """Return the result that carries a fault."""
    return operations_pb2.OperationResult(
        operation_id=operation_id, state=WIRE_STATES[state], error=to_wire(error_of(fault))
    )
