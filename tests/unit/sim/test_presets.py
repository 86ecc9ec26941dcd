"""Presets, played small."""

from __future__ import annotations

import pytest

from plexsvc.scheduler.core.planning.policies import policy_named
from plexsvc.sim.jobs import ROLLOUT_PHASES
from plexsvc.sim.odd_presets import both_pools
from plexsvc.sim.run import baseline, compare


def test_jobs_on_both_pools_cost_less_than_isolated_within_their_bounds() -> None:
    workload = both_pools(seed=1, num_jobs=12, hours=0.1, jitter=0.02)
    isolated = baseline(workload, seed=1)
    summary, outcome = compare(workload, policy=policy_named("plex"), seed=1, isolated=isolated)
    alone, _ = compare(workload, policy=policy_named("isolated"), seed=1, isolated=isolated)
    assert alone.cost_efficiency == 1
    assert alone.slowdown_max == pytest.approx(1, abs=1e-3), "the first load costs nothing"
    assert summary.cost_efficiency is not None
    assert summary.cost_efficiency_bound is not None
    assert 1.1 < summary.cost_efficiency < summary.cost_efficiency_bound
    assert summary.beyond_bound == 0
    for record in outcome.records:
        assert ROLLOUT_PHASES[0] in record.phases
        demand = record.job.demand
        assert len(record.stays[-1].nodes) == demand.num_units + demand.rollout_units
