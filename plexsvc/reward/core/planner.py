"""Core of the planner: what it knows of jobs, and the plan that follows from what is under way.

A batch is expected to go as the job's last one of the same program. Pools that also serve a batch
of which nothing is known are not planned: they follow their queues.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from plexsvc.ids import JobId, TenantId
from plexsvc.reward.core.planning import (
    BatchLoad,
    Floor,
    History,
    PoolCosts,
    Route,
    UnderWay,
    expected,
    plan,
)
from plexsvc.reward.core.vocabulary import PoolPlan, ProgramSpec, Resource

HistoryKey = tuple[TenantId, JobId, str]

MAX_HISTORIES: Final = 1024
"""Programs of jobs whose last batch is remembered."""

MAX_SAMPLES: Final = 4096
"""Of one batch; of more, every so many is remembered."""

GPU_COST: Final = 20.0
"""Processors that one GPU is worth."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Aims:
    """What a plan is to keep."""

    max_delay_us: int = 1_000_000
    """How much later than without any waiting a batch may end."""
    timeout_share: float = 1.0
    """How much of its stages' timeouts a request that waited is assumed to take."""
    held_us: int = 15_000_000
    """For how long workers that are held must suffice: until those of the next plan are ready."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ActiveBatch:
    """A batch that is not done, as the proxy sees it."""

    key: HistoryKey
    program: ProgramSpec
    state: UnderWay


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanFacts:
    """What a plan is made of. Times are of the proxy's clock."""

    now_us: int
    batches: Sequence[ActiveBatch]
    most: Sequence[tuple[Resource, int]]
    """Workers that there may be of each type."""


@dataclass(slots=True)
class PlannerCore:
    """Histories, and the plans that follow from them."""

    aims: Aims
    histories: dict[HistoryKey, History] = field(default_factory=dict)

    def remember(self, key: HistoryKey, history: History) -> None:
        """Take a batch that ended for what the job's next one will be like."""
        assert history.samples, key
        each = -(-len(history.samples) // MAX_SAMPLES)
        self.histories.pop(key, None)
        self.histories[key] = History(samples=history.samples[::each])
        if len(self.histories) > MAX_HISTORIES:
            del self.histories[next(iter(self.histories))]

    def plan(self, facts: PlanFacts) -> dict[Resource, PoolPlan]:
        """Return the plan of each pool that can be planned."""
        bound = dict(facts.most)
        known = [one for one in facts.batches if one.key in self.histories]
        unknown = [one for one in facts.batches if one.key not in self.histories]
        follows = {stage.resource for one in unknown for stage in one.program.stages}
        pools = sorted({stage.resource for one in known for stage in one.program.stages})
        number = {resource: index for index, resource in enumerate(pools)}
        loads, extra = [], [0] * len(pools)
        for batch in known:
            route = Route(
                pools=tuple(number[stage.resource] for stage in batch.program.stages),
                latest_us=tuple(
                    int(stage.timeout_us * self.aims.timeout_share)
                    for stage in batch.program.stages
                ),
            )
            history = self.histories[batch.key]
            requests = expected(batch.state, history, now_us=facts.now_us)
            loads.append(BatchLoad(route=route, requests=requests))
            for stage, count in _unguessed(batch.state, history).items():
                extra[route.pools[stage]] += count
        floor = Floor(
            loads,
            max_delay_us=self.aims.max_delay_us,
            held_until_us=facts.now_us + self.aims.held_us,
        )
        most = [max(1, bound[resource] - more) for resource, more in zip(pools, extra, strict=True)]
        found = plan(floor, PoolCosts(cost=tuple(map(cost_of, pools)), most=tuple(most)))
        return {
            resource: PoolPlan(
                workers=min(bound[resource], found.workers[index] + extra[index]),
                held=min(bound[resource], found.held[index] + extra[index]),
                is_met=found.is_met,
            )
            for resource, index in number.items()
            if resource not in follows
        }


def lasts_us(history: History) -> int:
    """Return how long a batch takes if nothing waits."""
    return max((at_us + sum(run_us) for at_us, run_us in history.samples), default=0)


def cost_of(resource: Resource) -> float:
    """Return what one worker costs, in processors."""
    return resource.cpus + GPU_COST * resource.gpus


def _unguessed(state: UnderWay, history: History) -> dict[int, int]:
    """Return how many of each stage run longer than any of the history: they hold workers too."""
    longest: dict[int, int] = {}
    found: dict[int, int] = {}
    for stage, _, elapsed_us in state.running:
        if stage not in longest:
            longest[stage] = max((run_us[stage] for _, run_us in history.samples), default=0)
        if elapsed_us >= longest[stage]:
            found[stage] = found.get(stage, 0) + 1
    return found
