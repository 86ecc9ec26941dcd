"""Pools of instances that come and go: of spot devices, and of serving engines' guests.

All managers of a cluster share them, so they are in the scheduler's process. Each starts, drains
and stops instances as its core orders. What operators closed is kept in a file.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Final

from plexclient.wire.v1 import service_pb2
from plexsvc.clock import Clock
from plexsvc.errors import ErrorCode, PlexError, bad_request, not_found
from plexsvc.ids import DeploymentId
from plexsvc.log import Log
from plexsvc.rollout.config import SpotConfig
from plexsvc.rollout.core import pool
from plexsvc.rollout.core.instances import SERVING, SPOT, Kind
from plexsvc.rollout.core.pool import Pool, SlotId, State
from plexsvc.rollout.links import LedDeployment
from plexsvc.rollout.providers.base import Hosts, Provider
from plexsvc.rollout.providers.lent import LentEngines, Offer
from plexsvc.rollout.providers.local import LocalProvider
from plexsvc.rollout.providers.trace import Change, TraceProvider, read_trace

log = Log(__name__)

TICK_US: Final = 500_000


class PooledInstances:
    """Instances of one kind, of all deployments. `run` must be running."""

    def __init__(
        self,
        kind: Kind,
        hosts: Hosts,
        provider: Provider,
        *,
        clock: Clock,
        deployments: Mapping[str, LedDeployment],
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
        self._deployments = deployments
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
                phase="closed"
                if slot.state is State.FREE and slot_id in self.pool.closed
                else slot.state.value,
                deployment_id=slot.user or "",
                price=slot.price,
                because=self.pool.why_idle(slot),
            )
            for slot_id, slot in self.pool.slots.items()
            if slot.state not in {State.UP, State.DRAINING}
        ]

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
            deployment = self._deployments.get(deployment_id)
            if deployment is not None:
                self.addresses[slot_id] = address
                await deployment.add(address, kind=self.kind.name)
            self.post(pool.InstanceUp(slot_id=slot_id, number=number))
        except PlexError as error:
            log.warning("instance not started", slot=slot_id, because=error.message)
            failed = pool.InstanceFailed(slot_id=slot_id, number=number, because=error.message)
            self.post(failed)

    async def _drain(self, order: pool.DrainInstance) -> None:
        log.info("instance noticed", slot=order.slot_id, deployment=order.deployment_id)
        deployment = self._deployments.get(order.deployment_id)
        if deployment is None:
            self.post(pool.SlotDrained(slot_id=order.slot_id, number=order.number))
        else:
            await deployment.drain(self.addresses[order.slot_id])

    async def _stop(self, order: pool.StopInstance) -> None:
        """Kill a process, then have its deployment forget it: its calls break by then anyway."""
        slot_id = order.slot_id
        if start := self._starts.pop(slot_id, None):
            start.cancel()
        await self._hosts.stop(slot_id, number=order.number, deployment_id=order.deployment_id)
        address = self.addresses.pop(slot_id, "")
        deployment = self._deployments.get(order.deployment_id)
        if address and deployment is not None:
            because = f"{slot_id} was taken back, or it was stopped"
            await deployment.drop(address, because=because)
        self.post(pool.InstanceStopped(slot_id=slot_id, number=order.number))


class Pools:
    """The pools of a cluster."""

    def __init__(self, *, clock: Clock, directory: Path) -> None:
        """Begin without deployments.

        `directory` keeps the names of spot devices and engines that operators closed.

        Raises:
            PlexError: `bad_request` for a file there that is no such list.
        """
        self._clock, self._directory = clock, directory
        self._deployments: dict[str, LedDeployment] = {}
        self._lent = LentEngines(clock)
        self.lent = self._pooled(SERVING, self._lent, self._lent)
        self.spot: PooledInstances | None = None

    @property
    def _pools(self) -> list[PooledInstances]:
        return [self.lent] if self.spot is None else [self.spot, self.lent]

    def bill(self, deployment_id: str, use: service_pb2.JobUse) -> None:
        """Add to `use` what a deployment had of spot devices and lent engines, and its cost."""
        for one in self._pools:
            if found := one.pool.bills.get(DeploymentId(deployment_id)):
                use.pooled_us += found.held_us
                use.cost += found.cost

    def offer(self, request: service_pb2.LendInstanceRequest) -> None:
        """Let deployments have the guest of a serving engine until its lease ends; 0 withdraws it.

        Raises:
            PlexError: `bad_request`, naming the field; `queue_full`.
        """
        offer = Offer(
            name=request.name,
            address=request.address,
            model=request.model,
            price=request.price,
            owner=request.owner,
            lend_to=frozenset(request.lend_to),
        )
        self._lent.lend(offer, lease_us=request.lease_us)

    def use(
        self, hosts: Hosts, changes: Sequence[Change], *, config: SpotConfig
    ) -> PooledInstances:
        """Give deployments spot instances from now on, while what this returns runs."""
        provider: Provider = LocalProvider(hosts, self._clock, price=config.price)
        if changes:
            provider = TraceProvider(
                hosts,
                self._clock,
                changes,
                scale=config.scale,
                notice_us=config.notice_us,
                price=config.price,
            )
        self.spot = self._pooled(SPOT, hosts, provider)
        for deployment in self._deployments.values():  # of an earlier service
            if deployment.initialized is not None:
                self.spot.post(deployment.wants(SPOT.name))
        return self.spot

    def _pooled(self, kind: Kind, hosts: Hosts, provider: Provider) -> PooledInstances:
        return PooledInstances(
            kind,
            hosts,
            provider,
            clock=self._clock,
            deployments=self._deployments,
            closed_file=self._directory / f"closed-{kind.name}.json",
        )

    def drain(self, device: str) -> None:
        """Have the samples of an instance go on elsewhere, and close its spot device or engine.

        Raises:
            PlexError: `not_found` when there is none of that name; `disk_full`.
        """
        self._pool_of(device).close(device)

    def open(self, device: str) -> None:
        """Open a spot device or engine that `drain` closed.

        Raises:
            PlexError: `not_found` when there is none of that name; `bad_request` when it is not
                closed; `disk_full`.
        """
        found = self._pool_of(device)
        if device not in found.pool.closed:
            is_leaving = found.pool.slots[device].is_noticed
            was = "to be taken back by its provider" if is_leaving else "open"
            raise bad_request(
                f"{found.kind.name} device {device} was not drained by `plexctl instance drain`: "
                f"it is {was}"
            )
        found.open(device)

    def _pool_of(self, device: str) -> PooledInstances:
        for one in self._pools:
            if device in one.pool.slots or device in one.pool.closed:
                return one
        raise not_found(
            f"no spot device or serving engine {device!r}; `plexctl instance list` shows them. "
            "Dedicated instances leave with `plexctl node drain`"
        )


def changes_of(config: SpotConfig) -> Sequence[Change]:
    """Return the changes of the configured trace, none without one.

    Raises:
        PlexError: `bad_request` for a trace that cannot be.
    """
    return read_trace(Path(config.trace), segment=config.segment) if config.trace else ()


def read_closed(path: Path) -> frozenset[SlotId]:
    """Return the slots that the file names, none if there is no such file.

    Raises:
        PlexError: `bad_request` for a file that nobody here wrote.
    """
    try:
        found = json.loads(path.read_text())
    except FileNotFoundError:
        return frozenset()
    except (OSError, ValueError) as error:
        raise _unreadable(path, str(error)) from error
    if not isinstance(found, list) or not all(isinstance(one, str) for one in found):
        raise _unreadable(path, "it is not a list of names")
    return frozenset(found)


def keep_closed(path: Path, closed: Iterable[SlotId]) -> None:
    """Write the slots in one step.

    Raises:
        PlexError: `disk_full`, with the file as it was.
    """
    unfinished = path.with_name(f".{path.name}")
    try:
        unfinished.write_text(json.dumps(sorted(closed)))
        unfinished.replace(path)
    except OSError as error:
        raise PlexError(
            ErrorCode.DISK_FULL,
            f"what is closed cannot be kept in {path} ({error}); nothing was changed. Make room "
            "and ask again",
        ) from error


def _unreadable(path: Path, because: str) -> PlexError:
    return bad_request(
        f"{path}, the list of closed spot devices, cannot be read: {because}. Remove it, and close "
        "devices again with `plexctl instance drain`"
    )
