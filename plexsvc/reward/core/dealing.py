"""Dealing of the reward core: which request runs next on which worker, and how many there are.

A pool with work and without a worker gets its first before other pools go on with what is less
urgent. A tenant that has waited a moment for its share of a pool gets it: runs that others have
borrowed are stopped, the youngest first, and wait again. A tenant's oldest runs, as many as its
share, are never stopped for others, so each ends.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from plexsvc.reward.core.crew import Crew
from plexsvc.reward.core.pools import WorkerPool, place_for
from plexsvc.reward.core.queues import Urgency
from plexsvc.reward.core.state import OpenBatch, Request
from plexsvc.reward.core.vocabulary import BatchId, Order, RequestId, RunStage, WorkerId

PATIENCE_US: Final = 1_000_000
"""How long a tenant waits for its share before what others have borrowed of it is stopped; most
runs end before, and cost no new worker."""

START_PAUSE_US: Final = 1_000_000
"""After a worker that did not come up, before the next is started; doubles with each in a row."""

MAX_FAILED_STARTS: Final = 5
"""Workers that may die in a row before any was ready; then nothing waits for a worker."""


class Dealer:
    """Gives waiting requests to workers; what it decides it orders by `order`."""

    def __init__(
        self, batches: Mapping[BatchId, OpenBatch], crew: Crew, order: Callable[[Order], None]
    ) -> None:
        self._batches, self._crew, self._order = batches, crew, order
        self.failed_starts = 0
        """Workers in a row that did not come up."""
        self._start_at_us = 0
        self.start_due_us: int | None = None
        """When workers that are wanted may be started after some did not come up."""

    def fail_start(self, at_us: int) -> bool:
        """Count a worker that did not come up; return whether none does any more."""
        self.failed_starts += 1
        exponent = min(self.failed_starts, MAX_FAILED_STARTS) - 1
        self._start_at_us = at_us + (START_PAUSE_US << exponent)
        return self.failed_starts >= MAX_FAILED_STARTS

    def put(self, found: RequestId, request: Request) -> None:
        """Let a request wait for its stage."""
        self._crew.pool(request.resource).queue.put(found, self.urgency(found, request))

    def urgency(self, found: RequestId, request: Request) -> Urgency:
        """Return the place of a request in its queue: Earliest Batch First (DistRS §5.2)."""
        batch = self._batches[found.batch]
        left_us = sum(stage.timeout_us for stage in request.program.stages[request.stage :])
        return Urgency(
            batch.expected_end_us,
            request.number,
            no_later_us=batch.expected_end_us - left_us if batch.is_known else 0,
        )

    def settle(self, now_us: int) -> None:
        """Give idle workers what waits, and start those that are wanted and have room."""
        needy = self._needy(now_us)
        going = [
            one
            for one in self._crew.pools.values()
            if needy is None or _first(one) <= _first(needy)
        ]
        for pool in going:
            while pool.idle:
                found = pool.queue.take(workers=pool.working)
                if found is None:
                    break
                self._run(found, next(iter(pool.idle)), now_us)
        for pool in going:
            self._take_back(pool, now_us)
        self.start_due_us = None
        for pool in sorted(going, key=lambda one: (one.working > 0, *_first(one))):
            self._start(pool, now_us)

    def _needy(self, now_us: int) -> WorkerPool | None:
        """Return the most urgent pool that has work and neither a worker nor room for one.

        Idle workers of less urgent ones are stopped until it has room; these stand still.
        """
        if now_us < self._start_at_us:
            return None
        without = [
            pool for pool in self._crew.pools.values() if len(pool.queue) and not pool.working
        ]
        for pool in sorted(without, key=_first):
            if not self._crew.has_room_for(pool.resource):
                continue
            less_urgent = [one for one in self._crew.pools.values() if _first(one) > _first(pool)]
            for other in less_urgent:
                while other.idle and place_for(self._crew.places, pool.resource) is None:
                    self._crew.stop(next(iter(other.idle)))
            if place_for(self._crew.places, pool.resource) is None:
                return pool
        return None

    def _start(self, pool: WorkerPool, now_us: int) -> None:
        wanted = max(
            pool.wanted(now_us, least=self._crew.least(pool)),
            self._is_announced(pool) - len(pool.idle) - pool.starting,
        )
        if wanted > 0 and self.failed_starts and now_us < self._start_at_us:
            self.start_due_us = self._start_at_us
            return
        for _ in range(wanted):
            place = place_for(self._crew.places, pool.resource)
            if place is None:
                return
            self._crew.start_at(place, pool, now_us)

    def _take_back(self, pool: WorkerPool, now_us: int) -> None:
        """Stop borrowed runs for tenants that have waited for their share, and let them wait."""
        if pool.idle or now_us < self._start_at_us or not pool.is_short(now_us):
            return
        owed = sum(
            number
            for found, number in pool.queue.owed(workers=pool.working)
            if self._waits_since_us(found) + PATIENCE_US <= now_us
        )
        if owed > pool.starting:
            for worker_id in self._crew.borrowed(pool)[: owed - pool.starting]:
                place = self._crew.workers[worker_id].place
                self._interrupt(worker_id, now_us)
                if place in self._crew.places:
                    self._crew.start_at(place, pool, now_us)

    def _interrupt(self, worker_id: WorkerId, now_us: int) -> None:
        """Stop a worker; what it ran waits again, and the run counts as waiting."""
        found = self._crew.workers[worker_id].request
        assert found is not None, worker_id
        request = self._batches[found.batch].requests[found.sample]
        request.queue_us += now_us - request.since_us
        request.since_us, request.worker = now_us, None
        self._crew.pool(request.resource).queue.running[found.batch.tenant] -= 1
        self._crew.stop(worker_id)
        self.put(found, request)

    def patience_ends_us(self, pool: WorkerPool, now_us: int) -> int | None:
        """Return when runs are to be stopped for a tenant that waits; None where that is past."""
        if not len(pool.queue) or pool.idle:
            return None
        ends = [
            self._waits_since_us(found) + PATIENCE_US
            for found, _ in pool.queue.owed(workers=pool.working)
        ]
        return min((end for end in ends if end > now_us), default=None)

    def _waits_since_us(self, found: RequestId) -> int:
        return self._batches[found.batch].requests[found.sample].since_us

    def _is_announced(self, pool: WorkerPool) -> bool:
        """Return whether an idle worker is to be there: samples will come, and none has yet."""
        return any(
            not batch.arrived and batch.program.stages[0].resource == pool.resource
            for batch in self._batches.values()
        )

    def _run(self, found: RequestId, worker_id: WorkerId, now_us: int) -> None:
        worker = self._crew.workers[worker_id]
        request = self._batches[found.batch].requests[found.sample]
        del worker.pool.idle[worker_id]
        worker.request, worker.since_us = found, now_us
        request.worker = worker_id
        request.queue_us += now_us - request.since_us
        request.since_us = now_us
        worker.pool.queue.running[found.batch.tenant] += 1
        self._order(RunStage(worker=worker_id, request=found, stage=request.stage))


def _first(pool: WorkerPool) -> tuple[int, int]:
    """Return how urgent a pool is: the least goes first."""
    first = pool.queue.first()
    return (first.expected_end_us, first.number) if first is not None else (1 << 62, 0)
