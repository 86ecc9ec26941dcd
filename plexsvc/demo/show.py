"""Live display of the demo: its acts, the progress of jobs, the devices."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from typing import Final, Self

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from plexclient.wire.v1 import reward_pb2, service_pb2
from plexsvc.demo.pool import PoolFigures
from plexsvc.demo.report import Cap, Check, JobFigures, PlanFigures, Summary
from plexsvc.show.rewards import batches_view
from plexsvc.show.status import busy_share, status_view

_BARS: Final = "▁▂▃▄▅▆▇█"
_MAX_POINTS: Final = 60
_PLAIN_EVERY_S: Final = 10.0


class Show:
    """A live view on a terminal; plain lines now and then where there is none."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._started_s = time.monotonic()
        self._rewards: dict[str, dict[int, float]] = {}
        self._live = Live(console=console, refresh_per_second=2, transient=True)
        self._plain_after_s = 0.0

    def __enter__(self) -> Self:
        if self._console.is_terminal:
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._live.stop()

    def act(self, title: str) -> None:
        """Begin a part of the demo."""
        self._rewards = {}
        now = f"[dim]{self._elapsed():6.1f} s[/dim]"
        self._console.print(f"{now}  [bold]{title}[/bold]", soft_wrap=True)

    def status(
        self, status: service_pb2.ClusterStatus, rewards: reward_pb2.RewardsReply | None = None
    ) -> None:
        """Show the cluster as it is now, and the reward service where jobs use it."""
        running = [job for job in status.jobs if job.state == service_pb2.JOB_STATE_RUNNING]
        for job in running:
            self._note(job, status=status)
        if self._console.is_terminal:
            shown = service_pb2.ClusterStatus()
            shown.CopyFrom(status)
            del shown.jobs[:]
            shown.jobs.extend(running)
            parts = [status_view(shown), self._lines()]
            if rewards is not None:
                parts.append(batches_view(rewards))
            self._live.update(Group(*parts))
        elif time.monotonic() >= self._plain_after_s:
            self._plain_after_s = time.monotonic() + _PLAIN_EVERY_S
            line = plain_line(status, running=running, rewards=rewards)
            self._console.print(line, highlight=False, soft_wrap=True)

    def _note(self, job: service_pb2.Job, *, status: service_pb2.ClusterStatus) -> None:
        metrics = status.progress[job.job_id].metrics if job.job_id in status.progress else {}
        if "step" in metrics and "reward" in metrics:
            points = self._rewards.setdefault(job.name, {})
            points[int(metrics["step"])] = metrics["reward"]

    def _lines(self) -> RenderableType:
        table = Table(box=None, pad_edge=False, show_header=False)
        for name, points in self._rewards.items():
            table.add_row(name, Text(sparkline(list(points.values())), style="green"))
        return table

    def _elapsed(self) -> float:
        return time.monotonic() - self._started_s


def sparkline(values: list[float]) -> str:
    """Return rewards between 0 and 1 as a line of bars, the newest last.

    >>> sparkline([0.0, 0.5, 1.0])
    '▁▅█'
    """
    top = len(_BARS) - 1
    points = [round(max(0.0, min(1.0, value)) * top + 0.001) for value in values[-_MAX_POINTS:]]
    return "".join(_BARS[point] for point in points)


def plain_line(
    status: service_pb2.ClusterStatus,
    *,
    running: list[service_pb2.Job],
    rewards: reward_pb2.RewardsReply | None = None,
) -> str:
    """Return jobs, training devices and pools of workers in one line."""
    parts = []
    for job in running:
        metrics = status.progress[job.job_id].metrics if job.job_id in status.progress else {}
        step, reward = metrics.get("step", 0), metrics.get("reward", 0.0)
        parts.append(f"{job.name} step {step:.0f} reward {reward:.3f} {job.phase}")
    jobs = {job.job_id: job.name for job in status.jobs}
    owners = {d.wpg_id: f"{jobs[d.job_id]}/{d.name}" for d in status.deployments if d.wpg_id}
    for device in status.devices:
        if device.kind == "train":
            names = [owners.get(wpg_id, wpg_id) for wpg_id in device.resident_wpgs]
            share = busy_share(device, now_us=status.now_us)
            parts.append(
                f"device {device.index} holds {', '.join(names) or 'nothing'}, "
                f"{device.switches} switches, busy {share:.0%}"
            )
    for pool in rewards.pools if rewards is not None else ():
        workers = pool.busy + pool.idle + pool.starting
        parts.append(f"{pool.name} {pool.busy} of {workers} workers busy, {pool.queued} waiting")
    return "          " + " | ".join(parts)


