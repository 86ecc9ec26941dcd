"""Connections to the instances of a deployment, and what an instance says of itself."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Final, NamedTuple, TypeVar

import grpc.aio

from plexclient.wire.v1 import (
    common_pb2,
    rollout_pb2,
    rollout_pb2_grpc,
    worker_pb2,
    worker_pb2_grpc,
)
from plexsvc.clock import Clock
from plexsvc.errors import unavailable
from plexsvc.ids import VersionId
from plexsvc.rollout.core.events import InstanceId
from plexsvc.rpc.errors import error_from

Reply = TypeVar("Reply")

PROBE_CALL_S: Final = 2.0

LOOKS: Final = 8
"""Times that an instance is looked at in the time after which a load that hangs is given up."""


class ServedVersion(NamedTuple):
    """What an instance serves, and the checksum of its bytes."""

    version: VersionId
    checksum: str
    is_asleep: bool = False


@dataclass(slots=True)
class InstanceLine:
    """The connection to one instance."""

    address: str
    channel: grpc.aio.Channel
    deployment_id: str
    """Whose instance it is."""
    fence: common_pb2.Fence | None = None
    """Of an engine on training devices: under which lease it is awake. None: the deployment's."""
    engine: str = ""
    """Where the engine is that it has a seat in, beside others; empty: it has one to itself."""
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

    async def probe(self) -> ServedVersion:
        """Return what the instance serves.

        Raises:
            PlexError: `unavailable` when it does not answer, or its engine broke.
        """
        request = rollout_pb2.InstanceStatsRequest()
        stats = await self._ask(self.stub.Stats(request, timeout=PROBE_CALL_S))
        if stats.HasField("broken"):
            raise unavailable(
                f"the engine of instance {self.address} broke: {stats.broken.message}",
                instance=self.address,
            )
        return ServedVersion(VersionId.of(stats.version), stats.checksum, stats.is_asleep)

    async def describe(self) -> worker_pb2.DescribeReply:
        """Return what the instance is.

        Raises:
            PlexError: `unavailable` when it does not answer.
        """
        stub = worker_pb2_grpc.WorkerStub(self.channel)
        request = worker_pb2.DescribeRequest()
        described = await self._ask(stub.Describe(request, timeout=PROBE_CALL_S))
        self.engine = described.engine
        return described

    async def load(
        self,
        request: rollout_pb2.LoadVersionRequest,
        *,
        wakes: bool,
        stall_us: int,
        clock: Clock,
        group: asyncio.TaskGroup,
        got_on: Callable[[], None],
    ) -> rollout_pb2.LoadVersionReply:
        """Have the instance load a version, however long it gets on; it `wakes` by it if it sleeps.

        `got_on` is told whenever it has read more.

        Raises:
            PlexError: `unavailable` when it hangs or is gone.
        """
        try:
            async with asyncio.timeout(stall_us / 1e6) as limit:
                follow = self._follow(limit, stall_us=stall_us, clock=clock, got_on=got_on)
                follows = group.create_task(follow)
                try:
                    return await (self.stub.Wake if wakes else self.stub.LoadVersion)(request)
                except asyncio.CancelledError as error:
                    task = asyncio.current_task()
                    if task is not None and task.cancelling():
                        raise
                    raise unavailable(
                        f"instance {self.address} was let go while it loaded"
                    ) from error
                finally:
                    follows.cancel()
        except TimeoutError as error:
            raise unavailable(
                f"instance {self.address} read nothing for {stall_us / 1e6:g} s "
                "(rollout.load_stall_us)"
            ) from error
        except grpc.aio.AioRpcError as error:
            raise error_from(error) from error

    async def _follow(
        self, limit: asyncio.Timeout, *, stall_us: int, clock: Clock, got_on: Callable[[], None]
    ) -> None:
        """Put the end of a load off whenever the instance has read more."""
        loop, before = asyncio.get_running_loop(), -1
        while not limit.expired():
            with suppress(grpc.aio.AioRpcError, grpc.aio.UsageError):  # gone, or its line closed
                request = rollout_pb2.InstanceStatsRequest()
                found = (await self.stub.Stats(request, timeout=PROBE_CALL_S)).progress
                if found > before >= 0:
                    got_on()
                    limit.reschedule(loop.time() + stall_us / 1e6)
                before = found
            await clock.sleep(stall_us // LOOKS)

    async def _ask(self, call: Awaitable[Reply]) -> Reply:
        try:
            return await call
        except grpc.aio.AioRpcError as error:
            raise unavailable(
                f"instance {self.address} of {self.deployment_id} does not answer: "
                f"{error_from(error).message}",
                instance=self.address,
            ) from error


async def close_lines(lines: Mapping[InstanceId, InstanceLine]) -> None:
    """Close connections; running calls end as lost."""
    for line in lines.values():
        await line.channel.close()
