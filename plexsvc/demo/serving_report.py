"""Figures of the demo of a serving engine that lends, and the checks they must pass."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from plexsvc.demo.report import Check, JobFigures, Run, job_checks, job_figures
from plexsvc.demo.spans import Span

LATENCIES: Final = ("ttft", "tpot")
MIN_HARVEST: Final = 1000
"""Tokens that the guest makes at least."""

MIN_REQUESTS: Final = 30
"""Requests behind each percentile at least."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServingPoint:
    """What the guest had made so far, at one moment of the run with lending."""

    at_s: float
    """Since the job began."""
    tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ServingAct:
    """The job without and with what the engine lends, beside the same kind of traffic."""

    without: Run
    lent: Run
    spans: Sequence[Span]
    report: Mapping[str, Any]
    """Of the engine, at the end."""
    points: Sequence[ServingPoint]
    sent: int
    answered: int
    """Requests of the traffic."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServingSummary:
    """What `summary.json` holds."""

    job: JobFigures
    alone: Mapping[str, Any]
    lending: Mapping[str, Any]
    """Requests, percentiles in ms and objectives, by whether the guest was at work."""
    harvested_tokens: int
    harvested_share_of_idle: float
    sent: int
    answered: int
    samples: int
    samples_complete: int
    instances_lost: int


def summarise(act: ServingAct, *, samples_per_step: int) -> ServingSummary:
    """Return the figures of a demo."""
    steps = act.lent.record.steps
    return ServingSummary(
        job=job_figures(act.without, act.lent, spans=act.spans),
        alone=act.report["alone"],
        lending=act.report["lending"],
        harvested_tokens=act.report["harvested_tokens"],
        harvested_share_of_idle=act.report["harvested_share_of_idle"],
        sent=act.sent,
        answered=act.answered,
        samples=len(steps) * samples_per_step,
        samples_complete=round(sum(step.complete for step in steps)),
        instances_lost=round(sum(step.instances_lost for step in steps)),
    )


def checks(summary: ServingSummary) -> list[Check]:
    """Return every check of the demo, passed or not."""
    return [
        *(_latency(summary, name) for name in LATENCIES),
        _traffic(summary),
        _harvest(summary),
        _complete(summary),
        *job_checks(summary.job),
    ]


def _latency(summary: ServingSummary, name: str) -> Check:
    """Judge the 99th percentile with the guest, where the engine alone keeps to its objective."""
    alone, lending = summary.alone[name], summary.lending[name]
    enough = min(summary.alone["requests"], summary.lending["requests"]) >= MIN_REQUESTS
    return Check(
        name=f"{name.upper()} of those served",
        passed=enough and (lending["is_kept"] or not alone["is_kept"]),
        found=f"the 99th percentile is {alone.get('p99', 0.0):.0f} ms of "
        f"{summary.alone['requests']} requests without the guest and "
        f"{lending.get('p99', 0.0):.0f} ms of {summary.lending['requests']} beside it; "
        f"{alone['objective']:g} ms is the objective, and {MIN_REQUESTS} requests of each are due",
    )


def _traffic(summary: ServingSummary) -> Check:
    return Check(
        name="traffic",
        passed=summary.answered == summary.sent > 0,
        found=f"{summary.answered} of {summary.sent} requests were answered; all must be",
    )


def _harvest(summary: ServingSummary) -> Check:
    return Check(
        name="harvest",
        passed=summary.harvested_tokens >= MIN_HARVEST,
        found=f"the guest made {summary.harvested_tokens} tokens in "
        f"{summary.harvested_share_of_idle:.0%} of the engine's idle time; at least {MIN_HARVEST} "
        "are due",
    )


def _complete(summary: ServingSummary) -> Check:
    return Check(
        name=f"samples of {summary.job.name}",
        passed=summary.samples_complete == summary.samples and summary.instances_lost == 0,
        found=f"{summary.samples_complete} of {summary.samples} are complete, and "
        f"{summary.instances_lost} instances were lost under them; all must be, and none",
    )
