"""Leases: the right of a WPG to run on its devices, and the account of their use.

A device set has one executor at a time, its *holder*. Taking the devices makes a new lease number,
unless the WPG held all of them last: the numbers that a WPG is told only grow. Whoever gives
devices up is charged with what others waited for it meanwhile.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from plexsvc.ids import JobId, OperationId, WpgId
from plexsvc.residency import Residency, ResidencyTrigger
from plexsvc.scheduler.core.accounts import Charge, Usage
from plexsvc.scheduler.core.actions import StartOperation
from plexsvc.scheduler.core.cluster import Devices
from plexsvc.scheduler.core.device import learning, space
from plexsvc.scheduler.core.queues import lanes
from plexsvc.scheduler.core.state import Device, Operation, Wpg
from plexsvc.scheduler.core.timeline import Stretch
from plexsvc.scheduler.core.vocabulary import OperationKind, OperationTrigger, Place

CHARGES_KEPT_US: Final = 60_000_000


def take(devices: Devices, wpg: Wpg, *, victims: tuple[WpgId, ...] = ()) -> None:
    """Make `wpg` the holder of its devices.

    `victims` leave them under its lease number; through other devices one may know a later number
    than the one that `wpg` had.
    """
    wpg_id, lease_no, now_us = wpg.wpg_id, wpg.lease_no, devices.now_us
    others = [d for d in wpg.devices if d.last_holder != wpg_id or d.lease_no != lease_no]
    for device in wpg.devices:
        # Where another operation of the holder begins, others wait for it since its first.
        if device.holder is None or device.last_holder != wpg_id:
            device.held_since_us = now_us
        device.holder = wpg_id
    if others or any(devices.wpgs[v].lease_no > lease_no for v in victims):
        devices.last_lease_no += 1
        wpg.lease_no = devices.last_lease_no
        for device in wpg.devices:
            device.last_holder, device.lease_no = wpg_id, wpg.lease_no


def release(devices: Devices, wpg: Wpg) -> None:
    """Give up the right to run, if a WPG has it; state and memory stay where they are."""
    held = held_by(wpg)
    if held:
        spend(devices, wpg, held)
        _give_up(devices, wpg, held)
        wpg.busy_since_us = wpg.busy_with = None
        devices.touch(wpg.wpg_id)


def leave(devices: Devices, wpg: Wpg, rank: int, operation: Operation) -> None:
    """Give up the device of an instance that sleeps while an operation goes on without it."""
    note_span(
        devices,
        wpg,
        kind=operation.kind,
        operation_id=operation.operation_id,
        start_us=operation.started_us,
        places=(wpg.places[rank],),
    )
    wpg.left.add(rank)
    spend(devices, wpg, held_by(wpg))
    _give_up(devices, wpg, [wpg.devices[rank]])
    devices.touch(wpg.wpg_id)


def _give_up(devices: Devices, wpg: Wpg, held: Sequence[Device]) -> None:
    """Let others have some of a WPG's devices: those that waited for them are counted."""
    for device in held:
        device.holder = None
    _charge_waits(devices, wpg, held)
    now_us = devices.now_us
    for device in held:
        device.held_since_us = now_us


def held_by(wpg: Wpg) -> list[Device]:
    """Return the devices that a WPG holds."""
    own = wpg.wpg_id
    return [device for device in wpg.devices if device.holder == own]


def spend(devices: Devices, wpg: Wpg, held: Sequence[Device]) -> None:
    """Charge a job for the devices that its operations have had until now."""
    if wpg.busy_since_us is None or wpg.busy_with is None:
        return
    spent_us, wpg.busy_since_us = devices.now_us - wpg.busy_since_us, devices.now_us
    for device in held:
        device.busy_us += spent_us
    used = Usage(device_us=spent_us * len(held))
    charge(devices, wpg, wpg.busy_with.kind, used, operation=wpg.busy_with)


def charge(
    devices: Devices, wpg: Wpg, kind: str, used: Usage, *, operation: Operation | None
) -> None:
    """Add to what a job has used by a kind of work, and keep for which operation."""
    job = devices.jobs[wpg.job_id]
    job.used(kind).add(used)
    if operation is None:
        return
    job.num_charges += 1
    now_us, charges = devices.now_us, devices.turn.charges
    while charges and charges[0].at_us < now_us - CHARGES_KEPT_US:
        charges.popleft()
    charges.append(
        Charge(
            job_id=job.job_id,
            number=job.num_charges,
            kind=kind,
            operation_id=operation.operation_id,
            deployment_id=operation.deployment_id,
            seq=operation.seq,
            at_us=now_us,
            used=used,
        )
    )


