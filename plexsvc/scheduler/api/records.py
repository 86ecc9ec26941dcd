"""Handlers for what routers remember for clients that keep no state themselves."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from plexclient.wire.channels import MAX_MESSAGE_BYTES
from plexclient.wire.v1 import service_pb2 as pb
from plexsvc.rpc.services import Methods
from plexsvc.scheduler.live import LiveScheduler
from plexsvc.store.rows import RecordGone, RecordRow

PAGE_BYTES: Final = MAX_MESSAGE_BYTES // 2
MAX_ROWS: Final = 128
"""Records of one reply."""


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
    """Return a tenant's records whose keys begin so, by key: the first that come after a key."""
    scheduler.check_open()
    rows = await scheduler.records(
        tenant=request.tenant, prefix=request.prefix, after=request.after, limit=MAX_ROWS + 1
    )
    return page_of(pb.Record(key=row.key, body=row.body) for row in rows)


def page_of(records: Iterable[pb.Record]) -> pb.GetRecordsReply:
    """Return the first of these records, as many as one message carries."""
    reply, nbytes = pb.GetRecordsReply(), 0
    for record in records:
        nbytes += record.ByteSize()
        # A record alone may be larger: it came in one message, so it goes in one.
        if reply.records and (nbytes > PAGE_BYTES or len(reply.records) == MAX_ROWS):
            reply.has_more = True
            break
        reply.records.append(record)
    return reply


METHODS: Final[Methods] = {"KeepRecords": keep, "GetRecords": find}
