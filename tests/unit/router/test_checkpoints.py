"""Checkpoints as their tenant sees them: found by name, compared, exported, deleted."""

from __future__ import annotations

import asyncio
import json
import os
from pathlib import Path

import numpy as np
import pytest
from google.protobuf.json_format import MessageToDict
from safetensors.numpy import load_file, save_file

from plexclient.wire.v1 import service_pb2 as pb
from plexsvc.errors import ErrorCode, PlexError
from plexsvc.ids import TenantId
from plexsvc.router.checkpoints import Checkpoints
from plexsvc.router.config import RouterConfig
from plexsvc.router.looks import Looks
from plexsvc.router.roots import Roots
from plexsvc.weights.checkpoints import seal

LAB = TenantId("lab")
FILES = ("model.safetensors", "optimizer.safetensors", "config.json")


@pytest.fixture
def checkpoints(tmp_path: Path) -> Checkpoints:
    """Those of steps 2 and 10 of one job, then 4 of another of its name, and a save."""
    for number, name in enumerate(("job-1/actor@2", "job-1/actor@10", "job-2/actor@4")):
        write(tmp_path / "lab" / name, at_s=number + 1)
    write(tmp_path / "lab/job-1/actor@6", at_s=9, tenant="rival")
    saved = tmp_path / "lab/job-1/mine@3"
    saved.mkdir()
    seal(saved, {}, tenant="lab")
    config = RouterConfig(checkpoint_root=tmp_path)
    return Checkpoints(Roots(config, Looks()))


def write(directory: Path, *, at_s: int, tenant: str = "lab") -> None:
    directory.mkdir(parents=True)
    for name in FILES:
        (directory / name).write_text(name)
    about = {
        "job": "math",
        "step": int(directory.name.partition("@")[2].partition("~")[0]),
        "position": {"batch": at_s},
        "spec": MessageToDict(pb.DeploymentSpec(role="actor", checkpoint_every=2, seed=7)),
    }
    (directory / "plex_state.json").write_text(json.dumps(about))
    seal(directory, {}, tenant=tenant)
    os.utime(directory / ".complete", (at_s, at_s))


def get(checkpoints: Checkpoints, name: str = "", *, verifies: bool = False) -> list[pb.Checkpoint]:
    request = pb.GetCheckpointsRequest(name=name, verifies=verifies)
    return list(asyncio.run(checkpoints.get(request, tenant=LAB)).checkpoints)


def change(checkpoints: Checkpoints, name: str, *, export_to: str = "") -> pb.Checkpoint:
    request = pb.ChangeCheckpointRequest(name=name, export_to=export_to)
    return asyncio.run(checkpoints.change(request, tenant=LAB))


def test_a_tenant_sees_its_own_in_the_order_in_which_they_were_made(
    checkpoints: Checkpoints,
) -> None:
    found = get(checkpoints)
    assert [one.name for one in found] == ["job-1/actor@2", "job-1/actor@10", "job-2/actor@4"]
    assert (found[1].step, found[1].position, found[1].made_us) == (10, '{"batch": 2}', 2_000_000)
    assert (found[1].spec.role, found[1].spec.seed) == ("actor", 7)


@pytest.mark.parametrize(
    ("asked", "found"),
    [
        ("job-1/actor", "job-1/actor@10"),
        ("job-1/actor@2", "job-1/actor@2"),
        ("math/actor", "job-2/actor@4"),
        ("math/actor@10", "job-1/actor@10"),
    ],
)
def test_a_name_means_the_newest_that_fits(
    checkpoints: Checkpoints, asked: str, found: str
) -> None:
    (one,) = get(checkpoints, asked)
    assert one.name == found
    assert {file.name for file in one.files} == {*FILES, "plex_state.json"}


@pytest.mark.parametrize("name", ["math/critic", "job-1/actor@6", "other/actor"])
def test_what_is_not_there_is_said_with_what_is(checkpoints: Checkpoints, name: str) -> None:
    with pytest.raises(PlexError, match="the newest: job-1/actor@2, job-1/actor@10") as refused:
        get(checkpoints, name)
    assert refused.value.code == ErrorCode.NOT_FOUND


@pytest.mark.parametrize("name", ["actor", "a/b/c", "../actor@2", "job-1/actor@x", "/"])
def test_what_is_no_name_is_refused(checkpoints: Checkpoints, name: str) -> None:
    with pytest.raises(PlexError):
        change(checkpoints, name)


def test_a_changed_byte_is_found_when_it_is_looked_for(
    checkpoints: Checkpoints, tmp_path: Path
) -> None:
    assert get(checkpoints, "job-1/actor@2", verifies=True)
    (tmp_path / "lab/job-1/actor@2/optimizer.safetensors").write_text("Optimizer.safetensors")
    assert get(checkpoints, "job-1/actor@2")
    with pytest.raises(PlexError, match=r"optimizer\.safetensors") as damaged:
        get(checkpoints, "job-1/actor@2", verifies=True)
    assert damaged.value.code == ErrorCode.CHECKPOINT_DAMAGED


