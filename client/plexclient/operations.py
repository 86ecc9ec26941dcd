"""Caller's end of a stream of operations: operations out, answers back by id.

The client speaks `Router.Operate` with it, and a router apart `Scheduler.Operate`.

Theory of operation. A message on an open stream costs a fraction of a call of its own. The stream
is opened with the first operation and again with the first one after a loss. It has two tasks,
because gRPC drops a call when whoever writes to it is cancelled: operations wait for the writer,
their callers for a future, and giving up on one disturbs no other. The writer starts when the
server's headers have come, which say that the caller is known: a write that meets a refusal would
hide it.

If the stream breaks, everyone who waits on it gets an error of their own, and sends the operation
again under its id. A stream has no deadline: an attempt has one, and pings find a silent peer.
Several attempts of one id may wait at once; the first answer is for all of them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import grpc
import grpc.aio

from plexclient.errors import PlexError, internal, payload_too_large, unavailable
from plexclient.failures import STATUS_FACT, error_of
from plexclient.ids import show
from plexclient.wire.channels import MAX_MESSAGE_BYTES
from plexclient.wire.v1 import operations_pb2

Result = operations_pb2.OperationResult
OpenCall = Callable[[], Any]  # gRPC's call objects are untyped


class Operations:
    """Operations and their answers on a stream that is opened when needed. Lives on one loop."""

    def __init__(
        self,
        open_call: OpenCall,
        *,
        method: str = "Router.Operate",
        check: Callable[[Result], None] = lambda _: None,
    ) -> None:
        """Prepare a stream; `check` raises the answers that are no results to its callers."""
        self._open_call = open_call
        self._check = check
        self._method = method
        self._stream: _OpenStream | None = None

    async def ask(self, operation: operations_pb2.Operation, *, timeout_s: float) -> Result:
        """Return the answer.

        Raises:
            PlexError: `unavailable` when the stream was lost or the time is over: ask again under
                the same id; `payload_too_large`; what the server ended the stream with; what
                `check` makes of the answer.
        """
        _check_size(operation)
        stream = self._stream
        if stream is None or stream.is_lost:
            stream = self._stream = _OpenStream(self._open_call(), method=self._method)
        answer: asyncio.Future[Result] = asyncio.get_running_loop().create_future()
        stream.due.setdefault(operation.operation_id, []).append(answer)
        # Several attempts of one id that wait to be written are one message: the last.
        stream.unsent[operation.operation_id] = operation
        stream.has_unsent.set()
        try:
            async with asyncio.timeout(timeout_s):
                result = await answer
        except TimeoutError as error:
            status = grpc.StatusCode.DEADLINE_EXCEEDED.name
            text = f"{show(operation.operation_id)} was not answered in {timeout_s:.0f} s"
            raise _lost(text, status=status) from error
        finally:
            stream.leave(operation.operation_id, answer)
        self._check(result)
        return result

    async def aclose(self) -> None:
        """End the stream; whoever waits is cancelled."""
        if self._stream is not None:
            await self._stream.aclose()


class _OpenStream:
    """One stream: what waits to be written, and who waits for which answer."""

    def __init__(self, call: Any, *, method: str) -> None:
        self._call = call
        self._method = method
        self._server = f"the {method.partition('.')[0].lower()}"
        self.unsent: dict[bytes, operations_pb2.Operation] = {}
        self.has_unsent = asyncio.Event()
        self.due: dict[bytes, list[asyncio.Future[Result]]] = {}
        self._is_write_broken = False
        self.is_lost = False
        self._carrying = asyncio.get_running_loop().create_task(self._carry())

    def leave(self, operation_id: bytes, future: asyncio.Future[Result]) -> None:
        """Wait for an answer no more; an operation that nobody waits for is not sent."""
        waiting = self.due.get(operation_id)
        # It was answered: `_read` has taken all who waited for it.
        if waiting is None:
            return
        waiting.remove(future)
        if not waiting:
            del self.due[operation_id]
            self.unsent.pop(operation_id, None)

    async def aclose(self) -> None:
        """End the stream; whoever waits is cancelled."""
        self._carrying.cancel()
        await asyncio.wait({self._carrying})

    async def _carry(self) -> None:
        """Carry messages both ways until the stream ends; then whoever waits hears why."""
        why: PlexError | None = None
        try:
            async with asyncio.TaskGroup() as tasks:
                writing = tasks.create_task(self._write())
                why = await self._read()
                writing.cancel()
        except Exception as error:  # noqa: BLE001 - a bug of ours must not look like a closed line
            text = f"the stream of operations failed: {error!r}"
            why = internal(text)
        finally:
            # First, so that whoever asks from now on opens another stream.
            self.is_lost = True
            self._call.cancel()
            for futures in self.due.values():
                for future in futures:
                    if future.done():
                        continue
                    if why is None:
                        future.cancel()
                    else:
                        future.set_exception(PlexError(why.code, why.message, **why.facts))

    async def _read(self) -> PlexError:
        try:
            while (result := await self._call.read()) is not grpc.aio.EOF:
                if result is None:  # what gRPC makes of bytes it cannot parse
                    text = f"an answer from {self._server} is no OperationResult"
                    return _lost(text, status="OK")
                for future in self.due.pop(result.operation_id, ()):
                    if not future.done():
                        future.set_result(result)
        except grpc.aio.AioRpcError as failure:
            return self._reason(failure)
        return _lost(f"{self._server} ended the stream of operations", status="OK")

    async def _write(self) -> None:
        try:
            await self._call.initial_metadata()
            while True:
                await self.has_unsent.wait()
                self.has_unsent.clear()
                while self.unsent:
                    # The oldest, and one at a time: whoever gives up meanwhile takes his own out.
                    operation = self.unsent.pop(next(iter(self.unsent)))
                    await self._call.write(operation)
        except (grpc.aio.AioRpcError, asyncio.InvalidStateError):
            self._is_write_broken = True  # the reader hears why

    def _reason(self, failure: grpc.aio.AioRpcError) -> PlexError:
        status = failure.code()
        if status is grpc.StatusCode.UNIMPLEMENTED:
            return internal(
                f"{self._server} does not know {self._method}: it is older than this client; "
                "upgrade the service, or use the plexclient of its version",
                **{STATUS_FACT: status.name},
            )
        if status is grpc.StatusCode.INTERNAL and self._is_write_broken:
            text = f"the stream of operations broke off: {failure.details()}"
            return _lost(text, status=grpc.StatusCode.UNAVAILABLE.name)
        return error_of(failure, text=f"{self._server} did not answer:")


def _check_size(operation: operations_pb2.Operation) -> None:
    nbytes = operation.ByteSize()
    if nbytes > MAX_MESSAGE_BYTES:
        raise payload_too_large(
            f"{show(operation.operation_id)} is a message of {nbytes} bytes; one message carries "
            f"at most {MAX_MESSAGE_BYTES}: split it over several calls"
        )


def _lost(text: str, *, status: str) -> PlexError:
    return unavailable(text, **{STATUS_FACT: status})
