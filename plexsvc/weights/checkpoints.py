"""The seal of a checkpoint directory: which files make it whole, and their checksums by block.

A checkpoint of ours is sealed by `.complete`, written last. Whoever reads one checks that all files
are there in full, and the checksum of each block before it uses a byte of it. A directory without a
seal is a plain Hugging Face one, unless it has files that only a checkpoint of ours has.
"""

from __future__ import annotations

import json
import os
import re
import secrets
import shutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import asdict, dataclass
from math import prod
from pathlib import Path
from typing import Any, Final

import xxhash

from plexsvc import paths
from plexsvc.errors import ErrorCode, PlexError
from plexsvc.weights import headers
from plexsvc.weights.boxes import Box, TensorBox
from plexsvc.weights.checksums import BLOCK_BYTES
from plexsvc.weights.owner import MAX_MARK_BYTES, SEAL, check_owner
from plexsvc.weights.pieces import packed_strides

MODEL_FILE: Final = "model.safetensors"
OPTIMIZER_FILE: Final = "optimizer.safetensors"
STATE_FILE: Final = "plex_state.json"

_OPTIMIZER: Final = re.compile(r"optimizer(-\d+-of-\d+)?\.safetensors")

SCRATCH: Final = ".tmp-"
"""Follows the name of a checkpoint in that of the directory in which it is written or removed."""

BLOCKS_AT_ONCE: Final = 16
"""Blocks that are asked for in one call, and held in memory, while they are compared."""

