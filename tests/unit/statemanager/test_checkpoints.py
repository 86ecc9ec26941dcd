"""Checkpoints appear whole or not at all, and nothing of a killed save stays."""

from __future__ import annotations

import ctypes
import errno
import fcntl
import itertools
import os
import secrets
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from io import FileIO
from pathlib import Path
from typing import NoReturn

import numpy as np
import pytest
from safetensors.numpy import load_file

from plexclient.wire.v1.statemanager_pb2 import CanonicalPiece
from plexsvc import lora
from plexsvc.errors import ErrorCode, PlexError
from plexsvc.statemanager import checkpoints, shards
from plexsvc.statemanager.caller import WaitingCaller
from plexsvc.statemanager.snapshot import StateSnapshot
from plexsvc.weights.boxes import Box
from plexsvc.weights.checkpoints import SCRATCH, read_seal
from plexsvc.weights.owner import SEAL
from plexsvc.weights.pieces import Bytes, packed_strides

SIZE = 32


def snapshot(*, value: int = 1, leaves: WaitingCaller | None = None) -> StateSnapshot:
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
    return StateSnapshot(index=index, region=region, scalars={}, applied_seq=3)


def save(
    path: Path,
    state: StateSnapshot | None = None,
    caller: WaitingCaller | None = None,
    *,
    kept: int = 0,
) -> None:
    checkpoints.materialize(
        state or snapshot(),
        path,
        model=None,
        optimizer=False,
        caller=caller or WaitingCaller(),
        tenant="lab",
        kept=kept,
    )


def test_no_checkpoint_is_written_into_another_one(tmp_path: Path) -> None:
    save(tmp_path / "run")
    with pytest.raises(PlexError, match="lies in the checkpoint"):
        save(tmp_path / "run" / "steps" / "10")
    assert not (tmp_path / "run" / "steps").exists()


def names(place: Path) -> list[str]:
    return sorted(path.name for path in place.iterdir())


def test_a_save_whose_caller_leaves_leaves_nothing(tmp_path: Path) -> None:
    caller = WaitingCaller()
    with pytest.raises(PlexError, match="gave up") as given_up:
        save(tmp_path / "out", snapshot(leaves=caller), caller)
    assert given_up.value.code is ErrorCode.CANCELLED
    assert names(tmp_path) == []


def test_a_save_that_was_given_up_leaves_the_older_one(tmp_path: Path) -> None:
    save(tmp_path / "out", snapshot(value=7))
    caller = WaitingCaller()
    with pytest.raises(PlexError, match="gave up"):
        save(tmp_path / "out", snapshot(value=8, leaves=caller), caller)
    assert load_file(tmp_path / "out" / "model.safetensors")["a"][0] == 7
    assert names(tmp_path) == ["out"]


def test_what_killed_saves_left_goes_with_the_next_beside_it(tmp_path: Path) -> None:
    here = checkpoints._host()
    for name in (f".out.tmp-{here}-0badcafe", f".other.tmp-{here}-0badcafe", ".notes.tmp-mine"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "model.safetensors").write_bytes(b"half")
    save(tmp_path / "out")
    assert names(tmp_path) == [".notes.tmp-mine", "out"], "what no save made stays"


def test_a_directory_that_was_taken_for_a_left_one_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lock, tokens = fcntl.flock, iter(["00000001", "00000002"])

    def late(fd: int, how: int) -> None:
        (
            tmp_path / f".out.tmp-{checkpoints._host()}-00000001"
        ).rmdir() if how == fcntl.LOCK_EX and next(taken) else None
        lock(fd, how)

    taken = iter([True, False])
    monkeypatch.setattr(secrets, "token_hex", lambda _: next(tokens))
    monkeypatch.setattr(fcntl, "flock", late)
    save(tmp_path / "out")
    assert names(tmp_path) == ["out"]


def test_what_another_save_is_writing_stays(tmp_path: Path) -> None:
    scratch = tmp_path / f".out.tmp-{checkpoints._host()}-0badcafe"
    scratch.mkdir()
    fd = os.open(scratch, os.O_RDONLY)
    fcntl.flock(fd, fcntl.LOCK_EX)
    save(tmp_path / "out")
    assert names(tmp_path) == [scratch.name, "out"]
    os.close(fd)


