"""Table of nodes for `plexctl node list`: devices, and who lives on each."""

from __future__ import annotations

from typing import Final

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from plexclient.wire.v1 import common_pb2, service_pb2
from plexsvc.show.status import table_of

_STYLES: Final = {
    "up": "green",
    "cordoned": "yellow",
    "draining": "yellow",
    "drained": "cyan",
    "lost": "red",
    "absent": "red",
}
_GIB: Final = 1 << 30
OTHERS: Final = "another tenant's"


def nodes_view(nodes: list[service_pb2.NodeView]) -> RenderableType:
    """Return the tables of nodes and of those who live on them."""
    table = table_of("node", "state", "devices", "host GiB", "disk GiB", "agent", "reason")
    for node in nodes:
        table.add_row(
            node.node_id,
            Text(node.state, style=_STYLES.get(node.state, "")),
            _devices(node),
            f"{node.host_bytes_used / _GIB:.2f} / {node.host_bytes_total / _GIB:.2f}",
            _disk(node),
            node.address.agent,
            node.reason,
        )
    residents = [(node, resident) for node in nodes for resident in node.residents]
    return Group(table, Text(), _residents(residents)) if residents else table


def residency_name(residency: common_pb2.Residency) -> str:
    """Return where a state is, as people write it.

    >>> residency_name(common_pb2.RESIDENCY_DEVICE)
    'device'
    """
    name = common_pb2.Residency.Name(residency).removeprefix("RESIDENCY_").lower()
    return "-" if name in {"unspecified", "none"} else name


def _residents(
    residents: list[tuple[service_pb2.NodeView, service_pb2.NodeResident]],
) -> Table:
    table = table_of("on", "deployment", "job", "tenant", "role", "state is on", "next")
    for _, resident in residents:
        table.add_row(
            ", ".join(resident.devices),
            resident.deployment_id or OTHERS,
            resident.job_name or resident.job_id,
            resident.tenant,
            resident.role,
            _place(resident),
            resident.next,
        )
    return table


def _disk(node: service_pb2.NodeView) -> str:
    """Say what is on disk, and what went there and came back in the background."""
    if not node.disk_bytes_total:
        return "-"
    moved = f"{node.sunk_bytes / _GIB:.2f} out, {node.risen_bytes / _GIB:.2f} back"
    return f"{node.disk_bytes_used / _GIB:.2f} / {node.disk_bytes_total / _GIB:.2f} ({moved})"


def _place(resident: service_pb2.NodeResident) -> str:
    name, on_disk = residency_name(resident.residency), resident.disk_bytes / _GIB
    is_parked = resident.residency == common_pb2.RESIDENCY_HOST
    return f"{name}, {on_disk:.2f} GiB on disk" if is_parked and on_disk else name


def _devices(node: service_pb2.NodeView) -> str:
    kinds: dict[str, int] = {}
    for device in node.devices:
        kinds[device.kind] = kinds.get(device.kind, 0) + 1
    return ", ".join(f"{count} {kind}" for kind, count in kinds.items()) or "-"