def verdict(summary: Summary, *, checks: list[Check], cap: Cap) -> RenderableType:
    """Return the closing tables: a column for each job."""
    table = Table(title="GRPO on one device", title_justify="left")
    table.add_column("")
    for job in summary.jobs:
        table.add_column(job.name, justify="right")
    for label, values in _rows(summary.jobs):
        table.add_row(label, *values)
    lines = [
        Text(_device_line(summary)),
        Text(_plan_line(summary.plan)),
        Text(_speed_line(summary, cap=cap)),
    ]
    return Group(table, *lines, *marks(checks))


def _rows(jobs: Sequence[JobFigures]) -> list[tuple[str, list[str]]]:
    return [
        ("steps", [str(job.steps) for job in jobs]),
        ("mean reward, first 10 steps", [f"{job.reward_first10:.3f}" for job in jobs]),
        ("mean reward, last 10 steps", [f"{job.reward_last10:.3f}" for job in jobs]),
        ("standard error of the gain", [f"{job.reward_se:.3f}" for job in jobs]),
        ("held-out accuracy, before", [f"{job.heldout_before:.3f}" for job in jobs]),
        ("held-out accuracy, after", [f"{job.heldout_after:.3f}" for job in jobs]),
        ("device seconds a step", [f"{job.device_seconds_per_step:.3f}" for job in jobs]),
        ("device idle, alone", [f"{job.bubble_ratio_alone:.0%}" for job in jobs]),
        ("device idle, shared", [f"{job.bubble_ratio_shared:.0%}" for job in jobs]),
        ("logprob gap, mean", [f"{job.logprob_gap_mean:.1e}" for job in jobs]),
        ("logprob gap, largest", [f"{job.logprob_gap_max:.1e}" for job in jobs]),
    ]


def _device_line(summary: Summary) -> str:
    device = summary.device
    return (
        f"training device, shared: busy {device.busy_share:.0%}, {device.switches} switches "
        f"in {device.switch_seconds:.2f} s"
    )


def _plan_line(plan: PlanFigures) -> str:
    each = ", ".join(
        f"{name} {ppm:.2f} predicted, {plan.measured_slowdown.get(name, math.nan):.2f} measured"
        for name, ppm in plan.predicted_slowdown.items()
    )
    return (
        f"slowdown by sharing: {each or 'the jobs never shared'}; {plan.prefetch_hits} of "
        f"{plan.prefetches} prefetches met the next operation"
    )


def _speed_line(summary: Summary, *, cap: Cap) -> str:
    return (
        f"alone one after the other {summary.wall_seconds_alone:.1f} s, shared "
        f"{summary.wall_seconds_shared:.1f} s: {summary.speedup:.2f} times sooner "
        f"(at most {cap.speedup:.2f} here: {cap.cores:.2f} by the {cap.num_cores} cores, "
        f"{cap.training_device:.2f} by the training device, {cap.longest_job:.2f} by the longest "
        "job)"
    )


def pool_line(pool: PoolFigures) -> str:
    """Return what the pool of workers held while the jobs shared it."""
    planned = "" if pool.mean_planned is None else f"{pool.mean_planned:.1f} planned, "
    return (
        f"reward workers, shared: {planned}{pool.mean_held:.1f} held and {pool.mean_busy:.1f} busy "
        f"in the mean; own pools of the jobs, in which nothing waits, have {pool.zero_queue}"
    )


def marks(checks: list[Check]) -> list[Text]:
    """Return a line for each check: passed or not, and what was found."""
    return [
        Text(
            f"{'passed' if check.passed else 'FAILED'}  {check.name}: {check.found}",
            style="green" if check.passed else "bold red",
        )
        for check in checks
    ]
