"""Planner of reward pools: the fewest workers of each pool with which no batch ends too late.

DistRS, Algorithms 1 and 2. A plan is searched pool by pool, the dearest first, by halving; each
guess is tried in a simulation of what is expected to come, with the order that the proxy uses
(Earliest Batch First). A request that waits must also end in time if every stage from there on
takes as long as it is allowed to (`Route.latest_us`): which one will, nobody can know. The last
simulation also says how many workers are busy at once until `held_until_us`: no more need be held
by then. Times are integer microseconds.
"""

from __future__ import annotations

import heapq
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

MAX_SIMULATED: Final = 2048
"""Requests that are simulated; of more, each stands for several, and so does each worker."""

GOLDEN: Final = 0.6180339887498949


@dataclass(frozen=True, slots=True, kw_only=True)
class Route:
    """The stages of a program, in order."""

    pools: tuple[int, ...]
    """The pool of each stage, by its number."""
    latest_us: tuple[int, ...]
    """How long a request that waited may take: the stage's timeout, or less for a softer rule."""


class ExpectedRequest(NamedTuple):
    """A request that is expected: when it comes, and how long each stage runs.

    The stages before `stage` are done; a `run_us` of 0 ends the request before that stage.
    """

    arrive_us: int
    run_us: tuple[int, ...]
    stage: int = 0
    waited_us: int = 0
    """How long it has waited so far."""

    @property
    def left_us(self) -> int:
        """How long it runs yet."""
        left_us = 0
        for run_us in self.run_us[self.stage :]:
            if not run_us:
                break
            left_us += run_us
        return left_us


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchLoad:
    """What is expected of one batch."""

    route: Route
    requests: Sequence[ExpectedRequest]

    def due_us(self, max_delay_us: int) -> int:
        """Return when it is to end: `max_delay_us` after its earliest end, had nothing waited.

        One that is later than that already may wait no more.
        """
        ends = [(one.arrive_us + one.left_us, one.waited_us) for one in self.requests]
        in_time_us = max((end_us - waited_us for end_us, waited_us in ends), default=0)
        return max(in_time_us + max_delay_us, max((end_us for end_us, _ in ends), default=0))


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolCosts:
    """What the planner must know of each pool, by its number."""

    cost: tuple[float, ...]
    """Of one worker for a unit of time."""
    most: tuple[int, ...]
    """Workers that there may be."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolsPlan:
    """Workers of each pool; `is_met` is False where not even the most keep every batch in time."""

    workers: tuple[int, ...]
    held: tuple[int, ...]
    """Of these, what is busy at once until `held_until_us`."""
    is_met: bool


class _Simulated(NamedTuple):
    """A request as it is simulated."""

    due_us: int
    steps: tuple[tuple[int, int, int], ...]
    """Pool, run time, and what may pass from its begin to the end, of each stage that is left."""


class Floor:
    """What is expected, ready to be tried with different numbers of workers."""

    def __init__(
        self,
        loads: Sequence[BatchLoad],
        *,
        max_delay_us: int,
        held_until_us: int = 0,
        max_simulated: int = MAX_SIMULATED,
    ) -> None:
        total = sum(len(load.requests) for load in loads)
        self.each = max(1, -(-total // max_simulated))
        """How many requests one that is simulated stands for."""
        self._held_until_us = held_until_us
        self._arrivals: list[tuple[int, _Simulated]] = []
        for load in loads:
            due_us = load.due_us(max_delay_us)
            # Of each so many the middle one stands for all.
            for one in sorted(load.requests)[self.each // 2 :: self.each]:
                self._arrivals.append((one.arrive_us, _request(load.route, one, due_us=due_us)))
        self._arrivals.sort(key=lambda arrival: arrival[0])

    def work_us(self, pool: int) -> int:
        """Return how long the workers of a pool run."""
        return sum(run for _, one in self._arrivals for at, run, _ in one.steps if at == pool)

    @property
    def span_us(self) -> int:
        """From the first arrival until all is due."""
        last_us = max((one.due_us for _, one in self._arrivals), default=0)
        return last_us - self._arrivals[0][0] if self._arrivals else 0

    @property
    def size(self) -> int:
        """Requests that are simulated."""
        return len(self._arrivals)

    def busiest(self, workers: Sequence[int]) -> tuple[list[int], list[int]] | None:
        """Return the most workers of each pool busy at once: in all, and until `held_until_us`.

        None where a batch ends too late. `O(r log r)` for r stages of requests.
        """
        free = list(workers)
        least = [list(workers), list(workers)]  # free at once: in all, and until `held_until_us`
        waiting: list[list[tuple[int, int, int, _Simulated, int]]] = [[] for _ in free]
        running: list[tuple[int, int, _Simulated, int]] = []
        arrivals, held_until_us = self._arrivals, self._held_until_us
        push, pop = heapq.heappush, heapq.heappop
        number = coming = step = 0
        while running or coming < len(arrivals):
            # Two numbers a turn: what comes at the same time is told apart by them, in order.
            number += 2
            # Ends go first: a worker that is free by then takes what comes.
            if running and (coming == len(arrivals) or running[0][0] <= arrivals[coming][0]):
                now_us, _, request, step = pop(running)
                pool = request.steps[step][0]
                step += 1
                if waiting[pool]:
                    due_us, since_us, _, chosen, at = pop(waiting[pool])
                    _, run_us, latest_us = chosen.steps[at]
                    if now_us > since_us and now_us + latest_us > due_us:
                        return None
                    push(running, (now_us + run_us, number, chosen, at))
                else:
                    free[pool] += 1
            else:
                now_us, request = arrivals[coming]
                coming += 1
                step = 0
            if step == len(request.steps):
                if now_us > request.due_us:
                    return None
                continue
            pool, run_us, _ = request.steps[step]
            if not free[pool]:
                push(waiting[pool], (request.due_us, now_us, number, request, step))
                continue
            free[pool] -= 1
            push(running, (now_us + run_us, number + 1, request, step))
            if free[pool] < least[0][pool]:
                least[0][pool] = free[pool]
                if now_us < held_until_us:
                    least[1][pool] = free[pool]
        in_all, soon = ([n - f for n, f in zip(workers, one, strict=True)] for one in least)
        return in_all, soon


def plan(floor: Floor, pools: PoolCosts) -> PoolsPlan:
    """Return the fewest workers of each pool, the dearest decided first (Algorithm 1)."""
    bounds = [max(1, min(most // floor.each, floor.size)) for most in pools.most]
    found = floor.busiest(bounds)
    if found is None:
        most = tuple(max(1, min(bound, floor.size * floor.each)) for bound in pools.most)
        return PoolsPlan(workers=most, held=most, is_met=False)
    for pool in sorted(range(len(bounds)), key=lambda one: (-pools.cost[one], one)):
        high = bounds[pool] = max(1, found[0][pool])  # more than are busy change nothing
        low = min(high, max(1, floor.work_us(pool) // max(1, floor.span_us)))
        while low < high:
            bounds[pool] = (low + high) // 2
            tried = floor.busiest(bounds)
            if tried is None:
                low = bounds[pool] + 1
            else:
                found, high = tried, max(low, tried[0][pool])
        bounds[pool] = high
    each = floor.each
    return PoolsPlan(
        workers=tuple(workers * each for workers in bounds),
        held=tuple(busy * each for busy in found[1]),
        is_met=True,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class History:
    """A job's last batch of a program: each sample's arrival from its begin, and its runs."""

    samples: Sequence[tuple[int, tuple[int, ...]]]
    """In the order of their arrival."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UnderWay:
    """A batch that is under way."""

    begun_us: int
    size: int
    arrived: int = 0
    """Samples that came so far."""
    queued: Sequence[tuple[int, int]] = ()
    """Stage of each sample that waits, and how long it has waited so far."""
    running: Sequence[tuple[int, int, int]] = ()
    """Stage of each that runs, how long it waited, and how long it runs."""


