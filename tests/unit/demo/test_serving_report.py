"""Figures and checks of the demo of a serving engine that lends: what must fail does."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from plexsvc.demo import plots
from plexsvc.demo.serving_report import ServingAct, ServingPoint, checks, summarise
from tests.rigs.demo_runs import make_run, make_span

RISING = [0.2 + 0.02 * step + 0.01 * (step % 2) for step in range(30)]


def latencies(p99: float, *, requests: int = 40) -> dict[str, Any]:
    times = {"p50": p99 / 4, "p90": p99 / 2, "p99": p99, "objective": 500.0}
    found = times | {"is_kept": p99 <= 500}
    return {"requests": requests, "ttft": found, "tpot": found}


def act(
    *,
    alone: dict[str, Any] | None = None,
    lending: dict[str, Any] | None = None,
    harvested: int = 5000,
    answered: int = 80,
    **facts: float,
) -> ServingAct:
    report = {
        "alone": alone or latencies(100),
        "lending": lending or latencies(300),
        "harvested_tokens": harvested,
        "harvested_share_of_idle": 0.4,
    }
    return ServingAct(
        without=make_run("bits", rewards=RISING),
        lent=make_run("bits", rewards=RISING, **facts),  # type: ignore[arg-type] # by name
        spans=[make_span("step", 0, 1_000_000)],
        report=report,
        points=[ServingPoint(at_s=at, tokens=100 * at) for at in range(5)],
        sent=80,
        answered=answered,
    )


def failed(played: ServingAct) -> list[str]:
    return [c.name for c in checks(summarise(played, samples_per_step=128)) if not c.passed]


BOTH = ["TTFT of those served", "TPOT of those served"]


def test_a_job_that_learns_beside_traffic_passes_every_check() -> None:
    assert failed(act()) == []
    assert failed(act(alone=latencies(600), lending=latencies(700))) == [], "not by the guest"


@pytest.mark.parametrize(
    ("played", "names"),
    [
        (act(lending=latencies(501)), BOTH),
        (act(lending=latencies(100, requests=3)), BOTH),
        (act(answered=79), ["traffic"]),
        (act(harvested=999), ["harvest"]),
        (act(complete=127), ["samples of bits"]),
        (act(instances_lost=1), ["samples of bits"]),
    ],
)
def test_what_must_hold_is_checked(played: ServingAct, names: list[str]) -> None:
    assert failed(played) == names


def test_the_picture_is_drawn(tmp_path: Path) -> None:
    plots.plot_serving(tmp_path / "serving.png", act())
    assert (tmp_path / "serving.png").stat().st_size > 10_000
