"""Channels of the router to state managers and rollout managers, one per target."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import grpc.aio

from plexsvc.rpc.channels import open_channel
from plexsvc.rpc.keys import ClusterKeys

STAGE: Final = "/plexsvc.v1.StateManager/Stage"
READ_STAGED: Final = "/plexsvc.v1.StateManager/ReadStaged"
STREAM_FRAMES: Final = "/plexsvc.v1.Worker/StreamFrames"


class ChannelPool:
    """Channels by target, opened when first needed; as many as the cluster has nodes."""

    def __init__(self, keys: ClusterKeys) -> None:
        self._keys = keys
        self._channels: dict[str, grpc.aio.Channel] = {}

    def to(self, target: str) -> grpc.aio.Channel:
        """Return the channel to `target`."""
        if target not in self._channels:
            self._channels[target] = open_channel(target, self._keys)
        return self._channels[target]

    async def keep(self, targets: Iterable[str]) -> None:
        """Close the channels to all other targets."""
        kept = set(targets)
        for target in [t for t in self._channels if t not in kept]:
            await self._channels.pop(target).close()

    async def aclose(self) -> None:
        """Close every channel."""
        await self.keep(())
