"""What routers remember, through the real scheduler and its store: in pages that messages carry."""

from __future__ import annotations

from pathlib import Path

from plexclient.wire.channels import MAX_MESSAGE_BYTES
from plexclient.wire.v1 import service_pb2 as pb
from plexsvc.ids import TenantId
from plexsvc.router.http.tinker.records import Records
from tests.rigs.scheduler_rig import start_rig

MINE, OTHER = TenantId("mine"), TenantId("other")


async def test_records_come_back_in_pages_none_of_which_is_too_large(tmp_path: Path) -> None:
    async with start_rig(tmp_path, nodes=[{"train": 1}]) as rig:
        records, body = Records(rig.scheduler), b"x" * (3 << 20)
        await records.keep(MINE, {f"s/{number}": body for number in range(2)})
        await records.keep(MINE, {f"s/{number}": body for number in range(2, 4)})
        await records.keep(OTHER, {"s/9": body})
        asked = pb.GetRecordsRequest(tenant=MINE, prefix="s/")
        page = await rig.scheduler.call("GetRecords", asked, pb.GetRecordsReply)
        assert page.has_more
        assert page.ByteSize() < MAX_MESSAGE_BYTES
        assert list(await records.find(MINE, "s/")) == ["0", "1", "2", "3"]
        await records.keep(MINE, {}, gone=["s/0", "s/1", "s/2"])
        assert await records.find(MINE, "s/") == {"3": body}
