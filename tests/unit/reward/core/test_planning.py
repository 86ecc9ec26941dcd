"""The planner against an exhaustive search and a naive simulation; its rule on timeouts."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from plexsvc.reward.core.planning import (
    BatchLoad,
    ExpectedRequest,
    Floor,
    History,
    PoolCosts,
    PoolsPlan,
    Route,
    UnderWay,
    expected,
    plan,
)


def load_of(*runs: tuple[int, tuple[int, ...]], latest_us: tuple[int, ...]) -> BatchLoad:
    route = Route(pools=tuple(range(len(latest_us))), latest_us=latest_us)
    return BatchLoad(route=route, requests=[ExpectedRequest(at, run) for at, run in runs])


def costs(*cost: float, most: int = 8) -> PoolCosts:
    return PoolCosts(cost=cost, most=(most,) * len(cost))


def planned(loads: Sequence[BatchLoad], costs: PoolCosts, *, max_delay_us: int = 0) -> PoolsPlan:
    return plan(Floor(loads, max_delay_us=max_delay_us), costs)


def test_requests_that_may_wait_share_a_worker() -> None:
    early = load_of((0, (2,)), (0, (2,)), (90, (10,)), latest_us=(10,))
    assert planned([early], costs(1)).workers == (1,)


def test_a_request_that_might_run_into_its_timeout_may_not_wait() -> None:
    """Figure 9: by their run times two workers suffice; by what a request may take, they do not."""
    made = ((0, (4,)), (0, (4,)), (1, (3,)), (1, (3,)), (7, (5,)))
    assert planned([load_of(*made, latest_us=(0,))], costs(1)).workers == (2,)
    assert planned([load_of(*made, latest_us=(9,))], costs(1)).workers > (2,)


def test_a_plan_that_cannot_be_met_says_so() -> None:
    made = load_of(*((0, (10,)) for _ in range(9)), latest_us=(10,))
    found = planned([made], costs(1, most=4))
    assert found == PoolsPlan(workers=(4,), held=(4,), is_met=False)


def test_a_batch_that_is_late_already_is_no_cause_for_more_workers_than_requests() -> None:
    route = Route(pools=(0,), latest_us=(10,))
    late = [ExpectedRequest(100, (5,), waited_us=90) for _ in range(3)]
    found = planned([BatchLoad(route=route, requests=late)], costs(1))
    assert (found.workers, found.is_met) == ((3,), True)


def test_programs_share_a_pool_whatever_stage_asks_for_it() -> None:
    one = BatchLoad(
        route=Route(pools=(0, 0), latest_us=(0, 0)),
        requests=[ExpectedRequest(0, (4, 4)), ExpectedRequest(0, (4, 4))],
    )
    other = BatchLoad(route=Route(pools=(0,), latest_us=(0,)), requests=[ExpectedRequest(0, (8,))])
    assert planned([one, other], costs(1)).workers == (3,)
    assert planned([one, other], costs(1), max_delay_us=16).workers == (1,)


def test_only_what_is_busy_soon_is_held() -> None:
    made = load_of((0, (5,)), *((50, (5,)) for _ in range(4)), latest_us=(5,))
    floor = Floor([made], max_delay_us=0, held_until_us=20)
    assert plan(floor, costs(1)) == PoolsPlan(workers=(4,), held=(1,), is_met=True)


def test_of_many_requests_each_that_is_simulated_stands_for_several() -> None:
    made = load_of(*((at, (10,)) for at in range(0, 1000, 2)), latest_us=(0,))
    exact = planned([made], costs(1, most=1000)).workers[0]
    rough = plan(Floor([made], max_delay_us=0, max_simulated=100), costs(1, most=1000)).workers[0]
    assert rough % 5 == 0
    assert abs(rough - exact) <= 5


SMALL = st.lists(
    st.tuples(st.sampled_from((0, 1)), st.integers(0, 12), st.integers(1, 6), st.integers(0, 6)),
    min_size=1,
    max_size=6,
)
Drawn = list[tuple[int, int, int, int]]


def drawn_loads(drawn: Drawn, *, num_stages: int) -> list[BatchLoad]:
    route = Route(pools=tuple(range(num_stages)), latest_us=(6,) * num_stages)
    return [
        BatchLoad(
            route=route,
            requests=[
                ExpectedRequest(at, (a, b)[:num_stages])
                for batch, at, a, b in drawn
                if batch == which
            ],
        )
        for which in (0, 1)
    ]


@settings(max_examples=200, deadline=None)
@given(SMALL, st.integers(0, 8))
def test_it_plans_as_an_exhaustive_search_does_one_stage(drawn: Drawn, max_delay: int) -> None:
    loads = drawn_loads(drawn, num_stages=1)
    found = planned(loads, costs(1), max_delay_us=max_delay)
    floor = Floor(loads, max_delay_us=max_delay)
    fitting = [n for n in range(1, len(drawn) + 1) if floor.busiest((n,)) is not None]
    assert found.is_met
    assert found.workers[0] in fitting
    smaller = [n for n in fitting if n < found.workers[0]]
    # Halving finds the fewest unless more workers were once worse than fewer (Graham's anomaly).
    assert not smaller or set(range(smaller[0], len(drawn) + 1)) - set(fitting)


@settings(max_examples=150, deadline=None)
@given(SMALL, st.integers(0, 8))
def test_it_plans_as_an_exhaustive_search_does_two_stages(drawn: Drawn, max_delay: int) -> None:
    loads = drawn_loads(drawn, num_stages=2)
    floor = Floor(loads, max_delay_us=max_delay)
    most = len(drawn)
    every = itertools.product(range(1, most + 1), repeat=2)
    fitting = {workers for workers in every if floor.busiest(workers) is not None}
    found = plan(floor, costs(3, 1))
    assert found.workers in fitting
    first = [n for n in range(1, most + 1) if (n, most) in fitting]
    if len(first) == most - first[0] + 1:  # no anomaly in the dearer stage
        assert found.workers[0] == first[0]


@settings(max_examples=200, deadline=None)
@given(SMALL, st.integers(0, 8), st.integers(1, 3), st.integers(1, 3))
def test_the_simulation_agrees_with_a_naive_one(
    drawn: Drawn, max_delay: int, one: int, two: int
) -> None:
    loads = drawn_loads(drawn, num_stages=2)
    found = Floor(loads, max_delay_us=max_delay).busiest((one, two))
    assert (found is not None) == Naive(loads, (one, two), max_delay=max_delay).is_in_time()


class Naive:
    """Steps through every moment; also the proof that the rule on timeouts is never violated."""

    def __init__(self, loads: list[BatchLoad], workers: tuple[int, int], *, max_delay: int) -> None:
        self.workers = workers
        self.coming: list[tuple[int, int, tuple[int, ...]]] = []  # time, due, runs
        for load in loads:
            ends = [one.arrive_us + one.left_us for one in load.requests]
            due = max(ends, default=0) + max_delay
            self.coming += [(one.arrive_us, due, one.run_us) for one in sorted(load.requests)]
        self.coming.sort(key=lambda one: one[0])
        self.running: list[tuple[int, int, int, tuple[int, ...]]] = []  # end, due, stage, runs
        self.waiting: list[list[tuple[int, int, tuple[int, ...]]]] = [[], []]  # due, since, runs
        self.is_late = False

    def is_in_time(self) -> bool:
        for now in range(200):
            while (ended := next((one for one in self.running if one[0] == now), None)) is not None:
                self.running.remove(ended)
                self.free(ended[2], now)
                self.enter(ended[1], ended[2] + 1, ended[3], now)
            for at, due, runs in self.coming:
                if at == now:
                    self.enter(due, 0, runs, now)
        assert (self.running, self.waiting) == ([], [[], []]) or self.is_late
        return not self.is_late

    def enter(self, due: int, stage: int, runs: tuple[int, ...], now: int) -> None:
        if stage == 2 or not runs[stage]:
            self.is_late |= now > due
        elif sum(one[2] == stage for one in self.running) < self.workers[stage]:
            self.running.append((now + runs[stage], due, stage, runs))
        else:
            self.waiting[stage].append((due, now, runs))

    def free(self, stage: int, now: int) -> None:
        if self.waiting[stage]:
            first = min(self.waiting[stage], key=lambda one: one[:2])  # of equals, the first
            self.waiting[stage].remove(first)
            due, since, runs = first
            self.is_late |= now > since and now + 6 * (2 - stage) > due
            self.running.append((now + runs[stage], due, stage, runs))


HISTORY = History(samples=[(0, (10, 2)), (50, (20, 4)), (90, (30, 0))])


def test_requests_of_batches_under_way_are_expected_as_the_last_ones_were() -> None:
    batch = UnderWay(
        begun_us=1000,
        size=6,
        arrived=4,
        queued=[(0, 7), (1, 3), (1, 4)],
        running=[(0, 2, 15)],
    )
    assert expected(batch, HISTORY, now_us=1060) == [
        ExpectedRequest(1090, (30, 0)),
        ExpectedRequest(1090, (30, 0)),
        ExpectedRequest(1060, (10, 2), waited_us=7),
        ExpectedRequest(1060, (10, 2), 1, 3),
        ExpectedRequest(1060, (20, 4), 1, 4),
        ExpectedRequest(1060, (15, 0), 0, 2),
    ]


def test_what_should_have_come_is_expected_at_once() -> None:
    batch = UnderWay(begun_us=0, size=3, arrived=1)
    assert expected(batch, HISTORY, now_us=70) == [
        ExpectedRequest(70, (20, 4)),
        ExpectedRequest(90, (30, 0)),
    ]


@pytest.mark.parametrize("elapsed_us", [30, 99])
def test_what_runs_longer_than_all_before_it_is_not_guessed(elapsed_us: int) -> None:
    batch = UnderWay(begun_us=0, size=1, arrived=1, running=[(0, 0, elapsed_us)])
    assert expected(batch, HISTORY, now_us=500) == []


def test_those_that_run_are_spread_over_what_may_come_of_them() -> None:
    """Taken all for the middle one, none would be expected to run into its timeout."""
    history = History(samples=[(0, (run,)) for run in (*range(10, 20), 100)])
    batch = UnderWay(begun_us=0, size=20, arrived=20, running=[(0, 0, 5)] * 20)
    runs = {one.run_us[0] + 5 for one in expected(batch, history, now_us=9)}
    assert {10, 100} <= runs
