"""Errors of calls between processes, and the first error of a group of tasks."""

from __future__ import annotations

from typing import Any, Final, TypeVar

import grpc
import grpc.aio
from google.protobuf.message import Message

from plexclient import failures
from plexclient.wire.errors import from_wire
from plexsvc.errors import PlexError

LOST: Final = (failures.LOST - {grpc.StatusCode.ABORTED}) | {grpc.StatusCode.RESOURCE_EXHAUSTED}
"""Statuses of gRPC's own that may pass. INTERNAL: when a peer answers a stream early, a write that
fails meanwhile may hide its answer behind "Internal error from Core"; asking again shows it."""

RAISED: Final = "Unexpected <class"
"""How gRPC begins the details of a call whose handler raised: a peer that is there, and broken."""

Reply = TypeVar("Reply", bound=Message)


def checked(reply: Reply) -> Reply:
    """Return a reply that carries no error.

    Raises:
        PlexError: the error that it carries.
    """
    found: Any = reply
    if found.HasField("error"):
        raise from_wire(found.error)
    return reply


def error_from(failure: BaseException) -> PlexError:
    """Return the `PlexError` of a failed call, or the one that it raised itself.

    A failure that carries none came from gRPC itself: what may pass reads as `unavailable`
    (retryable), the rest as `internal`.
    """
    if isinstance(failure, PlexError):
        return failure
    assert isinstance(failure, grpc.aio.AioRpcError | grpc.Call), failure
    has_raised = (failure.details() or "").startswith(RAISED)
    lost = LOST - {grpc.StatusCode.UNKNOWN} if has_raised else LOST
    return failures.error_of(failure, text="call failed with", lost=lost)


def first_failure(error: BaseException) -> BaseException:
    """Return the first `PlexError` in nested groups, else their first error: it ended the others.

    >>> first_failure(ExceptionGroup("outer", [ExceptionGroup("inner", [ValueError(1)])]))
    ValueError(1)
    """
    if not isinstance(error, BaseExceptionGroup):
        return error
    return first_failure((error.subgroup(PlexError) or error).exceptions[0])
