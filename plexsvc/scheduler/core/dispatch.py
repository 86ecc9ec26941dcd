"""Who runs next: grants devices by HRRS, orders the moves of a context switch, starts operations.

A device set has one executor at a time (the *holder*). A grant names the operation; if its WPG's
state is not on the device, victims are parked least recently used first until it fits, then it is
loaded, then the operation starts: all under the grant's lease number. An operation that is first in
order but cannot be granted yet *claims* its devices, so that smaller ones cannot starve it.
"""

from __future__ import annotations

from plexsvc.ids import MoveId, WpgId
from plexsvc.scheduler.core import lanes, order
from plexsvc.scheduler.core.actions import MoveState, SetTimer, StartOperation
from plexsvc.scheduler.core.state import (
    ON_DEVICE,
    Cluster,
    Deployment,
    Operation,
    Switch,
    Wpg,
)
from plexsvc.scheduler.core.transitions import OperationTrigger, ResidencyTrigger
from plexsvc.scheduler.core.words import (
    Fault,
    OperationKind,
    OperationState,
    Place,
    Residency,
    WpgState,
)

GIB = 1 << 30


def settle(cluster: Cluster) -> None:
    """Start whatever can start among the touched WPGs and those that share devices with them."""
    while cluster.dirty:
        first = next(iter(cluster.dirty))
        members = cluster.groups.get(first, ())
        for wpg_id in (first, *members):
            cluster.dirty.pop(wpg_id, None)
        _settle_group(cluster, members)


def advance_switch(cluster: Cluster, wpg: Wpg) -> None:
    """Go on with a granted switch once its victims are off the device."""
    assert wpg.switch is not None, wpg
    victims = [cluster.wpgs[v] for v in wpg.switch.victims if v in cluster.wpgs]
    if any(victim.residency in ON_DEVICE for victim in victims):
        return
    wpg.switch.parking_us = cluster.now_us - wpg.switch.started_us
    if wpg.residency is Residency.HOST:
        _order_move(cluster, wpg, to=Residency.DEVICE, lease_no=wpg.lease_no)
    else:
        _end_switch(cluster, wpg)


def finish_switch(cluster: Cluster, wpg: Wpg) -> None:
    """Record what the switch cost and start the operation it was for."""
    assert wpg.switch is not None, wpg
    cost_us = cluster.now_us - wpg.switch.started_us
    wpg.switch_cost_us = order.smoothed(wpg.switch_cost_us, cost_us)
    _end_switch(cluster, wpg)


def withdraw(cluster: Cluster, wpg: Wpg) -> Operation:
    """Take a grant back: the operation waits again and the devices are free."""
    assert wpg.switch is not None, wpg
    operation = cluster.operations[wpg.switch.operation_id]
    operation.apply(OperationTrigger.WITHDRAWN)
    wpg.switch = None
    release_devices(cluster, wpg)
    return operation


def release_devices(cluster: Cluster, wpg: Wpg) -> None:
    """Give up the right to run; state and memory stay where they are."""
    for place in wpg.places:
        device = cluster.devices[place]
        if device.holder == wpg.wpg_id:
            device.holder = None
    if wpg.busy_since_us is not None:
        spent_us = cluster.now_us - wpg.busy_since_us
        cluster.jobs[wpg.job_id].device_us += spent_us * len(wpg.places)
        for place in wpg.places:
            cluster.devices[place].busy_us += spent_us
        wpg.busy_since_us = None
    cluster.touch(wpg.wpg_id)


def resident_bytes(cluster: Cluster, place: Place) -> int:
    """Return the bytes that WPGs hold, or are about to hold, on a device."""
    return sum(
        bytes_at(cluster.wpgs[wpg_id], place)
        for wpg_id in cluster.devices[place].wpgs
        if cluster.wpgs[wpg_id].residency in ON_DEVICE
    )


def bytes_at(wpg: Wpg, place: Place) -> int:
    """Return what a WPG's state takes on one of its devices."""
    return wpg.device_bytes[wpg.places.index(place)] if wpg.device_bytes else 0


def next_startable(cluster: Cluster, deployment: Deployment) -> Operation | None:
    """Return the head of the line if nothing but a device keeps it from running."""
    while not deployment.is_held:
        operation = deployment.pending.get(deployment.next_seq)
        if operation is None or operation.state is not OperationState.STAGED:
            return None
        if deployment.running and not _may_overlap(cluster, deployment, operation):
            return None
        blocked = lanes.dependency(cluster, operation)
        if isinstance(blocked, Fault):
            lanes.refuse(cluster, operation, blocked)
            lanes.watch_gap(cluster, deployment)
            continue
        if blocked is not None and deployment.waits_for != blocked:
            _wait_for_unknown(cluster, operation)
        deployment.waits_for = blocked
        if blocked is not None:
            return None
        if operation.eligible_us is None:
            operation.eligible_us = cluster.now_us
        return operation
    return None


