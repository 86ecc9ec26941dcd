"""Plans by expected lengths, against what they are defined to be."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from plexsvc.rollout.core.planning import LONGEST, choose_plan, rank, time_of

LENGTHS = st.lists(st.integers(1, 2000), min_size=1, max_size=60)


def step(batch: int, context: float) -> float:
    return 100 + 3 * batch + context / 1000


@given(LENGTHS, st.integers(1, 8), st.booleans(), st.data())
def test_parts_hold_each_prompt_once_by_falling_length_and_none_could_end_sooner(
    expected: list[int], parts: int, is_profiled: bool, data: st.DataObject
) -> None:
    slowness = data.draw(st.lists(st.integers(1, 3), min_size=parts, max_size=parts))
    found = rank(expected, parts, step=step if is_profiled else None, slowness=sorted(slowness))
    assert len(found) == parts
    flat = [expected[p] for part in found for p in part]
    assert flat == sorted(expected, reverse=True)

    def end(lengths: list[int], slow: int) -> float:
        if not is_profiled or not lengths:
            return slow * sum(lengths)
        work = sum(length * (3 + length / 2000) for length in lengths)
        return slow * (LONGEST * 100 * lengths[0] + work)

    ends = [
        end([expected[p] for p in part], slow)
        for part, slow in zip(found, sorted(slowness), strict=True)
    ]
    soonest, rest = 0.999 * max(ends), flat
    for slow in sorted(slowness):  # with as much as each can do until a little sooner
        fits = [n for n in range(len(rest) + 1) if end(rest[:n], slow) <= soonest]
        rest = rest[fits[-1] :]
    assert rest, "prompts are left"


def test_parts_of_long_answers_get_less_work_where_a_step_takes_long_by_itself() -> None:
    expected = [200, *(20,) * 30]
    alone = rank(expected, 2, step=lambda batch, context: 100.0 + batch)  # noqa: ARG005 - linear
    equal = rank(expected, 2)
    assert [len(part) for part in alone] == [1, 30]
    assert len(equal[0]) > 1


def test_a_part_that_has_samples_already_gets_less() -> None:
    found = rank([10] * 12, 2, busy=[6, 0])
    assert [len(part) for part in found] == [3, 9]


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
