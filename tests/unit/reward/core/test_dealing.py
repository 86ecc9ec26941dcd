"""Who runs next: Earliest Batch First, and the order of arrival that benchmarks compare it with."""

import pytest

from benchmarks.reward_pools import FirstCome, Sample, Way, World
from plexsvc.reward.core.dealing import Dealer
from plexsvc.reward.core.queues import Urgency
from plexsvc.reward.core.state import Request
from plexsvc.reward.core.vocabulary import RequestId

S = 1_000_000
LONG = [Sample(at_us, (10 * S, 0)) for at_us in range(0, 40 * S, S)]
SHORT = [Sample(at_us, (S, 0)) for at_us in range(0, 8 * S, S)]


def late_us(dealer: type[Dealer]) -> list[int]:
    """Return how late a long batch is, and a short one that begins while the long one queues."""
    way = Way(fixed=(4, 0), is_one_tenant=True, dealer=dealer)
    world = World(way, [[LONG, LONG], [SHORT, SHORT]], [[0], [20 * S]]).run()
    return [world.late_us[key] for key in sorted(world.begun_us, key=lambda one: one.job_id)]


def test_a_batch_that_is_expected_to_end_first_goes_before_requests_that_came_first() -> None:
    by_batch, by_arrival = late_us(Dealer), late_us(FirstCome)
    assert by_batch[1] < 10 * S < by_arrival[1]


def test_the_baseline_is_asked_for_the_place_of_every_request(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    places: list[Urgency] = []
    by_batch = FirstCome.urgency

    def noted(dealer: FirstCome, found: RequestId, request: Request) -> Urgency:
        places.append(by_batch(dealer, found, request))
        return places[-1]

    monkeypatch.setattr(FirstCome, "urgency", noted)
    late_us(FirstCome)
    assert len(places) == len(LONG) + len(SHORT)
    assert {one.expected_end_us for one in places} == {0}
    assert [one.number for one in places] == sorted(one.number for one in places)
