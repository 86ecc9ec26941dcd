"""The driver of a pool of instances that come and go: starts, drains and stops them as ordered.

There is one of spot devices and one of serving engines' guests.

It stays in the scheduler's process, whichever managers have the instances.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final, Protocol

from plexclient.wire.v1 import service_pb2
from plexsvc.clock import Clock
from plexsvc.errors import PlexError
from plexsvc.ids import DeploymentId
from plexsvc.log import Log
from plexsvc.rollout.closed import keep_closed, read_closed
from plexsvc.rollout.config import SpotConfig
from plexsvc.rollout.core import pool
from plexsvc.rollout.core.instances import Kind
from plexsvc.rollout.core.pool import Pool, SlotId, State
from plexsvc.rollout.providers.base import Hosts, Provider
from plexsvc.rollout.providers.local import LocalProvider
from plexsvc.rollout.providers.trace import Change, TraceProvider, read_trace

log = Log(__name__)

TICK_US: Final = 500_000


class PooledFleet(Protocol):
    """The instances of a deployment."""

    async def add(self, address: str, *, kind: str) -> None:
        """Take one more instance.

        Raises:
            PlexError: `unavailable` when it does not answer.
        """
        ...

    async def drain(self, address: str) -> None:
        """Have an instance's samples go on elsewhere, and let it go then."""
        ...

    async def drop(self, address: str, *, because: str) -> None:
        """Forget an instance whose process has ended."""
        ...


FleetOf = Callable[[DeploymentId], PooledFleet | None]
"""Returns the instances of a deployment, None if it is gone."""


def changes_of(config: SpotConfig) -> Sequence[Change]:
    """Return the changes of the configured trace, none without one.

    Raises:
        PlexError: `bad_request` for a trace that cannot be.
    """
    return read_trace(Path(config.trace), segment=config.segment) if config.trace else ()


def provider_of(
    config: SpotConfig, changes: Sequence[Change], *, hosts: Hosts, clock: Clock
) -> Provider:
    """Return the provider that the configuration asks for."""
    if not changes:
        return LocalProvider(hosts, clock, price=config.price)
    return TraceProvider(
        hosts,
        clock,
        changes,
        scale=config.scale,
        notice_us=config.notice_us,
        price=config.price,
    )


