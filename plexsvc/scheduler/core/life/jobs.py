"""Jobs: opened, pinned, ended, and dropped once none of their processes is left.

One operation may be cancelled, too: what waits is refused, what can be ended without harm is ended.
That is a generate, a seed, and a save whose copy is being written. Other operations that run end by
themselves: they change state, and half a change is no state.
"""

from __future__ import annotations

from typing import Final

from plexsvc.errors import ErrorCode
from plexsvc.ids import OperationId, show
from plexsvc.scheduler.core.cluster import Devices, Lives
from plexsvc.scheduler.core.device import switch
from plexsvc.scheduler.core.events import (
    CancelRequested,
    ControllerReplaced,
    JobEndRequested,
    JobPinned,
    JobSubmitted,
)
from plexsvc.scheduler.core.life import deployments, wpgs
from plexsvc.scheduler.core.place import hosts, placing
from plexsvc.scheduler.core.queues import endings, lanes
from plexsvc.scheduler.core.state import JobEntry
from plexsvc.scheduler.core.vocabulary import (
    TERMINAL,
    Fault,
    JobState,
    OperationKind,
    OperationState,
)

ENDABLE: Final = frozenset({OperationKind.GENERATE, OperationKind.SEED})

MAX_ENDED_JOBS: Final = 4096
"""Ended jobs the core remembers, to answer `job_ended` rather than `not_found`."""

MAX_USED_JOBS: Final = 256
"""Ended jobs of which the core keeps what they used: the store has it some seconds later."""


def open_job(lives: Lives, event: JobSubmitted) -> None:
    """Record a new job; a known one stays as it is."""
    if event.job_id not in lives.jobs:
        lives.roll.jobs[event.job_id] = JobEntry(
            job_id=event.job_id,
            tenant=event.tenant,
            name=event.name,
            priority=event.priority,
            max_slowdown_ppm=event.max_slowdown_ppm,
            expected_steps=event.expected_steps,
        )


def pin(devices: Devices, event: JobPinned) -> None:
    """Forbid, or allow again, that repacking moves a job."""
    job = devices.jobs.get(event.job_id)
    if job is not None:
        job.is_pinned = event.is_pinned


def end(lives: Lives, event: JobEndRequested) -> None:
    """Refuse what a job has waiting, let what runs end, then stop its processes."""
    job = lives.jobs.get(event.job_id)
    if job is None or job.ending is not None:
        return
    job.ending, job.reason = event.outcome, event.reason
    is_cancelled = event.outcome is JobState.CANCELLED
    fault = Fault(
        code=event.code or (ErrorCode.CANCELLED if is_cancelled else ErrorCode.JOB_ENDED),
        message=f"job {job.job_id} ended as {event.outcome}: {event.reason or 'no reason given'}",
        facts=(("job", job.job_id),),
    )
    for deployment_id in job.deployments:
        deployment = lives.deployments[deployment_id]
        if deployment_id in lives.placement.unplaced:
            placing.withdraw(lives.placement, deployment)
            deployments.fail(lives, deployment, fault)
        deployments.refuse_waiting(lives, deployment, fault)
        wpg = lives.wpg_of(deployment)
        if wpg is not None:
            for operation in wpg.running.values():
                if operation.kind in ENDABLE:
                    wpgs.cancel(lives, operation.operation_id, wpg.wpg_id)
            if is_cancelled:
                wpgs.cancel_writing(lives, wpg)
            wpgs.stop_when_idle(lives, wpg)
    for wpg in lives.coming(job.job_id):
        wpgs.refuse_waiting(lives, wpg, fault)
        wpgs.stop_when_idle(lives, wpg)
    drop_ended(lives, job)


def drop_ended(lives: Lives, job: JobEntry) -> None:
    """Drop an ending job once none of its processes is left."""
    if job.ending is None or any(w.job_id == job.job_id for w in lives.wpgs.values()):
        return
    job.state = job.ending
    operations, ended = lives.queues.operations, lives.roll.ended
    for deployment_id in job.deployments:
        deployment = lives.roll.deployments.pop(deployment_id)
        hosts.charge_versions(lives.placement, deployment)
        for operation_id in deployment.answered.values():
            del operations[operation_id]
        operations.pop(deployment.initialize_id, None)
    del lives.roll.jobs[job.job_id]
    lives.roll.used[job.job_id] = (job.tenant, job.usage)
    if len(lives.roll.used) > MAX_USED_JOBS:
        lives.roll.used.popitem(last=False)
    ended[job.job_id] = job.state
    if len(ended) > MAX_ENDED_JOBS:
        forgotten, _ = ended.popitem(last=False)
        waits = lives.waits
        for pair in [pair for pair in waits if forgotten in pair]:
            del waits[pair]
    deployments.announce_job(lives, job)


def cancel(devices: Devices, event: CancelRequested) -> None:
    """End an operation that its client does not want any more; its number is used."""
    _cancel(devices, event.operation_id)


def cancel_all(devices: Devices, event: ControllerReplaced) -> None:
    """End all operations of a job, and count numbers that did not come as used.

    What runs and cannot be ended ends by itself.
    """
    job = devices.jobs.get(event.job_id)
    for deployment_id in () if job is None else job.deployments:
        deployment = devices.deployments[deployment_id]
        wpg = devices.wpg_of(deployment)
        waiting = [operation for _, operation in sorted(deployment.pending.items())]
        running = [] if wpg is None else [*wpg.running, *wpg.writing]
        for operation_id in (*running, *(operation.operation_id for operation in waiting)):
            _cancel(devices, operation_id)
        # A number that never came would hold up what the next controller sends.
        last = max((*deployment.consumed, *(one.seq for one in waiting)), default=0)
        deployment.consumed |= set(range(deployment.next_seq, last + 1))
        endings.advance(deployment)
        lanes.watch_gap(devices.queues, deployment)


def _cancel(devices: Devices, operation_id: OperationId) -> None:
    operation = devices.queues.operations.get(operation_id)
    if operation is None or operation.state in TERMINAL:
        return
    if operation.kind is OperationKind.INITIALIZE:
        return
    wpg = devices.wpg_of(devices.deployments[operation.deployment_id])
    if operation.state is OperationState.RUNNING:
        is_written = wpg is not None and operation_id in wpg.writing
        if operation.wpg_id is not None and (is_written or operation.kind in ENDABLE):
            wpgs.cancel(devices, operation_id, operation.wpg_id)
        return
    granted = None if wpg is None else wpg.switch
    if wpg is not None and granted is not None and granted.operation_id == operation_id:
        switch.withdraw(devices, wpg)
    fault = Fault(
        code=ErrorCode.CANCELLED,
        message=f"{show(operation_id)} was cancelled before it ran",
    )
    lanes.drop(devices.queues, operation, fault)
