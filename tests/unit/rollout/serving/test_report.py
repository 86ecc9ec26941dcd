"""Percentiles of what was served with and without a guest."""

from __future__ import annotations

from plexsvc.rollout.core.lending import Objectives
from plexsvc.rollout.serving.report import LatencyLog, percentiles


def test_percentiles_are_by_nearest_rank() -> None:
    assert percentiles(list(range(1, 101))) == {"p50": 50, "p90": 90, "p99": 99}
    assert percentiles([7.0]) == {"p50": 7.0, "p90": 7.0, "p99": 7.0}
    assert percentiles([]) == {}


def test_requests_count_as_served_alone_or_beside_a_guest() -> None:
    log, objectives = LatencyLog(), Objectives(ttft_us=500_000, tpot_us=150_000)
    log.add(ttfts_s=[0.1, 0.2], tpots_s=[0.01], has_guest=False)
    log.add(ttfts_s=[0.6], tpots_s=[0.1], has_guest=True)
    alone, lending = log.alone.summary(objectives), log.lending.summary(objectives)
    assert alone["requests"] == 2
    assert alone["ttft"] == {
        "p50": 100.0,
        "p90": 200.0,
        "p99": 200.0,
        "objective": 500.0,
        "is_kept": True,
    }
    assert not lending["ttft"]["is_kept"]
    assert lending["tpot"]["is_kept"]
