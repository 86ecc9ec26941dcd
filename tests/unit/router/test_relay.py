"""A node that is lost in the middle of an upload is one to try again, whenever it is noticed."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator
from typing import cast

import grpc
import grpc.aio
import pytest

from plexsvc.errors import ErrorCode, PlexError
from plexsvc.router.relay import Target


class FakeStream:
    """A call that has ended with a broken line."""

    async def write(self, message: bytes) -> None:
        raise asyncio.InvalidStateError(message)

    async def done_writing(self) -> None:
        raise asyncio.InvalidStateError("RPC already finished.")

    def __await__(self) -> Generator[None, None, bytes]:
        nothing = grpc.aio.Metadata()
        raise grpc.aio.AioRpcError(grpc.StatusCode.UNAVAILABLE, nothing, nothing, "Socket closed")
        yield


class FakeChannel:
    """A channel whose calls have all ended."""

    def stream_unary(self, method: str) -> Callable[..., FakeStream]:
        del method
        return lambda **_options: FakeStream()


@pytest.mark.parametrize("sends", [True, False])
async def test_a_line_that_breaks_before_the_end_is_tried_again(sends: bool) -> None:
    target = Target(cast("grpc.aio.Channel", FakeChannel()), timeout_s=1)
    if sends:
        await target.send(b"chunk")
    await target.end()
    with pytest.raises(PlexError, match="Socket closed") as caught:
        await target.answer()
    assert caught.value.code is ErrorCode.UNAVAILABLE
