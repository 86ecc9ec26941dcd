"""Checkpoints in a store: seen once they are sealed, read block by block, errors by name."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from safetensors import safe_open
from safetensors.numpy import save_file

from plexsvc import paths
from plexsvc.errors import ErrorCode, PlexError
from plexsvc.weights import object_store
from plexsvc.weights.boxes import Box, TensorBox
from plexsvc.weights.checkpoints import seal
from plexsvc.weights.checksums import BLOCK_BYTES

ROWS = 4


def make(directory: Path, *, number: int = 0) -> dict[str, np.ndarray]:
    """Write a sealed attempt whose tensors have a block and a half each; return these."""
    directory.mkdir(parents=True)
    dice = np.random.default_rng(number)
    shape = (ROWS, BLOCK_BYTES * 3 // 2 // ROWS)
    tensors = {name: dice.integers(0, 256, shape, dtype=np.uint8) for name in "ab"}
    save_file(tensors, directory / "model.safetensors")
    (directory / "plex_state.json").write_text(json.dumps({"step": number}))
    seal(directory, {}, tenant="lab")
    return tensors


def url_of(place: Path) -> str:
    return f"file://{place}"


def test_what_has_no_seal_is_no_checkpoint(tmp_path: Path) -> None:
    make(tmp_path / "job/actor@2~aa")
    make(tmp_path / "job/actor@4~bb")
    (tmp_path / "job/actor@4~bb/.complete").unlink()
    make(tmp_path / "other/actor@6~cc")
    store = url_of(tmp_path)
    found = {one.name: bool(one.made_us) for one in object_store.attempts(store)}
    assert found == {"job/actor@2": True, "job/actor@4": False, "other/actor@6": True}
    assert object_store.find(store, "job/actor@2") == f"{store}/job/actor@2~aa"
    for name in ("job/actor@4", "job/actor@6", "job/actor", "../x@1", "./actor@2", "job/../o@1"):
        assert object_store.find(store, name) == "", name
    assert object_store.find("", "job/actor@2") == ""


def test_of_two_attempts_at_a_checkpoint_the_newest_counts(tmp_path: Path) -> None:
    for attempt in ("zz", "aa"):
        make(tmp_path / f"job/actor@2~{attempt}")
    assert object_store.find(url_of(tmp_path), "job/actor@2").endswith("~aa")


def test_blocks_come_when_they_are_checked(tmp_path: Path) -> None:
    tensors = make(tmp_path / "job/actor@2~aa")
    url = url_of(tmp_path / "job/actor@2~aa")
    with object_store.opened(url, "", tenant="lab") as (directory, found):
        assert found is not None
        file = directory / "model.safetensors"
        first = file.stat().st_blocks
        with safe_open(file, "np") as opened:
            for name, array in tensors.items():
                box = Box(start=(1, 0), size=(2, array.shape[1]))
                wanted = TensorBox(name=name, shape=array.shape, box=box)
                found.check_box(file.name, wanted)
                assert np.array_equal(opened.get_slice(name)[1:3], array[1:3])
        assert 0 < first < file.stat().st_blocks
        assert json.loads((directory / "plex_state.json").read_text()) == {"step": 0}
    assert not directory.exists()


def test_a_damaged_object_is_named_and_a_look_keeps_nothing(tmp_path: Path) -> None:
    place = tmp_path / "job/actor@2~aa"
    make(place)
    with (place / "model.safetensors").open("r+b") as file:
        file.seek(BLOCK_BYTES + 9)
        file.write(b"\x01\x02\x03")
    opened = object_store.opened(url_of(place), "", tenant="lab", keeps=False)
    with opened as (directory, found):
        assert found is not None
        found.check_file("plex_state.json")
        with pytest.raises(PlexError, match="block 1 ") as damaged:
            found.check_file("model.safetensors")
        assert (directory / "model.safetensors").stat().st_blocks == 0
        assert f"{url_of(place)}/model.safetensors" in paths.told(damaged.value).message
    assert damaged.value.code is ErrorCode.CHECKPOINT_DAMAGED
    assert not directory.exists()
    (place / "plex_state.json").unlink()
    again = object_store.opened(url_of(place), "", tenant="lab")
    with pytest.raises(PlexError, match=r"plex_state\.json .* is missing"), again:
        pass


def test_a_removed_attempt_is_gone(tmp_path: Path) -> None:
    make(tmp_path / "job/actor@2~aa")
    object_store.remove(url_of(tmp_path / "job/actor@2~aa"))
    assert object_store.attempts(url_of(tmp_path)) == []


class LostCredentialsError(Exception):
    """As a library of a store names them."""


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (FileNotFoundError("bucket"), ErrorCode.NOT_FOUND),
        (PermissionError("key"), ErrorCode.FORBIDDEN),
        (LostCredentialsError(), ErrorCode.FORBIDDEN),
        (ImportError("s3fs"), ErrorCode.BAD_REQUEST),
        (ConnectionResetError("cut"), ErrorCode.UNAVAILABLE),
        (RuntimeError("of its own"), ErrorCode.UNAVAILABLE),
    ],
)
def test_what_a_store_says_is_told_with_its_url(error: Exception, code: ErrorCode) -> None:
    with (
        pytest.raises(
            PlexError, match=rf"object store file:///here: {type(error).__name__}"
        ) as told,
        object_store.reached("file:///here"),
    ):
        raise error
    assert told.value.code is code


def test_a_kind_of_store_that_nobody_knows_is_refused() -> None:
    with pytest.raises(PlexError, match="nosuch") as told, object_store.reached("nosuch://b/x"):
        pass
    assert told.value.code is ErrorCode.BAD_REQUEST
