"""Loads of weight versions by instances, each as long as it gets on."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import Final

import grpc.aio

from plexclient.wire.v1 import common_pb2, rollout_pb2, statemanager_pb2
from plexsvc.clock import Clock
from plexsvc.errors import ErrorCode, PlexError
from plexsvc.ids import VersionId
from plexsvc.rollout.config import RolloutConfig
from plexsvc.rollout.lines import PROBE_CALL_S, Line
from plexsvc.rpc.errors import error_from

LOOKS: Final = 8
"""Times that an instance is looked at in the time after which a load that hangs is given up."""


class Loads:
    """Where the versions of a deployment lie, and the calls by which instances load them."""

    def __init__(
        self,
        config: RolloutConfig,
        *,
        clock: Clock,
        group: asyncio.TaskGroup,
        read: Callable[[], None],
    ) -> None:
        """Tell `read` whenever an instance has read more."""
        self.sources: dict[VersionId, statemanager_pb2.PublishedVersion] = {}
        """Where the wanted version lies and, while that is loaded, of the one before."""
        self._stall_us, self._clock, self._group = config.load_stall_us, clock, group
        self._read = read

    def forget_but(self, version: VersionId) -> None:
        """Keep where one version lies."""
        self.sources = {one: given for one, given in self.sources.items() if one == version}

    async def load(
        self, line: Line, version: VersionId, *, fence: common_pb2.Fence, wakes: bool
    ) -> rollout_pb2.LoadVersionReply:
        """Have an instance load a version, however long it gets on; one that sleeps `wakes` by it.

        Raises:
            PlexError: `unavailable` when it hangs or is gone.
        """
        source = self.sources.get(version, statemanager_pb2.PublishedVersion(**version._asdict()))
        request = rollout_pb2.LoadVersionRequest(fence=fence, published=source)
        stall_s = self._stall_us / 1e6
        try:
            async with asyncio.timeout(stall_s) as limit:
                follows = self._group.create_task(self._follow(line, limit))
                try:
                    return await (line.stub.Wake if wakes else line.stub.LoadVersion)(request)
                except asyncio.CancelledError as error:
                    if _is_cancelled():
                        raise
                    text = f"instance {line.address} was let go while it loaded"
                    raise PlexError(ErrorCode.UNAVAILABLE, text) from error
                finally:
                    follows.cancel()
        except TimeoutError as error:
            raise PlexError(
                ErrorCode.UNAVAILABLE,
                f"instance {line.address} read nothing for {stall_s:g} s (rollout.load_stall_us)",
            ) from error
        except grpc.aio.AioRpcError as error:
            raise error_from(error) from error

    async def _follow(self, line: Line, limit: asyncio.Timeout) -> None:
        """Put the end of a load off whenever the instance has read more."""
        loop, before = asyncio.get_running_loop(), -1
        while not limit.expired():
            with suppress(grpc.aio.AioRpcError, grpc.aio.UsageError):  # gone, or its line closed
                request = rollout_pb2.InstanceStatsRequest()
                found = (await line.stub.Stats(request, timeout=PROBE_CALL_S)).progress
                if found > before >= 0:
                    self._read()
                    limit.reschedule(loop.time() + self._stall_us / 1e6)
                before = found
            await self._clock.sleep(self._stall_us // LOOKS)


def _is_cancelled() -> bool:
    """Whether this task is to end, and not only a call of it whose channel was closed."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0
