"""Rates of tenants' requests through this router, bounded where a quota says so."""

from __future__ import annotations

from collections.abc import Iterable

from plexclient.wire.v1 import service_pb2 as pb
from plexsvc.clock import Clock
from plexsvc.errors import queue_full
from plexsvc.ids import TenantId


class Rates:
    """The rates of all tenants that have a quota; those of a second may come at once."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._most: dict[TenantId, int] = {}
        self._free_us: dict[TenantId, int] = {}
        """When a tenant that stops asking now may ask as if it never had."""

    def learn(self, quotas: Iterable[pb.QuotaView]) -> None:
        """Take the quotas as they are now."""
        self._most = {TenantId(one.owner): one.most for one in quotas}
        self._free_us = {one: at for one, at in self._free_us.items() if one in self._most}

    def take(self, tenant: TenantId) -> None:
        """Count one request.

        Raises:
            PlexError: `queue_full`; it is not counted then.
        """
        most = self._most.get(tenant)
        if most is None:
            return
        now_us = self._clock.monotonic_us()
        # Each request takes its share of a second. Whoever is a whole second ahead has had the
        # quota.
        free_us = max(self._free_us.get(tenant, now_us), now_us) + 1_000_000 // most
        if free_us > now_us + 1_000_000:
            raise queue_full(
                f"tenant {tenant!r} made {most} requests within a second, which is its quota; ask "
                "more slowly, put more into one, or ask an operator for more (`plexctl quota`)",
                limit=most,
            )
        self._free_us[tenant] = free_us
