"""Random traces with drains, losses, cold jobs and mixed sizes, checked from their lines alone."""

from __future__ import annotations

import json
from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from plexsvc.ids import ResidentId
from plexsvc.scheduler.core.planning.policies import POLICIES
from plexsvc.scheduler.core.planning.profile import (
    SECOND_US,
    Demand,
    Mode,
    Profile,
    Segment,
    SyncAt,
)
from plexsvc.sim.cluster import GB, Faults, NodeAction, NodeEvent, SimCluster
from plexsvc.sim.jobs import SimJob
from plexsvc.sim.output import job_line
from plexsvc.sim.run import play
from plexsvc.sim.workloads import Workload
from tests.rigs.outside_checker import check_lines


@st.composite
def jobs(draw: st.DrawFn) -> list[SimJob]:
    made = []
    for at in range(draw(st.integers(1, 8))):
        period = draw(st.integers(60, 200))
        durations = draw(st.lists(st.integers(1, 12), min_size=1, max_size=3))
        mode = draw(st.sampled_from(list(Mode)))
        sync_at = draw(st.sampled_from(list(SyncAt))) if len(durations) > 1 else SyncAt.UPDATE
        segments, offset = [], draw(st.integers(0, 5))
        for index, duration in enumerate(durations):
            is_last = index == len(durations) - 1 and index > 0
            segments.append(
                Segment(
                    phase="sync" if is_last else f"p{index}",
                    offset_us=offset * SECOND_US,
                    duration_us=duration * SECOND_US,
                )
            )
            offset += duration + draw(st.sampled_from([0, 0, 4]))
        jitter = draw(st.sampled_from([0.0, 0.3]))
        profile = Profile(
            period_us=period * SECOND_US,
            segments=tuple(segments),
            mode=mode,
            sync_at=sync_at,
            switch_us=draw(st.sampled_from([0, 2, 15])) * SECOND_US,
            jitter_ppm=round(jitter * 1e6),
        )
        cycles = draw(st.integers(1, 8))
        demand = Demand(
            resident_id=ResidentId(f"j{at}"),
            num_units=draw(st.sampled_from([1, 1, 2, 3])),
            profile=profile,
            arrived_us=draw(st.integers(0, 500)) * SECOND_US,
            expected_us=profile.period_us * cycles,
            state_bytes=draw(st.sampled_from([0, 700])) * GB,
            max_slowdown_ppm=draw(st.sampled_from([1_010_000, 1_500_000])),
        )
        made.append(SimJob(demand=demand, cycles=cycles, jitter_cv=jitter))
    return made


def stormy(*, mtbf_h: float) -> SimCluster:
    """Return four nodes that are lost, and one that is drained while another joins."""
    return SimCluster(
        nodes=4,
        host_gb=1000,
        faults=Faults(node_mtbf_h=mtbf_h, repair_s=100, slow_switch_share=0.2),
        events=(
            NodeEvent(at_s=200, action=NodeAction.DRAIN, node="n00001"),
            NodeEvent(at_s=300, action=NodeAction.JOIN, node="n00100"),
            NodeEvent(at_s=600, action=NodeAction.UNCORDON, node="n00001"),
        ),
    )


@settings(max_examples=60, deadline=None)
@given(
    jobs(),
    st.sampled_from(sorted(POLICIES)),
    st.integers(0, 5),
    st.booleans(),
    st.sampled_from([0.0, 0.3]),
    st.sampled_from([0, 1]),
)
def test_lines_of_any_run_hold_up_from_outside(
    trace: list[SimJob],
    policy: str,
    seed: int,
    is_cold: bool,
    mtbf_h: float,
    rollout_nodes: int,
) -> None:
    asked = tuple(
        replace(job, demand=replace(job.demand, rollout_units=rollout_nodes)) for job in trace
    )
    workload = Workload(jobs=asked, cluster=stormy(mtbf_h=mtbf_h))
    outcome = play(workload, policy=POLICIES[policy], seed=seed, is_cold=is_cold).outcome
    lines = [json.loads(json.dumps(job_line(record, seed=seed))) for record in outcome.records]
    check_lines(lines)
