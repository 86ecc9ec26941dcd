"""Which nodes make a gang: aligned blocks inside a host, whole hosts, or any nodes of one size.

Live, a planning node is one device of a host: it carries its host and its index there. Ranks that
talk a lot then get an aligned power-of-two block inside one host, or whole hosts of equal size.
Without hosts any nodes with the same number of devices make a gang.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass

from plexsvc.ids import NodeId

Gang = tuple[NodeId, ...]
Burden = Callable[[NodeId], int]
"""How much of a node is taken; the least burdened nodes come first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeRoom:
    """A node as planning sees it."""

    node_id: NodeId
    num_devices: int = 8
    parked_bytes: int = 1 << 62
    """Host memory and disk for the state of jobs that are not on the devices."""

    host: str = ""
    """The machine it is a device of; empty where a planning node is a whole machine."""

    index: int = 0
    """Which device of its host it is."""

    @property
    def rank(self) -> tuple[str, int, NodeId]:
        """Return its place among all: by host, position and name."""
        return (self.host, self.index, self.node_id)


class Rooms:
    """All nodes, and the gangs they could make; the order in which they came decides nothing.

    >>> rooms = Rooms(NodeRoom(node_id=NodeId(f"a:{i}"), host="a", index=i) for i in (3, 1, 0, 2))
    >>> rooms.blocks(2)
    (('a:0', 'a:1'), ('a:2', 'a:3'))
    """

    def __init__(self, rooms: Iterable[NodeRoom]) -> None:
        self.by_id = {room.node_id: room for room in rooms}
        self.has_hosts = any(room.host for room in self.by_id.values())
        """Whether nodes are devices of hosts."""

        self._blocks: dict[int, tuple[Gang, ...]] = {}

    def __len__(self) -> int:
        return len(self.by_id)

    def __contains__(self, node_id: NodeId) -> bool:
        return node_id in self.by_id

    def __getitem__(self, node_id: NodeId) -> NodeRoom:
        return self.by_id[node_id]

    def __iter__(self) -> Iterator[NodeId]:
        return iter(self.by_id)

    def join(self, room: NodeRoom) -> None:
        """Take a node in."""
        self.by_id[room.node_id] = room
        self.has_hosts = self.has_hosts or bool(room.host)
        self._blocks.clear()

    def leave(self, node_id: NodeId) -> None:
        """Forget a node."""
        del self.by_id[node_id]
        self._blocks.clear()

    def in_order(self, nodes: Iterable[NodeId]) -> Gang:
        """Return nodes by host, position and name."""
        return tuple(sorted(nodes, key=lambda node_id: self.by_id[node_id].rank))

    def blocks(self, num_nodes: int) -> tuple[Gang, ...]:
        """Return every aligned block of `num_nodes` inside one host, in order. Kept until a join.

        A block starts at a multiple of the next power of two.
        """
        found = self._blocks.get(num_nodes)
        if found is None:
            found = self._blocks[num_nodes] = tuple(self._aligned(num_nodes))
        return found

    def gangs(self, num_nodes: int, *, among: Collection[NodeId], burden: Burden) -> Iterator[Gang]:
        """Yield the gangs that could be made of `among`.

        Each block inside a host comes, in order; where nodes are interchangeable (whole hosts, or
        nodes without a host) only the least burdened ones do.
        """
        if not self.has_hosts:
            yield from self._by_devices(num_nodes, among=among, burden=burden)
        elif blocks := self.blocks(num_nodes):
            yield from (block for block in blocks if all(node in among for node in block))
        else:
            yield from self._whole_hosts(num_nodes, among=among, burden=burden)

    def _aligned(self, num_nodes: int) -> Iterator[Gang]:
        step = 1 << (num_nodes - 1).bit_length()
        for _, by_index in sorted(self._hosts().items()):
            for first in range(0, max(by_index) + 1, step):
                block = [by_index.get(at) for at in range(first, first + num_nodes)]
                gang = tuple(node_id for node_id in block if node_id is not None)
                if len(gang) == num_nodes:
                    yield gang

    def _by_devices(
        self, num_nodes: int, *, among: Collection[NodeId], burden: Burden
    ) -> Iterator[Gang]:
        classes: dict[int, list[NodeId]] = {}
        for node_id in self.in_order(among):
            classes.setdefault(self.by_id[node_id].num_devices, []).append(node_id)
        for _, nodes in sorted(classes.items()):
            if len(nodes) >= num_nodes:
                yield self.in_order(sorted(nodes, key=burden)[:num_nodes])

    def _whole_hosts(
        self, num_nodes: int, *, among: Collection[NodeId], burden: Burden
    ) -> Iterator[Gang]:
        by_size: dict[int, list[Gang]] = {}
        for _, by_index in sorted(self._hosts().items()):
            host = tuple(node_id for _, node_id in sorted(by_index.items()))
            if all(node_id in among for node_id in host):
                by_size.setdefault(len(host), []).append(host)
        for size, hosts in sorted(by_size.items(), reverse=True):
            count = num_nodes // size
            if count * size == num_nodes and count <= len(hosts):
                hosts.sort(key=lambda host: max(burden(node_id) for node_id in host))
                yield self.in_order(node_id for host in hosts[:count] for node_id in host)

    def _hosts(self) -> dict[str, dict[int, NodeId]]:
        hosts: dict[str, dict[int, NodeId]] = {}
        for room in self.by_id.values():
            hosts.setdefault(room.host or room.node_id, {})[room.index] = room.node_id
        return hosts
