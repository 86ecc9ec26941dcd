"""Calls to the reward service: checked, given their tenant, and relayed to its proxy."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Final

from plexclient.wire.v1 import reward_pb2 as pb
from plexsvc.errors import ErrorCode, PlexError
from plexsvc.ids import TenantId
from plexsvc.router import bounds
from plexsvc.router.channels import SCORE, ChannelPool
from plexsvc.router.config import RouterConfig
from plexsvc.router.validation import bad_request
from plexsvc.rpc import services
from plexsvc.rpc.services import Reply

SERVICE: Final = pb.DESCRIPTOR.services_by_name["Reward"]

Request = pb.GetRewardsRequest | pb.AddProgramRequest | pb.RemoveProgramRequest


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
            raise PlexError(
                ErrorCode.PAYLOAD_TOO_LARGE,
                f"a request scores {len(request.samples)} samples; at most "
                f"{limit}: send the batch in several",
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

    async def view(self, request: pb.GetRewardsRequest, *, tenant: TenantId) -> pb.RewardsReply:
        """Return programs, pool and batches."""
        request.is_operator = tenant in self._config.operators
        return await self._call("GetRewards", request, pb.RewardsReply, tenant=tenant)

    async def add_program(
        self, request: pb.AddProgramRequest, *, tenant: TenantId
    ) -> pb.RewardProgram:
        """Keep a program of the tenant's own; return it when it is kept."""
        return await self._call("AddProgram", request, pb.RewardProgram, tenant=tenant)

    async def remove_program(
        self, request: pb.RemoveProgramRequest, *, tenant: TenantId
    ) -> pb.RewardProgram:
        """Forget a program of the tenant's own; return what it was."""
        return await self._call("RemoveProgram", request, pb.RewardProgram, tenant=tenant)

    async def _call(
        self, name: str, request: Request, reply: type[Reply], *, tenant: TenantId
    ) -> Reply:
        request.tenant = tenant
        bounds.check(request)
        return await services.call(
            self._channels.to(self._proxy()),
            SERVICE.methods_by_name[name],
            request,
            reply,
            timeout_s=self._config.control_timeout_us / 1e6,
        )

    def _proxy(self) -> str:
        if not self._config.reward:
            raise bad_request(
                "this router knows no reward service; set router.reward to where its proxy listens"
            )
        return self._config.reward
