"""The router's scheduler and rollout manager, in this process or by wire."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Mapping
from typing import Final, Protocol, TypeVar

import grpc
import grpc.aio
from google.protobuf.message import Message

from plexclient.wire.v1 import operations_pb2 as ops
from plexclient.wire.v1 import service_pb2 as pb
from plexclient.wire.v1 import worker_pb2
from plexsvc.errors import ErrorCode, PlexError
from plexsvc.frames.line import OrderLine
from plexsvc.router.config import RouterConfig
from plexsvc.rpc import services

Reply = TypeVar("Reply", bound=Message)

SERVICE: Final = pb.DESCRIPTOR.services_by_name["Scheduler"]


class SchedulerApi(Protocol):
    """The Scheduler service."""

    async def call(self, method: str, request: Message, reply: type[Reply]) -> Reply:
        """Return the reply of a method with one request and one reply.

        Raises:
            PlexError: what the scheduler refuses, or `unavailable`.
        """
        ...

    def submit(self, operation: ops.Operation) -> Awaitable[ops.OperationResult]:
        """Run an operation, or attach to it, or answer it from the record.

        The operation's own refusal or failure is in the result. Raises `PlexError` when the
        scheduler cannot be reached.
        """
        ...


class FrameSource(Protocol):
    """The rollout manager, when it lives in this process."""

    def StreamFrames(  # noqa: N802 - named as in the wire's service
        self, request: worker_pb2.StreamFramesRequest, context: None, /
    ) -> AsyncIterator[ops.GenerateFrame]:
        """Yield the frames of a generate after a cursor, to the last."""
        ...


class RemoteScheduler:
    """A scheduler in another process: every call has a deadline, every failure is a `PlexError`."""

    def __init__(self, channel: grpc.aio.Channel, *, config: RouterConfig) -> None:
        self._channel = channel
        self._host = config.scheduler.rpartition(":")[0].strip("[]")
        self._line: OrderLine[ops.OperationResult] | None = None
        self._has_line = True
        self._control_s = config.control_timeout_us / 1e6
        self._wait_s = config.wait_timeout_us / 1e6
        self._timeouts_s: Mapping[str, float] = {
            name: self._wait_s if services.has_option(method, pb.waits) else self._control_s
            for name, method in services.unary_methods(SERVICE).items()
        }

    async def call(self, method: str, request: Message, reply: type[Reply]) -> Reply:
        """Return the reply of a method."""
        found = SERVICE.methods_by_name[method]
        timeout_s = self._timeouts_s[method]
        return await services.call(self._channel, found, request, reply, timeout_s=timeout_s)

    async def submit(self, operation: ops.Operation) -> ops.OperationResult:
        """Run an operation."""
        line = self._line or await self._find_line()
        if line is None:
            return await self.call("SubmitOperation", operation, ops.OperationResult)
        try:
            return await line.execute(operation, timeout_s=self._wait_s)
        except OSError as error:
            if line is self._line:
                self._line = None  # the next call asks where it is now
            raise PlexError(
                ErrorCode.UNAVAILABLE,
                f"the line to the scheduler broke ({error}); ask again: an operation runs once",
            ) from error

    async def _find_line(self) -> OrderLine[ops.OperationResult] | None:
        """Return the way to submit operations without gRPC, if the scheduler offers one.

        Raises:
            PlexError: the scheduler does not answer.
        """
        if not self._has_line:
            return None
        reply = await self.call("GetLine", pb.LineRequest(), pb.LineReply)
        self._has_line = reply.port > 0
        if self._has_line and self._line is None:
            self._line = OrderLine(
                self._host, reply.port, reply=ops.OperationResult, is_alive=self._is_alive
            )
        return self._line

    def _is_alive(self) -> bool:
        state = self._channel.get_state(try_to_connect=True)
        return state is grpc.ChannelConnectivity.READY

    def close(self) -> None:
        """Close the line; the channel is its owner's."""
        self._has_line = False
        if self._line is not None:
            self._line.close()