def test_how_far_a_save_is_counts_what_the_disk_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shards, "SYNC_BYTES", 10)
    caller = WaitingCaller()
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
        caller=WaitingCaller(),
        tenant="lab",
    )
    sealed = read_seal(tmp_path / "out")
    assert sealed is not None
    for name in ("model.safetensors", "config.json"):
        sealed.check_file(name)
    write = shards._write_steadily

    def write_badly(file: FileIO, data: memoryview, caller: WaitingCaller) -> None:
        spoiled = bytearray(data)
        spoiled[-1] ^= 1
        write(file, memoryview(spoiled), caller)

    monkeypatch.setattr(shards, "_write_steadily", write_badly)
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
    deep = tmp_path / checkpoints._hidden("other", SCRATCH)
    inner = os.open(tmp_path, os.O_RDONLY)
    for name in (deep.name, *["d"] * 2000):  # deeper than calls may nest
        os.mkdir(name, dir_fd=inner)
        above, inner = inner, os.open(name, os.O_RDONLY, dir_fd=inner)
        os.close(above)
    os.close(inner)
    try:
        save(tmp_path / "step-2")
        assert ".complete" in names(tmp_path / "step-2")
    finally:  # it may have another name by now; what Python removes nests less deep
        subprocess.run(["rm", "-rf", tmp_path], check=True)


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


