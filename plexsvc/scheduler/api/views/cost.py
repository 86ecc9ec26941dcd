"""Costs: what jobs have used, from the ledger in the store. A tenant sees its own jobs."""

from __future__ import annotations

from collections import Counter
from itertools import chain
from typing import Final

from plexclient.wire.v1 import service_pb2
from plexsvc.errors import bad_request
from plexsvc.rpc.services import Methods
from plexsvc.scheduler.ledger.bill import CHARGED, FIGURES, by_operation
from plexsvc.scheduler.live import LiveScheduler
from plexsvc.store.rows import ChargesRow

MAX_CHARGES: Final = 20_000
"""Charges of operations in one reply; an operation has two or three."""


async def get_cost(
    scheduler: LiveScheduler, request: service_pb2.CostRequest
) -> service_pb2.CostReply:
    """Return what was used by tenant, job and kind of work, or by a job's operations.

    Raises:
        PlexError: `bad_request`, `unavailable`, `disk_full`.
    """
    if request.by_operation and (not request.job_id or request.since_us):
        raise bad_request(
            "what operations cost was asked of "
            + ("some time" if request.job_id else "no job")
            + "; give a job, and no time: its newest operations are shown, and the rest as one"
        )
    reply = service_pb2.CostReply(now_us=scheduler.clock.wall_us())
    sees_all = request.is_operator or not request.tenant
    if not sees_all and request.owner not in {"", request.tenant}:
        return reply
    owner = request.owner if sees_all else request.tenant
    job_id, pages = request.job_id, list[ChargesRow]()
    if request.by_operation:
        found, pages = await scheduler.operations(tenant=owner, job_id=job_id, limit=MAX_CHARGES)
    else:
        found = await scheduler.usage(tenant=owner, job_id=job_id, since_us=request.since_us)
    kept = (service_pb2.CostReply.FromString(page.body).costs for page in pages)
    reply.costs.extend(by_operation(chain.from_iterable(kept)))
    shown = Counter[tuple[str, str]]()
    for cost in reply.costs:
        shown.update({(cost.kind, name): getattr(cost, name) for name in CHARGED})
    for one in sorted(found, key=lambda one: (one.tenant, one.used.job_id, one.used.kind)):
        kind = one.used.kind
        figures = {name: getattr(one.used, name) - shown[kind, name] for name in FIGURES}
        if pages and not any(figures.values()):
            continue
        reply.costs.add(
            owner=one.tenant,
            job_id=one.used.job_id,
            job_name=one.name,
            kind=kind,
            **figures,
        )
    return reply


METHODS: Final[Methods] = {"GetCost": get_cost}
