"""Demo of sharing: each job alone on a training device, then all of them on it at once."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any, Final

from plexclient.wire.v1 import reward_pb2, service_pb2
from plexsvc.demo.acts import Acts
from plexsvc.demo.presets import Preset
from plexsvc.demo.report import Check, DemoOutcome, Figures, JobRun, union
from plexsvc.demo.spans import DeviceSpan, Window, covered_s, training, within
from plexsvc.demo.stage import DemoCluster, open_stage

WAIT_SHARES: Final = (0.6, 0.7)
CALIBRATION_STEPS: Final = 12
CALIBRATION_WAIT_MS: Final = 500.0
"""The run that times a cycle has a tool too: work is slower after a wait, when caches are cold."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolPoint:
    """The workers of the reward service at one moment."""

    at_us: int
    held: int
    """Workers that are there, starting ones among them."""
    busy: int
    needed: Mapping[str, int]
    """Requests of each job that run or wait, by its id."""


def play(acts: Acts) -> DemoOutcome:
    """Play all acts.

    Raises:
        PlexError: when the cluster or a job fails.
    """
    preset = acts.preset
    acts.show.act(
        f"starting a cluster; its training device has {acts.device_bytes / 2**20:.1f} MiB, "
        f"the state of one job of {acts.num_parameters / 1e6:.1f} M parameters"
    )
    with open_stage(acts.out_dir, device_bytes=acts.device_bytes) as stage:
        acts.warm_up(stage)
        waits_ms = {task: _wait_ms(acts, stage, task) for task in preset.tasks}
        alone: list[JobRun] = []
        before_s = tree_seconds(stage.pid)
        for task in preset.tasks:
            acts.show.act(f"{task} alone")
            alone += acts.play(stage, [task], label="alone", waits_ms=waits_ms)
        cpu_s = tree_seconds(stage.pid) - before_s + sum(run.record.cpu_s for run in alone)
        acts.show.act("both jobs share the device")
        shared = acts.play(stage, preset.tasks, label="shared", waits_ms=waits_ms)
        spans = stage.spans()
        figures = sharing_figures(alone, shared, spans=spans, cpu_s=cpu_s)
        plan = plan_figures(stage.plan)
        lines = [_line(figures), _plan_line(plan)]
        looks = stage.looks if preset.uses_rewards else []
    points = [pool_point(pool, at_us=status.now_us) for status, _, pool in looks]
    if points:
        pool = pool_figures(points, window=union(shared))
        lines.append(
            f"reward workers, shared: {pool['mean_held']:.1f} held and {pool['mean_busy']:.1f} "
            f"busy in the mean; own pools of the jobs, in which nothing waits, have "
            f"{pool['zero_queue']}"
        )
    return DemoOutcome(
        without=alone,
        runs=shared,
        spans=spans,
        figures=figures | {"plan": plan},
        lines=lines,
        checks=checks(figures, plan, preset=preset, alone=alone, shared=shared),
        curves={
            "requests that run or wait": [(one.at_us, sum(one.needed.values())) for one in points],
            "workers held": [(one.at_us, one.held) for one in points],
            "workers busy": [(one.at_us, one.busy) for one in points],
        }
        if points
        else {},
    )


def _wait_ms(acts: Acts, stage: DemoCluster, task: str) -> float:
    """Return how long a task's tool must take to be the preset's share of the job's cycle."""
    share = acts.preset.wait_share
    if not share:
        return 0.0
    acts.show.act(f"timing a cycle of {task}")
    waits_ms = {task: CALIBRATION_WAIT_MS}
    (run,) = acts.play(
        stage, [task], label="calibration", waits_ms=waits_ms, steps=CALIBRATION_STEPS
    )
    work_s = fmean(step.wall_s - step.wait_s for step in run.record.steps)
    return 1000 * work_s * share / (1 - share)


def sharing_figures(
    alone: Sequence[JobRun], shared: Sequence[JobRun], *, spans: Sequence[DeviceSpan], cpu_s: float
) -> Figures:
    """Return what sharing gave, and the most it could give by each limit alone.

    Sharing cannot end before the longest job, nor before the cores have given the processor time
    `cpu_s` of the runs alone, nor before the training device has run all operations one by one.
    """
    window = union(shared)
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


