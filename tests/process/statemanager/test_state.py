"""Publishing, digests and checkpoints of managed state, on any tier and in any layout."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xxhash
from safetensors.numpy import load_file

from plexclient.wire.v1 import statemanager_pb2
from plexsvc.errors import ErrorCode, PlexError
from tests.rigs.byte_holders import Passed, between
from tests.rigs.state_daemon import Client, Daemon

pytestmark = pytest.mark.process

WEIGHT = np.arange(24, dtype=np.float32).reshape(4, 6)

KEYS = "host_bytes = 67108864\nstaging_bytes = 1048576"
HALVES = [slice(0, 2), slice(2, 4)]

MAX_VERSIONS = 8
"""`StateManagerConfig.max_versions_per_deployment`, by default."""


def piece(array: np.ndarray, *, rows: slice, offset: int, **fields: object) -> dict[str, Any]:
    box = array[rows]
    return {
        "kind": "param",
        "name": "w",
        "global_shape": list(array.shape),
        "start": [rows.start, *[0] * (array.ndim - 1)],
        "size": list(box.shape),
        "dtype": "F32",
        "region": "params",
        "offset": offset,
        "stride": [n // 4 for n in np.ascontiguousarray(box).strides],
        **fields,
    }


def build(daemon: Daemon, wpg_id: str, shards: list[slice], **identity: Any) -> list[Client]:
    """Ranks holding WEIGHT by rows as param and, tenfold, exp_avg, 64 bytes into their regions."""
    ranks = []
    for i, rows in enumerate(shards):
        rank = daemon.client(wpg_id, rank=i, device_index=i % 2, **identity)
        sizes = [{"name": name, "nbytes": 4096} for name in ("params", "moments")]
        rank("allocate", regions=sizes)
        rank("put", name="params", offset=64, values=WEIGHT[rows].ravel().tolist())
        rank("put", name="moments", offset=64, values=(WEIGHT[rows] * 10).ravel().tolist())
        moment = {"kind": "exp_avg", "region": "moments"}
        rank(
            "index",
            pieces=[
                piece(WEIGHT, rows=rows, offset=64),
                piece(WEIGHT, rows=rows, offset=64, **moment),
            ],
        )
        rank("set", scalars={"adam_step": 2}, applied_seq=5)
        ranks.append(rank)
    return ranks


def test_digests_are_equal_on_every_tier_and_in_every_layout(daemon: Daemon) -> None:
    build(daemon, "whole", [slice(0, 4)])
    build(daemon, "halves", [slice(0, 2), slice(2, 4)])
    build(daemon, "copies", [slice(0, 4), slice(0, 4)])
    whole = daemon.digests("whole")
    assert sorted(whole) == ["exp_avg", "param"]
    assert whole["param"] != whole["exp_avg"]
    assert daemon.digests("halves") == whole
    assert daemon.digests("copies") == whole
    assert daemon.move("halves", "HOST").error.code == ""
    assert daemon.digests("halves") == whole
    assert daemon.move("halves", "DEVICE").error.code == ""
    assert daemon.digests("halves") == whole


def test_a_changed_element_changes_the_digest(daemon: Daemon) -> None:
    (rank,) = build(daemon, "a", [slice(0, 4)])
    before = daemon.digests("a")
    rank("put", name="params", offset=64, values=[99.0])
    after = daemon.digests("a")
    assert before["param"] != after["param"]
    assert before["exp_avg"] == after["exp_avg"]


def test_a_published_version_stays_frozen_while_training_goes_on(daemon: Daemon) -> None:
    (trainer,) = build(daemon, "a", [slice(0, 4)])
    reader = daemon.client("reader")
    manifest = daemon.published("a", 5)
    assert manifest.node_id == "n0"
    opened = reader("open_version", deployment_id="job/actor", version=5)
    trainer("put", name="params", offset=64, values=[99.0] * 24)
    assert reader("hash_held") == opened == hashlib.sha256(packed(WEIGHT)).hexdigest()
    assert [bytes(x) for x in manifest.block_checksums] == [xxhash.xxh3_128_digest(packed(WEIGHT))]
    assert daemon.published("a", 5) == manifest


@pytest.mark.parametrize("is_parked", [False, True])
def test_a_complete_copy_holds_moments_scalars_and_the_last_number(
    daemon: Daemon, is_parked: bool
) -> None:
    build(daemon, "a", [slice(0, 2), slice(2, 4)])
    if is_parked:
        daemon.move("a", "HOST")
    manifest = daemon.published("a", 1, complete=True)
    assert [piece.kind for piece in manifest.pieces] == ["exp_avg"] * 2 + ["param"] * 2
    assert json.loads(manifest.scalars_json) == {"0": {"adam_step": 2}, "1": {"adam_step": 2}}
    assert manifest.applied_seq == 5
    reader = daemon.client("reader")
    got = reader("open_version", deployment_id="job/actor", version=1)
    halves = [packed(array[rows]) for array in (WEIGHT * 10, WEIGHT) for rows in HALVES]
    assert got == hashlib.sha256(b"".join(halves)).hexdigest()
    assert not daemon.published("a", 2).scalars_json


def test_a_copy_beside_an_operation_is_of_what_the_last_one_that_wrote_weights_left(
    daemon: Daemon,
) -> None:
    rank = build(daemon, "a", [slice(0, 4)])[0]
    rank("set", dirty=["grads"], written={"adam_step": 1}, fail_on="export")
    manifest = daemon.published("a", 1, complete=True, beside=True)
    assert json.loads(manifest.scalars_json) == {"0": {"adam_step": 1}}
    assert manifest.applied_seq == 1
    assert {piece.kind for piece in manifest.pieces} == {"exp_avg", "param"}


def test_accumulated_gradients_are_in_no_complete_copy(daemon: Daemon) -> None:
    rank = daemon.client("a")
    rank("allocate", regions=[{"name": "grads", "nbytes": 4096, "droppable": True}])
    rank("set", dirty=["grads"])
    refused = daemon.publish("a", 1, complete=True).error
    assert refused.code == "bad_request"
    assert "step or zero_grad" in refused.message
    rank("set", dirty=[])
    assert daemon.published("a", 1, complete=True).nbytes == 0
    rank("set", dirty=["grads"])
    assert daemon.publish("a", 2, complete=True, mid_window=True).error.code == ""


def start_nodes(stack: ExitStack, place: Path, *node_ids: str) -> list[Daemon]:
    for node_id in node_ids:
        (place / node_id).mkdir(mode=0o700)
    return [Daemon(place / n, stack, keys=KEYS, devices=2, node_id=n) for n in node_ids]


def version_of(**daemons: Daemon) -> statemanager_pb2.PublishedVersion:
    """Version 7 where it lies, by node."""
    holders = [
        statemanager_pb2.VersionHolder(node_id=node_id, state_manager=daemon.ready["address"])
        for node_id, daemon in daemons.items()
    ]
    return statemanager_pb2.PublishedVersion(deployment_id="job/actor", version=7, holders=holders)


def test_a_node_keeps_a_copy_of_what_others_hold(tmp_path: Path) -> None:
    with ExitStack() as stack:
        left, right, third = start_nodes(stack, tmp_path, "n0", "n1", "n2")
        build(third, "whole", [slice(0, 4)])
        for daemon, half in zip((left, right), HALVES, strict=True):
            (rank,) = build(daemon, "a", [half])
            rank("set", scalars={"step": 3}, applied_seq=7)
            assert daemon.publish("a", 7, complete=True).error.code == ""
        whole = third.digests("whole")
        copy = third.published("a", 7, copy_of=version_of(n0=left, n1=right), job_id="job")
        left.process.kill()
        right.process.kill()
        assert (copy.node_id, copy.applied_seq) == ("n2", 7)
        assert json.loads(copy.scalars_json) == {"0": {"step": 3}}
        assert third.published("a", 7, copy_of=version_of(n0=left), job_id="job") == copy
        assert third.digests("a", copies=version_of(n2=third)) == whole
        lost = third.publish("a", 8, copy_of=version_of(n0=left), job_id="job")
        assert lost.error.code == "unavailable"
        assert third.publish("whole", 8, complete=True).error.code == ""


def test_copies_of_several_nodes_are_digested_as_one(tmp_path: Path) -> None:
    with ExitStack() as stack:
        here, there = start_nodes(stack, tmp_path, "n0", "n1")
        build(here, "whole", [slice(0, 4)])
        build(here, "a", HALVES[:1])
        build(there, "a", HALVES[1:])
        for daemon in (here, there):
            assert daemon.publish("a", 7, complete=True).error.code == ""
        copies = version_of(n0=here, n1=there)
        assert here.digests("a", copies=copies) == here.digests("whole")
        assert materialize(here, tmp_path / "part").error.code == "bad_request"
        copies.holders[1].state_manager = stack.enter_context(altering(there))
        request = statemanager_pb2.DigestRequest(wpg_id="a", copies=copies)
        assert here.stub.Digest(request, timeout=120).error.code == "checksum_mismatch"


@contextmanager
def altering(daemon: Daemon) -> Iterator[str]:
    """Pass a state manager's version on with bits of it turned."""

    def turn(passed: Passed) -> None:
        passed.data[:] = bytes(b ^ 1 for b in passed.data)

    place = Path(daemon.ready["data_socket"]).parent / "altering"
    place.mkdir(mode=0o700)
    with between(daemon.stub, f"unix:{place}/state.sock", turn):
        yield f"unix:{place}/state.sock"


