"""Demands on placement: what deployments ask for, with which profile, and who waits.

Deployments that a job declared together are a *set*, placed in one decision or not at all. The
largest training of a set, its *lead*, waits in the queue for all of them. It is placed only with
devices for all the set's instances; its further training finds room beside it at worst. So a set
that waits holds nothing that another waits for.
"""

from __future__ import annotations

from plexsvc.ids import JobId, ResidentId
from plexsvc.scheduler.core.cluster import Placement
from plexsvc.scheduler.core.planning.planner import Planner
from plexsvc.scheduler.core.planning.profile import GUESS, PRIOR_JOB_US, Demand
from plexsvc.scheduler.core.planning.profiler import KeptProfile, ProfileKey
from plexsvc.scheduler.core.state import DeploymentEntry


def demand(placement: Placement, deployment: DeploymentEntry) -> Demand:
    """Return what a deployment asks of placement: its cycle if an earlier run measured it."""
    job, book = placement.jobs[deployment.job_id], placement.book
    key = profile_key(placement, deployment)
    warm = book.warm(key, now_us=placement.now_us)
    # One that is placed anew has fewer left, and one may train on for longer than it said.
    steps = max(1, job.expected_steps - job.cycle) if job.expected_steps else 0
    profile, state_bytes = GUESS, deployment.state_bytes
    if warm is not None:
        profile = book.believed(warm)
        state_bytes = warm.device_bytes or state_bytes
    return Demand(
        resident_id=deployment.resident_id,
        num_units=deployment.num_devices,
        profile=profile,
        arrived_us=deployment.requested_us,
        expected_us=_expected_us(warm, steps=steps),
        expected_steps=steps,
        state_bytes=state_bytes,
        optimizer_bytes=deployment.optimizer_bytes,
        version_bytes=deployment.version_bytes,
        model=deployment.shared_model,
        model_bytes=deployment.model_bytes,
        max_slowdown_ppm=job.max_slowdown_ppm or placement.limits.max_slowdown_ppm,
        is_cold=warm is None,
        priority=job.priority,
        tenant=job.tenant,
        has_devices=any(placement.deployments[d].wpg_id for d in job.deployments),
        lost_place=placement.lost.get(key, 0),
    )


def _expected_us(warm: KeptProfile | None, *, steps: int) -> int:
    """Return how long a job will run: as it says itself, as earlier runs did, or as a guess."""
    if warm is None:
        return PRIOR_JOB_US
    return warm.profile.period_us * steps or warm.run_us or PRIOR_JOB_US


def profile_key(placement: Placement, deployment: DeploymentEntry) -> ProfileKey:
    """Return what makes two runs the same for planning."""
    job = placement.jobs[deployment.job_id]
    return ProfileKey(
        tenant=job.tenant,
        model=deployment.model,
        layout=deployment.layout,
        name=f"{job.name}/{deployment.name}",
    )


def planner_of(placement: Placement, deployment: DeploymentEntry) -> tuple[Planner, ResidentId]:
    """Return the planner a deployment is, or will be, booked with, and its name there."""
    return placement.planner(deployment.device_kind), deployment.resident_id


def is_placed(placement: Placement, deployment: DeploymentEntry) -> bool:
    """Return whether a training deployment has its place on the board."""
    planner, key = planner_of(placement, deployment)
    return key in planner.board.group_of


def rollouts_waiting(placement: Placement) -> dict[tuple[JobId, str], list[DeploymentEntry]]:
    """Return the rollout deployments that may have devices now, by job and kind, in order."""
    waiting = [placement.deployments[d] for d in placement.unplaced]
    training = {one.job_id for one in waiting if not one.is_rollout}
    found: dict[tuple[JobId, str], list[DeploymentEntry]] = {}
    for one in waiting:
        if one.is_rollout and one.job_id not in training:
            found.setdefault((one.job_id, one.device_kind), []).append(one)
    return found


def waiting_with(placement: Placement, deployment: DeploymentEntry) -> list[DeploymentEntry]:
    """Return what of a deployment's set waits for devices; of one that is alone, itself."""
    together = deployment.declared_with or (deployment.deployment_id,)
    unplaced = set(placement.unplaced)
    return [placement.deployments[d] for d in together if d in unplaced]


def lead_of(placement: Placement, deployment: DeploymentEntry) -> DeploymentEntry | None:
    """Return who waits for a deployment's whole set; None if it is alone, or of instances only."""
    together = [placement.deployments[d] for d in deployment.declared_with]
    training = [one for one in together if not one.is_rollout]
    return max(training, key=lambda one: one.num_devices, default=None)


def is_queued(placement: Placement, deployment: DeploymentEntry) -> bool:
    """Return whether a deployment that waits for training devices has a place in their queue.

    One whose lead waits has none.
    """
    first = lead_of(placement, deployment)
    if first is None or first is deployment:
        return True
    return first.deployment_id not in placement.unplaced
