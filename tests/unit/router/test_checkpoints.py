"""Checkpoints as their tenant sees them: found by name, compared, exported, deleted."""

from __future__ import annotations

import asyncio
import json
import os
from pathlib import Path

import pytest
from google.protobuf.json_format import MessageToDict

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
        "step": int(directory.name.partition("@")[2]),
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
