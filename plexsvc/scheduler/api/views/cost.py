"""Costs: what jobs have used, from the ledger in the store. A tenant sees its own jobs."""

from __future__ import annotations

from typing import Final

from plexclient.wire.v1 import service_pb2
from plexsvc.rpc.services import Methods
from plexsvc.scheduler.ledger.bill import FIGURES
from plexsvc.scheduler.live import LiveScheduler


async def cost(scheduler: LiveScheduler, request: service_pb2.CostRequest) -> service_pb2.CostReply:
    """Return what was used by tenant, job and kind of work.

    Raises:
        PlexError: `unavailable`, `disk_full`.
    """
    reply = service_pb2.CostReply(now_us=scheduler.clock.wall_us())
    sees_all = request.is_operator or not request.tenant
    if not sees_all and request.owner not in {"", request.tenant}:
        return reply
    found = await scheduler.usage(
        tenant=request.owner if sees_all else request.tenant,
        job_id=request.job_id,
        since_us=request.since_us,
    )
    for one in sorted(found, key=lambda one: (one.tenant, one.used.job_id, one.used.kind)):
        figures = {name: getattr(one.used, name) for name in FIGURES}
        reply.costs.add(
            owner=one.tenant,
            job_id=one.used.job_id,
            job_name=one.name,
            kind=one.used.kind,
            **figures,
        )
    return reply


METHODS: Final[Methods] = {"GetCost": cost}
