"""Plans by expected lengths, against what they are defined to be."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from plexsvc.rollout.core.planning import choose_plan, rank, time_of

LENGTHS = st.lists(st.integers(1, 2000), min_size=1, max_size=60)


def step(batch: int, context: float) -> float:
    return 100 + 3 * batch + context / 1000


@given(LENGTHS, st.integers(1, 8))
def test_parts_hold_each_prompt_once_by_falling_length_with_equal_work(
    expected: list[int], parts: int
) -> None:
    found = rank(expected, parts)
    assert sorted(p for part in found for p in part) == list(range(len(expected)))
    flat = [expected[p] for part in found for p in part]
    assert flat == sorted(flat, reverse=True)
    share = sum(expected) / parts
    assert all(abs(sum(expected[p] for p in part) - share) <= max(expected) for part in found)


@given(LENGTHS)
def test_time_is_that_of_steps_one_by_one(lengths: list[int]) -> None:
    took = 0.0
    for made in range(max(lengths)):
        batch = sum(length > made for length in lengths)
        took += step(batch, batch * (10 + made + 0.5))
    assert time_of(lengths, context=10, step=step) == pytest.approx(took)


def test_speed_takes_more_instances_than_cost() -> None:
    expected = [100 + 7 * number for number in range(64)]
    plans = {
        speed: choose_plan(
            expected, samples=4, context=50, step=step, counts=range(1, 9), speed=speed
        )
        for speed in (0.0, 0.7, 1.0)
    }
    counts = [len(plan.parts) for plan in plans.values()]
    assert counts == sorted(counts)
    assert counts[0] == 1 < counts[-1]
    assert plans[1.0].time <= plans[0.7].time <= plans[0.0].time
    assert plans[0.0].cost <= plans[0.7].cost <= plans[1.0].cost
