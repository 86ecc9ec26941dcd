"""Table of rollout instances."""

from __future__ import annotations

from rich.console import RenderableType

from plexclient.wire.v1 import service_pb2
from plexsvc.show.status import table_of


def instances_view(reply: service_pb2.ListInstancesReply) -> RenderableType:
    """Return the table of `plexctl instance list`."""
    table = table_of(
        "device", "kind", "phase", "engine", "deployment", "version", "running", "pending",
        "tokens/s", "price", "because",
    )  # fmt: skip
    for one in reply.instances:
        table.add_row(
            one.device,
            one.kind,
            one.phase,
            one.engine or "-",
            one.deployment_id or "-",
            str(one.version),
            str(one.running),
            str(one.pending),
            f"{one.tokens_per_s:.0f}",
            f"{one.price:g}" if one.price else "-",
            one.because.split("\n", 1)[0],
        )
    return table
