"""Learning: the cycle of a training deployment, the cost of its operations, its next arrival.

A deployment has a clock of its own, which stands still while an operation waits for its device. So
the measured cycle is the one the job would have alone. A cycle begins with the first operation
after the job published weights; a job that never publishes begins it with its first phase. What
came before the first whole cycle is part of none.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from plexsvc.ids import DeploymentId
from plexsvc.scheduler.core.actions import KeepProfile
from plexsvc.scheduler.core.cluster import Devices
from plexsvc.scheduler.core.place import placing
from plexsvc.scheduler.core.planning.profile import SECOND_US, Mode, Profile, Segment
from plexsvc.scheduler.core.planning.profiler import (
    CycleProfiler,
    KeptProfile,
    News,
    ProfileKey,
    TokenCost,
)
from plexsvc.scheduler.core.state import Deployment, Operation, Pattern, Wpg
from plexsvc.scheduler.core.timers import ProbeTimer
from plexsvc.scheduler.core.vocabulary import JobState, OperationKind

UNMEASURED: Final = frozenset({OperationKind.INITIALIZE, OperationKind.LOAD})
"""Kinds that happen once, at the start, and are part of no cycle."""

DRIFT: Final = 8
"""A period, or a busy time, off by one over this of the period is planned anew."""

PRIOR_SERVICE_US: Final = 100_000
"""Run time assumed of an operation kind never measured on its deployment."""

PROBE_PERIOD_US: Final = 60 * SECOND_US
"""Period given to a deployment of which only the busy share is known."""


def predicted_us(deployment: Deployment, operation: Operation) -> int:
    """Return how long an operation is expected to run."""
    cost = deployment.pattern.costs.get(operation.kind)
    if cost is None:
        return PRIOR_SERVICE_US
    return cost.predict(operation.num_tokens)


def smoothed(previous_us: int | None, measured_us: int) -> int:
    """Return the exponentially weighted mean after one more measurement (weight one quarter)."""
    if previous_us is None:
        return measured_us
    return previous_us + (measured_us - previous_us) // 4


def measured(devices: Devices, wpg: Wpg, operation: Operation, *, run_us: int) -> None:
    """Learn from a finished operation what its kind costs; an `Initialize` does not come again."""
    if operation.kind is OperationKind.INITIALIZE:
        return
    deployment = devices.deployments[wpg.deployment_id]
    costs = deployment.pattern.costs
    if operation.kind not in costs:
        costs[operation.kind] = TokenCost(prior_us=PRIOR_SERVICE_US)
    costs[operation.kind].observe(operation.num_tokens, measured_us=run_us)
    if operation.needs_device and not wpg.is_rollout and operation.kind not in UNMEASURED:
        _observe(devices, wpg, operation)


def published(devices: Devices, deployment: Deployment) -> None:
    """Begin another cycle of a job: it published weights."""
    devices.jobs[deployment.job_id].cycle += 1


def start_probe(devices: Devices, deployment: Deployment) -> None:
    """Bound the time a cold deployment keeps its group to itself."""
    pattern = deployment.pattern
    pattern.since_us = devices.now_us
    key = placing.profile_key(devices.placement, deployment)
    warm = devices.placement.planning.book.warm(key, now_us=devices.now_us)
    if warm is not None:
        pattern.cycles = CycleProfiler(known=warm.profile)
        return
    at_us = devices.now_us + devices.limits.probe_timeout_us
    devices.set_timer(ProbeTimer(deployment.deployment_id), at_us=at_us)


def end_probe(devices: Devices, deployment_id: DeploymentId) -> None:
    """Plan a deployment whose cycle never came by the share of time it kept its devices busy."""
    deployment = devices.deployments[deployment_id]
    pattern = deployment.pattern
    elapsed_us = devices.now_us - pattern.since_us
    is_placed = placing.is_placed(devices.placement, deployment)
    if elapsed_us < devices.limits.probe_timeout_us or not is_placed:
        return
    busy_us = max(1, pattern.busy_us * PROBE_PERIOD_US // elapsed_us)
    profile = Profile(
        period_us=PROBE_PERIOD_US,
        segments=(Segment(phase="training", offset_us=0, duration_us=busy_us),),
    )
    planner = devices.placement.planning.planner(deployment.device_kind)
    planner.learned(deployment.resident_id, profile, at_us=devices.now_us)


def keep(devices: Devices, deployment: Deployment) -> None:
    """Keep a deployment's cycle, and how long its job ran, for later submissions of its kind."""
    profile = deployment.pattern.profile
    if profile is None:
        return
    wpg = devices.wpg_of(deployment)
    key = placing.profile_key(devices.placement, deployment)
    kept = KeptProfile(
        key=key,
        run_us=_run_us(devices, deployment, key),
        profile=profile,
        at_us=devices.now_us,
        device_bytes=0 if wpg is None else max(wpg.device_bytes, default=0),
    )
    devices.placement.planning.book.keep(kept)
    devices.emit(KeepProfile(kept=kept))


