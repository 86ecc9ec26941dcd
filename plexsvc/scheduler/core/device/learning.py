"""Learning: the cycle of a training deployment, the cost of its operations, its next arrival.

A job has a clock of its own, which shows what the time would be had it run alone: waits of training
operations for their devices do not count. The clock of each operation follows from what the job had
seen end before it: training that waited beside a rollout costs nothing while the rollout lasts as
long. So the measured cycle is the one the job would have alone, of whatever shape. What a rollout
does on the devices that its job trains on is a part of that training's cycle. A cycle begins with
the first operation after the job published weights; a job that never publishes begins it with its
first phase. What came before the first whole cycle is part of none.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from plexsvc.ids import DeploymentId
from plexsvc.scheduler.core.actions import KeepProfile
from plexsvc.scheduler.core.cluster import Devices
from plexsvc.scheduler.core.place import demands, placing
from plexsvc.scheduler.core.planning.profile import SECOND_US, Profile, Segment
from plexsvc.scheduler.core.planning.profiler import (
    CycleProfiler,
    KeptProfile,
    News,
    is_felt,
)
from plexsvc.scheduler.core.queues import lanes
from plexsvc.scheduler.core.state import DeploymentEntry, JobEntry, Operation, Pattern, Wpg
from plexsvc.scheduler.core.timers import Timer
from plexsvc.scheduler.core.vocabulary import JobState, OperationKind

UNMEASURED: Final = frozenset({OperationKind.INITIALIZE, OperationKind.LOAD})
"""Kinds that happen once, at the start, and are part of no cycle."""

ROLLS_OUT: Final = frozenset({OperationKind.GENERATE, OperationKind.SEED})
"""Kinds that are a part of the training's cycle where a rollout is on its devices."""

DRIFT: Final = 8
"""A period, or a busy time, off by more than one over this is planned anew."""

PRIOR_SERVICE_US: Final = 100_000
"""Run time assumed of an operation kind never measured on its deployment."""

PROBES_AT_WORK: Final = 6
"""Times that the limit of a probe may pass while the job is at work."""

PROBE_PERIOD_US: Final = 60 * SECOND_US
"""Period given to a deployment of which only the busy share is known."""


def predicted_us(deployment: DeploymentEntry, operation: Operation) -> int:
    """Return how long an operation is expected to run."""
    return deployment.pattern.run_us.get(operation.kind, PRIOR_SERVICE_US)


def smoothed(previous: int | None, measured: int) -> int:
    """Return the exponentially weighted mean after one more measurement (weight one quarter)."""
    if previous is None:
        return measured
    return previous + (measured - previous) // 4


def measured(devices: Devices, wpg: Wpg, operation: Operation, *, run_us: int) -> None:
    """Learn from a finished operation what its kind costs; an `Initialize` does not come again."""
    if operation.kind is OperationKind.INITIALIZE:
        return
    deployment = devices.deployments[wpg.deployment_id]
    job, pattern, now_us = devices.jobs[wpg.job_id], deployment.pattern, devices.now_us
    pattern.run_us[operation.kind] = smoothed(pattern.run_us.get(operation.kind), max(1, run_us))
    own_us, since_us = operation.own_us, operation.eligible_us or operation.started_us
    if operation.needs_device and not wpg.is_rollout:
        own_us, since_us = _own_start_us(deployment, job, operation), operation.started_us
        if operation.kind not in UNMEASURED:
            _observe(devices, wpg, operation, own_us=own_us)
        pattern.own_end_us = own_us + now_us - since_us
    elif operation.needs_device and deployment.where_it_trains:
        since_us = operation.started_us
        is_in_cycle = operation.kind in ROLLS_OUT
        for trained in _trained_there(devices, wpg) if is_in_cycle else ():
            _observe(devices, trained, operation, own_us=own_us)
            there = devices.deployments[trained.deployment_id].pattern
            there.own_end_us = own_us + now_us - since_us
    elif wpg.is_shared:
        since_us = operation.started_us  # its wait for devices is no part of its job's cycle
        _observe_stage(devices, wpg, run_us=now_us - since_us)
    job.own_us = max(job.own_us, own_us + now_us - since_us)
    job.seen_us = now_us


def _trained_there(devices: Devices, wpg: Wpg) -> list[Wpg]:
    """Return the WPGs in whose cycles is what a rollout does on the devices of its job's training.

    Each of its devices counts for one.
    """
    mine = [devices.deployments[d] for d in devices.jobs[wpg.job_id].deployments]
    found: list[Wpg] = []
    left = set(wpg.places)
    for trained in (devices.wpg_of(one) for one in mine if not one.is_rollout):
        if trained is not None and not left.isdisjoint(trained.places):
            left -= set(trained.places)
            found.append(trained)
    return found


