"""Rates: a second's requests may come at once, and the next are refused until time has passed."""

from __future__ import annotations

import pytest

from plexclient.wire.v1 import service_pb2 as pb
from plexsvc.errors import ErrorCode, PlexError
from plexsvc.ids import TenantId
from plexsvc.router.rates import Rates
from tests.fakes.fake_clock import FakeClock

LAB, RIVAL = TenantId("lab"), TenantId("rival")


def rates(most: int) -> tuple[Rates, FakeClock]:
    made = Rates(clock := FakeClock())
    made.learn([pb.QuotaView(owner=LAB, what="requests", most=most)])
    return made, clock


def taken(rates: Rates, tenant: TenantId) -> int:
    """Return how many requests pass before one is refused."""
    for passed in range(100):
        try:
            rates.take(tenant)
        except PlexError:
            return passed
    return 100


async def test_as_many_as_the_quota_pass_within_a_second_and_others_are_not_bound() -> None:
    made, clock = rates(4)
    assert [taken(made, LAB) for _ in range(2)] == [4, 0]
    assert taken(made, RIVAL) == 100
    await clock.passes(500_000)
    assert taken(made, LAB) == 2
    await clock.passes(60_000_000)
    assert taken(made, LAB) == 4


async def test_a_quota_that_is_raised_or_lifted_binds_no_longer() -> None:
    made, clock = rates(1)
    assert taken(made, LAB) == 1
    made.learn([pb.QuotaView(owner=LAB, what="requests", most=10)])
    await clock.passes(1_000_000)
    assert taken(made, LAB) == 10
    made.learn([])
    assert taken(made, LAB) == 100


def test_a_refusal_says_what_was_asked_and_what_to_do() -> None:
    made, _ = rates(3)
    taken(made, LAB)
    with pytest.raises(
        PlexError, match=r"'lab' made 3 requests within a second.*more slowly"
    ) as caught:
        made.take(LAB)
    assert caught.value.code is ErrorCode.QUEUE_FULL
