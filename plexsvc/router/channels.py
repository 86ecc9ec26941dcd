"""Channels of the router to state managers and rollout managers, one per target."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterable
from typing import Final

import grpc.aio

from plexclient.wire.channels import MAX_MESSAGE_BYTES
from plexsvc.errors import payload_too_large
from plexsvc.rpc.channels import open_channel
from plexsvc.rpc.errors import error_from
from plexsvc.rpc.keys import ClusterKeys

STAGE: Final = "/plexsvc.v1.StateManager/Stage"
READ_STAGED: Final = "/plexsvc.v1.StateManager/ReadStaged"
SCORE: Final = "/plexsvc.v1.Reward/Score"
STREAM_FRAMES: Final = "/plexsvc.v1.Worker/StreamFrames"
SAMPLE: Final = "/plexsvc.v1.Worker/Sample"


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

    async def stream(
        self, target: str, method: str, request: bytes, *, timeout_s: float
    ) -> AsyncGenerator[bytes]:
        """Yield the messages that a method of `target` answers a request with.

        Raises:
            PlexError: what it refused, or why it could not be reached; `payload_too_large` for a
                request that grew beyond a message on its way here, as JSON of other alphabets does.
        """
        # gRPC would say RESOURCE_EXHAUSTED, which reads as a fault that passes: tried for ever.
        if len(request) > MAX_MESSAGE_BYTES:
            raise payload_too_large(
                f"the request takes {len(request)} bytes on its way; at most {MAX_MESSAGE_BYTES}: "
                "shorten it"
            )
        channel = self.to(target)
        start: grpc.aio.UnaryStreamMultiCallable[bytes, bytes] = channel.unary_stream(method)
        call = start(request, timeout=timeout_s)
        try:
            async for message in call:
                yield message
        except grpc.aio.AioRpcError as failure:
            raise error_from(failure) from failure
        finally:
            call.cancel()

    async def keep(self, targets: Iterable[str]) -> None:
        """Close the channels to all other targets."""
        kept = set(targets)
        for target in [t for t in self._channels if t not in kept]:
            await self._channels.pop(target).close()

    async def aclose(self) -> None:
        """Close every channel."""
        await self.keep(())
