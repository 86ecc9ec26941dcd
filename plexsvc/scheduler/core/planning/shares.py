"""Shares of tenants: what each has used of the cluster, by its weight, and whose turn it is.

A tenant's *service* is its dominant share summed over time (dominant resource fairness, Ghodsi et
al., NSDI 2011): the part it has booked of the devices of a kind or of host memory, whichever is
larger. Training devices are booked by a job's duty, devices that instances hold in full, host
memory by parked bytes. Of tenants that wait the one with the least service for its weight goes
first. Whoever comes back after a pause starts with the least service among those present, as in
start-time fair queueing (Goyal et al., SIGCOMM 1996): nobody saves up shares by being away.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, TypeVar

from plexsvc.ids import TenantId

HOST: Final = "host memory"
"""The resource that parked state takes, in bytes; the others are device kinds, in devices."""

AHEAD_US: Final = 600_000_000
"""How long bookings are counted ahead: jobs placed in one go count before they have run."""

T = TypeVar("T")

Turn = tuple[TenantId, tuple[int, ...]]
"""Whose something is, and its rank: what has the lowest goes before all tenants' turns."""


@dataclass(slots=True)
class _Account:
    """What one tenant books of each resource, and has used of it, up to `since_us`."""

    booked: dict[str, int] = field(default_factory=dict)
    used: dict[str, int] = field(default_factory=dict)
    since_us: int = 0
    waiting: Counter[str] = field(default_factory=Counter)
    lift: dict[str, int] = field(default_factory=dict)
    """Service of each kind it is taken to have had while it was away."""


class Shares:
    """Accounts of all tenants; `now_us` is the time of the event in hand."""

    def __init__(self, weights: Mapping[str, int]) -> None:
        self.now_us = 0
        self._weights = weights
        self._capacity: dict[str, int] = {}
        self._accounts: dict[TenantId, _Account] = {}

    def weight(self, tenant: TenantId) -> int:
        """Return the tenant's weight."""
        return self._weights.get(tenant, 1)

    def grow(self, resource: str, amount: int) -> None:
        """Note that there is more of a resource; less if negative."""
        self._capacity[resource] = self._capacity.get(resource, 0) + amount

    def book(self, tenant: TenantId, resource: str, amount: int) -> None:
        """Note that a tenant uses more of a resource from now on; less if negative.

        `amount` is in millionths of what `grow` counts.
        """
        account = self._account(tenant)
        elapsed_us = self.now_us - account.since_us
        for name, booked in account.booked.items():
            account.used[name] = account.used.get(name, 0) + booked * elapsed_us
        account.since_us = self.now_us
        account.booked[resource] = account.booked.get(resource, 0) + amount

    def enter(self, tenant: TenantId, kind: str) -> None:
        """Note that one more of a tenant waits for devices of a kind."""
        account = self._account(tenant)
        if not _wants(account, kind):
            present = [t for t, other in self._accounts.items() if _wants(other, kind)]
            least = min((self.service(t, kind, ahead_us=0) for t in present), default=0)
            lift = max(0, least - self.service(tenant, kind, ahead_us=0))
            account.lift[kind] = account.lift.get(kind, 0) + lift
        account.waiting[kind] += 1

    def leave(self, tenant: TenantId, kind: str) -> None:
        """Note that one of a tenant does not wait for devices of a kind any more."""
        self._account(tenant).waiting[kind] -= 1

    def service(self, tenant: TenantId, kind: str, *, ahead_us: int = AHEAD_US) -> int:
        """Return what a tenant had of a kind, and books ahead, for its weight: ppm x us."""
        account = self._account(tenant)
        elapsed_us = self.now_us - account.since_us + ahead_us
        had = {
            name: account.used.get(name, 0) + account.booked.get(name, 0) * elapsed_us
            for name in (kind, HOST)
        }
        return account.lift.get(kind, 0) + self._dominant(had) // self.weight(tenant)

    def share_ppm(self, tenant: TenantId) -> int:
        """Return the largest part of a resource that a tenant books now."""
        return self._dominant(self._account(tenant).booked)

    def in_turn(self, ordered: Sequence[T], *, kind: str, turn: Callable[[T], Turn]) -> Iterator[T]:
        """Yield what waits, given in order: the lowest rank first, then tenants in turn.

        Whose turn it is follows from what was booked since the last was taken. `O(tenants)` each.
        """
        queues: dict[TenantId, list[T]] = {}
        # Taken from the end below, the first one of each tenant comes first.
        for waiting in reversed(ordered):
            queues.setdefault(turn(waiting)[0], []).append(waiting)
        if len(queues) <= 1:
            yield from ordered
            return
        while queues:
            tenant = min(queues, key=lambda t: (turn(queues[t][-1])[1], self.service(t, kind), t))
            yield queues[tenant].pop()
            if not queues[tenant]:
                del queues[tenant]

    def _dominant(self, amounts: Mapping[str, int]) -> int:
        parts = (
            amount // self._capacity[name]
            for name, amount in amounts.items()
            if self._capacity.get(name)
        )
        return max(parts, default=0)

    def _account(self, tenant: TenantId) -> _Account:
        account = self._accounts.get(tenant)
        if account is None:
            account = self._accounts[tenant] = _Account(since_us=self.now_us)
        return account


def _wants(account: _Account, kind: str) -> bool:
    """Return whether a tenant has devices of a kind, or waits for some."""
    return account.waiting[kind] > 0 or account.booked.get(kind, 0) > 0