def expected(batch: UnderWay, history: History, *, now_us: int) -> list[ExpectedRequest]:
    """Return what is expected of a batch under way (Algorithm 2).

    Where the paper draws requests of the history at random, these are spread evenly over it, so the
    same facts give the same plan. What is to come is what has not arrived, not what the history
    says should arrive from now on.
    """
    samples = history.samples
    found = [
        ExpectedRequest(max(now_us, batch.begun_us + arrive_us), run_us)
        for number in range(batch.arrived, batch.size)
        for arrive_us, run_us in (samples[number * len(samples) // batch.size],)
    ]
    by_stage: dict[int, list[int]] = {}
    for stage, waited_us in batch.queued:
        by_stage.setdefault(stage, []).append(waited_us)
    for stage, waits in sorted(by_stage.items()):
        reached = sorted(run_us for _, run_us in samples if run_us[stage]) if waits else []
        found += (
            ExpectedRequest(now_us, reached[number * len(reached) // len(waits)], stage, waited_us)
            for number, waited_us in enumerate(waits if reached else ())
        )
    return found + _running(batch, samples, now_us=now_us)


def _running(
    batch: UnderWay, samples: Sequence[tuple[int, tuple[int, ...]]], *, now_us: int
) -> list[ExpectedRequest]:
    """Return those that run, spread over those of the history that took longer yet.

    The share of the golden section spreads any number of them evenly, whatever their order.
    """
    found: list[ExpectedRequest] = []
    by_run: dict[int, list[tuple[int, tuple[int, ...]]]] = {}
    for number, (stage, waited_us, elapsed_us) in enumerate(sorted(batch.running)):
        if stage not in by_run:
            by_run[stage] = sorted((run_us[stage], run_us) for _, run_us in samples)
        known = by_run[stage]
        first = bisect_right(known, elapsed_us, key=lambda pair: pair[0])
        if first == len(known):
            continue  # longer than all before it: nothing is known of it
        share = (0.5 + number * GOLDEN) % 1.0
        _, run_us = known[first + int(share * (len(known) - first))]
        left = (*run_us[:stage], run_us[stage] - elapsed_us, *run_us[stage + 1 :])
        found.append(ExpectedRequest(now_us, left, stage, waited_us))
    return found


def _request(route: Route, one: ExpectedRequest, *, due_us: int) -> _Simulated:
    steps: list[tuple[int, int, int]] = []
    for stage in range(one.stage, len(one.run_us)):
        if not one.run_us[stage]:
            break
        steps.append((route.pools[stage], one.run_us[stage], sum(route.latest_us[stage:])))
    return _Simulated(due_us, tuple(steps))
