"""Planner of reward pools: the fewest workers of each stage with which no batch ends too late.

DistRS, Algorithms 1 and 2. A plan is searched stage by stage, the dearest first, by halving; each
guess is tried in a simulation of what is expected to come, with the order that the proxy uses
(Earliest Batch First). A request that waits must also end in time if every stage from there on
takes as long as it is allowed to (`latest_us`): which one will, nobody can know. Times are integer
microseconds.
"""

from __future__ import annotations

import heapq
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class Forecast:
    """A request that is expected: when it comes, and how long each stage runs.

    The stages before `stage` are done; a `run_us` of 0 ends the request before that stage.
    """

    batch: Hashable
    arrive_us: int
    run_us: tuple[int, ...]
    stage: int = 0

    @property
    def earliest_end_us(self) -> int:
        """When it ends if it never waits."""
        return self.arrive_us + sum(self._runs())

    def _runs(self) -> Iterator[int]:
        for run_us in self.run_us[self.stage :]:
            if not run_us:
                return
            yield run_us


@dataclass(frozen=True, slots=True, kw_only=True)
class StageCosts:
    """What the planner must know of each stage, in order."""

    cost: tuple[float, ...]
    """Of one worker for a unit of time."""
    latest_us: tuple[int, ...]
    """How long a request that waited may take: the stage's timeout, or less for a softer rule."""
    most: tuple[int, ...]
    """Workers that there may be."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Workers of each stage; `is_met` is False where not even the most keep every batch in time."""

    workers: tuple[int, ...]
    is_met: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class ActiveBatch:
    """A batch that is under way, and the job's last one, by which it is judged."""

    batch: Hashable
    begun_us: int
    history: Sequence[Forecast]
    """Of the last batch, arrivals counted from its begin."""
    queued: Mapping[int, int] = field(default_factory=dict)
    """Requests that wait, by stage."""
    running: Sequence[tuple[int, int]] = ()
    """Stage and elapsed time of each that runs."""


def ends_of(requests: Sequence[Forecast]) -> dict[Hashable, int]:
    """Return when each batch ends if nothing ever waits."""
    ends: dict[Hashable, int] = {}
    for request in requests:
        ends[request.batch] = max(ends.get(request.batch, 0), request.earliest_end_us)
    return ends


def is_in_time(
    workers: Sequence[int],
    requests: Sequence[Forecast],
    *,
    latest_us: Sequence[int],
    max_delay_us: int,
) -> bool:
    """Return whether every batch ends `max_delay_us` after its earliest end at most.

    `O(r s log r)` for r requests in s stages; less where it is not so.
    """
    due = {batch: end_us + max_delay_us for batch, end_us in ends_of(requests).items()}
    rest_us = [sum(latest_us[stage:]) for stage in range(len(latest_us) + 1)]
    free = list(workers)
    waiting: list[list[tuple[int, int, int]]] = [[] for _ in workers]
    # (time, is_arrival, request, stage): a worker that ends frees itself before others arrive.
    events = [(r.arrive_us, True, i, r.stage) for i, r in enumerate(requests)]
    heapq.heapify(events)

    def start(index: int, stage: int, now_us: int) -> None:
        free[stage] -= 1
        heapq.heappush(events, (now_us + requests[index].run_us[stage], False, index, stage))

    while events:
        now_us, is_arrival, index, stage = heapq.heappop(events)
        request = requests[index]
        if is_arrival:
            if stage == len(free) or not request.run_us[stage]:
                if now_us > due[request.batch]:
                    return False
            elif free[stage]:
                start(index, stage, now_us)
            else:
                heapq.heappush(waiting[stage], (due[request.batch], now_us, index))
            continue
        free[stage] += 1
        heapq.heappush(events, (now_us, True, index, stage + 1))
        if waiting[stage]:
            due_us, since_us, chosen = heapq.heappop(waiting[stage])
            if now_us > since_us and now_us + rest_us[stage] > due_us:
                return False
            start(chosen, stage, now_us)
    return True


def plan(requests: Sequence[Forecast], stages: StageCosts, *, max_delay_us: int) -> Plan:
    """Return the fewest workers of each stage, the dearest decided first (Algorithm 1)."""
    most = [min(bound, max(1, len(requests))) for bound in stages.most]

    def fits(workers: Sequence[int]) -> bool:
        return is_in_time(workers, requests, latest_us=stages.latest_us, max_delay_us=max_delay_us)

    if not fits(most):
        return Plan(workers=tuple(most), is_met=False)
    for stage in sorted(range(len(most)), key=lambda one: (-stages.cost[one], one)):
        low, high = 1, most[stage]
        while low < high:
            most[stage] = (low + high) // 2
            if fits(most):
                high = most[stage]
            else:
                low = most[stage] + 1
        most[stage] = low
    return Plan(workers=tuple(most), is_met=True)


def expected(batches: Sequence[ActiveBatch], *, now_us: int) -> list[Forecast]:
    """Return what is expected of the batches under way (Algorithm 2).

    Where the paper draws requests of the history at random, these are spread evenly over it, so the
    same facts give the same plan.
    """
    found: list[Forecast] = []
    for batch in batches:
        found += (
            Forecast(batch=batch.batch, arrive_us=batch.begun_us + one.arrive_us, run_us=one.run_us)
            for one in batch.history
            if batch.begun_us + one.arrive_us > now_us
        )
        for stage, count in sorted(batch.queued.items()):
            found += _spread(batch, stage=stage, count=count, now_us=now_us)
        for stage, elapsed_us in batch.running:
            found += _running(batch, stage=stage, elapsed_us=elapsed_us, now_us=now_us)
    return found


def _spread(batch: ActiveBatch, *, stage: int, count: int, now_us: int) -> Iterator[Forecast]:
    """Yield requests that wait before a stage, as long as those of the history that reached it."""
    reached = sorted(one.run_us for one in batch.history if one.run_us[stage])
    for number in range(count if reached else 0):
        run_us = reached[number * len(reached) // count]
        yield Forecast(batch=batch.batch, arrive_us=now_us, run_us=run_us, stage=stage)


def _running(batch: ActiveBatch, *, stage: int, elapsed_us: int, now_us: int) -> Iterator[Forecast]:
    """Yield a request that runs: the median of those of the history that took longer yet."""
    longer = sorted(one.run_us for one in batch.history if one.run_us[stage] > elapsed_us)
    if longer:
        middle = longer[len(longer) // 2]
        left = (*middle[:stage], middle[stage] - elapsed_us, *middle[stage + 1 :])
        yield Forecast(batch=batch.batch, arrive_us=now_us, run_us=left, stage=stage)
