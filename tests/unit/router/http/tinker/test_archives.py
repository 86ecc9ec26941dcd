"""Links to saved weights, over HTTP, with real files."""

from __future__ import annotations

import io
import tarfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import aiohttp.web
import pytest

from plexsvc.ids import TenantId
from plexsvc.router.auth import Tenants
from plexsvc.router.config import RouterConfig
from plexsvc.router.http.server import serving
from plexsvc.router.http.tinker import archives, routes
from plexsvc.router.http.tinker.names import Names, Saved
from plexsvc.router.looks import Looks
from plexsvc.router.roots import Roots
from plexsvc.slots import Limit, Slots
from tests.fakes.fake_clock import FakeClock
from tests.fakes.fake_scheduler import FakeScheduler

MINE = TenantId("mine")
BIG = bytes(range(256)) * 10_000
ONE = "training_runs/tinker-1:train:0/checkpoints/weights/two"


class Rig:
    """Archives that are served, and a client of them."""

    def __init__(self, place: Path) -> None:
        self.clock = FakeClock()
        self.directory = place / "mine" / "tinker" / "two"
        self.config = RouterConfig(
            tokens={"tml-mine": "mine", "tml-theirs": "other"},
            http_listen="127.0.0.1:0",
            checkpoint_root=place,
        )
        self.base = ""

    async def save(self) -> None:
        self.directory.mkdir(parents=True)
        (self.directory / "adapter_config.json").write_text("{}")
        (self.directory / "adapter_model.safetensors").write_bytes(BIG)
        (self.directory / ".complete").write_text("ours")
        saved = Saved(
            model_id="tinker-1:train:0",
            kind="weights",
            name="two",
            base_model="tiny",
            path="tinker/two",
            request_id="r",
            at_us=0,
        )
        await self.names.keep(saved, tenant=MINE)

    @asynccontextmanager
    async def running(self, *, secret: str = "S") -> AsyncIterator[None]:
        looks, scheduler = Looks(), FakeScheduler()
        unused: Any = scheduler
        roots = Roots(self.config, looks)
        self.names = Names(unused, roots=roots, looks=looks, clock=self.clock, secret=secret)
        slots = Slots(Limit(total=64, what="calls", key="router.max_calls"))
        served = archives.Archives(self.names, hold=slots.hold)
        one = f"{routes.ROOT}/training_runs/{{model_id}}/checkpoints/{{kind}}/{{name}}"
        get = aiohttp.web.get
        table = [
            get(f"{one}/archive", routes.named(served.archive)),
            get(f"{one}/external_weights_urls", routes.named(served.files)),
        ]
        files = [get(archives.PATH, routes.named(served.follow))]
        tenants = Tenants(self.config.tokens)
        async with serving(table, tenants=tenants, config=self.config, files=files) as self.base:
            yield

    async def ask(self, path: str, *, key: str = "tml-mine") -> tuple[int, Any]:
        return await self._get(f"http://{self.base}/api/v1/{path}", {"X-API-Key": key})

    async def follow(self, url: str) -> tuple[int, Any]:
        return await self._get(url, {})

    async def _get(self, url: str, headers: dict[str, str]) -> tuple[int, Any]:
        async with (
            aiohttp.ClientSession() as session,
            session.get(url, headers=headers) as answer,
        ):
            is_json = answer.content_type == "application/json"
            return answer.status, await (answer.json() if is_json else answer.read())


@pytest.fixture
async def rig(tmp_path: Path) -> AsyncIterator[Rig]:
    made = Rig(tmp_path)
    async with made.running():
        await made.save()
        yield made


async def test_a_link_leads_to_a_tar_of_what_was_saved_without_a_token(rig: Rig) -> None:
    status, told = await rig.ask(f"{ONE}/archive")
    assert status == 200
    status, body = await rig.follow(told["url"])
    assert status == 200
    with tarfile.open(fileobj=io.BytesIO(body)) as tar:
        found = {one.name: tar.extractfile(one).read() for one in tar.getmembers()}
    assert found == {
        "adapter_config.json": b"{}",
        "adapter_model.safetensors": BIG,
        "checkpoint_complete": b"",
    }


async def test_each_file_has_a_link_of_its_own(rig: Rig) -> None:
    _, told = await rig.ask(f"{ONE}/external_weights_urls")
    assert sorted(told["urls"]) == ["adapter_config.json", "adapter_model.safetensors"]
    assert await rig.follow(told["urls"]["adapter_model.safetensors"]) == (200, BIG)


async def test_a_link_that_is_over_or_not_ours_leads_nowhere(rig: Rig) -> None:
    _, told = await rig.ask(f"{ONE}/archive")
    for url in (told["url"][:-3] + "AAA", told["url"].split("=")[0] + "=%00", rig.base):
        link = url if url.startswith("http") else f"http://{url}{archives.PATH}"
        status, refused = await rig.follow(link)
        assert (status, refused["error"]["code"]) == (403, "forbidden")
    rig.clock.wall += archives.LINK_S * 1_000_000
    status, refused = await rig.follow(told["url"])
    assert (status, refused["error"]["code"]) == (410, "result_gone")
    assert "its time was over" in refused["error"]["message"]


async def test_a_link_that_another_cluster_signed_leads_nowhere(tmp_path: Path) -> None:
    rig = Rig(tmp_path)
    async with rig.running(secret="another"):
        await rig.save()
        _, told = await rig.ask(f"{ONE}/archive")
    _, _, query = told["url"].partition("?")
    async with rig.running():
        assert (await rig.follow(f"http://{rig.base}{archives.PATH}?{query}"))[0] == 403


async def test_another_tenant_gets_no_link_and_what_was_deleted_has_none(rig: Rig) -> None:
    status, refused = await rig.ask(f"{ONE}/archive", key="tml-theirs")
    assert (status, refused["error"]["code"]) == (404, "not_found")
    _, told = await rig.ask(f"{ONE}/archive")
    (saved,) = await rig.names.all(MINE)
    await rig.names.drop(saved, tenant=MINE)
    assert (await rig.follow(told["url"]))[0] == 404
    assert not rig.directory.exists()


async def test_a_file_that_became_a_link_out_is_not_followed(rig: Rig, tmp_path: Path) -> None:
    _, told = await rig.ask(f"{ONE}/external_weights_urls")
    (tmp_path / "secret").write_text("secret")
    target = rig.directory / "adapter_config.json"
    target.unlink()
    target.symlink_to(tmp_path / "secret")
    with pytest.raises(aiohttp.ClientError):
        await rig.follow(told["urls"]["adapter_config.json"])