def packed(array: np.ndarray) -> bytes:
    data = array.tobytes()
    return data + bytes(-len(data) % 64)


def test_a_parked_deployment_publishes_from_host_memory(daemon: Daemon) -> None:
    build(daemon, "a", [slice(0, 2), slice(2, 4)])
    reader = daemon.client("reader")
    daemon.move("a", "HOST")
    manifest = daemon.published("a", 1)
    got = reader("open_version", deployment_id="job/actor", version=1)
    halves = packed(WEIGHT[:2]) + packed(WEIGHT[2:])
    assert got == hashlib.sha256(halves).hexdigest()
    assert [list(p.start) for p in manifest.pieces] == [[0, 0], [2, 0]]


def test_versions_are_bounded_and_freed_with_their_last_reader(daemon: Daemon) -> None:
    build(daemon, "a", [slice(0, 4)])
    reader = daemon.client("reader")
    used = daemon.inventory().host_bytes_used
    nbytes = max(daemon.published("a", v).nbytes for v in range(1, MAX_VERSIONS + 1))
    refused = daemon.publish("a", MAX_VERSIONS + 1).error
    assert (refused.code, refused.retryable) == ("no_room", True)
    assert "max_versions_per_deployment" in refused.message
    reader("open_version", deployment_id="job/actor", version=1)
    for version in range(1, MAX_VERSIONS + 1):
        release(daemon, version)
    assert daemon.inventory().host_bytes_used == used + nbytes
    with pytest.raises(PlexError) as gone:
        reader("open_version", deployment_id="job/actor", version=1)
    assert gone.value.code is ErrorCode.NOT_FOUND
    reader("drop_held")
    reader("allocate", regions=[])
    assert daemon.inventory().host_bytes_used == used
    assert daemon.publish("a", MAX_VERSIONS + 2).error.code == ""