def start_probe(devices: Devices, deployment: DeploymentEntry) -> None:
    """Bound the time a cold deployment keeps its group to itself."""
    pattern, job = deployment.pattern, devices.jobs[deployment.job_id]
    pattern.since_us, pattern.busy_us = devices.now_us, 0
    if pattern.began_us is None:
        pattern.began_us = job.own_now_us(devices.now_us)
    key = demands.profile_key(devices.placement, deployment)
    warm = devices.placement.book.warm(key, now_us=devices.now_us)
    if warm is not None:
        pattern.cycles = CycleProfiler(known=warm.profile)
        return
    at_us = devices.now_us + devices.limits.probe_timeout_us
    devices.set_timer(Timer.PROBE, deployment.deployment_id, at_us=at_us)


def end_probe(devices: Devices, deployment_id: DeploymentId) -> None:
    """Plan a deployment whose cycle never came by the share of time it kept its devices busy.

    While its job is at work its cycle may still come: a rollout may last as long as a probe.
    """
    deployment = devices.deployments[deployment_id]
    pattern = deployment.pattern
    elapsed_us, limit_us = devices.now_us - pattern.since_us, devices.limits.probe_timeout_us
    if elapsed_us < limit_us or not demands.is_placed(devices.placement, deployment):
        return
    wpg, job = devices.wpg_of(deployment), devices.jobs[deployment.job_id]
    has_work = bool(deployment.pending) or (wpg is not None and bool(wpg.running))
    is_at_work = has_work or lanes.rolls_out(devices.queues, job)
    if elapsed_us < PROBES_AT_WORK * limit_us and is_at_work:
        devices.set_timer(Timer.PROBE, deployment_id, at_us=devices.now_us + limit_us)
        return
    busy_us = max(1, pattern.busy_us * PROBE_PERIOD_US // elapsed_us)
    profile = Profile(
        period_us=PROBE_PERIOD_US,
        segments=(Segment(phase="training", offset_us=0, duration_us=busy_us),),
    )
    planner = devices.placement.planner(deployment.device_kind)
    planner.learned(deployment.resident_id, profile)


def keep(devices: Devices, deployment: DeploymentEntry, wpg: Wpg) -> None:
    """Keep a deployment's cycle, what `wpg` took on a device and how long its job ran.

    Later submissions of its kind are planned by it.
    """
    profile = deployment.pattern.cycles.profile
    if profile is None:
        return
    key = demands.profile_key(devices.placement, deployment)
    before = devices.placement.book.warm(key, now_us=devices.now_us)
    job, run_us = devices.jobs[deployment.job_id], 0 if before is None else before.run_us
    began_us = deployment.pattern.began_us
    if job.ending is JobState.COMPLETED and began_us is not None:
        ran_us = job.own_now_us(devices.now_us) - began_us
        run_us = smoothed(run_us or None, max(1, ran_us))
    kept = KeptProfile(
        key=key,
        run_us=run_us,
        profile=replace(profile, switch_us=wpg.switch_cost_us or profile.switch_us),
        at_us=devices.now_us,
        device_bytes=max(wpg.device_bytes, default=0),
        error_ppm=deployment.pattern.error_ppm,
    )
    devices.placement.book.keep(kept)
    devices.emit(KeepProfile(kept=kept))


def _observe(devices: Devices, wpg: Wpg, operation: Operation, *, own_us: int) -> None:
    """Take an operation in that began at `own_us` of its job's own clock."""
    deployment = devices.deployments[wpg.deployment_id]
    pattern, job = deployment.pattern, devices.jobs[wpg.job_id]
    eligible_us = operation.eligible_us or operation.started_us
    run_us = devices.now_us - operation.started_us
    pattern.busy_us += run_us
    starts_cycle = _starts_cycle(pattern, job)
    pattern.cycle = job.cycle
    is_beside = None  # of what is a rollout itself
    if operation.kind not in ROLLS_OUT:
        is_beside = operation.is_beside or lanes.rolls_out(devices.queues, job)
    news = pattern.cycles.observe(
        operation.kind,
        start_us=own_us,
        end_us=own_us + run_us,
        starts_cycle=starts_cycle,
        is_beside_rollout=is_beside,
    )
    if pattern.cycles.is_first_of_cycle:
        pattern.arrived_us = eligible_us
    pattern.last_end_us, pattern.gap_us = devices.now_us, pattern.cycles.next_gap_us()
    if not pattern.cycles.is_first_of_cycle or pattern.cycles.profile is None:
        return
    planner, key = demands.planner_of(devices.placement, deployment)
    if key not in planner.board.group_of:
        return
    # Later cycles tell what changed since, not how wrong the record was.
    if pattern.cycles.num_cycles == 1:
        _judge_record(devices, deployment)
    planned = planner.board.resident(key).demand.profile
    has_drifted = pattern.cycles.num_cycles > 0 and _has_drifted(planned, pattern.cycles.profile)
    if news is not News.NOTHING or has_drifted:
        profile = replace(pattern.cycles.profile, switch_us=wpg.switch_cost_us or planned.switch_us)
        pattern.cycles.profile = profile
        planner.learned(key, profile)
        keep(devices, deployment, wpg)
    else:
        planner.note_phase(key, operation.started_us, alone_us=own_us - pattern.noted_us)
        pattern.noted_us = own_us


def _observe_stage(devices: Devices, wpg: Wpg, *, run_us: int) -> None:
    """Take in what instances that share devices do in a cycle; keep it with the cycle's length."""
    deployment, job = devices.deployments[wpg.deployment_id], devices.jobs[wpg.job_id]
    pattern = deployment.pattern
    if pattern.cycle != job.cycle:
        is_whole = pattern.cycle > 0
        spent_us, pattern.spent_us, pattern.cycle = pattern.spent_us, 0, job.cycle
        if is_whole:
            pattern.stage_us = smoothed(pattern.stage_us or None, spent_us)
            _keep_stage(devices, deployment, wpg)
    pattern.spent_us += run_us


def _keep_stage(devices: Devices, deployment: DeploymentEntry, wpg: Wpg) -> None:
    """Keep a rollout's part of its job's cycle, once that is known and where it has changed."""
    mine = [devices.deployments[d] for d in devices.jobs[deployment.job_id].deployments]
    cycles = [one.pattern.cycles.profile for one in mine if not one.is_rollout]
    period_us = max((one.period_us for one in cycles if one is not None), default=0)
    if not period_us:
        return
    busy_us = max(1, deployment.pattern.stage_us)
    profile = Profile(
        period_us=max(period_us, busy_us),
        segments=(Segment(phase=OperationKind.GENERATE, offset_us=0, duration_us=busy_us),),
        switch_us=wpg.switch_cost_us or 0,
    )
    key = demands.profile_key(devices.placement, deployment)
    before = devices.placement.book.warm(key, now_us=devices.now_us)
    if before is not None and not _has_drifted(before.profile, profile):
        return
    kept = KeptProfile(key=key, profile=profile, at_us=devices.now_us)
    devices.placement.book.keep(kept)
    devices.placement.has_changed = True
    devices.emit(KeepProfile(kept=kept))


def _own_start_us(deployment: DeploymentEntry, job: JobEntry, operation: Operation) -> int:
    """Return when an operation would have begun had its job run alone.

    What goes on with a burst follows the operation before, whatever ended meanwhile.
    """
    pattern = deployment.pattern
    if pattern.cycles.last_phase in ROLLS_OUT:  # it would wait for its devices alone, too
        return max(operation.own_us, pattern.own_end_us)
    if not operation.is_sequel or pattern.last_end_us is None or operation.eligible_us is None:
        return operation.own_us
    starts_cycle = _starts_cycle(pattern, job)
    begins_cycle = pattern.cycles.begins_cycle(
        operation.kind, start_us=operation.own_us, starts_cycle=starts_cycle
    )
    after_us = pattern.own_end_us + operation.eligible_us - pattern.last_end_us
    return operation.own_us if begins_cycle else after_us


def _starts_cycle(pattern: Pattern, job: JobEntry) -> bool | None:
    """Return whether weights were published since the last operation; None: the job never does."""
    return pattern.cycle != job.cycle if job.cycle else None


def _judge_record(devices: Devices, deployment: DeploymentEntry) -> None:
    """Note how far the first cycle is from what an earlier run left on record."""
    book = devices.placement.book
    key = demands.profile_key(devices.placement, deployment)
    kept = book.warm(key, now_us=devices.now_us)
    if kept is not None:
        pattern = deployment.pattern
        pattern.error_ppm = book.judge(kept, busy_us=pattern.cycles.last_busy_us)
        if book.has_shifted():
            placing.renew(devices.placement)


def _has_drifted(planned: Profile, measured: Profile) -> bool:
    """Return whether a cycle is by now another than the one it is planned by."""
    off_us = abs(planned.period_us - measured.period_us)
    busier_us = abs(planned.busy_us - measured.busy_us)
    is_busier = busier_us * DRIFT > planned.busy_us and is_felt(planned, measured.busy_us)
    return off_us * DRIFT > planned.period_us or is_busier
