"""Failed gRPC calls as `PlexError`s."""

from __future__ import annotations

from collections.abc import Container
from typing import Final

import grpc
import grpc.aio
from google.protobuf.message import DecodeError

from plexclient.errors import ErrorCode, PlexError
from plexclient.wire.errors import from_wire
from plexclient.wire.v1 import common_pb2

ERROR_KEY: Final = "plex-error-bin"
"""Trailing metadata that carries the service's own error; without it a failure is gRPC's."""

STATUS_FACT: Final = "grpc_status"
"""The fact that only gRPC's own failures have: the name of their status."""

_S = grpc.StatusCode
LOST: Final = frozenset(
    {_S.UNAVAILABLE, _S.DEADLINE_EXCEEDED, _S.CANCELLED, _S.UNKNOWN, _S.INTERNAL, _S.ABORTED}
)
"""Statuses that may pass: the call never reached the service, or its answer never reached us."""


def error_of(
    failure: grpc.RpcError,
    *,
    text: str = "the router did not answer:",
    lost: Container[grpc.StatusCode] = LOST,
) -> PlexError:
    """Return the service's own error, or one that begins with `text` for gRPC's.

    gRPC's own is `unavailable` (retryable) for a status in `lost`, `unauthenticated` or `internal`.
    """
    assert isinstance(failure, grpc.aio.AioRpcError | grpc.Call), failure
    carried = dict(failure.trailing_metadata() or ()).get(ERROR_KEY)
    if isinstance(carried, bytes):
        try:
            return from_wire(common_pb2.Error.FromString(carried))
        except DecodeError:
            pass  # another server's key of the same name: the status says what there is to say
    status = failure.code()
    if status == _S.UNAUTHENTICATED:
        code = ErrorCode.UNAUTHENTICATED
    else:
        code = ErrorCode.UNAVAILABLE if status in lost else ErrorCode.INTERNAL
    told = f"{text} {status.name}: {failure.details()}"
    return PlexError(code, told, **{STATUS_FACT: status.name})
