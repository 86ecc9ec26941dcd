"""Figures of the demo of spot instances, and the checks they must pass."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import fmean
from typing import Final

from plexclient.wire.v1 import service_pb2
from plexsvc.demo.presets import Preset
from plexsvc.demo.report import Check, JobFigures, Run, job_checks, job_figures, union
from plexsvc.demo.spans import Span, Window

LIVING: Final = ("joining", "catching up", "serving", "lost")
MIN_KILLS: Final = 3
MAX_REWARD_GAP: Final = 0.02
"""Largest difference of the runs' mean rewards over all steps."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SpotPoint:
    """Spot instances at one moment."""

    at_us: int
    living: frozenset[str]
    """Devices of those that take part and are not drained."""
    serving: int
    tokens_per_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Act:
    """Both jobs, with or without spot instances."""

    runs: list[Run]
    spans: list[Span]
    points: list[SpotPoint]

    @property
    def window(self) -> Window:
        """Return the time of the jobs."""
        return union([run.window for run in self.runs])


@dataclass(frozen=True, slots=True, kw_only=True)
class JobLine:
    """A job's line of `summary.json`."""

    job: JobFigures
    tokens_per_s_without: float
    tokens_per_s_spot: float
    samples: int
    samples_complete: int
    instances_lost: int
    """By its samples while they were generated."""
    reward_gap: float
    """Difference of the mean rewards of the two runs."""
    equal_steps: int
    """Steps whose mean reward is the same in both runs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SpotSummary:
    """What `summary.json` holds."""

    jobs: tuple[JobLine, ...]
    kills: int
    """Spot instances that went while the jobs ran."""
    mean_serving: float
    most_serving: int
    spot_tokens_per_s: float
    """Most that spot instances together made between two looks."""
    seconds_without: float
    seconds_spot: float


def spot_point(at_us: int, reply: service_pb2.ListInstancesReply) -> SpotPoint:
    """Return what the service says of its spot instances."""
    spot = [one for one in reply.instances if one.kind == "spot" and one.phase in LIVING]
    return SpotPoint(
        at_us=at_us,
        living=frozenset(one.device for one in spot),
        serving=sum(one.phase == "serving" for one in spot),
        tokens_per_s=sum(one.tokens_per_s for one in spot),
    )


def summarise(without: Act, spot: Act, *, preset: Preset) -> SpotSummary:
    """Return the figures of the two acts, which hold the same jobs in the same order."""
    inside = [p for p in spot.points if spot.window.start_us <= p.at_us <= spot.window.end_us]
    return SpotSummary(
        jobs=tuple(
            _line(before, after, spans=spot.spans, preset=preset)
            for before, after in zip(without.runs, spot.runs, strict=True)
        ),
        kills=sum(len(before.living - after.living) for before, after in pairwise(inside)),
        mean_serving=fmean([p.serving for p in inside] or [0]),
        most_serving=max((p.serving for p in inside), default=0),
        spot_tokens_per_s=max((p.tokens_per_s for p in inside), default=0.0),
        seconds_without=without.window.seconds,
        seconds_spot=spot.window.seconds,
    )


def _line(without: Run, spot: Run, *, spans: Sequence[Span], preset: Preset) -> JobLine:
    pairs = list(zip(without.record.rewards, spot.record.rewards, strict=True))
    return JobLine(
        job=job_figures(without, spot, spans=spans),
        tokens_per_s_without=_tokens_per_s(without),
        tokens_per_s_spot=_tokens_per_s(spot),
        samples=len(pairs) * preset.prompts * preset.group,
        samples_complete=round(sum(step.complete for step in spot.record.steps)),
        instances_lost=round(sum(step.instances_lost for step in spot.record.steps)),
        reward_gap=abs(fmean(after - before for before, after in pairs)),
        equal_steps=sum(before == after for before, after in pairs),
    )


def _tokens_per_s(run: Run) -> float:
    steps = run.record.steps
    return sum(step.tokens for step in steps) / sum(step.wall_s for step in steps)


def checks(summary: SpotSummary) -> list[Check]:
    """Return every check of the demo, passed or not."""
    found = [_kills(summary)]
    for line in summary.jobs:
        found += [*job_checks(line.job), _complete(line), _near(line)]
    return found


def _kills(summary: SpotSummary) -> Check:
    return Check(
        name="kills",
        passed=summary.kills >= MIN_KILLS and summary.spot_tokens_per_s > 0,
        found=f"{summary.kills} spot instances went while the jobs ran, and they made up to "
        f"{summary.spot_tokens_per_s:.0f} tokens/s; at least {MIN_KILLS} are due, and tokens",
    )


def _complete(line: JobLine) -> Check:
    return Check(
        name=f"samples of {line.job.name}",
        passed=line.samples_complete == line.samples,
        found=f"{line.samples_complete} of {line.samples} are complete; all must be",
    )


def _near(line: JobLine) -> Check:
    return Check(
        name=f"rewards of {line.job.name}",
        passed=line.reward_gap <= MAX_REWARD_GAP,
        found=f"the mean over all steps is {line.reward_gap:.4f} off that of the run without spot "
        f"instances, {line.equal_steps} of {line.job.steps} steps are equal; {MAX_REWARD_GAP} is "
        "allowed: the last bits of logprobs depend on which samples an engine has at once",
    )
