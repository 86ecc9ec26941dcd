"""Handlers for what routers remember for clients that keep no state themselves."""

from __future__ import annotations

from typing import Final

from plexclient.wire.v1 import service_pb2 as pb
from plexsvc.rpc.services import Methods
from plexsvc.scheduler.live import LiveScheduler
from plexsvc.store.rows import RecordGone, RecordRow


async def keep(scheduler: LiveScheduler, request: pb.KeepRecordsRequest) -> pb.KeepRecordsReply:
    """Keep records, and drop those that are gone; durable on return.

    Raises:
        PlexError: why they could not be stored.
    """
    scheduler.check_open()
    kept = [RecordRow(tenant=request.tenant, key=one.key, body=one.body) for one in request.records]
    gone = [RecordGone(tenant=request.tenant, key=key) for key in request.gone]
    await scheduler.remember(*kept, *gone)
    return pb.KeepRecordsReply()


async def find(scheduler: LiveScheduler, request: pb.GetRecordsRequest) -> pb.GetRecordsReply:
    """Return a tenant's records whose keys begin so, by key."""
    scheduler.check_open()
    rows = await scheduler.records(tenant=request.tenant, prefix=request.prefix)
    return pb.GetRecordsReply(records=[pb.Record(key=row.key, body=row.body) for row in rows])


METHODS: Final[Methods] = {"KeepRecords": keep, "GetRecords": find}