def release(daemon: Daemon, version: int) -> None:
    request = statemanager_pb2.ReleaseVersionRequest(deployment_id="job/actor", version=version)
    daemon.stub.ReleaseVersion(request, timeout=120)


def test_another_job_cannot_open_a_version(daemon: Daemon) -> None:
    build(daemon, "a", [slice(0, 4)])
    daemon.publish("a", 1)
    stranger = daemon.client("stranger", job_id="other")
    with pytest.raises(PlexError, match="not_found"):
        stranger("open_version", deployment_id="job/actor", version=1)


@pytest.mark.parametrize("is_parked", [False, True])
def test_a_checkpoint_is_plain_safetensors_with_optimizer_and_scalars(
    daemon: Daemon, tmp_path: Path, is_parked: bool
) -> None:
    model = tmp_path / "model"
    model.mkdir()
    (model / "config.json").write_text("{}")
    (model / "model.safetensors").write_text("not this one")
    build(daemon, "a", [slice(0, 2), slice(2, 4)])
    if is_parked:
        daemon.move("a", "HOST")
    about = {"optimizer": True, "about_json": '{"position": 7}'}
    reply = materialize(daemon, tmp_path / "out", model=str(model), **about)
    assert reply.error.code == ""
    assert sorted(reply.files) == [
        "config.json",
        "model.safetensors",
        "optimizer.safetensors",
        "plex_state.json",
    ]
    assert np.array_equal(load_file(tmp_path / "out/model.safetensors")["w"], WEIGHT)
    moments = load_file(tmp_path / "out/optimizer.safetensors")
    assert np.array_equal(moments["exp_avg/w"], WEIGHT * 10)
    state = json.loads((tmp_path / "out/plex_state.json").read_text())
    assert (state["scalars"], state["applied_seq"]) == ({"adam_step": 2}, 5)
    assert state["position"] == 7
    assert (tmp_path / "out/.complete").is_file()
    assert sorted(p.name for p in tmp_path.iterdir() if "tmp-" in p.name) == []


