"""Workers of the reward core: those there are, in their pools, and the room for more on nodes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from typing import Final

from plexsvc.ids import TenantId
from plexsvc.reward.core.pools import NodeCapacity, WorkerPool
from plexsvc.reward.core.state import PoolLimits, Worker
from plexsvc.reward.core.vocabulary import (
    LEAST,
    Order,
    Resource,
    StartWorker,
    StopWorker,
    WorkerId,
)

NO_LIMIT_BYTES: Final = 1 << 62


class Crew:
    """The workers, their pools and their places; what it does to them it orders by `order`."""

    def __init__(self, limits: PoolLimits, order: Callable[[Order], None]) -> None:
        self.workers: dict[WorkerId, Worker] = {}
        self.pools: dict[Resource, WorkerPool] = {LEAST: WorkerPool(resource=LEAST)}
        room = Resource(cpus=limits.max_workers, memory_bytes=NO_LIMIT_BYTES)
        self.places: dict[str, NodeCapacity] = {"": NodeCapacity(room, room)}
        self._limits = limits
        self._order = order
        self._next_worker = 0

    def most(self, resource: Resource) -> int:
        """Return how many workers of a type there may be, if no others run."""
        rooms = (
            min(has // needs for has, needs in zip(place.room, resource, strict=True) if needs)
            for place in self.places.values()
        )
        return max(1, sum(rooms))

    def has_room_for(self, resource: Resource) -> bool:
        """Return whether any node could have a worker that holds this."""
        return any(resource.fits(place.room) for place in self.places.values())

    def pool(self, resource: Resource) -> WorkerPool:
        """Return the pool of a resource type."""
        return self.pools.setdefault(resource, WorkerPool(resource=resource))

    def least(self, pool: WorkerPool) -> int:
        """Return how many workers a pool keeps in any case."""
        return self._limits.min_workers if pool.resource == LEAST else 0

    def replace_places(self, rooms: Mapping[str, Resource]) -> None:
        """Have workers on these nodes and no others."""
        self.places.clear()
        self.places.update({name: NodeCapacity(room, room) for name, room in rooms.items()})
        for worker_id, worker in self.workers.items():
            if worker.place in self.places and not worker.is_stopped:
                self.places[worker.place].book(worker.pool.resource, 1)
            # One that runs ends after its request: see `keep`.
            elif worker_id in worker.pool.idle:
                self.stop(worker_id)

    def start_at(self, place: str, pool: WorkerPool, now_us: int) -> None:
        """Order a worker of a pool on a node."""
        self._next_worker += 1
        worker_id = WorkerId(self._next_worker)
        self.workers[worker_id] = Worker(pool=pool, place=place, since_us=now_us)
        pool.starting += 1
        pool.working += 1
        self.places[place].book(pool.resource, 1)
        self._order(StartWorker(worker=worker_id, place=place, resource=pool.resource))

    def keep(self, worker_id: WorkerId) -> None:
        """Let a worker wait for its next request, or stop it where its node takes no more."""
        worker = self.workers[worker_id]
        if worker.place in self.places:
            worker.pool.idle[worker_id] = None
        else:
            self.stop(worker_id)

    def count_out(self, worker_id: WorkerId) -> None:
        """Have a worker count no more, and give its room back."""
        worker = self.workers[worker_id]
        if worker.is_stopped:
            return
        worker.pool.working -= 1
        worker.pool.starting -= not worker.is_ready
        worker.pool.idle.pop(worker_id, None)
        if worker.place in self.places:
            self.places[worker.place].book(worker.pool.resource, -1)

    def stop(self, worker_id: WorkerId) -> None:
        """Order the end of a worker, which counts no more."""
        self.count_out(worker_id)
        worker = self.workers[worker_id]
        worker.request, worker.is_ready, worker.is_stopped = None, False, True
        self._order(StopWorker(worker=worker_id))

    def borrowed(self, pool: WorkerPool) -> list[WorkerId]:
        """Return workers whose runs are beyond their tenants' shares, the youngest run first."""
        oldest_first = sorted(
            (worker.since_us, worker_id, worker.request.batch.tenant)
            for worker_id, worker in self.workers.items()
            if worker.pool is pool and worker.request is not None
        )
        share, held, found = pool.queue.share(pool.working), Counter[TenantId](), []
        for _, worker_id, tenant in oldest_first:
            held[tenant] += 1
            if held[tenant] > share:
                found.append(worker_id)
        return found[::-1]
