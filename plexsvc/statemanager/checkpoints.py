"""Managed state on disk as Hugging Face safetensors, written beside its place and renamed into it.

A checkpoint directory is complete when it holds `.complete`, written last: its files, their sizes
and checksums (`weights/checkpoints.py`), and its tenant. The directory appears under its name in
one rename (an exchange when an older checkpoint is there), so a reader never sees half of one; the
seal lets it also recognise a copy that was cut short.

Several hosts may save on one file system whose locks hold on one host only, and which cannot
exchange names. The name of a directory that is being written contains its host, on which its lock
says whether it is in use. Another host removes it only when nothing in it was written for a long
time, by the file system's clock. Without an exchange the older checkpoint is moved aside first; the
next save beside it, or the restarted state manager, brings it back if nothing came in its place.

Files: `model.safetensors`; with the optimizer `optimizer.safetensors`, whose keys are
`<kind>/<tensor>` (exp_avg, exp_avg_sq, master), and `plex_state.json` with the scalars; and the
model directory's configuration and tokenizer files. What several nodes write (`shards`) is
`NAME-00001-of-0000N.safetensors`, with Hugging Face's index of the weights. Of adapters it is a
PEFT directory: `adapter_model.safetensors` and `adapter_config.json`, which names the model, in
place of the model's files.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import json
import os
import re
import secrets
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any, Final

import numpy as np

from plexsvc import lora
from plexsvc.errors import PlexError, bad_request
from plexsvc.statemanager import attempts, shards
from plexsvc.statemanager.attempts import StoredAttempt
from plexsvc.statemanager.caller import WaitingCaller
from plexsvc.statemanager.shards import Plan
from plexsvc.statemanager.snapshot import StateSnapshot
from plexsvc.weights import checkpoints, headers, pieces
from plexsvc.weights.checkpoints import SCRATCH, STATE_FILE, Sealed
from plexsvc.weights.owner import SEAL, check_owner
from plexsvc.weights.reading import PARAMETERS

SAVE: Final = "save"
"""Begins the key of a record in the book: where a checkpoint is being written."""

SCRATCH_BYTES: Final = 4
"""Random bytes, in hexadecimal, at the end of that name."""

ASIDE: Final = ".was-"
"""Follows the name of a checkpoint in that of the older one, while the new one takes its place."""

_HIDDEN_NAME: Final = re.compile(
    rf"\.(.+)({re.escape(SCRATCH)}|{re.escape(ASIDE)})([0-9a-f]*)-[0-9a-f]{{{2 * SCRATCH_BYTES}}}"
)

ABANDONED_S: Final = 3600.0
"""A save writes something every few seconds; after this time without it, it is taken for dead."""

MAX_SWAPS: Final = 8
"""Times that a save tries to take a name which others take at the same time."""

HOST_DIGITS: Final = 12
"""Of a host's number, between the two."""

Write = Callable[[Path | str, Plan], Mapping[str, Sealed]]
"""Has files that are in a directory, empty, or objects below a URL written according to a plan;
returns their seals."""

_COPIED_SUFFIXES: Final = (".json", ".txt", ".model", ".jinja")
_NOT_COPIED: Final = frozenset({headers.INDEX, STATE_FILE})
_MAX_COPIED_BYTES: Final = 256 << 20
_AT_FDCWD: Final = -100
_RENAME_EXCHANGE: Final = 2
_CANNOT_EXCHANGE: Final = frozenset({errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP})
_TAKEN: Final = frozenset({errno.ENOENT, errno.EEXIST, errno.ENOTEMPTY})
"""What a rename meets when another save, or a tidying, was there first."""

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


