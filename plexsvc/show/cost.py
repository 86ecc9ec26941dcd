"""Text of `plexctl cost`: a table, and CSV."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from typing import Final

from rich.table import Table

from plexclient.wire.v1 import service_pb2
from plexsvc.show.status import table_of

GIB: Final = 1 << 30
HOUR_S: Final = 3600
COLUMNS: Final = tuple(field.name for field in service_pb2.Cost.DESCRIPTOR.fields)


def cost_view(reply: service_pb2.CostReply) -> Table:
    """Return a row for each job and kind of work, and the sum."""
    names = ("tenant", "job", "name", "work", "count", "device s", "switch s", "tokens", "GiB")
    table = table_of(*names, "host GiB h")
    for one in reply.costs:
        table.add_row(one.owner, one.job_id, one.job_name, one.kind, *_figures([one]))
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


def cost_csv(reply: service_pb2.CostReply) -> str:
    """Return a line for each job and kind of work, after one of names, all figures whole.

    >>> print(cost_csv(service_pb2.CostReply()))
    owner,job_id,job_name,kind,count,device_us,switch_us,tokens,nbytes,host_mib_s
    """
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(COLUMNS)
    writer.writerows([getattr(one, name) for name in COLUMNS] for one in reply.costs)
    return text.getvalue().rstrip("\n")
