"""Text of `plexctl report`: device time, waits, and the slowdown of each job."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from typing import Final

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from plexclient.ids import show
from plexclient.wire.v1 import service_pb2
from plexsvc.show.pack_plan import PPM, length, slowdown
from plexsvc.show.status import table_of

OTHERS = "others"
HOUR_US = 3.6e9


def report_view(report: service_pb2.ReportReply) -> RenderableType:
    """Return the tables of a report: tenants, the matrix of waits, jobs."""
    lasted = length(max(0, report.now_us - report.since_us))
    names = ("tenant", "jobs", "device s", "waited s", "switches", "switch s")
    table = table_of(*names, "spot and lent h", "cost")
    for use in report.tenants:
        table.add_row(
            use.tenant or OTHERS,
            str(use.jobs),
            f"{use.device_us / 1e6:.1f}",
            f"{use.wait_us / 1e6:.1f}",
            str(use.switches),
            f"{use.switch_us / 1e6:.2f}",
            *_pooled(use),
        )
    return Group(
        Text(f"the last {lasted}; waits are for devices that others held", style="dim"),
        table,
        Text(),
        _matrix(report),
        Text(),
        _jobs(report),
    )


def _pooled(use: service_pb2.TenantUse | service_pb2.JobUse) -> tuple[str, str]:
    return f"{use.pooled_us / HOUR_US:.2f}", f"{use.cost:.2f}"


def tenants_view(report: service_pb2.ReportReply) -> Table:
    """Return what each tenant may have, has and waits for."""
    table = table_of("tenant", "weight", "share", "jobs", "waiting", "device s", "max priority")
    for use in report.tenants:
        table.add_row(
            use.tenant or OTHERS,
            str(use.weight) if use.tenant else "-",
            f"{use.share_ppm / PPM:.1%}" if use.tenant else "-",
            str(use.jobs),
            str(use.waiting) if use.tenant else "-",
            f"{use.device_us / 1e6:.1f}",
            str(use.max_priority) if use.tenant else "-",
        )
    return table


def _matrix(report: service_pb2.ReportReply) -> Table:
    """Return seconds waited: a row for who waited, a column for whose work was in the way."""
    names = [use.tenant for use in report.tenants]
    cells = {(one.waiting, one.blocking): one.wait_us for one in report.matrix}
    table = table_of("waited s for", *(name or OTHERS for name in names))
    for row in names:
        waits = [cells.get((row, column)) for column in names]
        table.add_row(row or OTHERS, *("-" if w is None else f"{w / 1e6:.2f}" for w in waits))
    return table


def _jobs(report: service_pb2.ReportReply) -> Table:
    table = table_of(
        *("job", "name", "device s", "waited s", "wait", "switches", "slowdown p / m ≤ bound"),
        *("spot and lent h", "cost", "most for"),
    )
    for job in report.jobs:
        worst = max(job.waits, key=lambda w: w.wait_us, default=None)
        most = "" if worst is None else worst.job_name or worst.job_id or "another tenant's job"
        table.add_row(
            job.job_id,
            job.name,
            f"{job.device_us / 1e6:.1f}",
            f"{job.wait_us / 1e6:.1f}",
            f"{job.wait_ratio_ppm / PPM:.0%}",
            str(job.switches),
            slowdown(
                predicted_ppm=job.predicted_ppm,
                measured_ppm=job.measured_ppm,
                bound_ppm=job.bound_ppm,
            ),
            *_pooled(job),
            f"{most} {worst.wait_us / 1e6:.1f} s" if worst is not None else "-",
        )
    return table


GIB: Final = 1 << 30
HOUR_S: Final = 3600
COLUMNS: Final = tuple(field.name for field in service_pb2.Cost.DESCRIPTOR.fields)


def cost_view(reply: service_pb2.CostReply) -> Table:
    """Return a row for each job and kind of work, or each operation, and the sum."""
    by_operation = any(one.operation_id for one in reply.costs)
    of = ("operation", "deployment", "seq") if by_operation else ("tenant", "job", "name")
    names = ("work", "count", "device s", "switch s", "tokens", "GiB", "host GiB h")
    table = table_of(*of, *names)
    for one in reply.costs:
        if one.operation_id:
            of = (_name_of(one.operation_id), one.deployment_id, str(one.seq))
        else:
            of = ("others", "", "") if by_operation else (one.owner, one.job_id, one.job_name)
        table.add_row(*of, one.kind, *_figures([one]))
    table.add_row("all", "", "", "", *_figures(reply.costs))
    return table


def _figures(costs: Sequence[service_pb2.Cost]) -> tuple[str, ...]:
    def total(name: str) -> int:
        return sum(getattr(one, name) for one in costs)

    return (
        str(total("count")),
        f"{total('device_us') / 1e6:.1f}",
        f"{total('switch_us') / 1e6:.2f}",
        str(total("tokens")),
        f"{total('nbytes') / GIB:.2f}",
        f"{total('host_mib_s') / 1024 / HOUR_S:.2f}",
    )


def _name_of(operation_id: bytes) -> str:
    return show(operation_id) if operation_id else ""


def cost_csv(reply: service_pb2.CostReply) -> str:
    """Return a line for each job and kind of work, after one of names, all figures whole.

    >>> print(cost_csv(service_pb2.CostReply()))
    owner,job_id,job_name,kind,count,device_us,switch_us,tokens,nbytes,host_mib_s
    """
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    by_operation = any(one.operation_id for one in reply.costs)
    names = COLUMNS if by_operation else COLUMNS[: COLUMNS.index("operation_id")]
    writer.writerow(names)
    for one in reply.costs:
        values = [getattr(one, name) for name in names]
        writer.writerow([_name_of(v) if isinstance(v, bytes) else v for v in values])
    return text.getvalue().rstrip("\n")
