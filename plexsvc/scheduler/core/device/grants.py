"""Who runs next: grants devices in turn, orders the moves of a context switch, starts operations.

A device set has one executor at a time (the *holder*). A grant names the operation; if its WPG's
state is not on the device, victims are parked least recently used first until it fits, then it is
loaded, then the operation starts: all under the grant's lease number. An operation that is first in
order but cannot be granted yet *claims* its devices, so that smaller ones cannot starve it; until
the time it can start, others may use those that are free (backfill, Lifka, JSSPP 1995). Devices
with nothing to do get the state that is expected to be needed next: a switch without an operation.
"""

from __future__ import annotations

from plexsvc.ids import MoveId, WpgId
from plexsvc.scheduler.core.actions import MoveState, SetTimer, StartOperation
from plexsvc.scheduler.core.device import contest, order, space
from plexsvc.scheduler.core.planning.runtime_rules import Entry
from plexsvc.scheduler.core.queues import lanes
from plexsvc.scheduler.core.state import (
    ON_DEVICE,
    Cluster,
    Deployment,
    Operation,
    Switch,
    Wpg,
)
from plexsvc.scheduler.core.transitions import OperationTrigger, ResidencyTrigger
from plexsvc.scheduler.core.vocabulary import (
    Fault,
    OperationKind,
    OperationState,
    Place,
    Residency,
    WpgState,
)


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
    if wpg.switch.operation_id is not None:
        contest.charge_switch(cluster, wpg, spent_us=cost_us)
    _end_switch(cluster, wpg)


def withdraw(cluster: Cluster, wpg: Wpg) -> Operation | None:
    """Take a grant back: its operation, if it was for one, waits again; the devices are free."""
    assert wpg.switch is not None, wpg
    operation_id, wpg.switch = wpg.switch.operation_id, None
    operation = None if operation_id is None else cluster.operations[operation_id]
    if operation is not None:
        operation.apply(OperationTrigger.WITHDRAWN)
    release_devices(cluster, wpg)
    return operation


def release_devices(cluster: Cluster, wpg: Wpg) -> None:
    """Give up the right to run; state and memory stay where they are."""
    for place in wpg.places:
        device = cluster.devices[place]
        if device.holder == wpg.wpg_id:
            device.holder = None
    contest.charge_waits(cluster, wpg)
    if wpg.busy_since_us is not None:
        spent_us = cluster.now_us - wpg.busy_since_us
        cluster.jobs[wpg.job_id].device_us += spent_us * len(wpg.places)
        for place in wpg.places:
            cluster.devices[place].busy_us += spent_us
        wpg.busy_since_us = None
    cluster.touch(wpg.wpg_id)


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
    if len(waiting) == 1 and _grant_at_once(cluster, *waiting.items()):
        return
    if waiting:
        _grant_in_order(cluster, waiting)
    elif cluster.planning.policy.rules.prefetches and len(members) > 1:
        _prefetch(cluster, members)


def _prefetch(cluster: Cluster, members: tuple[WpgId, ...]) -> None:
    """Bring in the state that is expected to be needed next, while nothing else is to do."""
    wpg = contest.expected_next(cluster, members)
    if wpg is None or any(cluster.devices[place].holder is not None for place in wpg.places):
        return
    victims = space.victims_of(cluster, wpg)
    if victims is None or contest.is_sooner(cluster, victims, than=wpg):
        return
    cluster.prefetches.ordered += 1
    _take_lease(cluster, wpg)
    _switch(cluster, wpg, None, victims=victims)


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


def _grant_at_once(cluster: Cluster, only: tuple[WpgId, Operation]) -> bool:
    """Grant the only one that waits its devices if they are idle and hold its state already."""
    wpg_id, operation = only
    wpg = cluster.wpgs[wpg_id]
    if wpg.residency is not Residency.DEVICE:
        return False
    if any(cluster.devices[place].holder not in {None, wpg_id} for place in wpg.places):
        return False
    _grant(cluster, wpg, operation, victims=())
    return True


def _grant_in_order(cluster: Cluster, waiting: dict[WpgId, Operation]) -> None:
    entries = contest.entries(cluster, waiting)
    claimed: dict[Place, int] = {}
    for entry in order.in_turn(entries, rules=cluster.planning.policy.rules, now_us=cluster.now_us):
        wpg = cluster.wpgs[WpgId(entry.job_id)]
        ends_us = cluster.now_us + entry.effective_us
        is_open = all(claimed.get(place, ends_us) >= ends_us for place in wpg.places)
        free_us = contest.free_at(cluster, wpg, entry=entry)
        victims = None
        if is_open and free_us <= cluster.now_us:
            victims = space.victims_of(cluster, wpg)
        for place in wpg.places:
            claimed[place] = min(free_us, claimed.get(place, free_us))
        if victims is not None and not _lingers(cluster, wpg, victims, entry=entry):
            _grant(cluster, wpg, waiting[wpg.wpg_id], victims=victims)


def _lingers(cluster: Cluster, wpg: Wpg, victims: tuple[WpgId, ...], *, entry: Entry) -> bool:
    """Keep the device for a victim whose burst goes on in a moment; looks again then."""
    until_us = contest.awaited_until(cluster, victims, entry=entry)
    if until_us <= cluster.now_us:
        return False
    cluster.emit(SetTimer(key=f"linger/{wpg.wpg_id}", at_us=until_us))
    return True


def _grant(cluster: Cluster, wpg: Wpg, operation: Operation, *, victims: tuple[WpgId, ...]) -> None:
    operation.apply(OperationTrigger.GRANTED)
    operation.granted_us = cluster.now_us
    _take_lease(cluster, wpg)
    if wpg.residency is Residency.DEVICE:
        _start(cluster, wpg, operation)
        return
    _switch(cluster, wpg, operation, victims=victims)


def _switch(
    cluster: Cluster, wpg: Wpg, operation: Operation | None, *, victims: tuple[WpgId, ...]
) -> None:
    """Begin to bring a WPG's state in, for an operation or ahead of one."""
    wpg.switch = Switch(
        operation_id=None if operation is None else operation.operation_id,
        started_us=cluster.now_us,
        victims=victims,
    )
    for victim_id in victims:
        victim = cluster.wpgs[victim_id]
        victim.lease_no = wpg.lease_no
        contest.spend_prefetch(cluster, victim, is_hit=False)
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
    operation_id, wpg.switch = wpg.switch.operation_id, None
    if operation_id is None:
        wpg.is_prefetched = True
        release_devices(cluster, wpg)
        return
    _start(cluster, wpg, cluster.operations[operation_id])


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
    if operation.needs_device and not wpg.is_rollout:
        waited_us = cluster.now_us - (operation.eligible_us or cluster.now_us)
        cluster.jobs[wpg.job_id].waited_us += waited_us
    if operation.needs_device:
        contest.spend_prefetch(cluster, wpg, is_hit=True)
        if wpg.busy_since_us is None:
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
