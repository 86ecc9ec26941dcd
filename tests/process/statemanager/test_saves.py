"""Checkpoints of state on several nodes: each writes what it has, and all or nothing appears."""

from __future__ import annotations

import json
import resource
import shutil
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import grpc
import numpy as np
import pytest
from safetensors.numpy import load_file

from plexsvc.errors import ErrorCode, PlexError
from plexsvc.statemanager import checkpoints
from plexsvc.weights.checkpoints import SCRATCH, read_seal
from tests.rigs.spread_state import ROWS, SpreadState
from tests.rigs.waiting import wait_until

pytestmark = pytest.mark.process

MIB = 1 << 20


@pytest.fixture(scope="module")
def unharmed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SpreadState]:
    with ExitStack() as stack:
        yield SpreadState(tmp_path_factory.mktemp("nodes"), stack)


@pytest.fixture
def nodes(unharmed: SpreadState) -> SpreadState:
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


def test_each_node_writes_what_it_has_and_fetches_what_it_lacks_of_that(nodes: SpreadState) -> None:
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
    assert abs(nodes.by_n1 - total / 2) < ROWS * nodes.row_bytes, "halves, but for one tensor"
    seal = read_seal(place)
    assert seal is not None
    for name in seal.names:
        seal.check_file(name)
    assert all(nbytes < nodes.part_bytes("n1") for nbytes in nodes.arrived())
    assert json.loads((place / "plex_state.json").read_text())["rank_scalars"].keys() == {"0", "1"}


def test_a_save_over_nodes_takes_the_place_of_one_with_other_files(nodes: SpreadState) -> None:
    nodes.save("run")
    nodes.save("run", optimizer=False)
    weights = {name: array for name, array in nodes.expected.items() if "/" not in name}
    check_same(loaded(nodes.place / "out" / "run"), weights)
    assert nodes.names() == ["run"]


def test_a_flipped_byte_of_one_shard_is_found(nodes: SpreadState) -> None:
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
    nodes: SpreadState, full: str
) -> None:
    nodes.save("run")
    before = (nodes.place / "out/run/.complete").read_bytes()
    pid = nodes.daemons[full].process.pid
    resource.prlimit(pid, resource.RLIMIT_FSIZE, (2 * MIB, resource.RLIM_INFINITY))
    try:
        with pytest.raises(PlexError, match=r"(did not write|not written).*File too large"):
            nodes.save("run")
    finally:
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
        lose_one(SpreadState(tmp_path, stack), killed=killed, moment=moment)


def lose_one(nodes: SpreadState, *, killed: str, moment: str) -> None:
    def kill() -> None:
        nodes.daemons[killed].process.kill()
        nodes.daemons[killed].process.wait()

    with pytest.raises(grpc.RpcError):
        nodes.save("run", **{moment: kill})
    if killed == "n0":  # what it left goes with the next save beside it, or its successor
        assert [name for name in nodes.names() if SCRATCH not in name] == []
        checkpoints.remove_unfinished(nodes.place / "out")
    wait_until(lambda: nodes.names() == [], what="nothing is left")


def test_nodes_that_share_no_file_system_are_told_so(nodes: SpreadState) -> None:
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
