"""Checkpoints of state on several nodes: each writes what it has, and all or nothing appears."""

from __future__ import annotations

import json
import queue
import resource
import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
from safetensors.numpy import load_file

from plexclient.wire.v1 import statemanager_pb2 as pb
from plexsvc.errors import ErrorCode, PlexError
from plexsvc.rpc.errors import checked
from plexsvc.statemanager import checkpoints
from plexsvc.weights.checkpoints import SCRATCH, read_seal
from tests.rigs.state_daemon import Daemon
from tests.rigs.waiting import wait_until

pytestmark = pytest.mark.process

MIB = 1 << 20
KEYS = f"host_bytes = {256 * MIB}\nstaging_bytes = {MIB}"
SHAPE = (8, MIB // 2)
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


def size_of(held: Held, region: str) -> int:
    return sum((rows.stop - rows.start) * SHAPE[1] for one, _, _, rows in held if one == region)


def key_of(kind: str, name: str) -> str:
    return name if kind == "param" else f"{kind}/{name}"


class Nodes:
    """State managers of two nodes, and a WPG whose ranks are on both."""

    def __init__(self, place: Path, stack: ExitStack) -> None:
        self.place = place
        self.daemons = dict[str, Daemon]()
        self.expected = dict[str, np.ndarray]()
        """All tensors, as files name them."""
        self.by_n1 = 0
        """What it wrote last."""
        for number, node in enumerate(("n0", "n1")):
            (place / node).mkdir(mode=0o700)
            more: dict[str, Any] = {"devices": 1, "device_bytes": 32 * MIB, "node_id": node}
            self.daemons[node] = Daemon(place / node, stack, keys=KEYS, **more)
            self._hold(node, seeds={"same": SAME_SEED, "own": number})
        copies = pb.PublishedVersion(deployment_id="job/actor", version=7)
        for node, daemon in self.daemons.items():
            assert daemon.publish("a", 7, complete=True).error.code == ""
            copies.holders.add(node_id=node, state_manager=daemon.ready["address"])
        self.copies = copies

    def _hold(self, node: str, *, seeds: dict[str, int]) -> None:
        held, pieces = held_on(node), []
        rank = self.daemons[node].client("a", rank=int(node[1:]))
        sizes = {region: size_of(held, region) for region in seeds}
        rank("allocate", regions=[{"name": name, "nbytes": n} for name, n in sizes.items()])
        data, offsets = dict[str, np.ndarray](), dict.fromkeys(sizes, 0)
        for region, seed in seeds.items():
            rank("fill", name=region, seed=seed)
            dice = np.random.default_rng(seed)
            data[region] = dice.integers(0, 256, sizes[region], dtype=np.uint8)
        for region, kind, name, rows in held:
            count, low = rows.stop - rows.start, offsets[region]
            offsets[region] += count * SHAPE[1]
            pieces.append(
                {
                    "kind": kind,
                    "name": name,
                    "global_shape": list(SHAPE),
                    "start": [rows.start, 0],
                    "size": [count, SHAPE[1]],
                    "stride": [SHAPE[1], 1],
                    "dtype": "U8",
                    "region": region,
                    "offset": low,
                }
            )
            into = self.expected.setdefault(key_of(kind, name), np.zeros(SHAPE, np.uint8))
            into[rows] = data[region][low : offsets[region]].reshape(count, SHAPE[1])
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
        path = self.place / "out" / name
        messages: queue.Queue[pb.MaterializeRequest] = queue.Queue()
        fields = {"root": str(self.place), "tenant": "lab", "optimizer": True, **fields}
        request = pb.MaterializeRequest(wpg_id="a", path=str(path), copies=self.copies, **fields)
        messages.put(request)
        call = self.daemons["n0"].stub.Materialize(iter(messages.get, None), timeout=30)
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
        replies = self.daemons[share.node_id].stub.WriteShards(request, timeout=30)
        written = list(checked(list(replies)[-1]).written)
        self.by_n1 = sum(one.nbytes for one in written)
        return written

    def names(self) -> list[str]:
        """What there is where checkpoints go."""
        return sorted(path.name for path in (self.place / "out").iterdir())

    def arrived(self) -> list[int]:
        return [daemon.inventory().arrived_bytes for daemon in self.daemons.values()]


@pytest.fixture(scope="module")
def unharmed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nodes]:
    with ExitStack() as stack:
        yield Nodes(tmp_path_factory.mktemp("nodes"), stack)


@pytest.fixture
def nodes(unharmed: Nodes) -> Nodes:
    """The nodes, without a checkpoint."""
    shutil.rmtree(unharmed.place / "out", ignore_errors=True)
    return unharmed


def loaded(directory: Path) -> dict[str, np.ndarray]:
    found = dict[str, np.ndarray]()
    for file in sorted(directory.glob("*.safetensors")):
        tensors = load_file(file)
        assert not tensors.keys() & found.keys(), "a tensor has one writer"
        found |= tensors
    return found


def check_same(found: dict[str, np.ndarray], expected: dict[str, np.ndarray]) -> None:
    assert found.keys() == expected.keys()
    assert all(np.array_equal(found[name], array) for name, array in expected.items())


