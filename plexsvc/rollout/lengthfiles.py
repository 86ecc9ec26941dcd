"""File of the lengths that answers to a deployment's prompts had: what a successor plans by.

An entry is the name of a prompt and its moving average; a later one of the same prompt counts. The
file survives `kill -9`, not a power cut, which ends every job anyway.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final

import xxhash

from plexsvc.log import Log

log = Log(__name__)

FOLDER: Final = "lengths"
"""Where they are, below the token records."""

SPARE: Final = 4096
"""Entries that the file may have beside twice those that count, before it is written anew."""

_ENTRY: Final = struct.Struct("<16sd")


class LengthFile:
    """The file of one deployment, made when its first lengths are known."""

    def __init__(self, records_dir: Path, deployment_id: str) -> None:
        self._path = records_dir / FOLDER / xxhash.xxh3_128_hexdigest(deployment_id.encode())
        self._count = 0

    def read(self) -> dict[bytes, float]:
        """Return what a manager before has left, the oldest first; a torn end is left out.

        Where the disk fails nothing was left: prompts are then dealt as if they were new.
        """
        try:
            return self._read() if self._path.exists() else {}
        except OSError as error:
            log.warning("lengths not read back", path=str(self._path), error=error)
            return {}

    def keep(self, names: Iterable[bytes], means: Mapping[bytes, float]) -> None:
        """Add what became of some names. Where the disk fails, a kill loses what was remembered."""
        try:
            if self._count > 2 * len(means) + SPARE:
                self._write(means.items(), mode="wb")
            else:
                self._write([(one, means[one]) for one in names if one in means], mode="ab")
        except OSError as error:
            log.warning("lengths not kept for a successor", path=str(self._path), error=error)

    def remove(self) -> None:
        """Delete the file; safe to repeat."""
        self._path.unlink(missing_ok=True)

    def _read(self) -> dict[bytes, float]:
        data = self._path.read_bytes()
        whole = data[: len(data) // _ENTRY.size * _ENTRY.size]
        found: dict[bytes, float] = {}
        for name, mean in _ENTRY.iter_unpack(whole):
            found.pop(name, None)
            found[name] = mean
        self._write(found.items(), mode="wb")  # what comes next stands behind whole entries
        return found

    def _write(self, entries: Iterable[tuple[bytes, float]], *, mode: str) -> None:
        packed = [_ENTRY.pack(*entry) for entry in entries]
        self._path.parent.mkdir(mode=0o700, exist_ok=True)
        with self._path.open(mode) as file:
            file.write(b"".join(packed))
        self._count = len(packed) + (self._count if mode == "ab" else 0)
