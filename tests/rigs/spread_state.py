"""A WPG's state on two state managers, and saves of it, driven as the scheduler drives them."""

from __future__ import annotations

import queue
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np

from plexclient.wire.v1 import statemanager_pb2 as pb
from plexsvc.rpc.errors import checked
from tests.rigs.state_daemon import Daemon

MIB = 1 << 20
DEADLINE_S = 120
ROWS = 8
WHOLE, TOP, BOTTOM = slice(0, 8), slice(0, 4), slice(4, 8)
SAME_SEED = 9
"""Of what both nodes hold."""

Held = list[tuple[str, str, str, slice]]
"""Pieces: region, kind, name and rows."""


def held_on(node: str) -> Held:
    """The pieces of a node: one tensor on each alone, one on both, and some by halves."""
    rows = TOP if node == "n0" else BOTTOM
    halves = [(kind, name) for kind in ("param", "exp_avg") for name in ("split", "torn")]
    return [
        ("same", "param", "both", WHOLE),
        ("own", "param", f"alone-{node}", WHOLE),
        *[("own", kind, name, rows) for kind, name in halves],
    ]


def rows_in(held: Held, region: str) -> int:
    return sum(rows.stop - rows.start for one, _, _, rows in held if one == region)


def key_of(kind: str, name: str) -> str:
    return name if kind == "param" else f"{kind}/{name}"


class SpreadState:
    """State managers of two nodes, and a WPG whose ranks are on both."""

    def __init__(self, place: Path, stack: ExitStack, *, row_bytes: int = MIB // 2) -> None:
        self.place = place
        self.row_bytes = row_bytes
        """Of a tensor's eight rows."""
        self.daemons = dict[str, Daemon]()
        self.expected = dict[str, np.ndarray]()
        """All tensors, as files name them."""
        self.store = ""
        """A URL, where checkpoints do not go to a directory."""
        self.by_n1 = 0
        """What it wrote last."""
        for number, node in enumerate(("n0", "n1")):
            (place / node).mkdir(mode=0o700)
            nbytes = 2 * MIB + self.part_bytes(node)
            keys = f"host_bytes = {4 * nbytes}\nstaging_bytes = {MIB}"
            more: dict[str, Any] = {"devices": 1, "device_bytes": 2 * nbytes, "node_id": node}
            self.daemons[node] = Daemon(place / node, stack, keys=keys, **more)
            self._hold(node, seeds={"same": SAME_SEED, "own": number})
        copies = pb.PublishedVersion(deployment_id="job/actor", version=7)
        for node, daemon in self.daemons.items():
            assert daemon.publish("a", 7, complete=True).error.code == ""
            copies.holders.add(node_id=node, state_manager=daemon.ready["address"])
        self.copies = copies

    def part_bytes(self, node: str) -> int:
        """Return what a node holds."""
        return sum(rows_in(held_on(node), one) for one in ("same", "own")) * self.row_bytes

    def _hold(self, node: str, *, seeds: dict[str, int]) -> None:
        held, pieces = held_on(node), []
        rank = self.daemons[node].client("a", rank=int(node[1:]))
        sizes = {region: rows_in(held, region) * self.row_bytes for region in seeds}
        rank("allocate", regions=[{"name": name, "nbytes": n} for name, n in sizes.items()])
        data, offsets = dict[str, np.ndarray](), dict.fromkeys(sizes, 0)
        for region, seed in seeds.items():
            rank("fill", name=region, seed=seed)
            dice = np.random.default_rng(seed)
            data[region] = dice.integers(0, 256, sizes[region], dtype=np.uint8)
        for region, kind, name, rows in held:
            count, low = rows.stop - rows.start, offsets[region]
            offsets[region] += count * self.row_bytes
            pieces.append(
                {
                    "kind": kind,
                    "name": name,
                    "global_shape": [ROWS, self.row_bytes],
                    "start": [rows.start, 0],
                    "size": [count, self.row_bytes],
                    "stride": [self.row_bytes, 1],
                    "dtype": "U8",
                    "region": region,
                    "offset": low,
                }
            )
            into = self.expected.setdefault(
                key_of(kind, name), np.zeros((ROWS, self.row_bytes), np.uint8)
            )
            into[rows] = data[region][low : offsets[region]].reshape(count, self.row_bytes)
        rank("index", pieces=pieces)
        rank("set", scalars={"adam_step": 2}, applied_seq=5)

    def save(
        self,
        name: str,
        *,
        asked: Callable[[], object] = lambda: None,
        written: Callable[[], object] = lambda: None,
        **fields: Any,
    ) -> pb.MaterializeReply:
        """Save on both nodes, as the scheduler does; tell when the other is asked, and has written.

        Raises:
            PlexError: what was refused.
            RpcError: a state manager did not answer.
        """
        path = f"{self.store or self.place / 'out'}/{name}"
        messages: queue.Queue[pb.MaterializeRequest] = queue.Queue()
        fields = {"root": str(self.place), "tenant": "lab", "optimizer": True, **fields}
        request = pb.MaterializeRequest(wpg_id="a", path=path, copies=self.copies, **fields)
        messages.put(request)
        call = self.daemons["n0"].stub.Materialize(iter(messages.get, None), timeout=DEADLINE_S)
        try:
            for reply in call:
                if checked(reply).shares:
                    asked()
                    found = [one for share in reply.shares for one in self._share(share, reply)]
                    written()
                    messages.put(pb.MaterializeRequest(written=found))
            return reply
        finally:
            call.cancel()

    def _share(self, share: pb.Share, asked: pb.MaterializeReply) -> list[pb.Shard]:
        request = pb.WriteShardsRequest(
            copies=self.copies,
            directory=asked.directory,
            root=str(self.place),
            shards=share.shards,
        )
        replies = self.daemons[share.node_id].stub.WriteShards(request, timeout=DEADLINE_S)
        written = list(checked(list(replies)[-1]).written)
        self.by_n1 = sum(one.nbytes for one in written)
        return written

    def names(self) -> list[str]:
        """What there is where checkpoints go."""
        return sorted(path.name for path in (self.place / "out").iterdir())

    def arrived(self) -> list[int]:
        return [daemon.inventory().arrived_bytes for daemon in self.daemons.values()]
