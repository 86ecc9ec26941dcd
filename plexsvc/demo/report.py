"""Verdict of a demo: figures of each job and the device, and the checks they must pass.

`bubble_ratio`: the share of a job's wall time, from its submission to its end, in which the
training device ran no operation. Alone, it is what the job leaves idle; shared, what all leave.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from statistics import fmean, variance
from typing import Final

from plexsvc.demo.presets import Preset
from plexsvc.demo.records import Record
from plexsvc.demo.spans import Span, Window, covered_s, moves, training, within

EDGE: Final = 10
"""Steps compared at either end of a run."""
MIN_GAIN: Final = 0.15
MIN_STANDARD_ERRORS: Final = 3.0
MAX_MEAN_GAP: Final = 1e-4
MAX_GAP: Final = 1e-3
WAIT_SHARES: Final = (0.6, 0.7)


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One job's run: what its controller recorded and when the service had it."""

    name: str
    task: str
    job_id: str
    record: Record
    window: Window


@dataclass(frozen=True, slots=True, kw_only=True)
class JobFigures:
    """A job's line of `summary.json`."""

    name: str
    task: str
    steps: int
    reward_first10: float
    reward_last10: float
    reward_se: float
    heldout_before: float
    heldout_after: float
    device_seconds_per_step: float
    bubble_ratio_alone: float
    bubble_ratio_shared: float
    logprob_gap_mean: float
    logprob_gap_max: float


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceFigures:
    """What the training device did while the jobs shared it."""

    busy_share: float
    switches: int
    switch_seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanFigures:
    """How the planner saw the jobs share the device: cycle shared over alone, by job name."""

    predicted_slowdown: dict[str, float]
    measured_slowdown: dict[str, float]
    was_warm: bool
    """Whether every job's cycle was known from its run alone when it was placed."""

    prefetches: int
    prefetch_hits: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """What `summary.json` holds."""

    jobs: tuple[JobFigures, ...]
    device: DeviceFigures
    plan: PlanFigures
    wall_seconds_alone: float
    wall_seconds_shared: float
    speedup: float

    def to_json(self) -> dict[str, object]:
        """Return the JSON object; the plan's figures are in `checks.json`."""
        figures = asdict(self)
        del figures["plan"]
        return figures


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One thing that must hold, and what was found."""

    name: str
    passed: bool
    found: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Cap:
    """The most that sharing could give: the speedup that each limit would allow by itself."""

    longest_job: float
    cores: float
    training_device: float
    num_cores: int

    @property
    def speedup(self) -> float:
        """Return the least of them."""
        return min(self.longest_job, self.cores, self.training_device)


def summarise(
    alone: Sequence[Run], shared: Sequence[Run], *, spans: Sequence[Span], plan: PlanFigures
) -> Summary:
    """Return the figures of a demo; `alone` and `shared` hold the same jobs in the same order."""
    jobs = tuple(
        job_figures(by_itself, together, spans=spans)
        for by_itself, together in zip(alone, shared, strict=True)
    )
    window = union([run.window for run in shared])
    wall_alone = sum(run.window.seconds for run in alone)
    return Summary(
        jobs=jobs,
        device=device_figures(within(spans, window), window=window),
        plan=plan,
        wall_seconds_alone=wall_alone,
        wall_seconds_shared=window.seconds,
        speedup=wall_alone / window.seconds,
    )


def union(windows: Sequence[Window]) -> Window:
    """Return from the first start to the last end."""
    return Window(
        start_us=min(window.start_us for window in windows),
        end_us=max(window.end_us for window in windows),
    )


def device_figures(spans: Sequence[Span], *, window: Window) -> DeviceFigures:
    """Return what the training device did in the window that cut `spans`."""
    moved = moves(spans)
    return DeviceFigures(
        busy_share=covered_s(training(spans)) / window.seconds,
        switches=sum(span.kind == "load" for span in moved),
        switch_seconds=covered_s(moved),
    )


def bubble_ratio(spans: Sequence[Span], *, window: Window) -> float:
    """Return the share of the window in which the training device ran no operation."""
    return 1.0 - covered_s(training(within(spans, window))) / window.seconds


def standard_error(first: Sequence[float], last: Sequence[float]) -> float:
    """Return the standard error of the difference of two means; each needs two values."""
    return math.sqrt(variance(first) / len(first) + variance(last) / len(last))


def job_figures(alone: Run, shared: Run, *, spans: Sequence[Span]) -> JobFigures:
    """Return the figures of a job that ran twice; `spans` are what the devices did."""
    rewards = shared.record.rewards
    steps = shared.record.steps
    mine = [span for span in training(spans) if span.job_id == shared.job_id]
    return JobFigures(
        name=shared.name,
        task=shared.task,
        steps=len(steps),
        reward_first10=fmean(rewards[:EDGE]),
        reward_last10=fmean(rewards[-EDGE:]),
        reward_se=standard_error(rewards[:EDGE], rewards[-EDGE:]),
        heldout_before=shared.record.held_out_before,
        heldout_after=shared.record.held_out_after,
        device_seconds_per_step=covered_s(mine) / len(steps),
        bubble_ratio_alone=bubble_ratio(spans, window=alone.window),
        bubble_ratio_shared=bubble_ratio(spans, window=shared.window),
        logprob_gap_mean=fmean(step.gap_mean for step in steps),
        logprob_gap_max=max(step.gap_max for step in steps),
    )


def checks(
    summary: Summary, *, preset: Preset, alone: Sequence[Run], shared: Sequence[Run]
) -> list[Check]:
    """Return every check of a demo, passed or not."""
    found = [check for job in summary.jobs for check in job_checks(job)]
    found += [_turns(summary.device), _warm(summary.plan, prefetches=bool(preset.wait_share))]
    if preset.uses_rewards:
        found += [_hostile(run) for run in shared]
    if preset.wait_share:
        found += [_waits(run) for run in alone]
    if preset.min_speedup:
        found.append(_speedup(summary, least=preset.min_speedup))
    return found


def job_checks(job: JobFigures) -> list[Check]:
    """Return what holds of a job that learns: rewards rise, and sampler and trainer agree."""
    return [_learning(job), _held_out(job), _gap(job)]


def _learning(job: JobFigures) -> Check:
    gain = job.reward_last10 - job.reward_first10
    return Check(
        name=f"learning of {job.name}",
        passed=gain >= MIN_GAIN and gain > MIN_STANDARD_ERRORS * job.reward_se,
        found=f"reward {job.reward_first10:.3f} → {job.reward_last10:.3f}, a gain of {gain:+.3f}; "
        f"at least {MIN_GAIN} and {MIN_STANDARD_ERRORS:g} times {job.reward_se:.3f} are due",
    )


def _held_out(job: JobFigures) -> Check:
    return Check(
        name=f"held-out prompts of {job.name}",
        passed=job.heldout_after > job.heldout_before,
        found=f"accuracy {job.heldout_before:.3f} → {job.heldout_after:.3f}; it must rise",
    )


def _gap(job: JobFigures) -> Check:
    return Check(
        name=f"logprob gap of {job.name}",
        passed=job.logprob_gap_mean <= MAX_MEAN_GAP and job.logprob_gap_max <= MAX_GAP,
        found=f"mean {job.logprob_gap_mean:.1e}, largest {job.logprob_gap_max:.1e}; "
        f"{MAX_MEAN_GAP:.0e} and {MAX_GAP:.0e} are allowed",
    )


def _turns(device: DeviceFigures) -> Check:
    return Check(
        name="turns on the device",
        passed=device.switches > 2,
        found=f"{device.switches} switches; jobs that share a device take turns",
    )


def _warm(plan: PlanFigures, *, prefetches: bool) -> Check:
    """Check the placement; there is time to prefetch only where the device is idle now and then."""
    due = "known cycles and prefetches are" if prefetches else "known cycles are"
    return Check(
        name="warm placement",
        passed=plan.was_warm and (plan.prefetches > 0 or not prefetches),
        found=f"cycles {'known' if plan.was_warm else 'not known'} from the runs alone, "
        f"{plan.prefetches} prefetches; {due} due",
    )


def _hostile(run: Run) -> Check:
    record = run.record
    return Check(
        name=f"hostile programs of {run.name}",
        passed=record.hostile_failed == record.hostile_sent > 0,
        found=f"{record.hostile_failed} of {record.hostile_sent} failed; all must",
    )


def _waits(run: Run) -> Check:
    least, most = WAIT_SHARES
    share = run.record.wait_share
    return Check(
        name=f"waiting of {run.name}",
        passed=least <= share <= most,
        found=f"{share:.0%} of its cycle alone; {least:.0%} to {most:.0%} are due",
    )


def _speedup(summary: Summary, *, least: float) -> Check:
    return Check(
        name="speedup",
        passed=summary.speedup >= least,
        found=f"{summary.speedup:.2f} times sooner than one after the other; {least:g} is due",
    )


def cap(walls_s: Sequence[float], *, cpu_s: float, device_s: float, num_cores: int) -> Cap:
    """Return the most sharing could give: it cannot end before what it must do one by one.

    `walls_s` are the jobs' times alone; `cpu_s` and `device_s` the processor and training device
    time that all of them took.
    """
    total_s = sum(walls_s)
    return Cap(
        longest_job=total_s / max(walls_s),
        cores=total_s / (cpu_s / num_cores),
        training_device=total_s / device_s,
        num_cores=num_cores,
    )
