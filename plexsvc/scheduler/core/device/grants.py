"""Grants: which waiting operations get their devices now, and which state is brought in ahead.

An operation is granted its devices in its turn (`contest`). If its WPG's state is not there, a
context switch parks idle WPGs, least recently used first, and loads it (`switch`). An operation
that is first in order but cannot be granted yet *claims* its devices, so that smaller ones cannot
starve it. While a save or publish reads state there that would have to leave first, it claims
nothing. Devices with nothing to do get the state that is expected to be needed next: a prefetch.
"""

from __future__ import annotations

from plexsvc.ids import WpgId
from plexsvc.residency import Residency
from plexsvc.scheduler.core.cluster import Devices
from plexsvc.scheduler.core.device import contest, lease, space, switch
from plexsvc.scheduler.core.place import hosts
from plexsvc.scheduler.core.planning.runtime_rules import Order
from plexsvc.scheduler.core.queues import lanes
from plexsvc.scheduler.core.state import Operation, Wpg
from plexsvc.scheduler.core.timers import Timer
from plexsvc.scheduler.core.vocabulary import OperationTrigger, Place, WpgState


def settle(devices: Devices) -> None:
    """Start whatever can start among the touched WPGs and those that share devices with them."""
    dirty, groups = devices.turn.dirty, devices.groups
    while dirty:
        first = next(iter(dirty))
        del dirty[first]
        members = groups.get(first, ())
        # One look serves all who share devices.
        for wpg_id in members if dirty else ():
            dirty.pop(wpg_id, None)
        waiting = _waiting(devices, members)
        if not waiting:
            # Who shares with nobody has its state where it needs it.
            if devices.order is Order.PLEX and len(members) > 1:
                _prefetch(devices, members)
            continue
        wpgs = [devices.wpgs[wpg_id] for wpg_id in waiting]
        if all(map(_is_kept_out, wpgs)):
            continue  # whatever their order: looked at again when a holder gives its devices up
        # Most operations: nobody to compare with, and nothing to move.
        if len(wpgs) == 1 and wpgs[0].residency is Residency.DEVICE:
            _grant(devices, wpgs[0], waiting[wpgs[0].wpg_id], victims=())
        else:
            _grant_in_order(devices, waiting)


def _waiting(devices: Devices, members: tuple[WpgId, ...]) -> dict[WpgId, Operation]:
    """Return the device work that heads each line; what needs no device is started."""
    waiting: dict[WpgId, Operation] = {}
    wpgs, deployments = devices.wpgs, devices.deployments
    for wpg_id in members:
        wpg = wpgs[wpg_id]
        if wpg.left:  # it sleeps whole before it has its devices again
            switch.part(devices, wpg)
            continue
        if wpg.initialize is None and not deployments[wpg.deployment_id].pending:
            continue
        is_to_start = wpg.state is WpgState.SPAWNING and wpg.initialize is not None
        may_work = wpg.state is WpgState.READY or is_to_start
        if may_work and wpg.move_id is None and wpg.switch is None:
            operation = _work_of(devices, wpg)
            if operation is not None and wpg.retry_us <= devices.now_us:
                waiting[wpg_id] = operation
    return waiting


def _is_kept_out(wpg: Wpg) -> bool:
    """Return whether somebody else holds one of a WPG's devices."""
    own = wpg.wpg_id
    for device in wpg.devices:  # noqa: SIM110 - asked of each device after each event
        if device.holder is not None and device.holder != own:
            return True
    return False


def _prefetch(devices: Devices, members: tuple[WpgId, ...]) -> None:
    """Bring in the state that is expected to be needed next, while nothing else is to do."""
    wpg = contest.expected_next(devices, members)
    if wpg is None or any(device.holder is not None for device in wpg.devices):
        return
    victims = space.victims_of(devices, wpg)
    if victims is None or contest.is_sooner(devices, victims, than=wpg):
        return
    devices.prefetches.ordered += 1
    lease.take(devices, wpg, victims=victims)
    switch.begin(devices, wpg, None, victims=victims)


def _work_of(devices: Devices, wpg: Wpg) -> Operation | None:
    """Start what heads the line if it needs no device; else return it.

    A step on the host has its WPG parked first.
    """
    operation = lanes.startable(devices.queues, wpg)
    if operation is None or operation.needs_device:
        return operation
    if operation.is_on_host and wpg.residency is not Residency.HOST:
        if wpg.retry_us <= devices.now_us:
            switch.park(devices, wpg)
        return None
    operation.apply(OperationTrigger.GRANTED)
    operation.granted_us = devices.now_us
    hosts.copy(devices.placement, wpg, operation)
    lease.start(devices, wpg, operation)
    return None


def _grant_in_order(devices: Devices, waiting: dict[WpgId, Operation]) -> None:
    entries = contest.entries(devices, waiting)
    claimed: set[Place] = set()
    for entry in contest.in_turn(entries, order=devices.order, now_us=devices.now_us):
        wpg = devices.wpgs[WpgId(entry.resident_id)]
        victims = None
        if not _is_kept_out(wpg) and claimed.isdisjoint(wpg.places):
            victims = space.victims_of(devices, wpg)
            if victims is None and space.pinners(devices, wpg):
                continue
        claimed.update(wpg.places)
        if victims is None:
            continue
        until_us = contest.awaited_until(devices, victims, entry=entry)
        if until_us > devices.now_us:  # a victim's burst goes on in a moment: look again then
            devices.set_timer(Timer.LINGER, wpg.wpg_id, at_us=until_us)
        else:
            _grant(devices, wpg, waiting[wpg.wpg_id], victims=victims)


def _grant(devices: Devices, wpg: Wpg, operation: Operation, *, victims: tuple[WpgId, ...]) -> None:
    operation.apply(OperationTrigger.GRANTED)
    operation.granted_us = devices.now_us
    lease.take(devices, wpg, victims=victims)
    if wpg.residency is Residency.DEVICE:
        lease.start(devices, wpg, operation)
        return
    switch.begin(devices, wpg, operation, victims=victims)
