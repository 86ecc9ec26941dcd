"""Managed state on disk as Hugging Face safetensors, written beside its place and renamed into it.

A checkpoint directory is complete when it holds `.complete`, written last: a JSON list of its files
and their sizes. The directory appears under its name in one rename (an exchange when an older
checkpoint is there), so a reader never sees half of one; the marker lets it also recognise a copy
that was cut short. Files: `model.safetensors`; with the optimizer `optimizer.safetensors`, whose
keys are `<kind>/<tensor>` (exp_avg, exp_avg_sq, master), and `plex_state.json` with the scalars;
and the model directory's configuration and tokenizer files.
"""

from __future__ import annotations

import ctypes
import json
import os
import shutil
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np

from plexsvc.errors import ErrorCode, PlexError
from plexsvc.statemanager.snapshot import Snapshot
from plexsvc.weights import pieces
from plexsvc.weights.pieces import RegionBytes, Tensor

COMPLETE: Final = ".complete"
MODEL_FILE: Final = "model.safetensors"
OPTIMIZER_FILE: Final = "optimizer.safetensors"
STATE_FILE: Final = "plex_state.json"

PARAMETERS: Final = "param"
OPTIMIZER_KINDS: Final = ("exp_avg", "exp_avg_sq", "master")

_COPIED_SUFFIXES: Final = (".json", ".txt", ".model", ".jinja")
_NOT_COPIED: Final = frozenset({"model.safetensors.index.json", STATE_FILE})
_MAX_COPIED_BYTES: Final = 256 << 20
_AT_FDCWD: Final = -100
_RENAME_EXCHANGE: Final = 2

_libc = ctypes.CDLL(None, use_errno=True)
_libc.renameat2.argtypes = [
    ctypes.c_int,
    ctypes.c_char_p,
    ctypes.c_int,
    ctypes.c_char_p,
    ctypes.c_uint,
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Written:
    """What a checkpoint consists of."""

    files: tuple[str, ...]
    nbytes: int


def materialize(
    snapshot: Snapshot, path: Path, *, model: Path | None, optimizer: bool, owner: str
) -> Written:
    """Write `snapshot` as the checkpoint directory `path`, replacing an older checkpoint there.

    Raises:
        PlexError: `bad_request` for a path that is no place for one, state that this node holds
            only a part of, or a disk that refuses.
    """
    _check_name(path)
    scratch = path.with_name(f".{path.name}.tmp-{owner}")
    try:
        _check_free(path)
        shutil.rmtree(scratch, ignore_errors=True)  # of a state manager that died inside this call
        scratch.mkdir(parents=True)
        _write_state(snapshot, scratch, optimizer=optimizer)
        if model is not None:
            _copy_model_files(model, scratch)
        written = _finish(scratch)
        _swap_in(scratch, path)
    except OSError as error:
        text = f"checkpoint {path} not written: {error}"
        raise PlexError(ErrorCode.BAD_REQUEST, f"{text}; give a writable place") from error
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    return written


def write_safetensors(
    path: Path, named: Sequence[tuple[str, Tensor]], *, region: RegionBytes
) -> None:
    """Write tensors one at a time: never more than one is assembled in memory."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    offset = 0
    for name, tensor in named:
        end = offset + tensor.nbytes
        header[name] = {
            "dtype": tensor.dtype,
            "shape": list(tensor.shape),
            "data_offsets": [offset, end],
        }
        offset = end
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for _, tensor in named:
            file.write(np.ascontiguousarray(pieces.whole(tensor, region)).data)
        file.flush()
        os.fsync(file.fileno())


def _write_state(snapshot: Snapshot, target: Path, *, optimizer: bool) -> None:
    found = pieces.tensors(snapshot.index)
    parameters = [(t.name, t) for t in found if t.kind == PARAMETERS]
    _check_whole(t for _, t in parameters)
    write_safetensors(target / MODEL_FILE, parameters, region=snapshot.region)
    if not optimizer:
        return
    states = [(f"{t.kind}/{t.name}", t) for t in found if t.kind in OPTIMIZER_KINDS]
    _check_whole(t for _, t in states)
    write_safetensors(target / OPTIMIZER_FILE, states, region=snapshot.region)
    _write_json(target / STATE_FILE, _scalars_table(snapshot))


def _scalars_table(snapshot: Snapshot) -> dict[str, Any]:
    by_rank = {str(rank): dict(scalars) for rank, scalars in sorted(snapshot.scalars.items())}
    first: Mapping[str, Any] = next(iter(by_rank.values()), {})
    return {
        "format": 1,
        "applied_seq": snapshot.applied_seq,
        "scalars": first,
        "rank_scalars": by_rank,
    }


def _check_whole(tensors: Iterable[Tensor]) -> None:
    empty = True
    for tensor in tensors:
        empty = False
        if not pieces.is_complete(tensor):
            raise PlexError(
                ErrorCode.BAD_REQUEST,
                f"{tensor.kind}/{tensor.name}: only a part of it is here; of a deployment that "
                "spans nodes, give the copies of all",
            )
    if empty:
        text = "nothing to write: the deployment has no such state; initialize it first"
        raise PlexError(ErrorCode.BAD_REQUEST, text)


def _check_name(path: Path) -> None:
    if not path.is_absolute() or path == path.parent:
        text = f"checkpoint path {str(path)!r} must be an absolute directory name"
        raise PlexError(ErrorCode.BAD_REQUEST, text)


def _check_free(path: Path) -> None:
    is_free = not path.exists() or (path.is_dir() and not any(path.iterdir()))
    if not is_free and not (path / COMPLETE).is_file():
        text = f"{path} exists and is no checkpoint of ours (it lacks {COMPLETE})"
        raise PlexError(ErrorCode.BAD_REQUEST, f"{text}; choose another path")


def _copy_model_files(model: Path, target: Path) -> None:
    for source in sorted(model.iterdir()):
        is_wanted = source.suffix in _COPIED_SUFFIXES and source.name not in _NOT_COPIED
        if is_wanted and source.is_file() and source.stat().st_size <= _MAX_COPIED_BYTES:
            shutil.copyfile(source, target / source.name)


def _finish(scratch: Path) -> Written:
    sizes = {file.name: file.stat().st_size for file in sorted(scratch.iterdir())}
    _write_json(scratch / COMPLETE, {"files": sizes})
    _sync_directory(scratch)
    return Written(files=tuple(sizes), nbytes=sum(sizes.values()))


def _swap_in(scratch: Path, target: Path) -> None:
    """Give `scratch` the name `target`; an older checkpoint takes the scratch name."""
    if target.exists():
        names = os.fsencode(scratch), os.fsencode(target)
        if _libc.renameat2(_AT_FDCWD, names[0], _AT_FDCWD, names[1], _RENAME_EXCHANGE) != 0:
            code = ctypes.get_errno()
            raise OSError(code, f"cannot replace {target}: {os.strerror(code)}")
    else:
        scratch.rename(target)
    _sync_directory(target.parent)


def _write_json(path: Path, table: Mapping[str, Any]) -> None:
    with path.open("w") as file:
        json.dump(table, file, indent=1)
        file.flush()
        os.fsync(file.fileno())


def _sync_directory(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
