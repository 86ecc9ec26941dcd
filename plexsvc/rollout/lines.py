"""Connections to the instances of a deployment, and what an instance says of itself."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Final, TypeVar

import grpc.aio

from plexclient.wire.v1 import (
    common_pb2,
    rollout_pb2,
    rollout_pb2_grpc,
    worker_pb2,
    worker_pb2_grpc,
)
from plexsvc.errors import ErrorCode, PlexError
from plexsvc.ids import VersionId
from plexsvc.rollout.core.events import InstanceId
from plexsvc.rpc.channels import open_channel
from plexsvc.rpc.errors import error_from
from plexsvc.rpc.keys import ClusterKeys

Reply = TypeVar("Reply")

PROBE_CALL_S: Final = 2.0


@dataclass(frozen=True, slots=True)
class Served:
    """What an instance serves, and the checksum of its bytes."""

    version: VersionId
    checksum: str
    is_asleep: bool = False


@dataclass(slots=True)
class Line:
    """The connection to one instance."""

    address: str
    channel: grpc.aio.Channel
    deployment_id: str
    """Whose instance it is."""
    fence: common_pb2.Fence | None = None
    """Of an engine on training devices: the lease under which it is awake. None: the fleet's."""
    limits: set[asyncio.Timeout] = field(default_factory=set)
    """When each call that waits for tokens gives the instance up."""

    @property
    def stub(self) -> rollout_pb2_grpc.RolloutInstanceAsyncStub:
        """Return the typed calls."""
        return rollout_pb2_grpc.RolloutInstanceStub(self.channel)

    @asynccontextmanager
    async def heard_within(self, stall_us: int) -> AsyncIterator[None]:
        """Raise `TimeoutError` in the body when no call to the instance got any token for so long.

        Samples of one call may wait until the instance has finished those of another.
        """
        async with asyncio.timeout(stall_us / 1e6) as limit:
            self.limits.add(limit)
            try:
                yield
            finally:
                self.limits.remove(limit)

    def hear(self, stall_us: int) -> None:
        """Note that the instance sent tokens."""
        at_s = asyncio.get_running_loop().time() + stall_us / 1e6
        for limit in self.limits:
            if not limit.expired():
                limit.reschedule(at_s)

    async def probe(self) -> Served:
        """Return what the instance serves.

        Raises:
            PlexError: `unavailable` when it does not answer, or its engine broke.
        """
        request = rollout_pb2.InstanceStatsRequest()
        stats = await self._ask(self.stub.Stats(request, timeout=PROBE_CALL_S))
        if stats.HasField("broken"):
            raise PlexError(
                ErrorCode.UNAVAILABLE,
                f"the engine of instance {self.address} broke: {stats.broken.message}",
                instance=self.address,
            )
        return Served(VersionId.of(stats.version), stats.checksum, stats.is_asleep)

    async def describe(self) -> worker_pb2.DescribeReply:
        """Return what the instance is.

        Raises:
            PlexError: `unavailable` when it does not answer.
        """
        stub = worker_pb2_grpc.WorkerStub(self.channel)
        request = worker_pb2.DescribeRequest()
        return await self._ask(stub.Describe(request, timeout=PROBE_CALL_S))

    async def _ask(self, call: Awaitable[Reply]) -> Reply:
        try:
            return await call
        except grpc.aio.AioRpcError as error:
            raise PlexError(
                ErrorCode.UNAVAILABLE,
                f"instance {self.address} of {self.deployment_id} does not answer: "
                f"{error_from(error).message}",
                instance=self.address,
            ) from error


def open_line(
    address: str, *, keys: ClusterKeys, deployment_id: str, fence: common_pb2.Fence | None = None
) -> Line:
    """Return a line to an instance of a deployment; nothing is sent yet."""
    return Line(address, open_channel(address, keys), deployment_id, fence)


async def close_lines(lines: Mapping[InstanceId, Line]) -> None:
    """Close connections; running calls end as lost."""
    for line in lines.values():
        await line.channel.close()