def _run_us(devices: Devices, deployment: Deployment, key: ProfileKey) -> int:
    """Return how long runs take: of earlier ones, and of this one if its job is completed."""
    before = devices.placement.planning.book.warm(key, now_us=devices.now_us)
    before_us = 0 if before is None else before.run_us
    if devices.jobs[deployment.job_id].ending is not JobState.COMPLETED:
        return before_us
    pattern = deployment.pattern
    ran_us = devices.now_us - pattern.since_us - pattern.waited_us
    return smoothed(before_us or None, max(1, ran_us))


def _observe(devices: Devices, wpg: Wpg, operation: Operation) -> None:
    deployment = devices.deployments[wpg.deployment_id]
    pattern, job = deployment.pattern, devices.jobs[wpg.job_id]
    eligible_us = operation.eligible_us or operation.started_us
    pattern.busy_us += devices.now_us - operation.started_us
    starts_cycle = pattern.cycle != job.cycle if job.cycle else None
    pattern.cycle = job.cycle
    _stop_clock(pattern, operation, eligible_us=eligible_us, starts_cycle=starts_cycle)
    news = pattern.cycles.observe(
        operation.kind,
        start_us=operation.started_us - pattern.waited_us,
        end_us=devices.now_us - pattern.waited_us,
        starts_cycle=starts_cycle,
        is_beside_rollout=_rolls_out(devices, deployment),
    )
    if pattern.cycles.is_first_of_cycle:
        if pattern.arrived_us:
            between_us = eligible_us - pattern.arrived_us
            pattern.interval_us = smoothed(pattern.interval_us or None, between_us)
        pattern.arrived_us = eligible_us
    pattern.last_end_us, pattern.gap_us = devices.now_us, pattern.cycles.next_gap_us()
    if not placing.is_placed(devices.placement, deployment):
        return
    planner, key = placing.planner_of(devices.placement, deployment)
    if not pattern.cycles.is_first_of_cycle or pattern.profile is None:
        return
    planned = planner.group_of(key).residents[key].demand.profile
    if news is not News.NOTHING or _has_drifted(planned, pattern.profile):
        profile = replace(pattern.profile, switch_us=wpg.switch_cost_us or planned.switch_us)
        pattern.cycles.profile = profile
        planner.learned(key, profile, at_us=operation.started_us)
        keep(devices, deployment)
    else:
        own_us = operation.started_us - pattern.waited_us
        planner.note_phase(key, operation.started_us, alone_us=own_us - pattern.noted_us)
        pattern.noted_us = own_us


def _stop_clock(
    pattern: Pattern, operation: Operation, *, eligible_us: int, starts_cycle: bool | None
) -> None:
    """Let the deployment's clock stand still for a wait; for one that its slack hid, it went on.

    A job that is one step behind loses nothing by waiting if it was done before its next rollout.
    """
    waited_us = max(0, operation.started_us - eligible_us)
    at_us = operation.started_us - pattern.waited_us - waited_us
    cycles = pattern.cycles
    if cycles.begins_cycle(operation.kind, start_us=at_us, starts_cycle=starts_cycle):
        profile, last_us = cycles.profile, pattern.last_end_us
        is_beside = profile is not None and profile.mode is Mode.ASYNC1
        if is_beside and last_us is not None and last_us < eligible_us:
            pattern.waited_us -= pattern.cycle_waits_us
        pattern.cycle_waits_us = 0
    pattern.waited_us += waited_us
    pattern.cycle_waits_us += waited_us


def _has_drifted(planned: Profile, measured: Profile) -> bool:
    """Return whether a cycle is by now another than the one it is planned by."""
    off_us = abs(planned.period_us - measured.period_us)
    busier_us = abs(planned.busy_us - measured.busy_us)
    return off_us * DRIFT > planned.period_us or busier_us * DRIFT > planned.period_us


def _rolls_out(devices: Devices, deployment: Deployment) -> bool:
    """Return whether the job generates while it trains: its training is one step behind."""
    others = (devices.deployments[d] for d in devices.jobs[deployment.job_id].deployments)
    wpgs = (devices.wpg_of(other) for other in others if other.is_rollout)
    return any(
        operation.kind is OperationKind.GENERATE
        for wpg in wpgs
        if wpg is not None
        for operation in wpg.running.values()
    )