def _line(found: Figures) -> str:
    most = {name: found[f"most_by_{name}"] for name in ("longest_job", "cores", "training_device")}
    limit = min(most, key=lambda name: most[name])
    return (
        f"alone one after the other {found['wall_seconds_alone']:.1f} s, shared "
        f"{found['wall_seconds_shared']:.1f} s: {found['speedup']:.2f} times sooner, at most "
        f"{most[limit]:.2f} here by the {limit.replace('_', ' ')}; training device busy "
        f"{found['device_busy']:.0%}, {found['switches']} switches in "
        f"{found['switch_seconds']:.2f} s"
    )


def plan_figures(plan: service_pb2.PackReply | None) -> Figures:
    """Return what the planner said of the jobs that shared the device; empty if they never did."""
    reply = plan or service_pb2.PackReply()
    sharing = [r for group in reply.groups if len(group.residents) > 1 for r in group.residents]
    return {
        "slowdown_predicted": {r.job_name: r.predicted_ppm / 1e6 for r in sharing},
        "slowdown_measured": {r.job_name: r.measured_ppm / 1e6 or None for r in sharing},
        "was_warm": bool(sharing) and not any(r.is_cold for r in sharing),
        "prefetches": reply.prefetches,
        "prefetch_hits": reply.prefetch_hits,
    }


def _plan_line(plan: Figures) -> str:
    measured = plan["slowdown_measured"]
    each = [
        f"{name} {predicted:.2f} predicted, "
        + (f"{measured[name]:.2f} measured" if measured[name] else "too few cycles to measure")
        for name, predicted in plan["slowdown_predicted"].items()
    ]
    return (
        f"slowdown by sharing: {', '.join(each) or 'the jobs never shared'}; "
        f"{plan['prefetch_hits']} of {plan['prefetches']} prefetches met the next operation"
    )


def checks(
    found: Figures,
    plan: Mapping[str, Any],
    *,
    preset: Preset,
    alone: Sequence[JobRun],
    shared: Sequence[JobRun],
) -> list[Check]:
    """Return what must hold of jobs that share a device, passed or not."""
    made = [
        Check(
            "turns on the device",
            found["switches"] > 2,
            f"{found['switches']} switches; jobs that share a device take turns",
        ),
        Check(  # there is time to prefetch only where the device is idle now and then
            "warm placement",
            plan["was_warm"] and (plan["prefetches"] > 0 or not preset.wait_share),
            f"cycles {'known' if plan['was_warm'] else 'not known'} from the runs alone, "
            f"{plan['prefetches']} prefetches",
        ),
    ]
    least, most = WAIT_SHARES
    for run in alone if preset.wait_share else ():
        share = run.record.a_second("wait_s")
        due = f"{share:.0%} of its cycle alone; {least:.0%} to {most:.0%} are due"
        made.append(Check(f"waiting of {run.task}", least <= share <= most, due))
    for run in shared if preset.uses_rewards else ():
        failed, sent = run.record.hostile_failed, run.record.hostile_sent
        due = f"{failed} of {sent} failed; all must"
        made.append(Check(f"hostile programs of {run.task}", failed == sent > 0, due))
    if preset.min_speedup:
        due = f"{found['speedup']:.2f} times sooner than one after the other; "
        due += f"{preset.min_speedup:g} is due"
        made.append(Check("speedup", found["speedup"] >= preset.min_speedup, due))
    return made


def pool_point(reply: reward_pb2.RewardsReply, *, at_us: int) -> PoolPoint:
    """Return what the reward service says of its pools."""
    needed = Counter[str]()
    for batch in reply.batches:
        needed[batch.job_id] += batch.queued + batch.running
    return PoolPoint(
        at_us=at_us,
        held=sum(pool.busy + pool.idle + pool.starting for pool in reply.pools),
        busy=sum(pool.busy for pool in reply.pools),
        needed=needed,
    )


def pool_figures(points: Sequence[PoolPoint], *, window: Window) -> Figures:
    """Return the figures of the window; zeros where no point lies in it.

    A zero-queue pool has a worker for each request at once, and each job has its own, since that is
    how rewards run without a pool that jobs share: it holds what each job needed at its peak.
    """
    inside = [point for point in points if window.start_us <= point.at_us <= window.end_us]
    peaks = Counter[str]()
    for point in inside:
        peaks |= Counter(point.needed)
    return {
        "mean_held": fmean([point.held for point in inside] or [0]),
        "mean_busy": fmean([point.busy for point in inside] or [0]),
        "zero_queue": peaks.total(),
    }


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
