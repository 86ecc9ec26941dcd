"""Tables of `plexctl status`: jobs with step, phase and reward; devices with their shares."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from plexclient.wire.v1 import service_pb2

_STATE_STYLES: Final = {
    "running": "green",
    "queued": "yellow",
    "completed": "cyan",
    "failed": "red",
    "cancelled": "magenta",
}
_MIB: Final = 1 << 20


def state_name(job: service_pb2.Job) -> str:
    """Return a job's state as people write it."""
    return service_pb2.JobState.Name(job.state).removeprefix("JOB_STATE_").lower()


def status_view(status: service_pb2.ClusterStatus) -> RenderableType:
    """Return the tables of a cluster's status."""
    nodes = ", ".join(f"{node.node_id} {node.state}" for node in status.nodes) or "no nodes"
    head = Text(f"scheduler epoch {status.scheduler_epoch} · {nodes}", style="dim")
    notices = [
        Text(plain(one), style="yellow") for one in {job.notice: None for job in status.jobs} if one
    ]
    return Group(head, _jobs_table(status), *notices, _devices_table(status))


def jobs_view(jobs: list[service_pb2.Job]) -> RenderableType:
    """Return the table of `plexctl job list`."""
    table = table_of("job", "name", "state", "operations", "device s", "reason")
    for job in jobs:
        table.add_row(
            job.job_id,
            job.name,
            _state(job),
            str(job.operations_done),
            f"{job.device_us / 1e6:.1f}",
            job.reason.split("\n", 1)[0],
        )
    return table


def _jobs_table(status: service_pb2.ClusterStatus) -> Table:
    table = table_of("job", "name", "state", "phase", "step", "reward", "operations", "device s")
    for job in status.jobs:
        metrics = status.progress[job.job_id].metrics if job.job_id in status.progress else {}
        table.add_row(
            job.job_id,
            job.name,
            _state(job),
            job.phase,
            _metric(metrics, "step", digits=0),
            _metric(metrics, "reward", digits=3),
            str(job.operations_done),
            f"{job.device_us / 1e6:.1f}",
        )
    return table


def _devices_table(status: service_pb2.ClusterStatus) -> Table:
    table = table_of(
        "device", "kind", "MiB used", "resident", "runs", "switches", "switch s", "busy"
    )
    owners = {
        deployment.wpg_id: deployment.deployment_id
        for deployment in status.deployments
        if deployment.wpg_id
    }
    for device in status.devices:
        table.add_row(
            f"{device.node_id}:{device.index}",
            device.kind,
            f"{device.bytes_used / _MIB:.1f} / {device.bytes_total / _MIB:.1f}",
            ", ".join(owners.get(wpg_id, wpg_id) for wpg_id in device.resident_wpgs) or "-",
            owners.get(device.running_wpg, device.running_wpg) or "-",
            str(device.switches),
            f"{device.switch_us / 1e6:.2f}",
            f"{busy_share(device, now_us=status.now_us):.0%}",
        )
    return table


def busy_share(device: service_pb2.DeviceStatus, *, now_us: int) -> float:
    """Return the share of its time since start that the device ran operations, 0 to 1.

    >>> busy_share(service_pb2.DeviceStatus(busy_us=5, since_us=10), now_us=20)
    0.5
    """
    return min(1.0, device.busy_us / max(1, now_us - device.since_us))


def _metric(metrics: Mapping[str, float], name: str, *, digits: int) -> str:
    return f"{metrics[name]:.{digits}f}" if name in metrics else "-"


def _state(job: service_pb2.Job) -> Text:
    name = state_name(job)
    return Text(name, style=_STATE_STYLES.get(name, ""))


class _PlainTable(Table):
    """A table that shows texts as they are: rich would read `[/INST]` as the end of a style."""

    def add_row(self, *cells: RenderableType | None, **how: Any) -> None:
        """Add a row."""
        shown = (Text(plain(cell)) if isinstance(cell, str) else cell for cell in cells)
        super().add_row(*shown, **how)


def plain(text: str) -> str:
    r"""Return a text as it may go to a terminal, which a tenant's could command otherwise.

    >>> plain("\x1b[2J is gone")
    '\\x1b[2J is gone'
    """
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() or c in "\n\t" else repr(c)[1:-1] for c in text)


def table_of(*columns: str) -> Table:
    """Return an empty table without a frame."""
    table = _PlainTable(box=None, pad_edge=False, header_style="bold")
    for number, column in enumerate(columns):
        table.add_column(column, no_wrap=number == 0)
    return table