def _settle_group(cluster: Cluster, members: tuple[WpgId, ...]) -> None:
    waiting: dict[WpgId, Operation] = {}
    for wpg_id in members:
        wpg = cluster.wpgs[wpg_id]
        if wpg.state is WpgState.READY and wpg.move_id is None and wpg.switch is None:
            operation = _device_work(cluster, wpg)
            if operation is not None and wpg.retry_us <= cluster.now_us:
                waiting[wpg_id] = operation
    if waiting:
        _grant_in_order(cluster, waiting)


def _device_work(cluster: Cluster, wpg: Wpg) -> Operation | None:
    """Start managed work at the head of the line; return the device work that heads it then."""
    deployment = cluster.deployments[wpg.deployment_id]
    operation = next_startable(cluster, deployment)
    if operation is None or operation.needs_device:
        return operation
    operation.apply(OperationTrigger.GRANTED)
    operation.granted_us = cluster.now_us
    _start(cluster, wpg, operation)
    return None


def _grant_in_order(cluster: Cluster, waiting: dict[WpgId, Operation]) -> None:
    candidates = [_candidate(cluster, cluster.wpgs[w], op) for w, op in waiting.items()]
    claimed: set[Place] = set()
    for candidate in order.in_turn(candidates):
        wpg = cluster.wpgs[candidate.wpg_id]
        is_free = all(
            place not in claimed and cluster.devices[place].holder in {None, wpg.wpg_id}
            for place in wpg.places
        )
        victims = _victims(cluster, wpg) if is_free else None
        claimed.update(wpg.places)
        if victims is not None:
            _grant(cluster, wpg, waiting[wpg.wpg_id], victims=victims)


def _candidate(cluster: Cluster, wpg: Wpg, operation: Operation) -> order.Candidate:
    deployment = cluster.deployments[wpg.deployment_id]
    since_us = cluster.now_us if operation.eligible_us is None else operation.eligible_us
    wait_us = cluster.now_us - since_us
    is_resident = wpg.residency is Residency.DEVICE
    return order.Candidate(
        wpg_id=wpg.wpg_id,
        wait_us=wait_us,
        service_us=deployment.service_us.get(operation.kind, cluster.limits.prior_service_us),
        setup_us=0 if is_resident else _setup_us(cluster, wpg),
        is_follow_up=is_resident and wait_us == 0 and operation.submitted_us < cluster.now_us,
    )


def _setup_us(cluster: Cluster, wpg: Wpg) -> int:
    if wpg.switch_cost_us is not None:
        return wpg.switch_cost_us
    return max(wpg.device_bytes, default=0) * cluster.limits.prior_switch_us_per_gib // GIB


def _victims(cluster: Cluster, wpg: Wpg) -> tuple[WpgId, ...] | None:
    """Return whom to park so that `wpg` fits, or `None` if that cannot be done now."""
    if wpg.residency is Residency.DEVICE:
        return ()
    chosen: list[WpgId] = []
    for place in wpg.places:
        gained = sum(
            bytes_at(cluster.wpgs[v], place) for v in chosen if _lives_on(cluster, v, place)
        )
        free = cluster.devices[place].bytes_total - resident_bytes(cluster, place) + gained
        for victim in _parkable(cluster, place, keep=wpg.wpg_id):
            if free >= bytes_at(wpg, place):
                break
            if victim.wpg_id not in chosen:
                chosen.append(victim.wpg_id)
                free += bytes_at(victim, place)
        if free < bytes_at(wpg, place):
            return None
    return tuple(chosen)


def _lives_on(cluster: Cluster, wpg_id: WpgId, place: Place) -> bool:
    return place in cluster.wpgs[wpg_id].places


def _parkable(cluster: Cluster, place: Place, *, keep: WpgId) -> list[Wpg]:
    """Return idle residents of a device, least recently used first."""
    residents = [cluster.wpgs[w] for w in cluster.devices[place].wpgs if w != keep]
    idle = [
        wpg
        for wpg in residents
        if wpg.state is WpgState.READY
        and wpg.residency is Residency.DEVICE
        and wpg.switch is None
        and not wpg.is_rollout
        and not cluster.deployments[wpg.deployment_id].running
    ]
    return sorted(idle, key=lambda wpg: (wpg.last_used_us, wpg.wpg_id))