def materialize(  # noqa: PLR0913 - what a checkpoint consists of
    snapshot: StateSnapshot,
    path: Path | str,
    *,
    model: Path | None,
    base: str = "",
    optimizer: bool,
    caller: WaitingCaller,
    tenant: str,
    about: Mapping[str, Any] | None = None,
    kept: int = 0,
    write: Write | None = None,
) -> Written:
    """Write `snapshot` as the checkpoint directory `path`, replacing an older one of `tenant`.

    A `path` that is a text is the URL of one in an object store. What it is `about` goes into its
    state file. Of directories beside it whose names differ in what follows `@` alone, as many
    newest as are to be `kept` stay; 0: all. Adapters name `base`.
    `write` has the tensors written, by default here.
    Nothing appears under `path` if the caller leaves before all of it is written.

    Raises:
        PlexError: `forbidden` for another tenant's checkpoint; `bad_request` for a path that is no
            place for one, state of which only a part is given, or a disk that refuses; `cancelled`;
            as `object_store.reached`.
    """
    try:
        with _begun(path, tenant=tenant) as place:
            plan = shards.plan(snapshot, optimizer=optimizer)
            sealed = _write_tensors(
                place, plan, write or partial(_write_here, snapshot, caller=caller)
            )
            scratch = place.scratch
            if optimizer:
                _write_json(scratch / STATE_FILE, {**_scalars_table(snapshot), **(about or {})})
            if lora.is_adapter(snapshot.index):
                _write_json(scratch / lora.CONFIG_FILE, _adapter_config(snapshot, base=base))
            elif model is not None:
                _copy_model_files(model, scratch)
            files = checkpoints.seal(scratch, sealed, tenant=tenant)
            caller.check()
            place.publish(files, tenant=tenant, kept=kept)
    except OSError as error:
        text = f"checkpoint {path} not written: {error}"
        raise bad_request(f"{text}; give a writable place") from error
    return Written(files=tuple(files), nbytes=sum(file.nbytes for file in files.values()))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Unnamed:
    """A checkpoint directory that is being written beside its place."""

    path: Path
    scratch: Path

    @property
    def target(self) -> Path:
        return self.scratch

    def prepare(self, names: Iterable[str]) -> None:
        for name in names:
            (self.scratch / name).touch()

    def check(self, sealed: Mapping[str, Sealed]) -> None:
        for name, one in sealed.items():
            # Opened, because a network's file system may remember the size of before.
            with (self.scratch / name).open("rb") as file:
                nbytes = os.fstat(file.fileno()).st_size
            if nbytes != one.nbytes:
                raise bad_request(
                    f"{self.path.parent} is not the same on all nodes: {name} has {nbytes} bytes "
                    f"here where {one.nbytes} were written; save to a file system that they share"
                )

    def publish(self, sealed: Mapping[str, Sealed], *, tenant: str, kept: int) -> None:
        # The rename that follows may reach the disk before any of them would by itself.
        for name in sealed:
            _sync(self.scratch / name)
        _sync(self.scratch)
        _swap_in(self.scratch, self.path)
        if kept:
            _remove_older(self.path, tenant=tenant, kept=kept)


@contextmanager
def _begun(path: Path | str, *, tenant: str) -> Iterator[_Unnamed | StoredAttempt]:
    with ExitStack() as stack:
        if isinstance(path, str):
            yield stack.enter_context(attempts.begun(path))
            return
        if not path.is_absolute() or path == path.parent:
            raise bad_request(f"checkpoint path {str(path)!r} must be an absolute directory name")
        _check_free(path, tenant=tenant)
        yield _Unnamed(path=path, scratch=stack.enter_context(_scratch(path)))


@contextmanager
def _scratch(path: Path) -> Iterator[Path]:
    """Make a directory beside `path`, locked while it is in use; what was left there is removed."""
    path.parent.mkdir(parents=True, exist_ok=True)
    remove_unfinished(path.parent)
    scratch, fd = _make_locked(path)
    try:
        yield scratch
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
        os.close(fd)
        remove_unfinished(path.parent)


