"""Live display of the demo: its acts, the progress of jobs, the devices."""

from __future__ import annotations

import time
from typing import Final, Self

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from plexclient.wire.v1 import reward_pb2, service_pb2
from plexsvc.demo.stage import Look
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
        now = f"[dim]{time.monotonic() - self._started_s:6.1f} s[/dim]"
        self._console.print(f"{now}  [bold]{title}[/bold]", soft_wrap=True)

    def look(self, look: Look) -> None:
        """Show what the service said of the cluster and of its reward workers."""
        status, _, rewards = look
        running = [job for job in status.jobs if job.state == service_pb2.JOB_STATE_RUNNING]
        for job in running:
            metrics = status.progress[job.job_id].metrics if job.job_id in status.progress else {}
            if "step" in metrics and "reward" in metrics:
                points = self._rewards.setdefault(job.name, {})
                points[int(metrics["step"])] = metrics["reward"]
        if self._console.is_terminal:
            shown = service_pb2.ClusterStatus()
            shown.CopyFrom(status)
            del shown.jobs[:]
            shown.jobs.extend(running)
            table = Table(box=None, pad_edge=False, show_header=False)
            for name, points in self._rewards.items():
                table.add_row(name, Text(sparkline(list(points.values())), style="green"))
            batches = [batches_view(rewards)] if rewards.batches else []
            self._live.update(Group(status_view(shown), table, *batches))
        elif time.monotonic() >= self._plain_after_s:
            self._plain_after_s = time.monotonic() + _PLAIN_EVERY_S
            line = plain_line(status, running=running, rewards=rewards)
            self._console.print(line, highlight=False, soft_wrap=True)


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
    rewards: reward_pb2.RewardsReply,
) -> str:
    """Return jobs, training devices and pools of reward workers that serve them in one line."""
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
    for pool in rewards.pools if rewards.batches else ():
        workers = pool.busy + pool.idle + pool.starting
        parts.append(f"{pool.name} {pool.busy} of {workers} workers busy, {pool.queued} waiting")
    return "          " + " | ".join(parts)
