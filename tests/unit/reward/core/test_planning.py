"""The planner against an exhaustive search and a naive simulation; its rule on timeouts."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from plexsvc.reward.core.planning import (
    ActiveBatch,
    Forecast,
    Plan,
    StageCosts,
    ends_of,
    expected,
    is_in_time,
    plan,
)


def requests_of(*runs: tuple[int, tuple[int, ...]], batch: str = "b") -> list[Forecast]:
    return [Forecast(batch=batch, arrive_us=at, run_us=run) for at, run in runs]


def costs(*cost: float, latest_us: tuple[int, ...], most: int = 8) -> StageCosts:
    return StageCosts(cost=cost, latest_us=latest_us, most=(most,) * len(cost))


def test_requests_that_may_wait_share_a_worker() -> None:
    early = requests_of((0, (2,)), (0, (2,)), (90, (10,)))
    assert plan(early, costs(1, latest_us=(10,)), max_delay_us=0).workers == (1,)


def test_a_request_that_might_run_into_its_timeout_may_not_wait() -> None:
    """Figure 9: by their run times two workers suffice; by what a request may take, they do not."""
    made = requests_of((0, (4,)), (0, (4,)), (1, (3,)), (1, (3,)), (7, (5,)))
    as_known = costs(1, latest_us=(0,))
    cautious = costs(1, latest_us=(9,))
    assert plan(made, as_known, max_delay_us=0).workers == (2,)
    assert plan(made, cautious, max_delay_us=0).workers > (2,)


def test_a_plan_that_cannot_be_met_says_so() -> None:
    made = requests_of(*((0, (10,)) for _ in range(9)))
    assert plan(made, costs(1, latest_us=(10,), most=4), max_delay_us=0) == Plan(
        workers=(4,), is_met=False
    )


def test_the_dearer_stage_is_decided_first() -> None:
    made = requests_of((0, (5, 5)), (0, (5, 5)), (20, (1, 1)))
    for cost in ((1, 9), (9, 1)):
        found = plan(made, costs(*cost, latest_us=(5, 5)), max_delay_us=0)
        assert found.is_met
        assert is_in_time(found.workers, made, latest_us=(5, 5), max_delay_us=0)


SMALL = st.lists(
    st.tuples(st.sampled_from("ab"), st.integers(0, 12), st.integers(1, 6), st.integers(0, 6)),
    min_size=1,
    max_size=6,
)


@settings(max_examples=200, deadline=None)
@given(SMALL, st.integers(0, 8))
def test_it_plans_as_an_exhaustive_search_does_one_stage(
    drawn: list[tuple[str, int, int, int]], max_delay: int
) -> None:
    made = [Forecast(batch=b, arrive_us=at, run_us=(run,)) for b, at, run, _ in drawn]
    found = plan(made, costs(1, latest_us=(6,)), max_delay_us=max_delay)
    fitting = [
        n
        for n in range(1, len(made) + 1)
        if is_in_time((n,), made, latest_us=(6,), max_delay_us=max_delay)
    ]
    assert found.is_met
    assert found.workers[0] in fitting
    smaller = [n for n in fitting if n < found.workers[0]]
    # Halving finds the fewest unless more workers were once worse than fewer (Graham's anomaly).
    assert not smaller or set(range(smaller[0], len(made) + 1)) - set(fitting)


@settings(max_examples=150, deadline=None)
@given(SMALL, st.integers(0, 8))
def test_it_plans_as_an_exhaustive_search_does_two_stages(
    drawn: list[tuple[str, int, int, int]], max_delay: int
) -> None:
    made = [Forecast(batch=b, arrive_us=at, run_us=(one, two)) for b, at, one, two in drawn]
    stages = costs(3, 1, latest_us=(6, 6))

    def fits(workers: tuple[int, ...]) -> bool:
        return is_in_time(workers, made, latest_us=(6, 6), max_delay_us=max_delay)

    found = plan(made, stages, max_delay_us=max_delay)
    every = list(itertools.product(range(1, len(made) + 1), repeat=2))
    fitting = {workers for workers in every if fits(workers)}
    assert found.workers in fitting
    most = len(made)
    first = [n for n in range(1, most + 1) if (n, most) in fitting]
    if len(first) == most - first[0] + 1:  # no anomaly in the dearer stage
        assert found.workers[0] == first[0]


@settings(max_examples=200, deadline=None)
@given(SMALL, st.integers(0, 8), st.integers(1, 3), st.integers(1, 3))
def test_the_simulation_agrees_with_a_naive_one(
    drawn: list[tuple[str, int, int, int]], max_delay: int, one: int, two: int
) -> None:
    made = [Forecast(batch=b, arrive_us=at, run_us=(a, c)) for b, at, a, c in drawn]
    found = is_in_time((one, two), made, latest_us=(6, 6), max_delay_us=max_delay)
    assert found == naive((one, two), made, latest_us=(6, 6), max_delay=max_delay)


def naive(  # noqa: C901, PLR0912 - one step after the other
    workers: tuple[int, ...], made: list[Forecast], *, latest_us: tuple[int, ...], max_delay: int
) -> bool:
    """Step through every moment; also the proof that the rule on timeouts is never violated."""
    due = {batch: end + max_delay for batch, end in ends_of(made).items()}
    waiting: list[list[tuple[int, int, int]]] = [[], []]
    running: list[tuple[int, int, int]] = []  # end, request, stage
    coming = {i: (r.arrive_us, 0) for i, r in enumerate(made)}
    for now in range(200):
        settled = False
        while not settled:
            settled = True
            for end, index, stage in sorted(running):
                if end == now:
                    running.remove((end, index, stage))
                    coming[index] = (now, stage + 1)
                    settled = False
                    break
            for stage, count in enumerate(workers):
                busy = sum(1 for _, _, s in running if s == stage)
                if waiting[stage] and busy < count:
                    due_us, since, index = min(waiting[stage])
                    waiting[stage].remove((due_us, since, index))
                    if now > since and now + sum(latest_us[stage:]) > due_us:
                        return False
                    running.append((now + made[index].run_us[stage], index, stage))
                    settled = False
            if not settled:
                continue
            for index, (at, stage) in sorted(coming.items(), key=lambda item: item[0]):
                if at != now:
                    continue
                del coming[index]
                settled = False
                if stage == len(workers) or not made[index].run_us[stage]:
                    if now > due[made[index].batch]:
                        return False
                else:
                    waiting[stage].append((due[made[index].batch], now, index))
                break
    assert (coming, running, waiting) == ({}, [], [[], []])
    return True


def test_requests_of_batches_under_way_are_expected_as_the_last_ones_were() -> None:
    history = requests_of((0, (10, 2)), (50, (20, 4)), (90, (30, 0)))
    batch = ActiveBatch(
        batch="now", begun_us=1000, history=history, queued={0: 1, 1: 2}, running=[(0, 15)]
    )
    assert expected([batch], now_us=1060) == [
        Forecast(batch="now", arrive_us=1090, run_us=(30, 0)),
        Forecast(batch="now", arrive_us=1060, run_us=(10, 2)),
        Forecast(batch="now", arrive_us=1060, run_us=(10, 2), stage=1),
        Forecast(batch="now", arrive_us=1060, run_us=(20, 4), stage=1),
        Forecast(batch="now", arrive_us=1060, run_us=(15, 0)),
    ]


@pytest.mark.parametrize("elapsed_us", [30, 99])
def test_what_runs_longer_than_all_before_it_is_not_guessed(elapsed_us: int) -> None:
    batch = ActiveBatch(
        batch="now",
        begun_us=0,
        history=requests_of((0, (30, 1))),
        running=[(0, elapsed_us)],
    )
    assert expected([batch], now_us=500) == []
