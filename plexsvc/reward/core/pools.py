"""Pools of workers: one for each resource type, with the queue before it and the plan for it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from plexsvc.reward.core.queues import PoolQueue
from plexsvc.reward.core.vocabulary import PoolPlan, Resource, WorkerId

PLANNED_IDLE_US: Final = 5_000_000
"""How long a worker beyond the plan may have nothing to do."""


@dataclass(slots=True, kw_only=True)
class WorkerPool:
    """The workers of one resource type, and what waits for them."""

    resource: Resource
    queue: PoolQueue = field(default_factory=PoolQueue)
    idle: dict[WorkerId, None] = field(default_factory=dict)
    """Ready and without a request, the longest idle first."""
    starting: int = 0
    working: int = 0
    """Workers that are not stopped, those that start among them."""
    plan: PoolPlan | None = None
    plan_until_us: int = 0
    homeless_since_us: int | None = None
    """Since when something waits, and no node could have a worker for it."""

    def planned(self, now_us: int) -> PoolPlan | None:
        """Return the plan, if it still holds."""
        return self.plan if now_us < self.plan_until_us else None

    def wanted(self, now_us: int, *, least: int) -> int:
        """Return how many more workers are to be started, if there is room."""
        queued = len(self.queue) - self.starting
        plan = self.planned(now_us)
        if plan is None:
            return max(queued, least - self.working)
        missing = max(plan.held, least) - self.working
        if not self.queue.is_pressing(now_us):
            return missing
        return max(missing, min(queued, plan.workers - self.working))

    def is_short(self, now_us: int) -> bool:
        """Return whether what waits does so for want of workers, not because it may by the plan."""
        return self.planned(now_us) is None or self.queue.is_pressing(now_us)

    def has_spare(self, now_us: int, *, least: int) -> bool:
        """Return whether there are more workers than have to be kept."""
        plan = self.planned(now_us)
        return self.working > max(least, plan.held if plan is not None else 0)


@dataclass(slots=True)
class NodeCapacity:
    """What a node has for workers, and what is left of it."""

    room: Resource
    free: Resource

    def book(self, resource: Resource, number: int) -> None:
        """Take room for `number` workers; below 0 it is given back."""
        self.free = self.free.plus(resource.times(-number))


def place_for(places: Mapping[str, NodeCapacity], resource: Resource) -> str | None:
    """Return the node with the most room for one more worker; None where none has enough."""
    fitting = [name for name, place in places.items() if resource.fits(place.free)]
    return max(fitting, key=lambda name: (places[name].free, name), default=None)
