"""Errors to and from the wire's `Error` message, and answers that carry one."""

from __future__ import annotations

from plexclient.errors import ErrorCode, PlexError
from plexclient.wire.v1 import common_pb2, operations_pb2


def to_wire(error: PlexError) -> common_pb2.Error:
    """Return the wire form of `error`."""
    return common_pb2.Error(
        code=error.code, message=error.message, retryable=error.retryable, facts=error.facts
    )


def from_wire(error: common_pb2.Error) -> PlexError:
    """Return the `PlexError` that `error` carries; an unknown code reads as `internal`."""
    known = error.code in ErrorCode.__members__.values()
    code = ErrorCode(error.code) if known else ErrorCode.INTERNAL
    return PlexError(code, error.message, **dict(error.facts))


def refused(operation_id: bytes, error: PlexError) -> operations_pb2.OperationResult:
    """Return the answer that says why an operation is refused."""
    return operations_pb2.OperationResult(
        operation_id=operation_id,
        state=operations_pb2.OPERATION_STATE_REFUSED,
        error=to_wire(error),
    )
