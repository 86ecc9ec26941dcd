"""The router's scheduler, in this process or by wire."""

from __future__ import annotations

from collections.abc import Awaitable, Mapping
from typing import Final, Protocol, TypeVar

import grpc.aio
from google.protobuf.message import Message

from plexclient.operations import Operations
from plexclient.wire.v1 import operations_pb2 as ops
from plexclient.wire.v1 import service_pb2 as pb
from plexclient.wire.v1 import service_pb2_grpc
from plexsvc.router.config import RouterConfig
from plexsvc.rpc import services

Reply = TypeVar("Reply", bound=Message)

NUM_STREAMS: Final = 32
"""Streams of operations to a scheduler; a deployment uses one of them. A stream carries one message
each way in a turn of the event loop, so a burst would queue on a single one."""

SERVICE: Final = pb.DESCRIPTOR.services_by_name["Scheduler"]


class SchedulerApi(Protocol):
    """The Scheduler service."""

    async def call(self, method: str, request: Message, reply: type[Reply]) -> Reply:
        """Return the reply of a method with one request and one reply.

        Raises:
            PlexError: what the scheduler refuses, or `unavailable`.
        """

    def submit(self, operation: ops.Operation) -> Awaitable[ops.OperationResult]:
        """Run an operation, or attach to it, or answer it from the record.

        The operation's own refusal or failure is in the result. Raises `PlexError` when the
        scheduler cannot be reached.
        """


class RemoteScheduler:
    """A scheduler in another process: every call has a deadline, every failure is a `PlexError`."""

    def __init__(self, channel: grpc.aio.Channel, *, config: RouterConfig) -> None:
        self._channel = channel
        stub = service_pb2_grpc.SchedulerStub(channel)
        self._streams = [
            Operations(stub.Operate, method="Scheduler.Operate") for _ in range(NUM_STREAMS)
        ]
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
        stream = self._streams[hash(operation.deployment_id) % NUM_STREAMS]
        return await stream.ask(operation, timeout_s=self._wait_s)

    async def aclose(self) -> None:
        """End the streams of operations; the channel is its owner's."""
        for stream in self._streams:
            await stream.aclose()
