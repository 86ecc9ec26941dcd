"""Errors to and from the wire's `Error` message."""

from __future__ import annotations

from plexclient.errors import ErrorCode, PlexError
from plexclient.wire.v1 import common_pb2


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
