"""Server of a stream of operations: `Router.Operate` to clients, `Scheduler.Operate` to routers.

Theory of operation. Opening a stream costs a call once; an operation on it costs a message each
way, a fraction of what gRPC's machinery for a call of its own does. The stream's headers tell the
caller that it is taken. One task reads. It never waits for an operation, since what it reads next
may be what that one waits for; each operation is answered by a task of its own. Answers are written
one after the other, as gRPC asks. A limit bounds the tasks and the answers not yet written. The
reader itself refuses what comes beyond it, so a caller that does not read its answers is not read
from either.

An operation that is sent again while it is under way replaces the first request: each id has one
task and one answer. A caller that has sent all (half-closed) still gets its answers. Closing the
stream stops the waiting, not the operation. The scheduler keeps the result.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final

import grpc.aio
from google.protobuf.message import DecodeError

from plexclient.wire.channels import MAX_MESSAGE_BYTES
from plexclient.wire.errors import refused
from plexclient.wire.v1 import operations_pb2 as ops
from plexsvc.errors import PlexError, bad_request, internal, queue_full, unavailable
from plexsvc.ids import show
from plexsvc.log import Log
from plexsvc.rpc.services import Context

log = Log(__name__)

FRAMING_BYTES: Final = 1024
"""Part of a message's limit that is left for its frame."""


Submit = Callable[[ops.Operation], Awaitable[ops.OperationResult]]
"""Returns an operation's answer, a refusal too; raises for nothing but bugs."""


class OperationStreams:
    """The streams of operations open at one server."""

    def __init__(self, *, max_operations: int, key: str) -> None:
        self._limit = StreamLimit(max_operations, key)
        self._open: set[_OperateStream] = set()
        self._is_stopping = False

    async def serve(self, context: Context, submit: Submit) -> None:
        """Answer what comes on one stream, given and taken as bytes, until the caller ends it.

        Raises:
            PlexError: `bad_request` for bytes that are no operation; `unavailable` when the server
                stops. Nothing is under way on the stream any more then.
        """
        if self._is_stopping:
            raise self._limit.stopping()
        stream = _OperateStream(context, submit=submit, limit=self._limit)
        self._open.add(stream)
        try:
            await stream.run()
        finally:
            self._open.discard(stream)

    def stop(self) -> None:
        """Read no further operations; a stream ends when those under way on it are answered."""
        self._is_stopping = True
        for stream in self._open:
            stream.stop(self._limit.stopping())


@dataclass(frozen=True, slots=True)
class StreamLimit:
    """How many operations a stream may have under way, and the key of the server's table for it."""

    max_operations: int
    key: str

    @property
    def server(self) -> str:
        """Who serves."""
        return self.key.partition(".")[0]

    def stopping(self) -> PlexError:
        """Return why a server that stops ends its streams."""
        return unavailable(f"the {self.server} stops; submit again, here or at another")

    def full(self, operation_id: bytes) -> PlexError:
        """Return why an operation is not taken."""
        return queue_full(
            f"{show(operation_id)} not accepted: {self.max_operations} operations are under way "
            f"on its stream already ({self.key}); await some of them and submit it again",
            limit=self.max_operations,
        )


class _OperateStream:
    """One stream: who waits on it for what, and whose turn it is to write."""

    def __init__(self, context: Context, *, submit: Submit, limit: StreamLimit) -> None:
        self._context = context
        self._submit = submit
        self._limit = limit
        self._under_way: dict[bytes, asyncio.Task[None]] = {}
        self._num_unsent = 0
        self._writing = asyncio.Lock()
        self._reading: asyncio.Task[None] | None = None
        self._end: PlexError | None = None

    async def run(self) -> None:
        """Return when the client has its answers; raise why the stream ended otherwise."""
        await self._context.send_initial_metadata(())
        if self._end is None:
            async with asyncio.TaskGroup() as tasks:
                self._reading = tasks.create_task(self._read(tasks))
        if self._end is not None:
            raise self._end

    def stop(self, why: PlexError) -> None:
        """Stop reading."""
        self._end = self._end or why
        if self._reading is not None:
            self._reading.cancel()

    async def _read(self, tasks: asyncio.TaskGroup) -> None:
        while (message := await self._context.read()) is not grpc.aio.EOF:
            try:
                operation = ops.Operation.FromString(message)
            except DecodeError as error:
                self._end = bad_request(
                    f"the stream of operations carried bytes that are no Operation ({error}); "
                    "open another and send again what was not answered"
                )
                for task in self._under_way.values():
                    task.cancel()
                return
            operation_id = operation.operation_id
            earlier = self._under_way.pop(operation_id, None)
            if earlier is not None:
                # Its caller waits no more: the newer request gets the one answer.
                earlier.cancel()
            elif len(self._under_way) + self._num_unsent >= self._limit.max_operations:
                await self._send(refused(operation_id, self._limit.full(operation_id)))
                continue
            self._under_way[operation_id] = tasks.create_task(self._run(operation, operation_id))

    async def _run(self, operation: ops.Operation, operation_id: bytes) -> None:
        try:
            result = await self._submit(operation)
        except Exception as error:  # noqa: BLE001 - the edge: a bug of ours ends only its operation
            log.error("operation failed", operation_id=operation_id)
            failed = f"the {self._limit.server} failed: {type(error).__name__}: {error}"
            text = f"{failed}; its log says where"
            result = refused(operation_id, internal(text))
        del self._under_way[operation_id]
        await self._send(result)

    async def _send(self, result: ops.OperationResult) -> None:
        message = result.SerializeToString()
        if len(message) > MAX_MESSAGE_BYTES - FRAMING_BYTES:
            message = _too_large(result, nbytes=len(message)).SerializeToString()
        self._num_unsent += 1
        try:
            async with self._writing:
                await self._context.write(message)
        except Exception as error:  # noqa: BLE001 - whatever gRPC calls it, the stream is over
            log.info("answer not sent", operation_id=result.operation_id, error=error)
        finally:
            self._num_unsent -= 1


def _too_large(result: ops.OperationResult, *, nbytes: int) -> ops.OperationResult:
    """Return what is told instead of an answer that would end the whole stream."""
    error = internal(
        f"the answer of {show(result.operation_id)} has {nbytes} bytes; a message carries at most "
        f"{MAX_MESSAGE_BYTES - FRAMING_BYTES}. The operation itself ended as "
        f"{ops.OperationState.Name(result.state)}"
    )
    return refused(result.operation_id, error)
