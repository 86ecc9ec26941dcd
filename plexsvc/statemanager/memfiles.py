"""Immutable and growing-once memory files: what published versions and staged bundles lie in."""

from __future__ import annotations

import fcntl
import os
import weakref
from typing import Final

from plexsvc.errors import ErrorCode, PlexError
from plexsvc.statelink import mapping

_IMMUTABLE: Final = fcntl.F_SEAL_WRITE | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_SEAL


class MemoryFile:
    """An anonymous memory file of a fixed size; its name exists nowhere."""

    def __init__(self, name: str, nbytes: int, *, fd: int | None = None) -> None:
        """Create the file, or take over the one behind `fd`.

        Raises:
            PlexError: `no_room`.
        """
        self.nbytes = nbytes
        self.fd = _create(name, nbytes) if fd is None else fd
        self._close = weakref.finalize(self, os.close, self.fd)

    def read(self, offset: int, nbytes: int) -> bytes:
        """Return up to `nbytes` from `offset`, nothing past the end."""
        return os.pread(self.fd, max(0, min(nbytes, self.nbytes - offset)), offset)

    def write(self, offset: int, data: memoryview) -> None:
        """Write all of `data` at `offset`; the caller has checked that it fits.

        Raises:
            PlexError: `no_room`.
        """
        try:
            write(self.fd, offset, data)
        except OSError as error:
            raise no_room(data.nbytes, error) from error

    def map(self, *, is_writable: bool) -> memoryview:
        """Return the file's bytes; who only reads them keeps them after `close`."""
        return mapping.map_file(self.fd, self.nbytes, is_writable=is_writable)

    def duplicate(self) -> int:
        """Return a descriptor of the file that its receiver closes."""
        return os.dup(self.fd)

    def open_to_read(self) -> int:
        """Return a descriptor that its receiver closes, and cannot write by."""
        return os.open(f"/proc/self/fd/{self.fd}", os.O_RDONLY | os.O_CLOEXEC)

    def freeze(self) -> None:
        """Make the bytes immutable for everyone; no writable mapping may be left."""
        fcntl.fcntl(self.fd, fcntl.F_ADD_SEALS, _IMMUTABLE)

    def close(self) -> None:
        """Let go of it, as losing it does too; mappings and duplicates elsewhere keep it alive."""
        self._close()


def reserve(fd: int, nbytes: int) -> None:
    """Have the machine's memory for all of a file now, so that a lack is an error and no signal.

    Raises:
        PlexError: `no_room`.
    """
    with mapping.map_file(fd, nbytes, is_writable=True) as mapped:
        fill(mapped)


def fill(mapped: memoryview) -> None:
    """Have the machine's memory for all of a writable mapping now.

    Raises:
        PlexError: `no_room`.
    """
    try:
        mapping.populate(mapping.address_of(mapped), mapped.nbytes)
    except OSError as error:
        raise no_room(mapped.nbytes, error) from error


def write(fd: int, offset: int, data: bytes | memoryview) -> None:
    """Write all of `data` at `offset`; the caller has checked that it fits."""
    left = memoryview(data).cast("B")
    while left:
        done = os.pwrite(fd, left, offset)
        left, offset = left[done:], offset + done


def _create(name: str, nbytes: int) -> int:
    fd = os.memfd_create(name, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        os.ftruncate(fd, max(1, nbytes))  # nothing empty can be mapped
        # A client that could shrink it would end all who map it with SIGBUS.
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_GROW | fcntl.F_SEAL_SHRINK)
    except OSError as error:
        os.close(fd)
        raise no_room(nbytes, error) from error
    return fd


def no_room(nbytes: int, error: OSError) -> PlexError:
    """Return the error of a machine that lacks memory, whatever the budgets say."""
    text = f"the machine has no memory for {nbytes} bytes: {error}; lower the configured"
    return PlexError(ErrorCode.NO_ROOM, f"{text} device, host or staging bytes", need=nbytes)
