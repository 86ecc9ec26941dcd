"""File of a token record: what a manager's successor reads after a kill.

Each entry is a frame and, beside it, where new spans of versions begin; the first holds the
operation's ids instead. An entry is in the file before any reader gets its frame. The file survives
`kill -9`, not a power cut, which ends every job anyway.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple, Protocol

from plexclient.wire.v1 import operations_pb2
from plexsvc.log import Log

log = Log(__name__)

_HEAD: Final = struct.Struct("<II")


class StoredFrame(NamedTuple):
    """One frame, serialised, and a frame whose deltas have the spans that begin in it."""

    frame: bytes
    spans: bytes = b""


class FileWatcher(Protocol):
    """Is told of record files."""

    def grown(self, file: RecordFile) -> None:
        """Take note that a file has more bytes."""

    def removed(self, file: RecordFile) -> None:
        """Take note that a file is gone."""


class RecordFile:
    """The file of one operation, made when its first frame comes."""

    def __init__(
        self,
        directory: Path,
        operation: operations_pb2.Operation,
        *,
        watcher: FileWatcher | None = None,
    ) -> None:
        self._path = directory / operation.operation_id.hex()
        self.operation_id, self.deployment_id = operation.operation_id, operation.deployment_id
        self._watcher = watcher
        self._ids = operations_pb2.Operation(
            operation_id=operation.operation_id,
            job_id=operation.job_id,
            deployment_id=operation.deployment_id,
            tenant=operation.tenant,
            seq=operation.seq,
        )
        self._descriptor = -1
        self._is_broken = False

    def append(self, entry: StoredFrame) -> None:
        """Add an entry. Where the disk fails, a kill of the manager loses the record."""
        if self._is_broken:
            return
        try:
            if self._descriptor < 0:
                is_new = not self._path.exists()
                flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
                self._descriptor = os.open(self._path, flags, 0o600)
                if is_new:
                    self._write(StoredFrame(self._ids.SerializeToString()))
            self._write(entry)
        except OSError as error:
            log.warning("token record not kept for a successor", path=str(self._path), error=error)
            self.remove()
            self._is_broken = True
            return
        if self._watcher is not None:
            self._watcher.grown(self)

    @property
    def nbytes(self) -> int:
        """How large it is."""
        return self._path.stat().st_size if self._path.exists() else 0

    def read(self, offset: int, most: int) -> bytes:
        """Return bytes from `offset` on; none of a file that is gone."""
        try:
            with self._path.open("rb") as file:
                file.seek(offset)
                return file.read(most)
        except FileNotFoundError:
            return b""

    def remove(self) -> None:
        """Delete the file; safe to repeat."""
        self.close()
        self._path.unlink(missing_ok=True)
        if self._watcher is not None:
            self._watcher.removed(self)

    def close(self) -> None:
        """Write no more, and keep the file."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def _write(self, entry: StoredFrame) -> None:
        data = b"".join((_HEAD.pack(len(entry.frame), len(entry.spans)), *entry))
        written = os.write(self._descriptor, data)
        if written < len(data):
            raise OSError(f"{written} of {len(data)} bytes were written")


def recover(directory: Path) -> Iterator[tuple[operations_pb2.Operation, list[StoredFrame]]]:
    """Yield the ids and the frames of each record, the oldest first; a torn end is cut off."""
    files = [path for path in directory.iterdir() if path.is_file()]
    for path in sorted(files, key=lambda path: path.stat().st_mtime_ns):
        entries, nbytes = _read(path.read_bytes())
        if not entries:
            path.unlink()
            continue
        os.truncate(path, nbytes)
        yield operations_pb2.Operation.FromString(entries[0].frame), entries[1:]


def _read(data: bytes) -> tuple[list[StoredFrame], int]:
    """Return the whole entries and how many bytes they are."""
    entries: list[StoredFrame] = []
    at = 0
    while at + _HEAD.size <= len(data):
        sizes = _HEAD.unpack_from(data, at)
        start = at + _HEAD.size
        middle, end = start + sizes[0], start + sum(sizes)
        if end > len(data):
            break
        entries.append(StoredFrame(data[start:middle], data[middle:end]))
        at = end
    return entries, at
