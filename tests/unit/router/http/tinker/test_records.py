"""Records of the store: however many a tenant has, they come whole through messages of a size."""

from __future__ import annotations

from plexsvc.ids import TenantId
from plexsvc.router.api import RemoteScheduler
from plexsvc.router.config import RouterConfig
from plexsvc.router.http.tinker.records import MAX_GONE, Records
from plexsvc.rpc.channels import open_channel
from tests.fakes.fake_scheduler import FakeScheduler, serve
from tests.rigs.keys import KEYS

MINE, OTHER = TenantId("mine"), TenantId("other")


async def test_records_of_more_than_a_message_come_to_a_router_apart() -> None:
    fake = FakeScheduler()
    async with serve(fake) as address, open_channel(address, KEYS) as channel:
        remote = RemoteScheduler(channel, config=RouterConfig())
        records, body = Records(remote), b"x" * (3 << 20)
        for number in range(5):
            await records.keep(MINE, {f"s/{number}": body})
        await records.keep(MINE, {"other/1": body})
        await records.keep(OTHER, {"s/9": body})
        assert await records.find(MINE, "s/") == {str(number): body for number in range(5)}
        await remote.aclose()


async def test_any_number_of_small_records_is_found_and_dropped() -> None:
    fake = FakeScheduler()
    records, keys = Records(fake), [f"s/{number:05}" for number in range(MAX_GONE + 1)]
    await records.keep(MINE, {key: {"a": 1} for key in keys})
    assert list(await records.find(MINE, "s/")) == [key.removeprefix("s/") for key in keys]
    await records.keep(MINE, {}, gone=keys)
    assert fake.kept == {}