class PooledInstances:
    """Instances of one kind, of all deployments. `run` must be running."""

    def __init__(
        self,
        kind: Kind,
        hosts: Hosts,
        provider: Provider,
        *,
        clock: Clock,
        fleet_of: FleetOf,
        closed_file: Path,
    ) -> None:
        """Go on with the slots that `closed_file` says were closed by hand.

        Raises:
            PlexError: `bad_request` for a file that is no such list.
        """
        self.kind = kind
        self.pool = Pool(read_closed(closed_file))
        self._closed_file = closed_file
        self.addresses: dict[SlotId, str] = {}
        """Where the instance of each slot answers."""
        self._hosts, self._provider, self._clock = hosts, provider, clock
        self._fleet_of = fleet_of
        self._starts: dict[SlotId, asyncio.Task[None]] = {}
        self._group: asyncio.TaskGroup | None = None

    async def run(self) -> None:
        """Keep deployments supplied until cancelled."""
        try:
            async with asyncio.TaskGroup() as self._group:
                self._group.create_task(self._provider.run(self.post))
                while True:
                    self.post(pool.PoolTicked(at_us=self._clock.monotonic_us()))
                    await self._clock.sleep(TICK_US)
        finally:
            self._group = None

    def post(self, event: pool.Event) -> None:
        """Tell the core, and do what it orders."""
        for order in self.pool.handle(event):
            self._perform(order)

    def close(self, slot_id: SlotId) -> None:
        """Use a slot no more until it is opened, after a restart of the service neither.

        Raises:
            PlexError: `disk_full`.
        """
        keep_closed(self._closed_file, self.pool.closed | {slot_id})
        self.post(pool.SlotClosed(slot_id=slot_id))

    def open(self, slot_id: SlotId) -> None:
        """Use a slot again that `close` closed.

        Raises:
            PlexError: `disk_full`.
        """
        keep_closed(self._closed_file, self.pool.closed - {slot_id})
        self.post(pool.SlotOpened(slot_id=slot_id))

    def slot_at(self, address: str) -> SlotId | None:
        """Return the slot of the instance at an address."""
        found = (slot_id for slot_id, known in self.addresses.items() if known == address)
        return next(found, None)

    def describe(self, address: str, view: service_pb2.InstanceView) -> None:
        """Say on which device an instance is, and at what price."""
        if slot_id := self.slot_at(address):
            view.device, view.price = slot_id, self.pool.slots[slot_id].price

    def without_instance(self) -> list[service_pb2.InstanceView]:
        """Return the slots whose instance has not joined yet, or which have none."""
        return [
            service_pb2.InstanceView(
                device=slot_id,
                kind=self.kind.name,
                phase="closed" if self._is_closed(slot_id) else slot.state.value,
                deployment_id=slot.user or "",
                price=slot.price,
                because=self.pool.why_idle(slot),
            )
            for slot_id, slot in self.pool.slots.items()
            if slot.state not in {State.UP, State.DRAINING}
        ]

    def _is_closed(self, slot_id: SlotId) -> bool:
        is_free = self.pool.slots[slot_id].state is State.FREE
        return is_free and slot_id in self.pool.closed

    def gone(self, address: str, *, because: str) -> None:
        """Take note that an instance broke, or without a cause, that it was drained."""
        slot_id = self.slot_at(address)
        if slot_id is None:
            return
        number = self.pool.slots[slot_id].number
        if because:
            self.post(pool.InstanceFailed(slot_id=slot_id, number=number, because=because))
        else:
            self.post(pool.SlotDrained(slot_id=slot_id, number=number))

    def _perform(self, order: pool.Order) -> None:
        if self._group is None:
            return
        match order:
            case pool.StartInstance():
                self._starts[order.slot_id] = self._group.create_task(self._start(order))
            case pool.DrainInstance():
                self._group.create_task(self._drain(order))
            case pool.StopInstance():
                self._group.create_task(self._stop(order))

    async def _start(self, order: pool.StartInstance) -> None:
        slot_id, number, deployment_id = order.slot_id, order.number, order.deployment_id
        try:
            address = await self._hosts.start(slot_id, number=number, deployment_id=deployment_id)
            fleet = self._fleet_of(deployment_id)
            if fleet is not None:
                self.addresses[slot_id] = address
                await fleet.add(address, kind=self.kind.name)
            self.post(pool.InstanceUp(slot_id=slot_id, number=number))
        except PlexError as error:
            log.warning("instance not started", slot=slot_id, because=error.message)
            failed = pool.InstanceFailed(slot_id=slot_id, number=number, because=error.message)
            self.post(failed)

    async def _drain(self, order: pool.DrainInstance) -> None:
        log.info("instance noticed", slot=order.slot_id, deployment=order.deployment_id)
        fleet = self._fleet_of(order.deployment_id)
        if fleet is None:
            self.post(pool.SlotDrained(slot_id=order.slot_id, number=order.number))
        else:
            await fleet.drain(self.addresses[order.slot_id])

    async def _stop(self, order: pool.StopInstance) -> None:
        """Kill a process, then have its fleet forget it: its calls break as they would by then."""
        slot_id = order.slot_id
        if start := self._starts.pop(slot_id, None):
            start.cancel()
        await self._hosts.stop(slot_id, number=order.number, deployment_id=order.deployment_id)
        address, fleet = self.addresses.pop(slot_id, ""), self._fleet_of(order.deployment_id)
        if address and fleet is not None:
            await fleet.drop(address, because=f"{slot_id} was taken back, or it was stopped")
        self.post(pool.InstanceStopped(slot_id=slot_id, number=order.number))
