"""Context switches: one WPG's state leaves the devices, another's comes in.

Theory of operation. A switch begins with a grant, or as a prefetch without an operation. Its
victims are parked first, all under the new holder's lease number; when the last one has left, the
state is loaded; then the operation starts. A move that finds no room takes the grant back, and the
WPG tries again after a pause; after `max_move_tries` the operation is refused. Any other failure
of a move means that the WPG cannot be trusted.

Instances that share devices in time switch likewise: they sleep and wake where others' state is
moved. Their first switch starts their processes, which take the devices' memory as they start.
"""

from __future__ import annotations

from plexsvc.errors import ErrorCode
from plexsvc.ids import WpgId
from plexsvc.residency import MOVING, ON_DEVICE, Residency, ResidencyTrigger
from plexsvc.scheduler.core.accounts import Usage
from plexsvc.scheduler.core.actions import MoveState, SpawnWpg
from plexsvc.scheduler.core.cluster import Devices
from plexsvc.scheduler.core.device import contest, lease, space
from plexsvc.scheduler.core.device.learning import smoothed
from plexsvc.scheduler.core.events import MoveFailed, ResidencyMoved
from plexsvc.scheduler.core.queues import endings, lanes
from plexsvc.scheduler.core.state import Operation, Switch, Wpg
from plexsvc.scheduler.core.timers import Timer
from plexsvc.scheduler.core.vocabulary import Fault, OperationKind, OperationTrigger, WpgState


def spawn_order(wpg: Wpg, *, replaces: WpgId | None) -> SpawnWpg:
    """Return the order for a WPG's processes."""
    return SpawnWpg(
        wpg_id=wpg.wpg_id,
        deployment_id=wpg.deployment_id,
        incarnation=wpg.incarnation,
        places=wpg.places,
        replaces=None if replaces == wpg.wpg_id else replaces,
    )


def spawn(devices: Devices, wpg: Wpg, *, replaces: WpgId | None = None) -> None:
    """Order a WPG's processes."""
    devices.emit(spawn_order(wpg, replaces=replaces))
    at_us = devices.now_us + devices.limits.spawn_timeout_us
    devices.set_timer(Timer.SPAWN, wpg.wpg_id, at_us=at_us)


def begin(
    devices: Devices, wpg: Wpg, operation: Operation | None, *, victims: tuple[WpgId, ...]
) -> None:
    """Bring a WPG's state in, for an operation or ahead of one; it holds its devices already."""
    wpg.switch = Switch(
        operation_id=None if operation is None else operation.operation_id,
        started_us=devices.now_us,
        victims=victims,
    )
    for victim_id in victims:
        victim = devices.wpgs[victim_id]
        victim.lease_no = wpg.lease_no
        lease.spend_prefetch(devices, victim, is_hit=False)
        _order_move(devices, victim, to=Residency.HOST)
    advance(devices, wpg)


def park(devices: Devices, wpg: Wpg) -> None:
    """Have a WPG of which nothing runs leave its devices, for what it does without them."""
    lease.spend_prefetch(devices, wpg, is_hit=False)
    _order_move(devices, wpg, to=Residency.HOST)


def part(devices: Devices, wpg: Wpg) -> None:
    """Have all of a WPG sleep, some of which has left its devices, once nothing of it runs."""
    is_still = not wpg.running and wpg.move_id is None and wpg.state is WpgState.READY
    if is_still and wpg.retry_us <= devices.now_us and space.may_sleep(devices, wpg):
        _order_move(devices, wpg, to=Residency.HOST)


def advance(devices: Devices, wpg: Wpg) -> None:
    """Go on with a WPG's switch, if it has one, once its victims are off the device."""
    if wpg.switch is None or wpg.move_id is not None:
        return
    # One that is gone has left the device.
    victims = [devices.wpgs[v] for v in wpg.switch.victims if v in devices.wpgs]
    if any(victim.residency in ON_DEVICE for victim in victims):
        return
    if wpg.residency is Residency.HOST:
        _order_move(devices, wpg, to=Residency.DEVICE)
    elif wpg.state is WpgState.SPAWNING:
        if wpg.residency is Residency.NONE:
            wpg.shift(ResidencyTrigger.BUILD_ORDERED)
            spawn(devices, wpg, replaces=devices.deployments[wpg.deployment_id].wpg_id)
    else:
        _end(devices, wpg, wpg.switch)


