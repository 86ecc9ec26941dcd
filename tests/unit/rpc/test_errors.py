"""Errors of calls: either kind of channel tells the same; the first of ours in a group counts."""

from __future__ import annotations

import grpc
import grpc.aio
import pytest

from plexclient.failures import ERROR_KEY, error_of
from plexclient.wire.errors import to_wire
from plexsvc.errors import ErrorCode, PlexError
from plexsvc.rpc.errors import error_from, first_failure


class BlockingFailure(grpc.RpcError, grpc.Call):
    """What a blocking channel raises: its trailing metadata is a tuple of pairs."""

    def __init__(self, trailing: tuple[tuple[str, bytes], ...]) -> None:
        self._trailing = trailing

    def code(self) -> grpc.StatusCode:
        return grpc.StatusCode.UNAVAILABLE

    def details(self) -> str:
        return "nobody there"

    def trailing_metadata(self) -> tuple[tuple[str, bytes], ...]:  # type: ignore[override]  # pairs
        return self._trailing

    def initial_metadata(self) -> tuple[()]:
        return ()

    def is_active(self) -> bool:
        return False

    def time_remaining(self) -> float:
        return 0.0

    def cancel(self) -> bool:
        return False

    def add_callback(self, callback: object) -> bool:
        del callback
        return False


def test_a_blocking_call_carries_the_service_s_own_error() -> None:
    told = to_wire(PlexError(ErrorCode.NOT_FOUND, "no such job", job="j")).SerializeToString()
    found = error_of(BlockingFailure(((ERROR_KEY, told),)))
    assert (found.code, found.message, found.facts) == (
        ErrorCode.NOT_FOUND,
        "no such job",
        {"job": "j"},
    )


def test_without_one_the_caller_s_text_and_the_status_are_told() -> None:
    found = error_of(BlockingFailure(()), text="no answer from here:")
    assert found.code == ErrorCode.UNAVAILABLE
    assert found.message == "no answer from here: UNAVAILABLE: nobody there"
    assert found.facts == {"grpc_status": "UNAVAILABLE"}


@pytest.mark.parametrize(
    ("status", "details", "code"),
    [
        (grpc.StatusCode.UNAVAILABLE, "details", ErrorCode.UNAVAILABLE),
        (grpc.StatusCode.DEADLINE_EXCEEDED, "details", ErrorCode.UNAVAILABLE),
        (grpc.StatusCode.INTERNAL, "details", ErrorCode.UNAVAILABLE),
        (grpc.StatusCode.UNKNOWN, "Stream removed", ErrorCode.UNAVAILABLE),
        (grpc.StatusCode.UNKNOWN, "Unexpected <class 'OSError'>: no", ErrorCode.INTERNAL),
        (grpc.StatusCode.UNIMPLEMENTED, "details", ErrorCode.INTERNAL),
    ],
)
def test_a_failure_of_grpcs_own_is_retryable_when_it_may_pass(
    status: grpc.StatusCode, details: str, code: ErrorCode
) -> None:
    metadata = grpc.aio.Metadata((ERROR_KEY, b"\xff\xff not an error"))
    failure = grpc.aio.AioRpcError(status, grpc.aio.Metadata(), metadata, details)
    assert error_from(failure).code == code


def test_the_first_of_our_errors_counts_however_deep() -> None:
    ours = PlexError(ErrorCode.NODE_LOST, "gone")
    group = ExceptionGroup("all", [OSError("later"), ExceptionGroup("in", [KeyError(), ours])])
    assert first_failure(group) is ours
    assert isinstance(first_failure(ExceptionGroup("none", [OSError(), KeyError()])), OSError)