class FakeShared:
    """A file system of several hosts: locks hold on the host that took them, no exchange."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.host = "a" * checkpoints.HOST_DIGITS
        self._held: dict[tuple[str, int], int] = {}
        monkeypatch.setattr(checkpoints, "_host", lambda: self.host)
        monkeypatch.setattr(fcntl, "flock", self.flock)
        monkeypatch.setattr(checkpoints, "_libc", self)

    def flock(self, fd: int, how: int) -> None:
        """Lock in this host's name alone: others' locks are not seen."""
        del how  # all locks are exclusive
        place = (self.host, os.fstat(fd).st_ino)
        holder = self._held.get(place)
        if holder is not None and holder != fd and _is_open(holder, place[1]):
            raise BlockingIOError
        self._held[place] = fd

    def renameat2(self, *_: object) -> int:
        ctypes.set_errno(errno.EINVAL)
        return -1


def _is_open(fd: int, inode: int) -> bool:
    try:
        return os.fstat(fd).st_ino == inode
    except OSError:
        return False


def test_a_save_of_another_host_is_removed_only_when_it_has_long_written_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shared = FakeShared(monkeypatch)
    with checkpoints._scratch(tmp_path / "theirs") as scratch:
        (scratch / "model.safetensors").write_bytes(b"half")
        shared.host = "b" * checkpoints.HOST_DIGITS
        save(tmp_path / "ours")
        save(tmp_path / "ours")
        assert names(tmp_path) == [scratch.name, "ours"]
        long_ago = scratch.stat().st_mtime - checkpoints.ABANDONED_S - 1
        os.utime(scratch, (long_ago, long_ago))
        save(tmp_path / "ours")
        assert scratch.exists(), "a file in it is young"
        os.utime(scratch / "model.safetensors", (long_ago, long_ago))
        save(tmp_path / "ours")
        assert names(tmp_path) == ["ours"]
        with pytest.raises(FileNotFoundError):  # it is alive after all
            checkpoints._swap_in(scratch, tmp_path / "theirs")
    assert names(tmp_path) == ["ours"]


def test_a_checkpoint_is_replaced_where_names_cannot_be_exchanged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    FakeShared(monkeypatch)
    for value in (7, 8):
        save(tmp_path / "out", snapshot(value=value))
        assert load_file(tmp_path / "out" / "model.safetensors")["a"][0] == value
        assert names(tmp_path) == ["out"]


@pytest.mark.parametrize("can_exchange", [True, False])
def test_a_save_that_is_killed_at_any_step_leaves_the_older_or_the_newer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, can_exchange: bool
) -> None:
    if not can_exchange:
        FakeShared(monkeypatch)
    ends = set()
    for at in itertools.count():
        place = tmp_path / str(at)
        save(place / "out", snapshot(value=7))
        pid = os.fork()
        if not pid:
            killed_at(at, partial(save, place / "out", snapshot(value=8)))
        _, status = os.waitpid(pid, 0)
        checkpoints.remove_unfinished(place)
        assert names(place) == ["out"], at
        sealed = read_seal(place / "out")
        assert sealed is not None
        sealed.check_file("model.safetensors")
        ends.add(load_file(place / "out" / "model.safetensors")["a"][0])
        if os.waitstatus_to_exitcode(status) == 0:
            break
    assert at > 10
    assert ends == {7, 8}


def killed_at(at: int, work: Callable[[], None]) -> NoReturn:
    """Do `work` and leave; the process ends before its change number `at` of the file system."""
    count = itertools.count()

    def audit(event: str, _: object) -> None:
        if (
            event in {"os.rename", "os.mkdir", "os.remove", "os.rmdir", "open"}
            and next(count) == at
        ):
            os._exit(1)

    sys.addaudithook(audit)
    work()
    os._exit(0)


def test_an_older_checkpoint_that_another_host_brings_back_is_moved_aside_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    FakeShared(monkeypatch)
    save(tmp_path / "out", snapshot(value=7))
    rename = Path.rename
    tidied: list[Path] = []

    def late(path: Path, target: Path) -> Path:
        if path.name.startswith(".out.tmp-") and len(tidied) < 2:
            tidied.append(path)
            checkpoints.remove_unfinished(tmp_path)
        return rename(path, target)

    monkeypatch.setattr(Path, "rename", late)
    save(tmp_path / "out", snapshot(value=8))
    assert len(tidied) == 2
    assert load_file(tmp_path / "out" / "model.safetensors")["a"][0] == 8
    assert names(tmp_path) == ["out"]


def test_of_a_series_the_newest_are_kept(tmp_path: Path) -> None:
    for name in ("other@1", "it@9", "it@10", "it@2"):  # whatever their numbers
        save(tmp_path / name)
    (tmp_path / "it@7").mkdir()  # no checkpoint
    save(tmp_path / "it@11", kept=2)
    assert names(tmp_path) == ["it@11", "it@2", "it@7", "other@1"]


def test_what_another_tenant_has_in_a_series_stays(tmp_path: Path) -> None:
    save(tmp_path / "it@1")
    mark = tmp_path / "it@1" / ".complete"
    mark.write_text(mark.read_text().replace('"lab"', '"rival"'))
    save(tmp_path / "it@2", kept=1)
    save(tmp_path / "it@3", kept=1)
    assert names(tmp_path) == ["it@1", "it@3"]


def test_adapters_are_a_peft_directory_that_names_their_model(tmp_path: Path) -> None:
    names_ab = lora.names_of("model.layers.0.self_attn.q_proj.weight")
    values = {
        ("param", names_ab[0]): np.arange(8, dtype=np.float32).reshape(2, 4),
        ("param", names_ab[1]): np.ones((6, 2), np.float32),
        (lora.SCALE_KIND, lora.SCALE_NAME): np.array([4.0], np.float32),
    }
    index = [
        CanonicalPiece(
            kind=kind,
            name=name,
            global_shape=array.shape,
            start=[0] * array.ndim,
            size=array.shape,
            dtype="F32",
            stride=packed_strides(Box.whole(array.shape)),
            region=name,
        )
        for (kind, name), array in values.items()
    ]
    held = {name: array.reshape(-1).view(np.uint8) for (_, name), array in values.items()}
    state = StateSnapshot(
        index=tuple(index), region=lambda _, name: held[name], scalars={}, applied_seq=3
    )
    model = tmp_path / "model"
    model.mkdir()
    (model / "config.json").write_text("{}")
    out = tmp_path / "out"
    checkpoints.materialize(
        state,
        out,
        model=model,
        base="/models/m",
        optimizer=False,
        caller=WaitingCaller(),
        tenant="lab",
    )
    assert names(out) == [SEAL, lora.CONFIG_FILE, lora.WEIGHTS_FILE]
    found = load_file(out / lora.WEIGHTS_FILE)
    assert sorted(found) == sorted(names_ab)
    assert all(np.array_equal(found[name], values["param", name]) for name in names_ab)
    lora.check_checkpoint(out, lora.Lora(rank=2, alpha=8.0), base="/models/m")


def test_all_files_of_a_checkpoint_are_on_the_disk_before_it_has_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = tmp_path / "model"
    model.mkdir()
    for name in ("config.json", "tokenizer.json"):
        (model / name).write_text("{}")
    synced: set[int] = set()
    sync, swap = os.fsync, checkpoints._swap_in

    def note(fd: int) -> None:
        sync(fd)
        synced.add(os.fstat(fd).st_ino)

    def look(scratch: Path, target: Path) -> None:
        unsynced = [path.name for path in scratch.iterdir() if path.stat().st_ino not in synced]
        assert unsynced == []
        swap(scratch, target)

    monkeypatch.setattr(os, "fsync", note)
    monkeypatch.setattr(checkpoints, "_swap_in", look)
    checkpoints.materialize(
        snapshot(),
        tmp_path / "out",
        model=model,
        optimizer=False,
        caller=WaitingCaller(),
        tenant="lab",
    )
    assert (tmp_path / "out" / "tokenizer.json").read_text() == "{}"
