"""Tables of `plexctl state`: what each tier holds, whose state is where, and what is on its way."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from plexclient.wire.v1 import service_pb2
from plexsvc.show.nodes import OTHERS, residency_name
from plexsvc.show.status import table_of

_MIB: Final = 1 << 20


def state_view(nodes: Sequence[service_pb2.NodeView]) -> RenderableType:
    """Return the tables of tiers and of residents with their bytes in each, in MiB."""
    tiers = table_of("tier", "used", "free", "total", "notes")
    for node in nodes:
        for name, used, total, notes in _tiers(node):
            tiers.add_row(name, _mib(used), _mib(total - used), _mib(total), notes)
    return Group(tiers, Text(), _residents(nodes))


def _tiers(node: service_pb2.NodeView) -> Iterator[tuple[str, int, int, str]]:
    for device in node.devices:
        if device.kind == "train":
            yield f"{node.node_id}:{device.index}", device.bytes_used, device.bytes_total, ""
    notes = f"{_mib(node.spared_bytes)} were clean or replicas: not copied"
    if node.replica_bytes:
        notes += f", {_mib(node.replica_bytes)} of replicas are not stored"
    yield f"{node.node_id} host", node.host_bytes_used, node.host_bytes_total, notes
    if node.disk_bytes_total:
        moved = f"{_mib(node.sunk_bytes)} out, {_mib(node.risen_bytes)} back"
        notes = f"{moved}, {_mib(node.queued_bytes)} to come back next"
        yield f"{node.node_id} disk", node.disk_bytes_used, node.disk_bytes_total, notes


def _residents(nodes: Sequence[service_pb2.NodeView]) -> Table:
    """A place to be parked, on host and disk, is held while the state is on the device, too."""
    table = table_of("state of", "node", "state is on", "device", "host", "disk", "on its way")
    for node in nodes:
        for resident in node.residents:
            if resident.host_bytes or resident.disk_bytes:
                table.add_row(
                    resident.deployment_id or OTHERS,
                    node.node_id,
                    residency_name(resident.residency),
                    _mib(resident.device_bytes),
                    _mib(resident.host_bytes),
                    _mib(resident.disk_bytes),
                    _on_its_way(resident),
                )
    return table


def _on_its_way(resident: service_pb2.NodeResident) -> str:
    """Say how fast a state moves, and how long that takes at most: what is clean does not move."""
    moved, seconds = resident.moved_bytes, resident.move_us / 1e6
    if not seconds:
        return "-"
    speed = moved / seconds
    left = max(0, resident.host_bytes + resident.disk_bytes - moved)
    left_s = f", {left / speed:.1f} s left" if speed else ""
    return f"{_mib(moved)} in {seconds:.1f} s, {_mib(round(speed))}/s{left_s}"


def _mib(nbytes: int) -> str:
    return f"{nbytes / _MIB:,.1f}"
