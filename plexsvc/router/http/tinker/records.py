"""Records of the store, in which the front keeps whatever its clients were told of."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final

from plexclient.wire.channels import MAX_MESSAGE_BYTES
from plexclient.wire.v1 import service_pb2 as pb
from plexsvc.errors import payload_too_large
from plexsvc.ids import TenantId
from plexsvc.router.api import SchedulerApi

MAX_BYTES: Final = MAX_MESSAGE_BYTES - (128 << 10)
"""Of what is kept with one message, which has a frame, and may have a model's facts besides."""
MAX_GONE: Final = 8192
"""Keys of records that one message drops."""


class Records:
    """The records of all tenants, read and written through the scheduler."""

    def __init__(self, scheduler: SchedulerApi) -> None:
        self._scheduler = scheduler

    async def keep(
        self, tenant: TenantId, records: Mapping[str, Any], *, gone: Sequence[str] = ()
    ) -> None:
        """Write records, as bytes or JSON, and drop those that are gone; durable on return.

        Raises:
            PlexError: `payload_too_large`, and then nothing was written; why they were not stored.
        """
        request = pb.KeepRecordsRequest(tenant=tenant, gone=gone[:MAX_GONE])
        for key, value in records.items():
            body = value if isinstance(value, bytes) else json.dumps(value).encode()
            request.records.add(key=key, body=body)
        check_size(request.ByteSize())
        await self._scheduler.call("KeepRecords", request, pb.KeepRecordsReply)
        if gone[MAX_GONE:]:
            await self.keep(tenant, {}, gone=gone[MAX_GONE:])

    async def find(self, tenant: TenantId, prefix: str) -> dict[str, bytes]:
        """Return records by what comes after the prefix of their keys, in the order of these."""
        found: dict[str, bytes] = {}
        request = pb.GetRecordsRequest(tenant=tenant, prefix=prefix)
        while True:
            page = await self._scheduler.call("GetRecords", request, pb.GetRecordsReply)
            found |= {one.key.removeprefix(prefix): one.body for one in page.records}
            if not page.has_more:
                return found
            request.after = page.records[-1].key


def check_size(nbytes: int) -> None:
    """Refuse what no message could carry to the store.

    Raises:
        PlexError: `payload_too_large`.
    """
    if nbytes > MAX_BYTES:
        raise payload_too_large(
            f"the request takes {nbytes} bytes to be kept; at most {MAX_BYTES}: cut it in several"
        )
