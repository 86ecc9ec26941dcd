"""Jobs of traces for tests of the simulator."""

from __future__ import annotations

from plexsvc.ids import ResidentId
from plexsvc.scheduler.core.planning.profile import (
    SECOND_US,
    Demand,
    Mode,
    Profile,
    Segment,
    SyncAt,
)
from plexsvc.sim.jobs import SimJob


def job(
    name: str,
    *,
    nodes: int = 1,
    cycles: int = 5,
    period: int = 100,
    durations: tuple[int, ...] = (10, 15),
    mode: Mode = Mode.SYNC,
    sync_at: SyncAt = SyncAt.UPDATE,
    switch: int = 2,
    jitter: float = 0.0,
    arrival: int = 0,
    rollout_nodes: int = 0,
) -> SimJob:
    """Return a job; times in seconds. Its segments follow each other from the cycle's start on."""
    segments, at = [], 0
    for index, duration in enumerate(durations):
        phase = "sync" if index == len(durations) - 1 else f"p{index}"
        segments.append(
            Segment(phase=phase, offset_us=at * SECOND_US, duration_us=duration * SECOND_US)
        )
        at += duration
    profile = Profile(
        period_us=period * SECOND_US,
        segments=tuple(segments),
        mode=mode,
        sync_at=sync_at,
        switch_us=switch * SECOND_US,
        jitter_ppm=round(jitter * 1e6),
    )
    demand = Demand(
        resident_id=ResidentId(name),
        num_units=nodes,
        rollout_units=rollout_nodes,
        profile=profile,
        arrived_us=arrival * SECOND_US,
        expected_us=profile.period_us * cycles,
        max_slowdown_ppm=10_000_000,
    )
    return SimJob(demand=demand, cycles=cycles, jitter_cv=jitter)
