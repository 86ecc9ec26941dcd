"""Demo of sharing: each job alone on a training device, then all of them on it at once."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any, Final

from plexclient.wire.v1 import service_pb2
from plexsvc.demo.acts import Acts
from plexsvc.demo.model import device_bytes_for_one
from plexsvc.demo.pool import PoolPoint, pool_figures, pool_point
from plexsvc.demo.presets import Preset
from plexsvc.demo.report import Check, Outcome, Run, union
from plexsvc.demo.spans import Span, covered_s, training, within
from plexsvc.demo.stage import Stage, open_stage

if TYPE_CHECKING:
    from matplotlib.axes import Axes

WAIT_SHARES: Final = (0.6, 0.7)
CALIBRATION: Final = {"steps": 12, "wait_ms": 500.0}
"""The run that times a cycle has a tool too: work is slower after a wait, when caches are cold."""


def play(acts: Acts) -> Outcome:
    """Play all acts.

    Raises:
        PlexError: when the cluster or a job fails.
    """
    preset, device_bytes = acts.preset, device_bytes_for_one(acts.num_parameters)
    acts.show.act(
        f"starting a cluster; its training device has {device_bytes / 2**20:.1f} MiB, "
        f"the state of one job of {acts.num_parameters / 1e6:.1f} M parameters"
    )
    with open_stage(acts.out_dir, device_bytes=device_bytes) as stage:
        acts.warm_up(stage)
        waits_ms = {task: _wait_ms(acts, stage, task) for task in preset.tasks}
        alone: list[Run] = []
        before_s = tree_seconds(stage.pid)
        for task in preset.tasks:
            acts.show.act(f"{task} alone")
            alone += acts.play(stage, [task], label="alone", waits_ms=waits_ms)
        cpu_s = tree_seconds(stage.pid) - before_s + sum(run.record.cpu_s for run in alone)
        acts.show.act("both jobs share the device")
        shared = acts.play(stage, preset.tasks, label="shared", waits_ms=waits_ms)
        plan = _Plan(stage.plan)
        figures = sharing_figures(alone, shared, spans=stage.spans(), cpu_s=cpu_s)
        looks = stage.looks if preset.uses_rewards else []
        points = [pool_point(pool, at_us=status.now_us) for status, _, pool in looks]
        return Outcome(
            without=alone,
            runs=shared,
            spans=stage.spans(),
            figures=figures | {"plan": plan.figures},
            lines=[_line(figures), plan.line, *_pool_lines(points, shared)],
            checks=checks(figures, plan.figures, preset=preset, alone=alone, shared=shared),
            draw=(lambda axes: _draw_pool(axes, points, shared)) if points else None,
        )


def _wait_ms(acts: Acts, stage: Stage, task: str) -> float:
    """Return how long a task's tool must take to be the preset's share of the job's cycle."""
    share = acts.preset.wait_share
    if not share:
        return 0.0
    acts.show.act(f"timing a cycle of {task}")
    waits_ms = {task: CALIBRATION["wait_ms"]}
    steps = int(CALIBRATION["steps"])
    (run,) = acts.play(stage, [task], label="calibration", waits_ms=waits_ms, steps=steps)
    work_s = fmean(step.wall_s - step.wait_s for step in run.record.steps)
    return 1000 * work_s * share / (1 - share)


def sharing_figures(
    alone: Sequence[Run], shared: Sequence[Run], *, spans: Sequence[Span], cpu_s: float
) -> dict[str, Any]:
    """Return what sharing gave, and the most it could give by each limit alone.

    Sharing cannot end before the longest job, nor before the cores have given the processor time
    `cpu_s` of the runs alone, nor before the training device has run all operations one by one.
    """
    window = union([run.window for run in shared])
    inside = [span for span in within(spans, window) if span.device_kind == "train"]
    moves = [span for span in inside if span.is_move]
    alone_s = [run.window.seconds for run in alone]
    device_s = sum(covered_s(training(within(spans, run.window))) for run in alone)
    cores = len(os.sched_getaffinity(0))
    return {
        "wall_seconds_alone": sum(alone_s),
        "wall_seconds_shared": window.seconds,
        "speedup": sum(alone_s) / window.seconds,
        "most_by_longest_job": sum(alone_s) / max(alone_s),
        "most_by_cores": sum(alone_s) * cores / cpu_s,
        "most_by_training_device": sum(alone_s) / device_s,
        "device_busy": covered_s(training(inside)) / window.seconds,
        "switches": sum(span.kind == "load" for span in moves),
        "switch_seconds": covered_s(moves),
    }


def _line(found: Mapping[str, float]) -> str:
    most = {name: found[f"most_by_{name}"] for name in ("longest_job", "cores", "training_device")}
    limit = min(most, key=lambda name: most[name])
    return (
        f"alone one after the other {found['wall_seconds_alone']:.1f} s, shared "
        f"{found['wall_seconds_shared']:.1f} s: {found['speedup']:.2f} times sooner, at most "
        f"{most[limit]:.2f} here by the {limit.replace('_', ' ')}; training device busy "
        f"{found['device_busy']:.0%}, {found['switches']} switches in "
        f"{found['switch_seconds']:.2f} s"
    )


