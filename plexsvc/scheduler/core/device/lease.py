"""Leases: the right of a WPG to run on its devices, and the account of their use.

A device set has one executor at a time, its *holder*. Taking the devices makes a new lease number,
unless the WPG held all of them last. Whoever gives devices up is charged with what others waited
for it meanwhile.
"""

from __future__ import annotations

from plexsvc.ids import JobId, OperationId
from plexsvc.residency import ResidencyTrigger
from plexsvc.scheduler.core.actions import StartOperation
from plexsvc.scheduler.core.device import learning
from plexsvc.scheduler.core.queues import lanes
from plexsvc.scheduler.core.state import Cluster, Operation, Wpg
from plexsvc.scheduler.core.timeline import Span
from plexsvc.scheduler.core.timers import WatchTimer
from plexsvc.scheduler.core.transitions import OperationTrigger
from plexsvc.scheduler.core.vocabulary import OperationKind


def take(cluster: Cluster, wpg: Wpg) -> None:
    """Make `wpg` the holder of its devices."""
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


def release(cluster: Cluster, wpg: Wpg) -> None:
    """Give up the right to run; state and memory stay where they are."""
    for place in wpg.places:
        device = cluster.devices[place]
        if device.holder == wpg.wpg_id:
            device.holder = None
    _charge_waits(cluster, wpg)
    if wpg.busy_since_us is not None:
        spent_us = cluster.now_us - wpg.busy_since_us
        cluster.jobs[wpg.job_id].device_us += spent_us * len(wpg.places)
        for place in wpg.places:
            cluster.devices[place].busy_us += spent_us
        wpg.busy_since_us = None
    cluster.touch(wpg.wpg_id)


def start(cluster: Cluster, wpg: Wpg, operation: Operation) -> None:
    """Run a granted operation whose WPG's state is where it needs it."""
    job = cluster.jobs[wpg.job_id]
    if operation.kind is OperationKind.INITIALIZE:
        wpg.shift(ResidencyTrigger.BUILD_ORDERED)
    lanes.begin(cluster, wpg, operation)
    operation.apply(OperationTrigger.STARTED)
    operation.started_us = wpg.last_used_us = cluster.now_us
    job.phase = operation.kind
    if operation.needs_device:
        if not wpg.is_rollout:
            job.waited_us += cluster.now_us - (operation.eligible_us or cluster.now_us)
        spend_prefetch(cluster, wpg, is_hit=True)
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
    cluster.set_timer(WatchTimer(wpg.wpg_id), at_us=wpg.watch_us)


def ended(cluster: Cluster, wpg: Wpg, operation: Operation, *, run_us: int) -> None:
    """Record how long an operation took; give the devices up when nothing else of it runs."""
    run_us = run_us or cluster.now_us - operation.started_us
    learning.measured(cluster, wpg, operation, run_us=run_us)
    if not operation.needs_device:
        return
    note_span(
        cluster,
        wpg,
        kind=operation.kind,
        operation_id=operation.operation_id,
        start_us=operation.started_us,
    )
    if not wpg.running:
        release(cluster, wpg)


def note_span(
    cluster: Cluster,
    wpg: Wpg,
    *,
    kind: str,
    start_us: int,
    operation_id: OperationId | None = None,
    nbytes: int = 0,
) -> None:
    """Add what a WPG's devices did until now to the timeline; `nbytes` were moved on each."""
    for place in wpg.places:
        cluster.timeline.add(
            Span(
                index=cluster.timeline.next_index,
                place=place,
                kind=kind,
                job_id=wpg.job_id,
                deployment_id=wpg.deployment_id,
                operation_id=operation_id,
                start_us=start_us,
                end_us=cluster.now_us,
                nbytes=nbytes,
            )
        )


def spend_prefetch(cluster: Cluster, wpg: Wpg, *, is_hit: bool) -> None:
    """Count what became of a prefetch, if `wpg` was brought in by one."""
    if wpg.is_prefetched:
        wpg.is_prefetched = False
        cluster.prefetches.hits += is_hit
        cluster.prefetches.wasted += not is_hit


def charge(cluster: Cluster, waiter: JobId, blocker: JobId, *, waited_us: int) -> None:
    """Add to what a job waited because another, or its own switch, had its devices."""
    if waited_us > 0:
        pair = (waiter, blocker)
        cluster.waits[pair] = cluster.waits.get(pair, 0) + waited_us


def forget_waits(cluster: Cluster, job_id: JobId) -> None:
    """Drop what a job waited, and what others waited for it: nobody asks about it any more."""
    for pair in [pair for pair in cluster.waits if job_id in pair]:
        del cluster.waits[pair]


def _charge_waits(cluster: Cluster, holder: Wpg) -> None:
    """Charge the job that gives its devices up with what others waited for it meanwhile."""
    for wpg_id in cluster.groups.get(holder.wpg_id, ()):
        waiter = cluster.wpgs[wpg_id]
        head = lanes.head(cluster, waiter)
        if head is None or head.eligible_us is None or not head.needs_device:
            continue
        held_us = [
            cluster.devices[place].held_since_us
            for place in waiter.places
            if place in holder.places
        ]
        if waiter is not holder and held_us:
            since_us = max(head.eligible_us, min(held_us))
            charge(cluster, waiter.job_id, holder.job_id, waited_us=cluster.now_us - since_us)
