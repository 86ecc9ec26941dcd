"""Errors travel on gRPC calls whole, or cut to what headers may carry."""

from __future__ import annotations

import grpc
import grpc.aio
import pytest

from plexsvc.errors import ErrorCode, PlexError
from plexsvc.rpc.errors import error_from
from plexsvc.rpc.status import STATUS_OF, abort_with


class FakeContext:
    """Keeps what a call was aborted with."""

    def __init__(self) -> None:
        self.status = grpc.StatusCode.OK
        self.trailing: tuple[tuple[str, bytes], ...] = ()

    async def abort(
        self, status: grpc.StatusCode, details: str, trailing: tuple[tuple[str, bytes], ...]
    ) -> None:
        self.status, self.trailing = status, trailing
        raise grpc.aio.AbortError(details)


async def over_the_wire(error: PlexError) -> tuple[PlexError, int]:
    context = FakeContext()
    with pytest.raises(grpc.aio.AbortError) as aborted:
        await abort_with(context, error)  # type: ignore[arg-type] # a fake
    nothing = grpc.aio.Metadata()
    failure = grpc.aio.AioRpcError(
        context.status, nothing, grpc.aio.Metadata(*context.trailing), str(aborted.value)
    )
    return error_from(failure), sum(len(key) + len(value) for key, value in context.trailing)


@pytest.mark.parametrize("code", list(ErrorCode))
async def test_every_code_arrives_with_its_facts(code: ErrorCode) -> None:
    found, _ = await over_the_wire(PlexError(code, "what was asked", wpg="wpg_1"))
    assert (found.code, found.message, found.facts) == (code, "what was asked", {"wpg": "wpg_1"})


async def test_a_long_log_tail_is_cut_to_what_headers_carry() -> None:
    error = PlexError(ErrorCode.WORKER_DIED, "é" * 5000, log_tail="x" * 9000, other="y" * 9000)
    found, nbytes = await over_the_wire(error)
    assert found.code == ErrorCode.WORKER_DIED
    assert nbytes < 8000


async def test_without_a_context_the_error_is_raised() -> None:
    with pytest.raises(PlexError) as caught:
        await abort_with(None, PlexError(ErrorCode.NOT_FOUND, "no"))
    assert caught.value.code == ErrorCode.NOT_FOUND


def test_only_internal_errors_carry_the_status_internal() -> None:
    codes = [code for code, status in STATUS_OF.items() if status == grpc.StatusCode.INTERNAL]
    assert codes == [ErrorCode.INTERNAL]