def materialize(daemon: Daemon, path: Path, **fields: Any) -> statemanager_pb2.MaterializeReply:
    return daemon.materialize("a", path, **fields)


def test_a_checkpoint_replaces_an_older_one_and_nothing_else(
    daemon: Daemon, tmp_path: Path
) -> None:
    (rank,) = build(daemon, "a", [slice(0, 4)])
    assert materialize(daemon, tmp_path / "out").error.code == ""
    rank("put", name="params", offset=64, values=[99.0])
    assert materialize(daemon, tmp_path / "out").error.code == ""
    assert load_file(tmp_path / "out/model.safetensors")["w"][0, 0] == 99.0
    mine = tmp_path / "mine"
    mine.mkdir(mode=0o700)
    (mine / "thesis.tex").write_text("do not lose me")
    refused = materialize(daemon, mine)
    assert refused.error.code == "bad_request"
    assert (mine / "thesis.tex").exists()
    for wrong in (Path("relative/out"), Path("/"), Path(), tmp_path / ("x" * 300)):
        assert materialize(daemon, wrong).error.code == "bad_request"


def test_a_checkpoint_of_another_tenant_is_neither_replaced_nor_linked_to(
    daemon: Daemon, tmp_path: Path
) -> None:
    build(daemon, "a", [slice(0, 4)])
    assert materialize(daemon, tmp_path / "out", tenant="rival").error.code == ""
    before = (tmp_path / "out/.complete").stat().st_ino
    refused = materialize(daemon, tmp_path / "out").error
    assert (refused.code, "/proc" in refused.message) == ("forbidden", False)
    assert (tmp_path / "out/.complete").stat().st_ino == before
    (tmp_path / "link").symlink_to("out")
    assert materialize(daemon, tmp_path / "link").error.code == "bad_request"


def test_a_checkpoint_never_leaves_its_root(daemon: Daemon, tmp_path: Path) -> None:
    build(daemon, "a", [slice(0, 4)])
    root, outside = tmp_path / "root", tmp_path / "outside"
    root.mkdir()
    outside.mkdir()
    (root / "way").symlink_to(outside)
    for path in (root / "way/out", outside / "out", root / "../outside/out"):
        refused = materialize(daemon, path, root=str(root)).error
        assert (refused.code, str(path.parent) in refused.message) == ("bad_request", True)
    assert list(outside.iterdir()) == []
    assert materialize(daemon, root / "deep/er/out", root=str(root)).error.code == ""


def test_no_file_that_a_model_links_to_outside_is_copied(daemon: Daemon, tmp_path: Path) -> None:
    build(daemon, "a", [slice(0, 4)])
    (tmp_path / "secret").write_text("token")
    model = tmp_path / "models" / "m"
    model.mkdir(parents=True)
    (model / "tokenizer.json").symlink_to(tmp_path / "secret")
    more = {"model": str(model), "model_root": str(model.parent)}
    assert materialize(daemon, tmp_path / "out", **more).error.code == "bad_request"
    assert not (tmp_path / "out").exists()


def test_a_piece_outside_its_region_is_refused(daemon: Daemon) -> None:
    rank = daemon.client("a")
    rank("allocate", regions=[{"name": "params", "nbytes": 4096}])
    with pytest.raises(PlexError, match="does not fit"):
        rank("index", pieces=[piece(WEIGHT, rows=slice(0, 4), offset=4064)])


def test_forgetting_a_wpg_frees_it_and_repeats(daemon: Daemon) -> None:
    (rank,) = build(daemon, "a", [slice(0, 4)])
    request = statemanager_pb2.ForgetRequest(wpg_id="a")
    assert daemon.stub.Forget(request, timeout=120).freed_bytes == 8192
    assert daemon.stub.Forget(request, timeout=120).freed_bytes == 0
    with pytest.raises(PlexError, match="unavailable"):
        rank("allocate", regions=[{"name": "more", "nbytes": 1}])
    left = daemon.inventory()
    assert (len(left.wpgs), left.devices[0].bytes_used, left.host_bytes_used) == (0, 0, 0)
