"""Calls to the reward service that the router itself refuses."""

from __future__ import annotations

import pytest

from plexclient.wire.channels import MAX_MESSAGE_BYTES
from plexclient.wire.v1 import reward_pb2 as pb
from plexsvc.errors import ErrorCode, PlexError
from plexsvc.ids import TenantId
from plexsvc.router.channels import ChannelPool
from plexsvc.router.config import RouterConfig
from plexsvc.router.rewards import Rewards
from tests.rigs.keys import KEYS

ACME = TenantId("acme")
NOWHERE = "unix:/nowhere/proxy.sock"


def request(samples: int) -> pb.ScoreRequest:
    return pb.ScoreRequest(samples=[pb.ScoreSample(index=i) for i in range(samples)])


async def test_a_request_that_grew_beyond_a_message_is_too_large_and_not_tried_for_ever() -> None:
    large = pb.ScoreRequest(samples=[pb.ScoreSample(text="x" * (MAX_MESSAGE_BYTES + 1))])
    channels = ChannelPool(KEYS)
    with pytest.raises(PlexError, match="bytes on its way") as refused:
        async for _ in Rewards(channels, config=RouterConfig(reward=NOWHERE)).score(
            large, tenant=ACME
        ):
            pass
    await channels.aclose()
    assert refused.value.code is ErrorCode.PAYLOAD_TOO_LARGE


@pytest.mark.parametrize(
    ("samples", "reward", "code", "text"),
    [
        (0, NOWHERE, ErrorCode.BAD_REQUEST, "score needs samples, or the size"),
        (5, NOWHERE, ErrorCode.PAYLOAD_TOO_LARGE, "5 samples; at most 4"),
        (1, "", ErrorCode.BAD_REQUEST, "set router.reward"),
        (1, NOWHERE, ErrorCode.UNAVAILABLE, "call failed"),
    ],
)
async def test_a_request_is_refused_with_the_reason(
    samples: int, reward: str, code: ErrorCode, text: str
) -> None:
    config = RouterConfig(reward=reward, max_score_samples=4, wait_timeout_us=10_000_000)
    channels = ChannelPool(KEYS)
    with pytest.raises(PlexError, match=text) as refused:
        async for _ in Rewards(channels, config=config).score(request(samples), tenant=ACME):
            pass
    await channels.aclose()
    assert refused.value.code is code