def moved(devices: Devices, event: ResidencyMoved) -> Wpg | None:
    """Go on with the switch that a move was for; return the WPG that moved."""
    wpg = devices.wpgs.get(event.wpg_id)
    if wpg is None or wpg.move_id != event.move_id:
        return None
    is_load = wpg.residency is Residency.LOADING
    wpg.shift(ResidencyTrigger.LOADED if is_load else ResidencyTrigger.OFFLOADED)
    wpg.move_id = None
    took_us, there = devices.now_us - wpg.move_started_us, wpg.kept(wpg.devices)
    for device in there:
        device.switch_us += took_us
        device.switches += is_load
    wanted_by = wpg.switch.operation_id if is_load and wpg.switch is not None else None
    lease.charge(
        devices,
        wpg,
        "switch_in" if is_load else "switch_out",
        Usage(count=len(there), switch_us=took_us * len(there), nbytes=event.nbytes),
        operation=None if wanted_by is None else devices.queues.operations[wanted_by],
    )
    lease.note_span(
        devices,
        wpg,
        kind="load" if is_load else "offload",
        start_us=wpg.move_started_us,
        nbytes=event.nbytes // len(there),
    )
    wpg.left.clear()
    devices.touch(wpg.wpg_id)
    if is_load and wpg.switch is not None:
        cost_us = devices.now_us - wpg.switch.started_us
        wpg.switch_cost_us = smoothed(wpg.switch_cost_us, cost_us)
        if wpg.switch.operation_id is not None:
            lease.charge_wait(devices, wpg.job_id, wpg.job_id, waited_us=cost_us)
        _end(devices, wpg, wpg.switch)
    for other in _waiting_for(devices, wpg):
        advance(devices, other)
    return wpg


def move_failed(devices: Devices, event: MoveFailed) -> list[Wpg]:
    """Put a switch off that found no room.

    Returns the WPGs that must be failed: one whose move failed otherwise, or those that there was
    no room to initialize.
    """
    wpg = devices.wpgs.get(event.wpg_id)
    if wpg is None or wpg.move_id != event.move_id:
        return []
    assert wpg.residency in MOVING, wpg
    wpg.move_id = None
    devices.touch(wpg.wpg_id)
    # It stays between the tiers: what it has on the device is not free before it is forgotten.
    if event.fault.code is not ErrorCode.NO_ROOM:
        return [wpg]
    wpg.shift(ResidencyTrigger.MOVE_FAILED)
    head = lanes.head(devices.queues, wpg)
    if wpg.left:
        _retry_later(devices, wpg)
    elif head is not None and head.is_on_host and wpg.switch is None:
        head.move_failures += 1
        if head.move_failures == devices.limits.max_move_tries:
            lanes.drop(devices.queues, head, event.fault)
        _retry_later(devices, wpg)
    return [
        waiter
        for waiter in [wpg, *_waiting_for(devices, wpg)]
        if waiter.switch is not None and not _put_off(devices, waiter, event.fault)
    ]


def withdraw(devices: Devices, wpg: Wpg) -> Operation | None:
    """Take a grant back: its operation, if it was for one, waits again; the devices are free."""
    assert wpg.switch is not None, wpg
    operation_id, wpg.switch = wpg.switch.operation_id, None
    operation = None if operation_id is None else devices.queues.operations[operation_id]
    if operation is not None:
        operation.apply(OperationTrigger.WITHDRAWN)
    lease.release(devices, wpg)
    return operation


def _order_move(devices: Devices, wpg: Wpg, *, to: Residency) -> None:
    is_load = to is Residency.DEVICE
    wpg.shift(ResidencyTrigger.LOAD_ORDERED if is_load else ResidencyTrigger.OFFLOAD_ORDERED)
    wpg.move_id = devices.new_move_id()
    wpg.move_started_us = devices.now_us
    devices.emit(
        MoveState(
            wpg_id=wpg.wpg_id,
            move_id=wpg.move_id,
            to=to,
            lease_no=wpg.lease_no,
            following=contest.following(devices, wpg) if is_load else (),
        )
    )


def _end(devices: Devices, wpg: Wpg, switch: Switch) -> None:
    """Start the operation a switch was for; after a prefetch, leave the devices to others."""
    wpg.switch = None
    if switch.operation_id is None:
        wpg.is_prefetched = True
        lease.release(devices, wpg)
    else:
        lease.start(devices, wpg, devices.queues.operations[switch.operation_id])


def _put_off(devices: Devices, wpg: Wpg, fault: Fault) -> bool:
    """Try a switch again later; False if it was the last try of a WPG that is not initialized."""
    operation = withdraw(devices, wpg)
    if operation is None:
        devices.prefetches.wasted += 1
    else:
        operation.move_failures += 1
    if operation is None or operation.move_failures < devices.limits.max_move_tries:
        _retry_later(devices, wpg)
        return True
    is_first = operation.kind is OperationKind.INITIALIZE
    # Its client may send it again. Nobody sends an `Initialize`, so its WPG has failed.
    endings.refuse(devices.queues, operation, fault, is_final=is_first)
    if not is_first:
        lanes.watch_gap(devices.queues, devices.deployments[wpg.deployment_id])
    return not is_first


def _retry_later(devices: Devices, wpg: Wpg) -> None:
    wpg.retry_us = devices.now_us + devices.limits.move_retry_us
    devices.set_timer(Timer.RETRY, wpg.wpg_id, at_us=wpg.retry_us)


def _waiting_for(devices: Devices, victim: Wpg) -> list[Wpg]:
    """Return the WPGs whose switch waits for `victim` to leave the device."""
    members = [devices.wpgs[w] for w in devices.groups[victim.wpg_id]]
    return [w for w in members if w.switch is not None and victim.wpg_id in w.switch.victims]
