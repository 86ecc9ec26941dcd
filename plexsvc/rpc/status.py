"""Errors on gRPC calls: a status for any client, the wire `Error` for ours."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NoReturn

import grpc
import grpc.aio

from plexclient.failures import ERROR_KEY
from plexclient.wire.errors import to_wire
from plexclient.wire.v1 import common_pb2
from plexsvc.errors import ErrorCode, PlexError

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
    ErrorCode.DISK_FULL: _S.RESOURCE_EXHAUSTED,
    ErrorCode.OPERATION_TIMEOUT: _S.DEADLINE_EXCEEDED,
    ErrorCode.STAGING_TIMEOUT: _S.DEADLINE_EXCEEDED,
    ErrorCode.CANCELLED: _S.CANCELLED,
    ErrorCode.UNAVAILABLE: _S.UNAVAILABLE,
    ErrorCode.INTERNAL: _S.INTERNAL,
}
"""gRPC status of each code; the rest, states a call does not fit, are FAILED_PRECONDITION."""


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
