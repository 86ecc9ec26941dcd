"""Queue of a pool: Earliest Batch First, first come first served within a batch, fair to tenants.

A batch is as urgent as it was expected to end when it came. That never changes, so only batches
that came before a batch's expected end can go before it: nothing starves. A tenant that holds its
share of the workers waits while one that does not has something to run. What runs beyond the share
of its tenant is *borrowed*.
"""

from __future__ import annotations

import heapq
from collections import Counter
from dataclasses import dataclass
from typing import NamedTuple

from plexsvc.ids import TenantId
from plexsvc.reward.core.vocabulary import RequestId


class Urgency(NamedTuple):
    """The place of a request among its tenant's: the smallest runs first."""

    expected_end_us: int
    number: int
    """Of its arrival."""
    no_later_us: int = 0
    """From then on it may end too late if it waits and its stages take their timeouts."""


@dataclass(frozen=True, slots=True, order=True)
class _QueueEntry:
    urgency: Urgency
    request: RequestId


class PoolQueue:
    """Requests that wait for workers of a pool, and how many of each tenant run."""

    def __init__(self) -> None:
        self._waiting: dict[TenantId, list[_QueueEntry]] = {}
        self._live: dict[RequestId, _QueueEntry] = {}
        self._queued: Counter[TenantId] = Counter()
        self.running: Counter[TenantId] = Counter()

    def __len__(self) -> int:
        return self._queued.total()

    def queued(self, tenant: TenantId) -> int:
        """Return how many requests of a tenant wait. O(1)."""
        return self._queued[tenant]

    def put(self, request: RequestId, urgency: Urgency) -> None:
        """Let a request wait. O(log n)."""
        assert request not in self._live, request
        tenant, entry = request.batch.tenant, _QueueEntry(urgency, request)
        self._live[request] = entry
        heapq.heappush(self._waiting.setdefault(tenant, []), entry)
        self._queued[tenant] += 1

    def drop(self, request: RequestId) -> None:
        """Let a request that waits wait no more. O(1); its memory goes when it is its turn."""
        self._count_out(request)

    def first(self) -> Urgency | None:
        """Return the urgency of the most urgent request. O(tenants that wait)."""
        return min((entry.urgency for entry in self._heads()), default=None)

    def is_pressing(self, now_us: int) -> bool:
        """Return whether a request may end too late if it waits. O(tenants that wait)."""
        return any(entry.urgency.no_later_us <= now_us for entry in self._heads())

    def take(self, *, workers: int) -> RequestId | None:
        """Return the request that runs next on one of `workers`; None when none waits.

        O(tenants that wait + log n).
        """
        heads = self._heads()
        if not heads:
            return None
        share = self.share(workers)

        def place(entry: _QueueEntry) -> tuple[bool, int, int, int]:
            runs, urgency = self.running[entry.request.batch.tenant], entry.urgency
            return (runs >= share, urgency.expected_end_us, runs, urgency.number)

        chosen = min(heads, key=place).request
        heapq.heappop(self._waiting[chosen.batch.tenant])
        self._count_out(chosen)
        return chosen

    def share(self, workers: int) -> int:
        """Return how many of `workers` a tenant has for its own: of those that run or wait."""
        active = {entry.request.batch.tenant for entry in self._heads()} | set(+self.running)
        return max(1, workers // max(1, len(active)))

    def owed(self, *, workers: int) -> list[tuple[RequestId, int]]:
        """Return what waits for a share: the first of a tenant's, and how many. O(tenants)."""
        share, found = self.share(workers), []
        for entry in self._heads():
            tenant = entry.request.batch.tenant
            missing = min(share - self.running[tenant], self._queued[tenant])
            if missing > 0:
                found.append((entry.request, missing))
        return found

    def _heads(self) -> list[_QueueEntry]:
        return [entry for tenant in list(self._waiting) if (entry := self._head(tenant))]

    def _head(self, tenant: TenantId) -> _QueueEntry | None:
        """Return the first of a tenant's requests; forgets those that were dropped."""
        waiting = self._waiting[tenant]
        # Dropped, or put again since then: the entry that counts is the last one of its request.
        while waiting and self._live.get(waiting[0].request) is not waiting[0]:
            heapq.heappop(waiting)
        if not waiting:
            del self._waiting[tenant]
            return None
        return waiting[0]

    def _count_out(self, request: RequestId) -> None:
        del self._live[request]
        tenant = request.batch.tenant
        self._queued[tenant] -= 1
        if not self._queued[tenant]:
            del self._queued[tenant]
