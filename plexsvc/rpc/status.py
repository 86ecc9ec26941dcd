"""Errors on gRPC calls: a status for any client, the wire `Error` in trailing metadata for ours."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NoReturn

import grpc
import grpc.aio
from google.protobuf.message import DecodeError

from plexclient.wire.errors import from_wire, to_wire
from plexclient.wire.v1 import common_pb2
from plexsvc.errors import ErrorCode, PlexError

ERROR_KEY: Final = "plex-error-bin"
"""Trailing metadata key of the serialised `plexsvc.v1.Error`."""

MAX_TEXT_BYTES: Final = 2048
"""Longest message or fact carried in metadata: peers refuse more than 8 KiB of headers in all."""

_S = grpc.StatusCode
STATUS_OF: Final[Mapping[ErrorCode, grpc.StatusCode]] = {
    ErrorCode.UNAUTHENTICATED: _S.UNAUTHENTICATED,
    ErrorCode.FORBIDDEN: _S.PERMISSION_DENIED,
    ErrorCode.NOT_FOUND: _S.NOT_FOUND,
    ErrorCode.UNKNOWN_MODEL: _S.NOT_FOUND,
    ErrorCode.RESULT_GONE: _S.NOT_FOUND,
    ErrorCode.BAD_REQUEST: _S.INVALID_ARGUMENT,
    ErrorCode.BAD_BATCH: _S.INVALID_ARGUMENT,
    ErrorCode.UNKNOWN_LOSS: _S.INVALID_ARGUMENT,
    ErrorCode.PAYLOAD_TOO_LARGE: _S.INVALID_ARGUMENT,
    ErrorCode.QUEUE_FULL: _S.RESOURCE_EXHAUSTED,
    ErrorCode.STAGING_FULL: _S.RESOURCE_EXHAUSTED,
    ErrorCode.NO_ROOM: _S.RESOURCE_EXHAUSTED,
    ErrorCode.OPERATION_TIMEOUT: _S.DEADLINE_EXCEEDED,
    ErrorCode.STAGING_TIMEOUT: _S.DEADLINE_EXCEEDED,
    ErrorCode.CANCELLED: _S.CANCELLED,
    ErrorCode.UNAVAILABLE: _S.UNAVAILABLE,
    ErrorCode.INTERNAL: _S.INTERNAL,
}
"""gRPC status of each code; the rest, states a call does not fit, are FAILED_PRECONDITION."""

_LOST: Final = frozenset(
    {
        _S.UNAVAILABLE,
        _S.DEADLINE_EXCEEDED,
        _S.CANCELLED,
        _S.UNKNOWN,
        _S.RESOURCE_EXHAUSTED,
        _S.INTERNAL,
    }
)
"""Statuses of gRPC's own that may pass. INTERNAL: when a peer answers a stream early, a write that
fails meanwhile may hide its answer behind "Internal error from Core"; asking again shows it."""

RAISED: Final = "Unexpected <class"
"""How gRPC begins the details of a call whose handler raised: a peer that is there, and broken."""


async def abort_with(
    context: grpc.aio.ServicerContext[object, object] | None, error: PlexError
) -> NoReturn:
    """End the call with `error`; without a context (embedded call) raise it.

    Raises:
        PlexError: the error itself, when there is no context.
    """
    if context is None:
        raise error
    status = STATUS_OF.get(error.code, _S.FAILED_PRECONDITION)
    trailing = ((ERROR_KEY, _trimmed(error).SerializeToString()),)
    await context.abort(status, _cut(error.message), trailing)
    raise AssertionError("abort returned")


def error_from(failure: grpc.RpcError) -> PlexError:
    """Return the `PlexError` of a failed call.

    A failure that carries none came from gRPC itself: what may pass reads as `unavailable`
    (retryable), the rest as `internal`.
    """
    if not isinstance(failure, grpc.aio.AioRpcError):
        return PlexError(ErrorCode.INTERNAL, f"call failed: {failure}")
    trailing = failure.trailing_metadata()
    carried = trailing.get(ERROR_KEY) if trailing is not None else None
    if isinstance(carried, bytes):
        try:
            return from_wire(common_pb2.Error.FromString(carried))
        except DecodeError:
            pass  # another server's key of the same name: read the status instead
    status = failure.code()
    has_raised = status is _S.UNKNOWN and (failure.details() or "").startswith(RAISED)
    is_lost = status in _LOST and not has_raised
    code = ErrorCode.UNAVAILABLE if is_lost else ErrorCode.INTERNAL
    return PlexError(
        code, f"call failed with {status.name}: {failure.details()}", grpc_status=status.name
    )


def _trimmed(error: PlexError) -> common_pb2.Error:
    wire = to_wire(error)
    wire.message = _cut(wire.message)
    room = 2 * MAX_TEXT_BYTES
    for name in sorted(wire.facts):
        wire.facts[name] = _cut(wire.facts[name])[: max(0, room)]
        room -= len(wire.facts[name].encode())
    return wire


def _cut(text: str) -> str:
    data = text.encode()
    if len(data) <= MAX_TEXT_BYTES:
        return text
    return data[: MAX_TEXT_BYTES - 4].decode(errors="ignore") + " ..."
