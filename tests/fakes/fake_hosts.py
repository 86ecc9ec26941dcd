"""Fake nodes: instances on spot devices are fake engines behind the real servicer."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence

from plexsvc.errors import ErrorCode, PlexError
from plexsvc.ids import DeploymentId
from tests.fakes.fake_engine import FakeEngine
from tests.fakes.fake_instances import FakeInstance


class FakeHosts:
    """Devices by name; `lies` makes none of their instances come up."""

    def __init__(self, places: Iterable[str], *, lies: bool = False, held: bool = False) -> None:
        self.places = dict.fromkeys(places, True)
        self.lies, self.held = lies, held
        self.instances: dict[str, FakeInstance] = {}
        self.tries = 0
        self.lock = asyncio.Lock()
        """Held while an instance starts or ends."""

    def slots(self) -> Mapping[str, bool]:
        return dict(self.places)

    async def start(self, slot_id: str, *, number: int, deployment_id: DeploymentId) -> str:
        del number, deployment_id
        self.tries += 1
        if self.lies:
            raise PlexError(ErrorCode.UNAVAILABLE, f"{slot_id} was announced and never came")
        return await asyncio.shield(self._start(slot_id))  # who asked may end meanwhile

    async def _start(self, slot_id: str) -> str:
        async with self.lock:
            instance = self.instances[slot_id] = FakeInstance(FakeEngine(held=self.held))
            await instance.start()
            return instance.address

    async def stop(self, slot_id: str, *, number: int, deployment_id: DeploymentId) -> None:
        del number, deployment_id
        await asyncio.shield(self._stop(slot_id))

    async def _stop(self, slot_id: str) -> None:
        async with self.lock:
            if instance := self.instances.pop(slot_id, None):
                await instance.kill()

    async def clear(self) -> None:
        """Stop all of them, as nodes do with what nobody knows."""
        async with self.lock:
            while self.instances:
                await self.instances.popitem()[1].kill()


class FakeManagerHosts:
    """Nodes whose managers a test serves itself, at known addresses."""

    def __init__(self, addresses: Mapping[str, Sequence[str]], killed: asyncio.Event) -> None:
        """Say by `killed` that a manager was to be killed because it hangs."""
        self.up = dict.fromkeys(addresses, True)
        self.instances: Mapping[str, Sequence[str]] = {}
        """The node of each instance, by deployment."""
        self.notes: Mapping[str, bytes] = {}
        self.epoch = 1
        self._addresses, self._killed = addresses, killed

    async def keep(self, deployment_id: str, note: bytes | None) -> None:
        others = {one: kept for one, kept in self.notes.items() if one != deployment_id}
        self.notes = others if note is None else others | {deployment_id: note}

    def nodes(self) -> Mapping[str, bool]:
        return dict(self.up)

    def places(self, deployment_id: str) -> Sequence[str]:
        return self.instances.get(deployment_id, ())

    async def start(self, node_id: str, number: int, *, config_json: str) -> str:
        assert config_json
        if node_id not in self.up:
            raise PlexError(ErrorCode.NODE_LOST, f"{node_id} is not there")
        return self._addresses[node_id][number]

    async def kill(self, node_id: str, number: int) -> None:
        del node_id, number
        self._killed.set()