def _grant(cluster: Cluster, wpg: Wpg, operation: Operation, *, victims: tuple[WpgId, ...]) -> None:
    operation.apply(OperationTrigger.GRANTED)
    operation.granted_us = cluster.now_us
    _take_lease(cluster, wpg)
    if wpg.residency is Residency.DEVICE:
        _start(cluster, wpg, operation)
        return
    wpg.switch = Switch(
        operation_id=operation.operation_id, started_us=cluster.now_us, victims=victims
    )
    for victim_id in victims:
        victim = cluster.wpgs[victim_id]
        victim.lease_no = wpg.lease_no
        _order_move(cluster, victim, to=Residency.HOST, lease_no=wpg.lease_no)
    advance_switch(cluster, wpg)


def _take_lease(cluster: Cluster, wpg: Wpg) -> None:
    """Make `wpg` the holder; a new lease number unless it held all its devices last."""
    devices = [cluster.devices[place] for place in wpg.places]
    is_renewal = all(d.last_holder == wpg.wpg_id and d.lease_no == wpg.lease_no for d in devices)
    if not is_renewal:
        cluster.last_lease_no += 1
        wpg.lease_no = cluster.last_lease_no
    for device in devices:
        if device.last_holder != wpg.wpg_id or device.holder is None:
            device.held_since_us = cluster.now_us
        device.holder = device.last_holder = wpg.wpg_id
        device.lease_no = wpg.lease_no


def _order_move(cluster: Cluster, wpg: Wpg, *, to: Residency, lease_no: int) -> None:
    is_load = to is Residency.DEVICE
    wpg.shift(ResidencyTrigger.LOAD_ORDERED if is_load else ResidencyTrigger.OFFLOAD_ORDERED)
    cluster.last_move_no += 1
    wpg.move_id = MoveId(f"{cluster.epoch}.{cluster.last_move_no}")
    wpg.move_started_us = cluster.now_us
    cluster.emit(MoveState(wpg_id=wpg.wpg_id, move_id=wpg.move_id, to=to, lease_no=lease_no))


def _end_switch(cluster: Cluster, wpg: Wpg) -> None:
    assert wpg.switch is not None, wpg
    operation = cluster.operations[wpg.switch.operation_id]
    wpg.switch = None
    _start(cluster, wpg, operation)


def _start(cluster: Cluster, wpg: Wpg, operation: Operation) -> None:
    deployment = cluster.deployments[wpg.deployment_id]
    if operation.kind is OperationKind.INITIALIZE:
        wpg.shift(ResidencyTrigger.BUILD_ORDERED)
    lanes.begin(deployment, operation)
    lanes.watch_gap(cluster, deployment)
    operation.apply(OperationTrigger.STARTED)
    operation.started_us = cluster.now_us
    cluster.jobs[wpg.job_id].phase = operation.kind
    wpg.last_used_us = cluster.now_us
    if operation.needs_device and wpg.busy_since_us is None:
        wpg.busy_since_us = cluster.now_us
    if wpg.watch_us is None:
        watch(cluster, wpg, since_us=cluster.now_us)
    cluster.emit(
        StartOperation(
            operation_id=operation.operation_id, wpg_id=wpg.wpg_id, lease_no=wpg.lease_no
        )
    )
    if wpg.is_rollout:
        cluster.touch(wpg.wpg_id)


def watch(cluster: Cluster, wpg: Wpg, *, since_us: int) -> None:
    """Set the WPG's watchdog for an operation that started at `since_us`."""
    wpg.watch_us = since_us + cluster.limits.operation_timeout_us
    cluster.emit(SetTimer(key=f"watch/{wpg.wpg_id}", at_us=wpg.watch_us))


def _may_overlap(cluster: Cluster, deployment: Deployment, operation: Operation) -> bool:
    return (
        deployment.is_rollout
        and operation.kind is OperationKind.GENERATE
        and len(deployment.running) < cluster.limits.max_overlapping_generates
        and all(o.kind is OperationKind.GENERATE for o in deployment.running.values())
    )


def _wait_for_unknown(cluster: Cluster, operation: Operation) -> None:
    """Bound the wait for an `after` that nobody has submitted yet."""
    unseen = [o for o in operation.after if o not in cluster.operations]
    if unseen:
        at_us = cluster.now_us + cluster.limits.gap_timeout_us
        cluster.emit(SetTimer(key=f"after/{operation.operation_id.hex()}", at_us=at_us))