def test_each_node_writes_what_it_has_and_fetches_what_it_lacks_of_that(nodes: Nodes) -> None:
    reply = nodes.save("run")
    place = nodes.place / "out" / "run"
    check_same(loaded(place), nodes.expected)
    weights = [f"model-0000{number}-of-00002.safetensors" for number in (1, 2)]
    index = "model.safetensors.index.json"
    files = {*weights, index, "optimizer.safetensors", "plex_state.json"}
    assert set(reply.files) == files
    table = json.loads((place / index).read_text())["weight_map"]
    for name, file in table.items():
        assert np.array_equal(load_file(place / file)[name], nodes.expected[name])
    assert table.keys() == {name for name in nodes.expected if "/" not in name}
    total = sum((place / file).stat().st_size for file in files)
    assert abs(nodes.by_n1 - total / 2) < WHOLE.stop * SHAPE[1], "halves, but for one tensor"
    seal = read_seal(place)
    assert seal is not None
    for name in seal.names:
        seal.check_file(name)
    part = size_of(held_on("n1"), "same") + size_of(held_on("n1"), "own")
    assert all(nbytes < part for nbytes in nodes.arrived())
    assert json.loads((place / "plex_state.json").read_text())["rank_scalars"].keys() == {"0", "1"}


def test_a_save_over_nodes_takes_the_place_of_one_with_other_files(nodes: Nodes) -> None:
    nodes.save("run")
    nodes.save("run", optimizer=False)
    weights = {name: array for name, array in nodes.expected.items() if "/" not in name}
    check_same(loaded(nodes.place / "out" / "run"), weights)
    assert nodes.names() == ["run"]


def test_a_flipped_byte_of_one_shard_is_found(nodes: Nodes) -> None:
    nodes.save("run")
    place = nodes.place / "out" / "run"
    with (place / "model-00002-of-00002.safetensors").open("r+b") as file:
        file.seek(3 * MIB)
        byte = file.read(1)[0]
        file.seek(3 * MIB)
        file.write(bytes([byte ^ 1]))
    seal = read_seal(place)
    assert seal is not None
    seal.check_file("model-00001-of-00002.safetensors")
    with pytest.raises(PlexError, match="model-00002-of-00002") as found:
        seal.check_file("model-00002-of-00002.safetensors")
    assert found.value.code is ErrorCode.CHECKPOINT_DAMAGED
    (place / "optimizer.safetensors").unlink()
    with pytest.raises(PlexError, match=r"optimizer\.safetensors .* is missing"):
        read_seal(place)


@pytest.mark.parametrize("full", ["n0", "n1"])
def test_a_full_disk_of_one_node_refuses_the_save_and_leaves_nothing(
    nodes: Nodes, full: str
) -> None:
    nodes.save("run")
    before = (nodes.place / "out/run/.complete").read_bytes()
    pid = nodes.daemons[full].process.pid
    resource.prlimit(pid, resource.RLIMIT_FSIZE, (2 * MIB, resource.RLIM_INFINITY))
    with pytest.raises(PlexError, match=r"not write.*File too large|not written.*File too large"):
        nodes.save("run")
    resource.prlimit(pid, resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY,) * 2)
    wait_until(lambda: nodes.names() == ["run"], what="nothing else is left")
    assert (nodes.place / "out/run/.complete").read_bytes() == before
    nodes.save("run")


@pytest.mark.parametrize(
    ("killed", "moment"), [("n0", "written"), ("n1", "asked")], ids=["the-first", "another"]
)
def test_a_node_that_is_killed_meanwhile_leaves_no_checkpoint(
    tmp_path: Path, killed: str, moment: str
) -> None:
    with ExitStack() as stack:
        lose_one(Nodes(tmp_path, stack), killed=killed, moment=moment)


def lose_one(nodes: Nodes, *, killed: str, moment: str) -> None:
    def kill() -> None:
        nodes.daemons[killed].process.kill()
        nodes.daemons[killed].process.wait()

    with pytest.raises(grpc.RpcError):
        nodes.save("run", **{moment: kill})
    if killed == "n0":  # what it left goes with the next save beside it, or its successor
        assert [name for name in nodes.names() if SCRATCH not in name] == []
        checkpoints.remove_unfinished(nodes.place / "out")
    wait_until(lambda: nodes.names() == [], what="nothing is left")


def test_nodes_that_share_no_file_system_are_told_so(nodes: Nodes) -> None:
    elsewhere = nodes.place / "elsewhere"

    def part() -> None:
        (nodes.place / "out").rename(elsewhere)

    with pytest.raises(PlexError, match=r"node n1 did not write .*a file system that all share"):
        nodes.save("run", asked=part)
    nodes.save("other")

    def lose() -> None:
        for file in (nodes.place / "out").glob(".late*/model-00002*"):
            file.write_bytes(b"")

    with pytest.raises(PlexError, match=r"model-00002-of-00002\.safetensors has 0 bytes here"):
        nodes.save("late", written=lose)
    wait_until(lambda: nodes.names() == ["other"], what="nothing else is left")
