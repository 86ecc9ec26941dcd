"""The cluster of a simulation: nodes, memory, link speeds, what a switch costs, faults."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from plexsvc.scheduler.core.planning.profile import SECOND_US

GB: Final = 10**9


@dataclass(frozen=True, slots=True, kw_only=True)
class SwitchModel:
    """What a context switch costs: offload and load over the link, beside a constant."""

    base_s: float = 0.0
    """Seconds every switch takes beside the bytes."""

    link_gb_s: float = 25.0
    """Device to host, gigabytes a second and node, each way."""

    disk_gb_s: float = 6.0
    """Host to disk, gigabytes a second and node, each way."""

    host_gb_s: float = 0.0
    """What all nodes of one host together may move, gigabytes a second each way; 0: no limit."""

    def cost_us(self, *, state_gb: float, nodes: int) -> int:
        """Return the cost of bringing a job in where another's state lies: out and in."""
        if state_gb == 0:
            return 0
        return round((self.base_s + 2 * state_gb / nodes / self.link_gb_s) * SECOND_US)

    def disk_us(self, nbytes: int) -> int:
        """Return what a switch takes longer by if so many bytes a node are on disk.

        They flow on through host memory, so the slower of disk and link counts.
        """
        slower = min(self.disk_gb_s, self.link_gb_s)
        return round(2 * nbytes / GB * (1 / slower - 1 / self.link_gb_s) * SECOND_US)


@dataclass(frozen=True, slots=True, kw_only=True)
class Faults:
    """What goes wrong, by seed."""

    node_mtbf_h: float = 0.0
    """Mean hours between losses of one node; 0: none is lost."""

    repair_s: float = 600.0
    """Seconds until a lost node joins again."""

    slow_switch_share: float = 0.0
    """Share of switches that take longer."""

    slow_switch_factor: float = 3.0
    """How much longer a slow switch takes."""


class NodeAction(StrEnum):
    """What an operator does to a node while jobs run."""

    CORDON = "cordon"
    UNCORDON = "uncordon"
    DRAIN = "drain"
    JOIN = "join"


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeEvent:
    """An operator's act: `join` takes a new node in, or one that was drained back."""

    at_s: float
    action: NodeAction
    node: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SimCluster:
    """A cluster file."""

    nodes: int
    devices_per_node: int = 8
    host_gb: float = 2_000.0
    """Host memory of a node for parked state."""

    disk_gb: float = 8_000.0
    """NVMe of a node for parked state."""

    nodes_per_host: int = 1
    """Nodes, in the order of their names, that are on one host and share its link."""

    target_slowdown: float | None = None
    """Slowdown that the pool's owner accepts instead of a policy's own target."""

    migrate_gb_s: float = 10.0
    """Node to node, gigabytes a second: what moving a job is charged with."""

    switch: SwitchModel = SwitchModel()
    faults: Faults = Faults()
    events: tuple[NodeEvent, ...] = ()

    @property
    def newcomers(self) -> dict[str, int]:
        """Return when each node that is not there at first joins, in microseconds."""
        at_first = {node_name(at) for at in range(self.nodes)}
        joins = [event for event in self.events if event.action is NodeAction.JOIN]
        came: dict[str, int] = {}
        for join in joins:
            if join.node not in at_first:
                came.setdefault(join.node, round(join.at_s * SECOND_US))
        return came

    def node_us(self, *, from_us: int, until_us: int) -> int:
        """Return the node-microseconds that all nodes offer if none is ever closed or lost."""
        since = [*[0] * self.nodes, *self.newcomers.values()]
        return sum(max(0, until_us - max(from_us, at_us)) for at_us in since)

    def least_us(self, work_us: int, *, from_us: int) -> int:
        """Return the least time in which all nodes together could do so many node-microseconds."""
        low, high = 0, -(-work_us // self.nodes)
        while low < high:
            middle = (low + high) // 2
            if self.node_us(from_us=from_us, until_us=from_us + middle) < work_us:
                low = middle + 1
            else:
                high = middle
        return low


def node_name(at: int) -> str:
    """Return the name of a simulated node."""
    return f"n{at:05d}"
