"""Report of a demo: figures of each job, checks that must hold, one table.

Each demo plays its jobs twice with the same seeds: *without* what it shows (another job on the
device, spot instances) and *with* it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean, variance
from typing import Any, Final

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from plexsvc.demo.records import ControllerRecord
from plexsvc.demo.spans import DeviceSpan, Window, covered_s, training, within

EDGE: Final = 10
"""Steps compared at either end of a run."""
MIN_GAIN: Final = 0.15
MIN_STANDARD_ERRORS: Final = 3.0
MAX_MEAN_GAP: Final = 1e-4
MAX_GAP: Final = 1e-3

Figures = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class JobRun:
    """One job's run: what its controller recorded and when the service had it."""

    task: str
    job_id: str
    record: ControllerRecord
    window: Window


@dataclass(frozen=True, slots=True)
class Check:
    """One thing that must hold, and what was found."""

    name: str
    passed: bool
    found: str


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoOutcome:
    """What a demo played, and what it says beyond the figures of its jobs."""

    without: Sequence[JobRun]
    runs: Sequence[JobRun]
    """The same jobs with what the demo shows, in the same order."""
    spans: Sequence[DeviceSpan]
    """Of all devices."""
    figures: Figures
    lines: Sequence[str]
    checks: Sequence[Check]
    curves: Mapping[str, Sequence[tuple[int, float]]] = field(default_factory=dict)
    """What the demo counted when, in microseconds of the wall clock, for its part of the plot."""


ROWS: Final[dict[str, tuple[str, str]]] = {
    "steps": ("steps", "d"),
    "reward_first10": ("mean reward, first 10 steps", ".3f"),
    "reward_last10": ("mean reward, last 10 steps", ".3f"),
    "reward_se": ("standard error of the gain", ".3f"),
    "heldout_before": ("held-out accuracy, before", ".3f"),
    "heldout_after": ("held-out accuracy, after", ".3f"),
    "device_seconds_per_step": ("device seconds a step", ".3f"),
    "idle_without": ("device idle, without", ".0%"),
    "idle_with": ("device idle, with", ".0%"),
    "tokens_per_s_without": ("tokens/s, without", ".0f"),
    "tokens_per_s_with": ("tokens/s, with", ".0f"),
    "logprob_gap_mean": ("logprob gap, mean", ".1e"),
    "logprob_gap_max": ("logprob gap, largest", ".1e"),
    "instances_lost": ("losses of an instance", "d"),
}
"""Lines of the table: the figure of a job, what it is called, and its format."""


def union(runs: Sequence[JobRun]) -> Window:
    """Return the time from the first start to the last end."""
    return Window(
        start_us=min(run.window.start_us for run in runs),
        end_us=max(run.window.end_us for run in runs),
    )


def idle_share(spans: Sequence[DeviceSpan], *, window: Window) -> float:
    """Return the share of the window in which the training device ran no operation."""
    return 1.0 - covered_s(training(within(spans, window))) / window.seconds


def standard_error(first: Sequence[float], last: Sequence[float]) -> float:
    """Return the standard error of the difference of two means; each needs two values."""
    return math.sqrt(variance(first) / len(first) + variance(last) / len(last))


def job_figures(without: JobRun, run: JobRun, *, spans: Sequence[DeviceSpan]) -> Figures:
    """Return the figures of a job that ran twice; `spans` are what the devices did.

    Idle is the share of the job's wall time, from its submission to its end, in which the training
    device ran no operation.
    """
    rewards, steps = run.record.rewards, run.record.steps
    mine = [span for span in training(spans) if span.job_id == run.job_id]
    return {
        "name": run.task,
        "steps": len(steps),
        "reward_first10": fmean(rewards[:EDGE]),
        "reward_last10": fmean(rewards[-EDGE:]),
        "reward_se": standard_error(rewards[:EDGE], rewards[-EDGE:]),
        "reward_gap": abs(fmean(rewards) - fmean(without.record.rewards)),
        "heldout_before": run.record.held_out_before,
        "heldout_after": run.record.held_out_after,
        "device_seconds_per_step": covered_s(mine) / len(steps),
        "idle_without": idle_share(spans, window=without.window),
        "idle_with": idle_share(spans, window=run.window),
        "tokens_per_s_without": without.record.a_second("tokens"),
        "tokens_per_s_with": run.record.a_second("tokens"),
        "logprob_gap_mean": fmean(step.gap_mean for step in steps),
        "logprob_gap_max": max(step.gap_max for step in steps),
        "samples_complete": round(sum(step.complete for step in steps)),
        "instances_lost": round(sum(step.instances_lost for step in steps)),
    }


def job_checks(job: Figures, *, samples: int) -> list[Check]:
    """Return what holds of every job: it learns, sampler and trainer agree, no sample is lost."""
    name, gain = job["name"], job["reward_last10"] - job["reward_first10"]
    mean_gap, gap = job["logprob_gap_mean"], job["logprob_gap_max"]
    return [
        Check(
            f"learning of {name}",
            gain >= MIN_GAIN and gain > MIN_STANDARD_ERRORS * job["reward_se"],
            f"reward {job['reward_first10']:.3f} → {job['reward_last10']:.3f}, a gain of "
            f"{gain:+.3f}; at least {MIN_GAIN} and {MIN_STANDARD_ERRORS:g} times "
            f"{job['reward_se']:.3f} are due",
        ),
        Check(
            f"held-out prompts of {name}",
            job["heldout_after"] > job["heldout_before"],
            f"accuracy {job['heldout_before']:.3f} → {job['heldout_after']:.3f}; it must rise",
        ),
        Check(
            f"logprob gap of {name}",
            mean_gap <= MAX_MEAN_GAP and gap <= MAX_GAP,
            f"mean {mean_gap:.1e}, largest {gap:.1e}; "
            f"{MAX_MEAN_GAP:.0e} and {MAX_GAP:.0e} are allowed",
        ),
        Check(
            f"samples of {name}",
            job["samples_complete"] == samples,
            f"{job['samples_complete']} of {samples} are complete; all must be",
        ),
    ]


def verdict(
    title: str, jobs: Sequence[Figures], *, lines: Sequence[str], checks: Sequence[Check]
) -> RenderableType:
    """Return the closing table, a column for each job, and a line for each check."""
    table = Table(title=title, title_justify="left")
    table.add_column("")
    for job in jobs:
        table.add_column(job["name"], justify="right")
    for name, (label, form) in ROWS.items():
        table.add_row(label, *(format(job[name], form) for job in jobs))
    marks = [
        Text(
            f"{'passed' if check.passed else 'FAILED'}  {check.name}: {check.found}",
            style="green" if check.passed else "bold red",
        )
        for check in checks
    ]
    return Group(table, *map(Text, lines), *marks)