def remove_unfinished(directory: Path) -> None:
    """Undo what killed saves left in `directory`, whatever their names were."""
    with os.scandir(directory) as entries:  # one at a time: there may be any number of others
        for entry in entries:
            found, left = _HIDDEN_NAME.fullmatch(entry.name), directory / entry.name
            with suppress(OSError, RecursionError):  # others tidy up too, or it is none of ours
                if found is not None and found[2] == ASIDE:
                    _bring_back(left, directory / found[1])
                elif found is not None:
                    _remove_unused(left, is_of_this_host=found[3] == _host())


def _bring_back(aside: Path, target: Path) -> None:
    """Give an older checkpoint its name again, unless there is a newer one."""
    if target.exists():
        shutil.rmtree(aside)
    else:
        aside.rename(target)


def _remove_unused(scratch: Path, *, is_of_this_host: bool) -> None:
    """Remove a directory into which no save writes any more.

    It is renamed first: a save that is alive after all cannot give half of it a checkpoint's name.
    """
    fd = os.open(scratch, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if is_of_this_host or _age_s(scratch) > ABANDONED_S:
            doomed = scratch.with_name(_hidden(".", SCRATCH))
            scratch.rename(doomed)
            shutil.rmtree(doomed)
    finally:
        os.close(fd)


def _age_s(scratch: Path) -> float:
    """Return how long nothing in a directory was written, by the clock of its file system."""
    with tempfile.TemporaryFile(dir=scratch.parent) as probe:
        now_s = os.fstat(probe.fileno()).st_mtime
    return now_s - max(path.stat().st_mtime for path in (scratch, *scratch.iterdir()))


def _host() -> str:
    """Return what no two hosts have in common, nor a host with itself after a restart."""
    boot = Path("/proc/sys/kernel/random/boot_id").read_text()
    return boot.replace("-", "")[:HOST_DIGITS]


def _hidden(name: str, what: str) -> str:
    return f".{name}{what}{_host()}-{secrets.token_hex(SCRATCH_BYTES)}"


def _make_locked(path: Path) -> tuple[Path, int]:
    """Return a new directory beside `path`, and the descriptor by which it is locked."""
    while True:
        scratch = path.with_name(_hidden(path.name, SCRATCH))
        scratch.mkdir()
        with suppress(FileNotFoundError):  # another save took it for one that was left
            fd = os.open(scratch, os.O_RDONLY | os.O_DIRECTORY)
            fcntl.flock(fd, fcntl.LOCK_EX)
            if scratch.exists():
                return scratch, fd
            os.close(fd)


def _write_here(
    snapshot: StateSnapshot, target: Path | str, plan: Plan, *, caller: WaitingCaller
) -> Mapping[str, Sealed]:
    return shards.write(snapshot, target, chain(*plan.values()), caller)


def _write_tensors(
    place: _Unnamed | StoredAttempt, plan: Plan, write: Write
) -> Mapping[str, Sealed]:
    """Have the tensors' files written, with an index if several have the weights."""
    files = {shard.file: shard for shard in chain(*plan.values())}
    place.prepare(files)
    sealed = write(place.target, plan)
    place.check({name: sealed[name] for name in files})
    weights = [shard for name, shard in files.items() if name.startswith("model-")]
    if weights:
        nbytes = sum(sealed[shard.file].nbytes for shard in weights)
        _write_json(place.scratch / headers.INDEX, shards.index_of(weights, nbytes=nbytes))
    return sealed


def _adapter_config(snapshot: StateSnapshot, *, base: str) -> dict[str, Any]:
    found = pieces.tensors(snapshot.index)
    shapes = {tensor.name: tensor.shape for tensor in found if tensor.kind == PARAMETERS}
    (scale,) = [tensor for tensor in found if tensor.kind == lora.SCALE_KIND]
    (scale,) = snapshot.gathered([scale])
    (value,) = pieces.whole(scale, snapshot.region).view(np.float32)
    return lora.peft_config(shapes, scale=float(value), base=base)


def _remove_older(path: Path, *, tenant: str, kept: int) -> None:
    """Remove all but the newest checkpoints of a series; one that cannot be removed stays."""
    series = [seal.parent for seal in path.parent.glob(f"{path.name.partition('@')[0]}@*/{SEAL}")]
    series.sort(key=lambda one: (one / SEAL).stat().st_mtime_ns)
    for older in series[:-kept]:
        with suppress(OSError, PlexError):
            checkpoints.remove(older, tenant=tenant)


def _scalars_table(snapshot: StateSnapshot) -> dict[str, Any]:
    by_rank = {str(rank): dict(scalars) for rank, scalars in sorted(snapshot.scalars.items())}
    first: Mapping[str, Any] = next(iter(by_rank.values()), {})
    return {
        "format": 1,
        "applied_seq": snapshot.applied_seq,
        "scalars": first,
        "rank_scalars": by_rank,
    }


def _check_free(path: Path, *, tenant: str) -> None:
    if path.is_symlink():
        raise bad_request(f"{path} is a link; choose another path")
    for above in path.parents:
        if (above / SEAL).is_file():
            text = f"{path} lies in the checkpoint {above}, whose next save would remove it"
            raise bad_request(f"{text}; choose another path")
    check_owner(path, tenant=tenant, what="save:")
    is_free = not path.exists() or (path.is_dir() and not _has_any(path))
    if not is_free and not (path / SEAL).is_file():
        text = f"{path} exists and is no checkpoint of ours (it lacks {SEAL})"
        raise bad_request(f"{text}; choose another path")


def _has_any(directory: Path) -> bool:
    with os.scandir(directory) as entries:
        return any(True for _ in entries)


def _copy_model_files(model: Path, target: Path) -> None:
    """Copy the configuration and tokenizer of a model, which `model` holds opened."""
    left = _MAX_COPIED_BYTES
    for source in sorted(filter(lambda path: is_copied(path.name), model.iterdir())):
        if not source.is_file():
            continue
        left -= source.stat().st_size
        if left < 0:
            text = f"files of {model} beside its weights have more than {_MAX_COPIED_BYTES} bytes"
            raise bad_request(f"{text}; keep the tokenizer's alone there")
        shutil.copyfile(source, target / source.name)  # `_finish` has the disk have it


def is_copied(name: str) -> bool:
    """Whether a checkpoint gets the file of this name from the model directory."""
    return name.endswith(_COPIED_SUFFIXES) and name not in _NOT_COPIED


def _swap_in(scratch: Path, target: Path) -> None:
    """Give `scratch` the name `target`, even if others give it another at the same time.

    An older checkpoint takes the scratch name, or one that says that it was moved aside.
    """
    for _ in range(MAX_SWAPS):
        try:
            if not target.exists():
                scratch.rename(target)
            elif not _has_exchanged(scratch, target):
                target.rename(target.with_name(_hidden(target.name, ASIDE)))
                continue
        except OSError as error:
            if error.errno not in _TAKEN or not scratch.exists():
                raise
        else:
            _sync(target.parent)
            return
    raise OSError(errno.EBUSY, f"cannot replace {target}: others do so at the same time")


def _has_exchanged(scratch: Path, target: Path) -> bool:
    """Exchange two names; return whether the file system can do that.

    Raises:
        OSError: it can, and something else is wrong.
    """
    names = os.fsencode(scratch), os.fsencode(target)
    if _libc.renameat2(_AT_FDCWD, names[0], _AT_FDCWD, names[1], _RENAME_EXCHANGE) == 0:
        return True
    code = ctypes.get_errno()
    if code in _CANNOT_EXCHANGE:
        return False
    raise OSError(code, f"cannot replace {target}: {os.strerror(code)}")


def _write_json(path: Path, table: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(table, indent=1))


def _sync(path: Path) -> None:
    """Return once the disk has a file or the names in a directory."""
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
