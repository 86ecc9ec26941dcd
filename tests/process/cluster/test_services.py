"""Processes that a cluster keeps running."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from pathlib import Path

import pytest

from plexsvc.clock import SystemClock
from plexsvc.cluster import services
from plexsvc.cluster.services import ServiceProcess
from plexsvc.errors import PlexError

pytestmark = pytest.mark.process


@dataclass(frozen=True)
class Config:
    listen: str = "unix:served"


class Noted(ServiceProcess):
    """Tells when it serves."""

    def __init__(self, place: Path) -> None:
        module = "tests.rigs.hangs_at_first"
        super().__init__("served", module, Config(), directory=place, logs=place)
        self.serves = asyncio.Event()

    async def start(self) -> str:
        address = await super().start()
        self.serves.set()
        return address


@pytest.fixture
def process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Noted:
    monkeypatch.setattr(services, "START_S", 3.0)
    return Noted(tmp_path)


async def test_what_is_needed_and_hangs_as_it_starts_is_an_error(process: Noted) -> None:
    with pytest.raises(PlexError, match="the served did not start"):
        await process.start()


async def test_what_hangs_as_it_starts_is_replaced(process: Noted) -> None:
    async with asyncio.TaskGroup() as tasks:
        starting = tasks.create_task(process.start_or_be_replaced())
        replacing = tasks.create_task(process.replace(SystemClock()))
        assert not await starting
        await process.serves.wait()
        replacing.cancel()
    await process.stop()


async def test_one_that_has_just_come_up_is_not_taken_for_one_that_hangs(
    process: Noted, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with asyncio.TaskGroup() as tasks:
        starting = tasks.create_task(process.start_or_be_replaced())
        replacing = tasks.create_task(process.replace(SystemClock()))
        await starting
        await process.serves.wait()
        process.serves.clear()
        process.kill()
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(3):
                await process.serves.wait()
        monkeypatch.setattr(services, "YOUNG_S", 0.0)
        process.kill()
        await process.serves.wait()
        replacing.cancel()
    await process.stop()
