"""Checkpoints appear whole or not at all, and nothing of a killed save stays."""

from __future__ import annotations

import fcntl
import os
import secrets
import subprocess
from io import FileIO
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

from plexclient.wire.v1.statemanager_pb2 import CanonicalPiece
from plexsvc.errors import ErrorCode, PlexError
from plexsvc.statemanager import checkpoints
from plexsvc.statemanager.caller import Caller
from plexsvc.statemanager.snapshot import Snapshot
from plexsvc.weights.checkpoints import read_seal
from plexsvc.weights.pieces import Bytes

SIZE = 32


def snapshot(*, value: int = 1, leaves: Caller | None = None) -> Snapshot:
    """Two tensors of equal bytes; the caller leaves when the second is read."""
    asked: list[str] = []

    def region(_rank: int, name: str) -> Bytes:
        asked.append(name)
        if leaves is not None and len(asked) == 2:
            leaves.leave()
        return np.full(SIZE, value, dtype=np.uint8)

    index = tuple(
        CanonicalPiece(
            kind="param",
            name=name,
            global_shape=[SIZE],
            start=[0],
            size=[SIZE],
            dtype="U8",
            stride=[1],
            region="r",
        )
        for name in ("a", "b")
    )
    return Snapshot(index=index, region=region, scalars={}, applied_seq=3)


def save(path: Path, state: Snapshot | None = None, caller: Caller | None = None) -> None:
    checkpoints.materialize(
        state or snapshot(),
        path,
        model=None,
        optimizer=False,
        caller=caller or Caller(),
        tenant="lab",
    )


def names(place: Path) -> list[str]:
    return sorted(path.name for path in place.iterdir())


def test_a_save_whose_caller_leaves_leaves_nothing(tmp_path: Path) -> None:
    caller = Caller()
    with pytest.raises(PlexError, match="gave up") as given_up:
        save(tmp_path / "out", snapshot(leaves=caller), caller)
    assert given_up.value.code is ErrorCode.CANCELLED
    assert names(tmp_path) == []


def test_a_save_that_was_given_up_leaves_the_older_one(tmp_path: Path) -> None:
    save(tmp_path / "out", snapshot(value=7))
    caller = Caller()
    with pytest.raises(PlexError, match="gave up"):
        save(tmp_path / "out", snapshot(value=8, leaves=caller), caller)
    assert load_file(tmp_path / "out" / "model.safetensors")["a"][0] == 7
    assert names(tmp_path) == ["out"]


def test_what_killed_saves_left_goes_with_the_next_beside_it(tmp_path: Path) -> None:
    for name in (".out.tmp-0badcafe", ".other.tmp-0badcafe", ".notes.tmp-mine"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "model.safetensors").write_bytes(b"half")
    save(tmp_path / "out")
    assert names(tmp_path) == [".notes.tmp-mine", "out"], "what no save made stays"


def test_a_directory_that_was_taken_for_a_left_one_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lock, tokens = fcntl.flock, iter(["00000001", "00000002"])

    def late(fd: int, how: int) -> None:
        (tmp_path / ".out.tmp-00000001").rmdir() if how == fcntl.LOCK_EX and next(taken) else None
        lock(fd, how)

    taken = iter([True, False])
    monkeypatch.setattr(secrets, "token_hex", lambda _: next(tokens))
    monkeypatch.setattr(fcntl, "flock", late)
    save(tmp_path / "out")
    assert names(tmp_path) == ["out"]


def test_what_another_save_is_writing_stays(tmp_path: Path) -> None:
    scratch = tmp_path / ".out.tmp-0badcafe"
    scratch.mkdir()
    fd = os.open(scratch, os.O_RDONLY)
    fcntl.flock(fd, fcntl.LOCK_EX)
    save(tmp_path / "out")
    assert names(tmp_path) == [scratch.name, "out"]
    os.close(fd)


def test_how_far_a_save_is_counts_what_the_disk_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checkpoints, "SYNC_BYTES", 10)
    caller = Caller()
    save(tmp_path / "out", caller=caller)
    assert caller.done_bytes == (tmp_path / "out" / "model.safetensors").stat().st_size
    assert load_file(tmp_path / "out" / "model.safetensors")["b"].tobytes() == b"\x01" * SIZE


def test_a_checkpoint_is_sealed_with_what_was_in_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = tmp_path / "model"
    model.mkdir()
    (model / "config.json").write_text("{}")
    checkpoints.materialize(
        snapshot(),
        tmp_path / "out",
        model=model,
        optimizer=False,
        caller=Caller(),
        tenant="lab",
    )
    sealed = read_seal(tmp_path / "out")
    assert sealed is not None
    for name in ("model.safetensors", "config.json"):
        sealed.check_file(name)
    write = checkpoints._write_steadily

    def write_badly(file: FileIO, data: memoryview, caller: Caller) -> None:
        spoiled = bytearray(data)
        spoiled[-1] ^= 1
        write(file, memoryview(spoiled), caller)

    monkeypatch.setattr(checkpoints, "_write_steadily", write_badly)
    save(tmp_path / "bad")
    sealed = read_seal(tmp_path / "bad")
    assert sealed is not None
    with pytest.raises(PlexError, match="another checksum"):
        sealed.check_file("model.safetensors")


def test_a_place_that_somebody_made_odd_holds_no_save_up(tmp_path: Path) -> None:
    place = tmp_path / "step"
    place.mkdir()
    os.mkfifo(place / ".complete")
    with pytest.raises(PlexError, match="no regular file"):
        save(place)
    deep = tmp_path / ".other.tmp-01234567"
    inner = os.open(tmp_path, os.O_RDONLY)
    for name in (deep.name, *["d"] * 2000):  # deeper than calls may nest
        os.mkdir(name, dir_fd=inner)
        above, inner = inner, os.open(name, os.O_RDONLY, dir_fd=inner)
        os.close(above)
    os.close(inner)
    try:
        save(tmp_path / "step-2")
    finally:
        subprocess.run(["rm", "-rf", deep], check=True)  # what Python removes nests less deep
    assert ".complete" in names(tmp_path / "step-2")


def test_files_of_a_model_that_are_copied_are_bounded_together(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = tmp_path / "model"
    model.mkdir()
    for name in ("a.json", "b.json", "weights.bin"):
        (model / name).write_text("x" * 600)
    target = tmp_path / "target"
    target.mkdir()
    checkpoints._copy_model_files(model, target)
    assert names(target) == ["a.json", "b.json"]
    monkeypatch.setattr(checkpoints, "_MAX_COPIED_BYTES", 1000)
    with pytest.raises(PlexError, match="more than 1000 bytes"):
        checkpoints._copy_model_files(model, target)
