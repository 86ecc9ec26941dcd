"""Hosts of a simulated cluster: state in their memory or on disk, and links that nodes share."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from plexsvc.ids import UnitId, WpgId
from plexsvc.residency import Residency
from plexsvc.scheduler.core.planning.profile import SECOND_US
from plexsvc.sim.cluster import GB, SimCluster


@dataclass(slots=True, kw_only=True)
class ParkingRoom:
    """Room for parked state in the memory of each node: who comes first has it, the rest is disk's.

    Room is kept for whoever is on its device just now, too: it will be parked again.
    """

    host_bytes: Callable[[str], int]
    """Of a node."""
    _taken: dict[UnitId, int] = field(default_factory=dict)
    _lodgers: dict[WpgId, tuple[tuple[UnitId, ...], int, int]] = field(default_factory=dict)
    """Nodes, bytes a node in memory, and bytes a node on disk."""

    def arrive(self, wpg_id: WpgId, nodes: Sequence[UnitId], *, nbytes: int) -> None:
        """Let `nbytes` of state live on each of some nodes."""
        free = min(self.host_bytes(node) - self._taken.get(node, 0) for node in nodes)
        kept = min(nbytes, max(0, free))
        self._lodgers[wpg_id] = (tuple(nodes), kept, nbytes - kept)
        for node in nodes:
            self._taken[node] = self._taken.get(node, 0) + kept

    def leave(self, wpg_id: WpgId) -> None:
        """Free what a WPG took, if it took any."""
        nodes, kept, _ = self._lodgers.pop(wpg_id, ((), 0, 0))
        for node in nodes:
            self._taken[node] -= kept

    def disk_bytes(self, wpg_id: WpgId | None) -> int:
        """Return the bytes of a WPG's state on the disk of each of its nodes."""
        return 0 if wpg_id is None else self._lodgers.get(wpg_id, ((), 0, 0))[2]


@dataclass(slots=True, kw_only=True)
class HostLinks:
    """The links between devices and memory that nodes of a host share, one for each direction."""

    cluster: SimCluster
    _free_us: dict[tuple[str, Residency], int] = field(default_factory=dict)

    def take_us(self, nodes: Sequence[UnitId], to: Residency, *, nbytes: int, now_us: int) -> int:
        """Return how long `nbytes` of each of some nodes take, behind what is under way."""
        if not self.cluster.switch.host_gb_s:
            return 0
        flows: dict[str, int] = {}
        for node in nodes:
            host = self.cluster.host_of(node) or node
            flows[host] = flows.get(host, 0) + nbytes
        ends = []
        for host, flow in flows.items():
            took_us = round(flow / GB / self.cluster.switch.host_gb_s * SECOND_US)
            end_us = max(now_us, self._free_us.get((host, to), 0)) + took_us
            self._free_us[host, to] = end_us
            ends.append(end_us)
        return max(ends, default=now_us) - now_us
