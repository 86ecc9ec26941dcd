"""An engine for adapters whose seats are fake engines; `adapter_bytes` is how many it has."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

from plexsvc import config as config_files
from plexsvc.clock import SystemClock
from plexsvc.errors import queue_full
from plexsvc.rollout import seats
from plexsvc.rollout.config import InstanceConfig
from plexsvc.weights.reading import OpenedVersion
from tests.fakes.fake_engine import FakeEngine


class FakeSeat(FakeEngine):
    """A seat that is free again once it is left."""

    def __init__(self, among: set[FakeSeat]) -> None:
        super().__init__()
        self._among = among
        among.add(self)

    async def dispose(self) -> None:
        self._among.discard(self)


class FakeSeats:
    """So many seats."""

    def __init__(self, most: int) -> None:
        self.engine, self._most = FakeEngine(), most
        self._taken: set[FakeSeat] = set()

    async def take(self) -> FakeSeat:
        if len(self._taken) >= self._most:
            raise queue_full("all seats are taken", limit=self._most)
        return FakeSeat(self._taken)


def main(config: dict[str, Any], ready: Callable[[str], None]) -> None:
    """Serve until TERM."""
    parsed = config_files.parse(config, InstanceConfig, where="fake engine")
    serving = seats.serve_seats(
        FakeSeats(parsed.adapter_bytes),
        parsed,
        clock=SystemClock(),
        opener=lambda _: nullcontext(lambda _: OpenedVersion()),
        ready=ready,
    )
    asyncio.run(serving)