def start(devices: Devices, wpg: Wpg, operation: Operation) -> None:
    """Run a granted operation whose WPG's state is where it needs it."""
    job, now_us = devices.jobs[wpg.job_id], devices.now_us
    if operation.kind is OperationKind.INITIALIZE and wpg.residency is Residency.NONE:
        wpg.shift(ResidencyTrigger.BUILD_ORDERED)
    lanes.begin(devices.queues, wpg, operation)
    operation.apply(OperationTrigger.STARTED)
    operation.started_us = wpg.last_used_us = now_us
    job.phase = operation.kind
    if operation.needs_device:
        if not wpg.is_rollout:
            job.waited_us += now_us - (operation.eligible_us or now_us)
        spend_prefetch(devices, wpg, is_hit=True)
        if wpg.busy_since_us is None:
            wpg.busy_since_us = now_us
            wpg.busy_with = operation
    devices.emit(
        StartOperation(
            operation_id=operation.operation_id, wpg_id=wpg.wpg_id, lease_no=wpg.lease_no
        )
    )
    # Another generate may run beside it.
    if wpg.is_rollout:
        devices.touch(wpg.wpg_id)


def ended(devices: Devices, wpg: Wpg, operation: Operation, *, run_us: int) -> None:
    """Record how long an operation took; give the devices up when nothing else of it runs."""
    # One that failed may not say how long it ran.
    run_us = run_us or devices.now_us - operation.started_us
    learning.measured(devices, wpg, operation, run_us=run_us)
    if not operation.needs_device:
        return
    note_span(
        devices,
        wpg,
        kind=operation.kind,
        operation_id=operation.operation_id,
        start_us=operation.started_us,
    )
    if not wpg.running:
        release(devices, wpg)
    elif wpg.busy_with is operation:
        spend(devices, wpg, held_by(wpg))
        others = (one for one in wpg.running.values() if one.needs_device)
        wpg.busy_with = next(others, operation)


def note_span(
    devices: Devices,
    wpg: Wpg,
    *,
    kind: str,
    start_us: int,
    operation_id: OperationId | None = None,
    nbytes: int = 0,
    places: tuple[Place, ...] = (),
) -> None:
    """Add what a WPG did until now, on all its devices or some; `nbytes` were moved on each."""
    devices.timeline.add(
        Stretch(
            places=places or wpg.kept(wpg.places),
            kind=kind,
            job_id=wpg.job_id,
            deployment_id=wpg.deployment_id,
            operation_id=operation_id,
            start_us=start_us,
            end_us=devices.now_us,
            nbytes=nbytes,
        )
    )


def spend_prefetch(devices: Devices, wpg: Wpg, *, is_hit: bool) -> None:
    """Count what became of a prefetch, if `wpg` was brought in by one."""
    if wpg.is_prefetched:
        wpg.is_prefetched = False
        devices.prefetches.hits += is_hit
        devices.prefetches.wasted += not is_hit


def charge_wait(devices: Devices, waiter: JobId, blocker: JobId, *, waited_us: int) -> None:
    """Add to what a job waited because another, or its own switch, had its devices."""
    if waited_us > 0:
        pair = (waiter, blocker)
        devices.waits[pair] = devices.waits.get(pair, 0) + waited_us


def unpin(devices: Devices, wpg: Wpg, operation: Operation) -> None:
    """Charge a job whose save or publish stops reading its state with who waited for that room."""
    if operation.needs_device or operation.operation_id not in wpg.running:
        return
    for waiter, since_us in _waiting_for(devices, wpg, wpg.devices):
        is_pinned = any(pinner is wpg for pinner in space.pinners(devices, waiter))
        if is_pinned and space.victims_of(devices, waiter) is None:
            waited_us = devices.now_us - max(since_us, operation.started_us)
            charge_wait(devices, waiter.job_id, wpg.job_id, waited_us=waited_us)


def _charge_waits(devices: Devices, holder: Wpg, given: Sequence[Device]) -> None:
    """Charge the job that gives devices up with what others waited for it meanwhile.

    Those that wait for others of its devices, too, wait on.
    """
    for waiter, since_us in _waiting_for(devices, holder, given):
        if all(device.holder != holder.wpg_id for device in waiter.devices):
            charge_wait(devices, waiter.job_id, holder.job_id, waited_us=devices.now_us - since_us)


def _waiting_for(
    devices: Devices, blocker: Wpg, among: Sequence[Device]
) -> Iterator[tuple[Wpg, int]]:
    """Yield who waits for some of `blocker`'s devices, and since when it could have had them."""
    for wpg_id in devices.groups.get(blocker.wpg_id, ()):
        if wpg_id == blocker.wpg_id:
            continue
        waiter = devices.wpgs[wpg_id]
        head = lanes.head(devices.queues, waiter)
        if head is None or head.eligible_us is None or not head.needs_device:
            continue
        held_us = [device.held_since_us for device in among if wpg_id in device.ranks]
        if held_us:
            yield waiter, max(head.eligible_us, min(held_us))
