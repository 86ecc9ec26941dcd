"""Calls to the reward service: checked, given their tenant, and relayed to its proxy."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any, Final

from google.protobuf.message import Message

from plexclient.wire.v1 import reward_pb2 as pb
from plexsvc.errors import bad_request, payload_too_large
from plexsvc.ids import TenantId
from plexsvc.router import bounds
from plexsvc.router.channels import SCORE, ChannelPool
from plexsvc.router.config import RouterConfig
from plexsvc.rpc import services

SERVICE: Final = pb.DESCRIPTOR.services_by_name["Reward"]

METHODS: Final = ("GetRewards", "AddProgram", "RemoveProgram")
"""The methods with one reply that both services have."""


class Rewards:
    """Relays samples to the reward proxy and its answers back, as the bytes they come as."""

    def __init__(self, channels: ChannelPool, *, config: RouterConfig) -> None:
        self._channels = channels
        self._config = config

    async def score(self, request: pb.ScoreRequest, *, tenant: TenantId) -> AsyncGenerator[bytes]:
        """Yield the answers to a request's samples, serialised.

        Raises:
            PlexError: `bad_request`, `payload_too_large`, or what the proxy refuses.
        """
        limit = self._config.max_score_samples
        if len(request.samples) > limit:
            raise payload_too_large(
                f"a request scores {len(request.samples)} samples; at most "
                f"{limit}: send the batch in several"
            )
        if not request.samples and not request.batch_size:
            raise bad_request("score needs samples, or the size of a batch that is to come")
        request.tenant = tenant
        stream = self._channels.stream(
            self._proxy(),
            SCORE,
            request.SerializeToString(),
            timeout_s=self._config.wait_timeout_us / 1e6,
        )
        async with aclosing(stream) as replies:
            async for reply in replies:
                yield reply

    async def forward(
        self, name: str, request: Any, *, tenant: TenantId, is_operator: bool
    ) -> Message:
        """Return the proxy's reply to a request that says who asks, whatever it claimed.

        Raises:
            PlexError: `bad_request`, or what the proxy refuses.
        """
        method = SERVICE.methods_by_name[name]
        request.tenant = tenant
        if "is_operator" in request.DESCRIPTOR.fields_by_name:
            request.is_operator = is_operator
        bounds.check(request)
        return await services.call(
            self._channels.to(self._proxy()),
            method,
            request,
            services.reply_type(method),
            timeout_s=self._config.control_timeout_us / 1e6,
        )

    def _proxy(self) -> str:
        if not self._config.reward:
            raise bad_request(
                "this router knows no reward service; set router.reward to where its proxy listens"
            )
        return self._config.reward
