"""Checkpoints that two nodes write to S3: whole or not seen, whatever happens to nodes and line."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import grpc
import numpy as np
import pytest
from safetensors.numpy import load_file

from plexsvc.errors import ErrorCode, PlexError
from plexsvc.weights import object_store
from tests.rigs.chaos_proxy import Faults
from tests.rigs.s3_server import BUCKET, S3Server
from tests.rigs.spread_state import SpreadState

pytestmark = [pytest.mark.process, pytest.mark.slow, pytest.mark.timeout(180)]

MIB = 1 << 20
_NUMBERS = itertools.count(1)
FILES = [
    ".complete",
    "model-00001-of-00002.safetensors",
    "model-00002-of-00002.safetensors",
    "model.safetensors.index.json",
    "optimizer.safetensors",
    "plex_state.json",
]


@pytest.fixture(scope="module", autouse=True)
def environment(s3: S3Server) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        for name, value in s3.environment.items():
            patch.setenv(name, value)
        yield


@pytest.fixture(scope="module")
def unharmed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SpreadState]:
    with ExitStack() as stack:
        yield SpreadState(tmp_path_factory.mktemp("nodes"), stack)


def prefix() -> str:
    """Return where no checkpoint is."""
    return f"s3://{BUCKET}/run-{next(_NUMBERS)}"


@pytest.fixture
def nodes(unharmed: SpreadState) -> SpreadState:
    unharmed.store = f"{prefix()}/lab/job"
    return unharmed


def names(s3: S3Server, nodes: SpreadState) -> list[str]:
    """Return the checkpoints that readers see; nothing else is there."""
    found = object_store.attempts(nodes.store)
    for one in found:
        assert sorted(one.files) == FILES, one
        assert one.made_us
    below = nodes.store.removeprefix(f"s3://{BUCKET}/") + "/"
    assert len([key for key in s3.objects() if key.startswith(below)]) == len(found) * len(FILES)
    return [one.name for one in found]


def check_whole(nodes: SpreadState, name: str) -> None:
    store, _, job = nodes.store.rpartition("/")
    url = object_store.find(store, f"{job}/{name}")
    with object_store.opened(url, "", tenant="lab") as (directory, seal):
        assert seal is not None
        for file in seal.names:
            seal.check_file(file)
        found = dict[str, np.ndarray]()
        for path in directory.glob("*.safetensors"):
            found |= load_file(path)
    assert found.keys() == nodes.expected.keys()
    assert all(np.array_equal(found[key], array) for key, array in nodes.expected.items())


def test_each_node_puts_what_it_has_and_the_newest_stay(s3: S3Server, nodes: SpreadState) -> None:
    reply = nodes.save("actor@2")
    assert sorted([*reply.files, ".complete"]) == FILES
    check_whole(nodes, "actor@2")
    assert nodes.by_n1 > 0
    for step in (4, 6):
        nodes.save(f"actor@{step}", kept=2)
    assert names(s3, nodes) == ["actor@4", "actor@6"]


def test_a_flipped_byte_is_found(nodes: SpreadState) -> None:
    nodes.save("actor@2")
    (one,) = object_store.attempts(nodes.store)
    with object_store.reached(f"{one.url}/optimizer.safetensors") as (fs, path):
        data = bytearray(fs.cat_file(path))
        data[3 * MIB] ^= 1
        fs.pipe_file(path, bytes(data))
    with pytest.raises(PlexError, match=r"optimizer\.safetensors") as damaged:
        check_whole(nodes, "actor@2")
    assert damaged.value.code is ErrorCode.CHECKPOINT_DAMAGED


def test_a_line_that_cuts_every_upload_costs_that_checkpoint(
    s3: S3Server, nodes: SpreadState
) -> None:
    nodes.save("actor@2")
    try:
        with pytest.raises(PlexError, match=f"object store {nodes.store}/actor@4") as refused:
            nodes.save("actor@4", asked=lambda: s3.line.turn(Faults(cut_mean_bytes=4096)))
    finally:
        s3.line.turn(Faults())
    assert refused.value.code is ErrorCode.UNAVAILABLE
    assert [one.name for one in object_store.attempts(nodes.store) if one.made_us] == ["actor@2"]
    nodes.save("actor@6")
    assert names(s3, nodes) == ["actor@2", "actor@6"]
    check_whole(nodes, "actor@6")


def test_a_bucket_that_is_missing_and_keys_of_nobody_are_named(
    s3: S3Server, nodes: SpreadState
) -> None:
    own, nodes.store = nodes.store, "s3://nowhere/lab/job"
    with pytest.raises(PlexError, match="bucket does not exist") as missing:
        nodes.save("actor@2")
    assert missing.value.code is ErrorCode.NOT_FOUND
    nodes.store = own
    nodes.save("actor@2")
    s3.demand_credentials(demands=True)
    try:
        with pytest.raises(PlexError, match="environment of every node") as refused:
            nodes.save("actor@4")
    finally:
        s3.demand_credentials(demands=False)
    assert refused.value.code is ErrorCode.FORBIDDEN
    assert names(s3, nodes) == ["actor@2"]


@pytest.mark.parametrize(
    ("killed", "moment"), [("n0", "written"), ("n1", "asked")], ids=["the-first", "another"]
)
def test_a_state_manager_that_is_killed_meanwhile_leaves_no_checkpoint(
    s3: S3Server, tmp_path: Path, killed: str, moment: str
) -> None:
    store = f"{prefix()}/lab/job"
    with ExitStack() as stack:
        nodes = SpreadState(tmp_path, stack)
        nodes.store = store
        nodes.save("actor@2")

        def kill() -> None:
            nodes.daemons[killed].process.kill()
            nodes.daemons[killed].process.wait()

        with pytest.raises(grpc.RpcError):
            nodes.save("actor@4", **{moment: kill})
        assert [one.name for one in object_store.attempts(store) if one.made_us] == ["actor@2"]
    with ExitStack() as stack:
        (tmp_path / "again").mkdir()
        again = SpreadState(tmp_path / "again", stack)
        again.store = store
        again.save("actor@6")
        assert names(s3, again) == ["actor@2", "actor@6"]
        check_whole(again, "actor@6")
