"""The cluster of a simulation: nodes, memory, link speeds, what a switch costs, faults."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, Final, TypeAlias

from msgspec import Meta

from plexsvc.scheduler.core.planning.profile import SECOND_US
from plexsvc.sim.files import Amount, Count, Rate

GB: Final = 10**9
Devices: TypeAlias = Annotated[int, Meta(ge=1, le=1024)]


@dataclass(frozen=True, slots=True, kw_only=True)
class SwitchModel:
    """What a context switch costs: offload and load over the link, beside a constant."""

    base_s: Amount = 0.0
    """Seconds every switch takes beside `2 * state_gb / nodes / link_gb_s`."""

    link_gb_s: Rate = 25.0
    """Device to host, gigabytes a second and node, each way."""

    disk_gb_s: Rate = 6.0
    """Host to disk, gigabytes a second and node, each way: for what of a job's state found no room
    in a node's host memory when it came."""

    host_gb_s: Amount = 0.0
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

    node_mtbf_h: Amount = 0.0
    """Mean hours between losses of one node; 0: none is lost."""

    repair_s: Annotated[float, Meta(ge=0, le=1e6)] = 600.0
    """Seconds until a lost node joins again."""

    slow_switch_share: Annotated[float, Meta(ge=0, le=1)] = 0.0
    """Share of switches that take longer."""

    slow_switch_factor: Amount = 3.0
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

    at_s: Amount
    action: NodeAction
    node: str


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeGroup:
    """Nodes of one size; a cluster file lists several where its nodes are unequal."""

    count: Count
    devices: Devices
    host_gb: Amount | None = None
    """Host memory of each for parked state; None: what the cluster says."""

    price: Amount = 1.0
    """What an hour of each device costs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SimCluster:
    """A cluster file."""

    nodes: Count
    """How many there are. A file may give a list instead, where they are unequal."""

    unequal: tuple[NodeGroup, ...] = ()
    """Nodes by size, in the order of their names; none where all are alike."""

    devices_per_node: Devices = 8
    """Devices of a node where all are alike, of one that joins, and of one a job asks for."""

    host_gb: Amount = 2_000.0
    """Host memory of a node for parked state."""

    disk_gb: Amount = 8_000.0
    """NVMe of a node for parked state."""

    nodes_per_host: Count = 1
    """Nodes, in the order of their names, that are on one host and share its link."""

    target_slowdown: Annotated[float, Meta(ge=1, le=1e9)] | None = None
    """Slowdown that the pool's owner accepts instead of a policy's own target."""

    migrate_gb_s: Rate = 10.0
    """Node to node, gigabytes a second: what moving a job is charged with."""

    spawn_s: Amount = 10.0
    """Seconds until new processes answer. Until they have loaded their state, too, it takes as long
    as a copy from another node."""

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

    @property
    def counts(self) -> dict[int, int]:
        """Return how many nodes of each number of devices there are at first."""
        counts: dict[int, int] = {}
        for group in self.unequal or (NodeGroup(count=self.nodes, devices=self.devices_per_node),):
            counts[group.devices] = counts.get(group.devices, 0) + group.count
        return counts

    def copy_us(self, nbytes: int) -> int:
        """Return what a copy between two nodes takes."""
        return nbytes * SECOND_US // max(1, round(self.migrate_gb_s * GB))

    def start_us(self, nbytes: int) -> int:
        """Return how long after their order new processes run, with so many bytes on each node."""
        return round(self.spawn_s * SECOND_US) + self.copy_us(nbytes)

    def price_of(self, devices: int) -> float:
        """Return what an hour of a device of nodes of a size costs."""
        return next((g.price for g in self.unequal if g.devices == devices), 1.0)

    def group_of(self, node: str) -> NodeGroup:
        """Return what a node is like; one that joins is like those that jobs ask for."""
        number = int(node[1:]) if node[1:].isdigit() and node[0] == "n" else self.nodes
        for group in self.unequal:
            if number < group.count:
                return group
            number -= group.count
        return NodeGroup(count=self.nodes, devices=self.devices_per_node)

    def host_of(self, node: str) -> str:
        """Return the host whose link a node shares with others; empty if it has its own."""
        is_one = self.nodes_per_host > 1 and node[:1] == "n" and node[1:].isdigit()
        return f"host-{int(node[1:]) // self.nodes_per_host}" if is_one else ""

    def least_host_gb(self, devices: int) -> float:
        """Return the host memory of every node of a size, of the smallest where they differ."""
        own = [group.host_gb for group in self.unequal if group.devices == devices]
        return min((self.host_gb if gb is None else gb for gb in own), default=self.host_gb)

    def host_bytes(self, node: str) -> int:
        """Return the host memory of a node for parked state."""
        own_gb = self.group_of(node).host_gb
        return round((self.host_gb if own_gb is None else own_gb) * GB)

    def node_us(self, *, devices: int, from_us: int, until_us: int) -> int:
        """Return the node-microseconds that nodes of a size offer if none is closed or lost."""
        since = [0] * self.counts.get(devices, 0)
        if devices == self.devices_per_node:
            since.extend(self.newcomers.values())
        return sum(max(0, until_us - max(from_us, at_us)) for at_us in since)

    def least_us(self, work_us: int, *, devices: int, from_us: int) -> int:
        """Return the least time in which nodes of a size could do so many node-microseconds."""
        low, high = 0, work_us + max(self.newcomers.values(), default=0)
        while low < high:
            middle = (low + high) // 2
            until_us = from_us + middle
            if self.node_us(devices=devices, from_us=from_us, until_us=until_us) < work_us:
                low = middle + 1
            else:
                high = middle
        return low


def node_name(at: int) -> str:
    """Return the name of a simulated node."""
    return f"n{at:05d}"
