"""Shelf of the reward proxy: files on disk that tenants' samples left, and what each tenant takes.

What a stage leaves to the next one waits here, and so do files that came with a score, unless they
are small. Nothing here outlives the proxy: a sample whose answer is lost runs again.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import shutil
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import msgspec

from plexsvc.errors import ErrorCode, PlexError, queue_full

SMALL_BYTES: Final = 64 << 10
"""Files of a sample that take less stay in memory while their tenant has room there."""

Files = Mapping[str, bytes]


@dataclass(slots=True)
class TenantShelf:
    """What the proxy keeps for one tenant."""

    tenant: str
    nbytes: int = 0
    """In memory: samples, settings, programs, output, small files."""
    spilled_bytes: int = 0
    """On disk."""
    programs: Counter[str] = field(default_factory=Counter)
    """Versions of its own programs, by the number of batches that hold them."""


@dataclass(frozen=True, slots=True)
class Spilled:
    """Files of one sample that lie on disk."""

    path: Path
    nbytes: int


class Shelf:
    """The directory of what is spilled; it is emptied when it is made."""

    def __init__(self, directory: Path, *, max_bytes: int) -> None:
        self._directory = directory
        self._max_bytes = max_bytes
        self._numbers = itertools.count()
        shutil.rmtree(directory, ignore_errors=True)

    def place(self) -> Path:
        """Return a directory for one batch; it is made when something is put there."""
        return self._directory / str(next(self._numbers))

    async def put(self, files: Files, place: Path, room: TenantShelf) -> Spilled:
        """Write files into a batch's directory; their tenant's room counts them from now on.

        Raises:
            PlexError: `queue_full` beyond the tenant's bound; `disk_full`.
        """
        data = msgspec.msgpack.encode(files)
        spilled = Spilled(place / str(next(self._numbers)), len(data))
        if room.spilled_bytes + spilled.nbytes > self._max_bytes:
            raise queue_full(
                f"files of samples of tenant {room.tenant!r} would take "
                f"{room.spilled_bytes + spilled.nbytes} bytes on disk; the limit is "
                f"{self._max_bytes} (reward.max_spilled_bytes): score fewer at once"
            )
        room.spilled_bytes += spilled.nbytes
        try:
            await asyncio.to_thread(_write, spilled.path, data)
        except OSError as error:
            await self.drop(spilled, room)
            raise PlexError(
                ErrorCode.DISK_FULL,
                f"files of a sample could not be kept in {self._directory}: {error}",
            ) from error
        return spilled

    async def get(self, spilled: Spilled) -> Files:
        """Return files that were put.

        Raises:
            OSError: they are not there any more.
        """
        data = await asyncio.to_thread(spilled.path.read_bytes)
        return msgspec.msgpack.decode(data, type=dict[str, bytes])

    async def drop(self, spilled: Spilled, room: TenantShelf) -> None:
        """Remove files that are not needed any more."""
        room.spilled_bytes -= spilled.nbytes
        with contextlib.suppress(OSError):  # it is gone, or goes when the next proxy starts
            await asyncio.to_thread(spilled.path.unlink)

    async def clear(self, place: Path) -> None:
        """Remove what is left of a batch."""
        await asyncio.to_thread(shutil.rmtree, place, ignore_errors=True)


def _write(path: Path, data: bytes) -> None:
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    path.write_bytes(data)