def test_an_export_is_a_model_directory(checkpoints: Checkpoints, tmp_path: Path) -> None:
    change(checkpoints, "job-1/actor@2", export_to="models/math")
    made = tmp_path / "lab/models/math"
    assert sorted(os.listdir(made)) == [".complete", "config.json", "model.safetensors"]
    assert os.listdir(made.parent) == ["math"]
    with pytest.raises(PlexError, match="models/math exists"):
        change(checkpoints, "job-1/actor@10", export_to="models/math")
    with pytest.raises(PlexError, match="outside"):
        change(checkpoints, "job-1/actor@10", export_to="../rival/math")


def test_a_damaged_checkpoint_is_not_exported(checkpoints: Checkpoints, tmp_path: Path) -> None:
    (tmp_path / "lab/job-1/actor@2/model.safetensors").write_text("Model.safetensors")
    with pytest.raises(PlexError, match="is not what was saved"):
        change(checkpoints, "job-1/actor@2", export_to="models/math")
    assert not (tmp_path / "lab/models/math").exists()


def test_a_deleted_one_is_gone(checkpoints: Checkpoints, tmp_path: Path) -> None:
    assert change(checkpoints, "math/actor").name == "job-2/actor@4"
    assert not os.listdir(tmp_path / "lab/job-2")
    assert [one.name for one in get(checkpoints)] == ["job-1/actor@2", "job-1/actor@10"]


@pytest.fixture
def stored(tmp_path: Path, checkpoints: Checkpoints) -> Checkpoints:
    """Those of the tenant's directory, and one in its store; another tenant's is beside that."""
    del checkpoints  # which has written
    write(tmp_path / "store/lab/job-3/actor@8~aa", at_s=5)
    write(tmp_path / "store/lab/job-3/actor@10~bb", at_s=6)
    (tmp_path / "store/lab/job-3/actor@10~bb/.complete").unlink()
    write(tmp_path / "store/rival/job-4/actor@9~aa", at_s=7)
    stores = {"lab": f"file://{tmp_path}/store/", "rival": f"file://{tmp_path}/store"}
    config = RouterConfig(checkpoint_root=tmp_path, checkpoint_stores=stores)
    return Checkpoints(Roots(config, Looks()))


def test_what_is_in_a_tenant_s_store_is_seen_beside_what_is_in_its_directory(
    stored: Checkpoints,
) -> None:
    known = ["job-1/actor@2", "job-1/actor@10", "job-2/actor@4", "job-3/actor@8"]
    assert [one.name for one in get(stored)] == known
    (one,) = get(stored, "math/actor", verifies=True)
    assert (one.name, one.made_us, one.spec.seed) == ("job-3/actor@8", 5_000_000, 7)
    assert {file.name: file.nbytes for file in one.files}["model.safetensors"] == 17
    with pytest.raises(PlexError, match="no checkpoint 'job-4/actor'"):
        get(stored, "job-4/actor")


def test_a_tenant_with_a_store_needs_no_directory(stored: Checkpoints, tmp_path: Path) -> None:
    del stored  # which has written
    config = RouterConfig(checkpoint_stores={"lab": f"file://{tmp_path}/store"})
    assert [one.name for one in get(Checkpoints(Roots(config, Looks())))] == ["job-3/actor@8"]


def test_a_changed_byte_in_a_store_is_found(stored: Checkpoints, tmp_path: Path) -> None:
    place = tmp_path / "store/lab/job-3/actor@8~aa/model.safetensors"
    place.write_text("Model.safetensors")
    assert get(stored, "job-3/actor")
    with pytest.raises(PlexError, match=f"file://{place} is not what was saved"):
        get(stored, "job-3/actor", verifies=True)
    with pytest.raises(PlexError, match="is not what was saved"):
        change(stored, "job-3/actor", export_to="models/math")
    place.write_text("short")
    with pytest.raises(PlexError, match="5 bytes where 17 were saved"):
        get(stored, "job-3/actor")


def test_a_store_s_checkpoint_is_exported_and_deleted(stored: Checkpoints, tmp_path: Path) -> None:
    # Which are parsed as such when they come: these have to be safetensors.
    place = tmp_path / "store/lab/job-3/actor@8~aa"
    for name in ("model", "optimizer"):
        save_file({"w": np.ones(3)}, place / f"{name}.safetensors")
    seal(place, {}, tenant="lab")
    change(stored, "job-3/actor", export_to="models/math")
    made = tmp_path / "lab/models/math"
    assert sorted(os.listdir(made)) == [".complete", "config.json", "model.safetensors"]
    assert load_file(made / "model.safetensors")["w"].sum() == 3
    change(stored, "job-3/actor")
    assert os.listdir(tmp_path / "store/lab/job-3") == ["actor@10~bb"]
    assert [one.name for one in get(stored)][-1] == "job-2/actor@4"


def test_a_store_that_does_not_answer_is_named(tmp_path: Path) -> None:
    config = RouterConfig(checkpoint_root=tmp_path, checkpoint_stores={"lab": "nosuch://bucket"})
    with pytest.raises(PlexError, match="object store nosuch://bucket/lab: "):
        get(Checkpoints(Roots(config, Looks())))
