"""One stream of operations of the fake router: who works for it, who writes, what cuts it."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

import grpc

from plexclient.wire.v1 import operations_pb2


class FakeStream:
    """Tasks that end with the stream, and turns to write on it."""

    def __init__(
        self,
        context: grpc.aio.ServicerContext[Any, Any],
        *,
        cut: asyncio.Future[grpc.StatusCode],
    ) -> None:
        self.context = context
        self.cut = cut
        self.tasks: set[asyncio.Task[None]] = set()
        self._writing = asyncio.Lock()

    def start(self, work: Coroutine[None, None, None]) -> None:
        """Run `work` until it or the stream ends."""
        task = asyncio.get_running_loop().create_task(work)
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)

    async def send(self, result: operations_pb2.OperationResult) -> None:
        """Send an answer, unless the stream is over."""
        async with self._writing:
            if not self.cut.done():
                await self.context.write(result)

    def lose(self, status: grpc.StatusCode) -> None:
        """Cut the stream."""
        if not self.cut.done():
            self.cut.set_result(status)

    def end(self) -> None:
        """Stop working for the stream."""
        for task in tuple(self.tasks):
            task.cancel()
