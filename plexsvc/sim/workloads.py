"""Jobs on a cluster: what a preset or a trace amounts to, and how a job of one is made."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from plexsvc.ids import ResidentId
from plexsvc.scheduler.core.planning.policies import Policy
from plexsvc.scheduler.core.planning.profile import (
    PPM,
    SECOND_US,
    SYNC_PHASE,
    Demand,
    Mode,
    Profile,
    Segment,
)
from plexsvc.sim.cluster import GB, SimCluster
from plexsvc.sim.jobs import SimJob


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """What a preset, or a trace with a cluster file, amounts to."""

    jobs: tuple[SimJob, ...]
    cluster: SimCluster

    def without_lengths(self) -> Workload:
        """Return the same jobs, none of which says how long it will run."""
        return replace(self, jobs=tuple(replace(job, expected_cycles=0) for job in self.jobs))

    def within_target(self, policy: Policy) -> Policy:
        """Return a policy with the target that the pool's owner set, if one was set."""
        target = self.cluster.target_slowdown
        if target is None:
            return policy
        return replace(policy, target_slowdown_ppm=round(target * PPM))


PHASE_SHARES: Final = (("log_prob", 0.168), ("update", 0.662), (SYNC_PHASE, 0.170))
"""How the paper's 7B job divides its device time over phases."""


def cluster_job(
    name: str,
    *,
    cluster: SimCluster,
    arrival_s: float,
    gang: int,
    cycles: int,
    period_s: float,
    duty: float,
) -> SimJob:
    """Return a job with one burst a cycle, whose switch takes 3 to 19 s by its gang."""
    switch_s = 3 + 16 * np.log2(gang) / 5
    state_gb = float(switch_s * cluster.switch.link_gb_s * gang / 2)
    period_us = round(period_s * SECOND_US)
    phases = [(phase, round(share * duty * period_us)) for phase, share in PHASE_SHARES]
    profile = Profile(
        period_us=period_us,
        segments=burst(phases),
        mode=Mode.ASYNC1,
        switch_us=cluster.switch.cost_us(state_gb=state_gb, nodes=gang),
        jitter_ppm=150_000,
    )
    demand = Demand(
        resident_id=ResidentId(name),
        num_units=gang,
        profile=profile,
        arrived_us=round(arrival_s * SECOND_US),
        expected_us=period_us * cycles,
        state_bytes=round(state_gb / gang * GB),
    )
    return SimJob(demand=demand, cycles=cycles, jitter_cv=0.15, state_gb=state_gb)


def burst(phases: list[tuple[str, int]]) -> tuple[Segment, ...]:
    """Return phases of named durations, one after another."""
    segments, at = [], 0
    for phase, duration_us in phases:
        segments.append(Segment(phase=phase, offset_us=at, duration_us=duration_us))
        at += duration_us
    return tuple(segments)
