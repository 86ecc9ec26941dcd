"""Demo of spot instances: two jobs learn without them, then while a trace brings and kills them.

The trace (`spot_trace.csv`) is cut from Bamboo's p3 trace (AWS, 2021; MIT licence, (c) 2022
UCLASystem, github.com/uclasystem/bamboo, `traces/p3-trace.csv` at 8080929): from its second hour
and 40 minutes on, the nodes that lived 8 minutes or longer, as many as three devices can play. It
is played `SCALE` times as fast and without notice, so that whatever goes is killed at whatever
token it is at. Both runs have the same seeds. An engine takes few samples at a time, so that
generating takes a share of a step as it does for larger models.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from statistics import fmean
from typing import Final

from plexclient.wire.v1 import service_pb2
from plexsvc.demo.acts import Acts
from plexsvc.demo.report import Check, DemoOutcome, Figures, JobRun, union
from plexsvc.demo.spans import DeviceSpan
from plexsvc.demo.stage import FEW_SEQS, STATE, open_stage
from plexsvc.rollout.config import SpotConfig

TRACE: Final = Path(__file__).with_name("spot_trace.csv")
SCALE: Final = 60.0
DEVICES: Final = 3
"""Spot devices that come and go by the trace."""
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


def spot_point(at_us: int, reply: service_pb2.ListInstancesReply) -> SpotPoint:
    """Return what the service says of its spot instances."""
    spot = [one for one in reply.instances if one.kind == "spot" and one.phase in LIVING]
    return SpotPoint(
        at_us=at_us,
        living=frozenset(one.device for one in spot),
        serving=sum(one.phase == "serving" for one in spot),
        tokens_per_s=sum(one.tokens_per_s for one in spot),
    )


def play(acts: Acts) -> DemoOutcome:
    """Play both acts, each in a cluster of its own, because the trace begins with the cluster.

    Raises:
        PlexError: when a cluster or a job fails.
    """
    played, spans, points = list[list[JobRun]](), list[DeviceSpan](), list[SpotPoint]()
    for number, label in ((0, "without"), (DEVICES, "spot")):
        with open_stage(
            acts.out_dir,
            state=f"{STATE}-{label}",
            device_bytes=acts.device_bytes,
            max_num_seqs=FEW_SEQS,
            spot_devices=DEVICES,
            spot=SpotConfig(trace=str(TRACE), scale=SCALE),
        ) as stage:
            if not number:
                acts.warm_up(stage)
            acts.show.act(f"both jobs with up to {number} spot instances")
            played.append(acts.play(stage, acts.preset.tasks, label=label, spot=number))
            spans += stage.spans()
            points = [spot_point(status.now_us, seen) for status, seen, _ in stage.looks]
    without, runs = played
    window = union(runs)
    inside = [point for point in points if window.start_us <= point.at_us <= window.end_us]
    figures = spot_figures(inside)
    return DemoOutcome(
        without=without,
        runs=runs,
        spans=spans,
        figures=figures,
        lines=[
            f"{figures['mean_serving']:.1f} spot instances in the mean",
            "all share these cores: the times do not say how much sooner more devices make it",
        ],
        checks=checks(figures, without=without, runs=runs),
        curves={
            "spot instances that take part": [(one.at_us, len(one.living)) for one in inside],
            "that serve": [(one.at_us, one.serving) for one in inside],
        },
    )


def spot_figures(points: Sequence[SpotPoint]) -> Figures:
    """Return what spot instances did."""
    return {
        "kills": sum(len(before.living - after.living) for before, after in pairwise(points)),
        "mean_serving": fmean([point.serving for point in points] or [0]),
        "most_serving": max((point.serving for point in points), default=0),
        "spot_tokens_per_s": max((point.tokens_per_s for point in points), default=0.0),
    }


def checks(figures: Figures, *, without: Sequence[JobRun], runs: Sequence[JobRun]) -> list[Check]:
    """Return what must hold of jobs whose spot instances are killed, passed or not."""
    found = [
        Check(
            "kills",
            figures["kills"] >= MIN_KILLS and figures["spot_tokens_per_s"] > 0,
            f"{figures['kills']} spot instances went while the jobs ran, and they made up "
            f"to {figures['spot_tokens_per_s']:.0f} tokens/s; {MIN_KILLS} and tokens are due",
        )
    ]
    for before, run in zip(without, runs, strict=True):
        pairs = list(zip(before.record.rewards, run.record.rewards, strict=True))
        gap = abs(fmean(after - first for first, after in pairs))
        found.append(
            Check(
                f"rewards of {run.task}",
                gap <= MAX_REWARD_GAP,
                f"the mean over all steps is {gap:.4f} off that of the run without spot "
                f"instances, {sum(a == b for a, b in pairs)} of {len(pairs)} steps are equal; "
                f"{MAX_REWARD_GAP} is allowed: the last bits of logprobs depend on which samples "
                "an engine has at once",
            )
        )
    return found