ReadBlocks = Callable[[str, Sequence[int]], Iterable[bytes]]
"""Returns blocks of a file by their numbers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sealed:
    """One file: its size and the xxh3-128 of each of its blocks, in hexadecimal."""

    nbytes: int
    blocks: tuple[str, ...]


def is_ours_alone(name: str) -> bool:
    """Whether no model directory has a file of this name, and a checkpoint with its optimizer."""
    return name == STATE_FILE or _OPTIMIZER.fullmatch(name) is not None


class BlockHasher:
    """Hashes a stream by block, whatever the sizes of its parts."""

    def __init__(self) -> None:
        self._nbytes = 0
        self._blocks: list[str] = []
        self._current = xxhash.xxh3_128()

    def update(self, data: memoryview) -> None:
        """Take the next part."""
        while data:
            part = data[: BLOCK_BYTES - self._nbytes % BLOCK_BYTES]
            self._current.update(part)
            self._nbytes += len(part)
            if self._nbytes % BLOCK_BYTES == 0:
                self._end_block()
            data = data[len(part) :]

    def seal(self) -> Sealed:
        """Return what came; nothing may come any more."""
        if self._nbytes % BLOCK_BYTES:
            self._end_block()
        return Sealed(nbytes=self._nbytes, blocks=tuple(self._blocks))

    def _end_block(self) -> None:
        self._blocks.append(self._current.hexdigest())
        self._current.reset()


def seal(directory: Path, known: Mapping[str, Sealed], *, tenant: str = "") -> dict[str, Sealed]:
    """Seal all files of a directory, the last thing written into it; return them by name.

    What is `known` is taken for what the files are to be, wherever they are; the others are sealed
    as they are.
    """
    names = sorted({*known, *os.listdir(directory)} - {SEAL})
    files = {name: known.get(name) or _seal_of(directory / name) for name in names}
    table = {
        "block_bytes": BLOCK_BYTES,
        "files": {name: asdict(found) for name, found in files.items()},
        "tenant": tenant,
    }
    with (directory / SEAL).open("w") as file:
        json.dump(table, file)
        file.flush()
        os.fsync(file.fileno())
    return files


class Seal:
    """The seal of one directory. Each block is read and compared once."""

    def __init__(
        self, directory: Path, files: Mapping[str, Sealed], blocks: ReadBlocks | None = None
    ) -> None:
        self._directory = directory
        self._files = files
        self._blocks = blocks or self._blocks_here
        self._good: set[tuple[str, int]] = set()
        self._spans: dict[str, Mapping[str, tuple[int, int]]] = {}

    @property
    def names(self) -> AbstractSet[str]:
        """The files that it names."""
        return self._files.keys()

    def check_file(self, name: str) -> None:
        """Compare all of a file.

        Raises:
            PlexError: `checkpoint_damaged`, naming the file.
        """
        self.check(name, 0, self._sealed(name).nbytes)

    def check_box(self, name: str, wanted: TensorBox) -> None:
        """Compare the blocks of a safetensors file in which a box of a tensor lies.

        Raises:
            PlexError: `checkpoint_damaged`, naming the file.
        """
        low, high = self.check_header(name)[wanted.name]
        first, last = _reach(wanted)
        item_bytes = (high - low) // prod(wanted.shape)
        self.check(name, low + first * item_bytes, low + (last + 1) * item_bytes)

    def check_header(self, name: str) -> Mapping[str, tuple[int, int]]:
        """Compare a safetensors file's header, and return where each tensor lies in the file.

        Raises:
            PlexError: `checkpoint_damaged`, naming the file.
        """
        if name not in self._spans:
            self._spans[name] = self._spans_of(name)
        return self._spans[name]

    def check(self, name: str, low: int, high: int) -> None:
        """Compare the blocks that hold bytes `low` to `high` of a file.

        Raises:
            PlexError: `checkpoint_damaged`, naming the file.
        """
        sealed = self._sealed(name)
        blocks = range(low // BLOCK_BYTES, -(-high // BLOCK_BYTES))
        wanted = [block for block in blocks if (name, block) not in self._good]
        for at in range(0, len(wanted), BLOCKS_AT_ONCE):
            some = wanted[at : at + BLOCKS_AT_ONCE]
            for block, data in zip(some, self._blocks(name, some), strict=True):
                found = xxhash.xxh3_128_hexdigest(data)
                if block >= len(sealed.blocks) or found != sealed.blocks[block]:
                    at_bytes = f"block {block} (bytes {block * BLOCK_BYTES} on)"
                    raise _broken(self._directory / name, f"{at_bytes} has another checksum")
                self._good.add((name, block))

    def _blocks_here(self, name: str, blocks: Sequence[int]) -> Iterable[bytes]:
        with self._open(name) as file:
            for block in blocks:
                file.seek(block * BLOCK_BYTES)
                yield file.read(BLOCK_BYTES)

    def _spans_of(self, name: str) -> Mapping[str, tuple[int, int]]:
        self.check(name, 0, headers.SIZE_BYTES)
        with self._open(name) as file:
            try:
                size = headers.header_bytes(file.fileno(), name=name)
                self.check(name, 0, headers.SIZE_BYTES + size)
                start, found = headers.read_header(file.fileno(), name=name)
            except ValueError as error:
                raise _broken(self._directory / name, str(error)) from error
        return {name: (start + one.low, start + one.high) for name, one in found.items()}

    def _sealed(self, name: str) -> Sealed:
        if name not in self._files:
            raise _broken(self._directory / name, f"{SEAL} does not name it")
        return self._files[name]

    def _open(self, name: str) -> Any:
        try:
            return (self._directory / name).open("rb")
        except OSError as error:
            raise _broken(self._directory / name, str(error)) from error


def read_seal(directory: Path, blocks: ReadBlocks | None = None) -> Seal | None:
    """Return the seal of a checkpoint whose files are all there in full; None for a plain model.

    Blocks are read from the directory, or by `blocks`.

    Raises:
        PlexError: `checkpoint_damaged`, naming the file that is missing, cut, or no seal.
    """
    path = directory / SEAL
    if not path.is_file():
        for one in directory.glob("*"):
            if is_ours_alone(one.name):
                raise _broken(path, f"it is missing beside {one.name}: the copy was cut short")
        return None
    try:
        found = paths.read_json(path, most_bytes=MAX_MARK_BYTES)
        files = {
            name: Sealed(nbytes=int(known["nbytes"]), blocks=tuple(known["blocks"]))
            for name, known in found["files"].items()
        }
        is_ours = found["block_bytes"] == BLOCK_BYTES
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        raise _broken(path, f"it cannot be read ({error!r})") from error
    if not is_ours:
        raise _broken(path, f"its blocks have {found['block_bytes']} bytes, not {BLOCK_BYTES}")
    for name, sealed in files.items():
        _check_size(directory / name, sealed)
    return Seal(directory, files, blocks)


def remove(directory: Path, *, tenant: str) -> None:
    """Remove a checkpoint of a tenant, which is gone at once: a reader never sees half of one.

    What a kill leaves of it is removed by a later save beside it.

    Raises:
        PlexError: as `check_owner`.
        OSError: it cannot be removed.
    """
    check_owner(directory, tenant=tenant, what="remove:")
    doomed = directory.with_name(f".{directory.name}{SCRATCH}-{secrets.token_hex(4)}")
    directory.rename(doomed)
    shutil.rmtree(doomed)


def check_model(directory: Path, seal: Seal | None = None) -> None:
    """Compare all files of a model that are sealed; whoever reads them next knows no seal.

    Raises:
        PlexError: `checkpoint_damaged`, naming the file.
    """
    found = seal or read_seal(directory)
    if found is not None:
        for name in sorted(found.names):
            if not is_ours_alone(name):
                found.check_file(name)


def _seal_of(path: Path) -> Sealed:
    hasher = BlockHasher()
    with path.open("rb") as file:
        while data := file.read(BLOCK_BYTES):
            hasher.update(memoryview(data))
    return hasher.seal()


def _check_size(path: Path, sealed: Sealed) -> None:
    try:
        nbytes = path.stat().st_size
    except OSError as error:
        raise _broken(path, f"it is missing ({error})") from error
    if nbytes != sealed.nbytes or len(sealed.blocks) != -(-nbytes // BLOCK_BYTES):
        raise _broken(path, f"it has {nbytes} bytes where {sealed.nbytes} were saved")


def _broken(path: Path, found: str) -> PlexError:
    text = f"checkpoint file {path} is not what was saved: {found}; nothing was loaded"
    return PlexError(ErrorCode.CHECKPOINT_DAMAGED, f"{text}, copy or save it again", path=path)


def _reach(wanted: TensorBox) -> tuple[int, int]:
    """Return the numbers of the first and the last element of a box in its tensor."""
    strides = packed_strides(Box.whole(wanted.shape))
    box = wanted.box
    first = sum(at * step for at, step in zip(box.start, strides, strict=True))
    along = sum((n - 1) * step for n, step in zip(box.size, strides, strict=True))
    return first, first + along