class _Plan:
    """What the planner said about the jobs that shared the device; empty if they never did."""

    def __init__(self, plan: service_pb2.PackReply | None) -> None:
        reply = plan or service_pb2.PackReply()
        sharing = [r for group in reply.groups if len(group.residents) > 1 for r in group.residents]
        self.figures = {
            "slowdown_predicted": {r.job_name: r.predicted_ppm / 1e6 for r in sharing},
            "slowdown_measured": {r.job_name: r.measured_ppm / 1e6 or math.nan for r in sharing},
            "was_warm": bool(sharing) and not any(r.is_cold for r in sharing),
            "prefetches": reply.prefetches,
            "prefetch_hits": reply.prefetch_hits,
        }
        each = [
            f"{r.job_name} {r.predicted_ppm / 1e6:.2f} predicted, "
            f"{r.measured_ppm / 1e6 or math.nan:.2f} measured"
            for r in sharing
        ]
        self.line = (
            f"slowdown by sharing: {', '.join(each) or 'the jobs never shared'}; "
            f"{reply.prefetch_hits} of {reply.prefetches} prefetches met the next operation"
        )


def checks(
    found: Mapping[str, Any],
    plan: Mapping[str, Any],
    *,
    preset: Preset,
    alone: Sequence[Run],
    shared: Sequence[Run],
) -> list[Check]:
    """Return what must hold of jobs that share a device, passed or not."""
    made = [
        Check(
            name="turns on the device",
            passed=found["switches"] > 2,
            found=f"{found['switches']} switches; jobs that share a device take turns",
        ),
        Check(  # there is time to prefetch only where the device is idle now and then
            name="warm placement",
            passed=plan["was_warm"] and (plan["prefetches"] > 0 or not preset.wait_share),
            found=f"cycles {'known' if plan['was_warm'] else 'not known'} from the runs alone, "
            f"{plan['prefetches']} prefetches",
        ),
    ]
    least, most = WAIT_SHARES
    for run in alone if preset.wait_share else ():
        share = run.record.wait_share
        made.append(
            Check(
                name=f"waiting of {run.task}",
                passed=least <= share <= most,
                found=f"{share:.0%} of its cycle alone; {least:.0%} to {most:.0%} are due",
            )
        )
    for run in shared if preset.uses_rewards else ():
        failed, sent = run.record.hostile_failed, run.record.hostile_sent
        made.append(
            Check(
                name=f"hostile programs of {run.task}",
                passed=failed == sent > 0,
                found=f"{failed} of {sent} failed; all must",
            )
        )
    if preset.min_speedup:
        made.append(
            Check(
                name="speedup",
                passed=found["speedup"] >= preset.min_speedup,
                found=f"{found['speedup']:.2f} times sooner than one after the other; "
                f"{preset.min_speedup:g} is due",
            )
        )
    return made


def _pool_lines(points: Sequence[PoolPoint], shared: Sequence[Run]) -> list[str]:
    if not points:
        return []
    pool = pool_figures(points, window=union([run.window for run in shared]))
    text = (
        f"reward workers, shared: {pool.mean_held:.1f} held and {pool.mean_busy:.1f} busy in the "
        f"mean; own pools of the jobs, in which nothing waits, have {pool.zero_queue}"
    )
    return [text]


def _draw_pool(axes: Axes, points: Sequence[PoolPoint], shared: Sequence[Run]) -> None:
    window = union([run.window for run in shared])
    shown = [point for point in points if window.start_us <= point.at_us <= window.end_us]
    seconds = [(point.at_us - window.start_us) / 1e6 for point in shown]
    for label, values in (
        ("requests that run or wait", [sum(point.needed.values()) for point in shown]),
        ("workers held", [point.held for point in shown]),
        ("workers busy", [point.busy for point in shown]),
    ):
        axes.step(seconds, values, where="post", label=label)
    axes.set(xlabel="seconds", title="Reward workers", yscale="symlog")
    axes.legend()


def tree_seconds(root: int) -> float:
    """Return the processor seconds of `root` and its descendants, ended ones included.

    What an ended child used is in its parent's account once the parent has waited for it.
    """
    parents, ticks = {}, {}
    for entry in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = entry.read_text().rpartition(")")[2].split()
        except (FileNotFoundError, ProcessLookupError):
            continue  # it ended meanwhile
        pid = int(entry.parent.name)
        parents[pid], ticks[pid] = int(fields[1]), sum(map(int, fields[11:15]))
    family: set[int] = set()
    grown = {root}
    while grown:
        family |= grown
        grown = {pid for pid, parent in parents.items() if parent in grown}
    return sum(ticks.get(pid, 0) for pid in family) / os.sysconf("SC_CLK_TCK")
