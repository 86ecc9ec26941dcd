"""The device tier of a GPU: physical memory created here and granted to ranks.

A descriptor alone keeps such memory, mapped or not, and whoever has it can map it. So the vault
keeps those of what is on the device, and a successor imports the memory as ranks do.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import ExitStack

from plexsvc.errors import ErrorCode, PlexError
from plexsvc.statelink.cuda import open_driver
from plexsvc.statelink.mapping import Extent
from plexsvc.statemanager.caller import Tell, tell_nobody
from plexsvc.statemanager.hostcopy import HostCopy, parts
from plexsvc.statemanager.tiers import DeviceExtents, DeviceTier
from plexsvc.weights.pieces import Bytes


def keep_nothing() -> None:
    """Return at once: nobody keeps anything for a successor."""


class CudaDevice:
    """Memory of one GPU; each region is one physical allocation, mapped here and there."""

    kind = "cuda"

    def __init__(self, gpu: int, *, let_go: Callable[[], None] = keep_nothing) -> None:
        self._driver = open_driver(gpu)
        self._let_go = let_go
        self.granule_bytes = self._driver.granularity
        self._mapped: dict[int, tuple[int, int, int]] = {}  # by descriptor: address, bytes, handle

    @property
    def left(self) -> None:
        """Nothing: each region has a descriptor of its own."""

    def claim(
        self, nbytes: int, extents: tuple[Extent, ...], *, fd: int | None = None
    ) -> DeviceExtents:
        """Return a region that a predecessor had reserved, whose bytes are there.

        Raises:
            PlexError: `internal` where the driver refuses it.
        """
        assert fd is not None, "a region's memory comes with its record"
        self._driver.enter()
        with ExitStack() as undo:
            undo.callback(os.close, fd)
            handle = self._driver.import_fd(fd)
            undo.callback(self._driver.release, handle)
            address = self._mapped_at(handle, nbytes, undo)
            undo.pop_all()
        self._mapped[fd] = address, nbytes, handle
        return DeviceExtents(nbytes=nbytes, extents=extents, fd=fd)

    def tidy(self) -> None:
        """Do nothing: there is nothing to claim."""

    def prepare(self, host: HostCopy, tell: Tell = tell_nobody) -> None:
        """Page-lock a host copy when it is allocated, so that no move waits for it."""
        host.pin(self._driver.pin, self._driver.unpin, tell)

    def reserve(self, nbytes: int, *, is_zeroed: bool, tell: Tell = tell_nobody) -> DeviceExtents:
        """Return new device memory; the rest of its last granule is zeroed in any case.

        Raises:
            PlexError: `no_room` when the device lacks it.
        """
        driver = self._driver
        driver.enter()
        with ExitStack() as undo:
            handle, fd = self._created(nbytes)
            undo.callback(driver.release, handle)
            undo.callback(os.close, fd)
            address = self._mapped_at(handle, nbytes, undo)
            # New physical memory holds whatever its last owner left there.
            start = 0 if is_zeroed else nbytes
            if rest := driver.round_up(nbytes) - start:
                driver.zero(address + start, rest)
            tell(nbytes)
            undo.pop_all()
        self._mapped[fd] = address, nbytes, handle
        return DeviceExtents(nbytes=nbytes, extents=(Extent(offset=0, nbytes=nbytes),), fd=fd)

    def _created(self, nbytes: int) -> tuple[int, int]:
        try:
            return self._driver.create(nbytes)
        except PlexError as error:
            if error.code != ErrorCode.NO_ROOM:
                raise
            # What was given back a moment ago is there until the vault has let go of it, too.
            self._let_go()
            return self._driver.create(nbytes)

    def _mapped_at(self, handle: int, nbytes: int, undo: ExitStack) -> int:
        """Return the address at which memory is mapped from now on, unless that is undone."""
        address = self._driver.reserve(nbytes)
        undo.callback(self._driver.free_address, address, nbytes)
        self._driver.map(address, nbytes, handle)
        undo.callback(self._driver.unmap, address, nbytes)
        return address

    def release(self, span: DeviceExtents, *, is_final: bool) -> None:
        """Free the memory on the device; every release is final here."""
        del is_final
        self._free(span.fd)

    def to_host(
        self, span: DeviceExtents, address: int, part: Extent, tell: Tell = tell_nobody
    ) -> None:
        """Copy to memory, at the bus's speed where that is pinned."""
        for low, nbytes in parts(part.nbytes):
            here = self._mapped[span.fd][0] + part.offset + low
            self._driver.to_host(address + low, here, nbytes)
            tell(nbytes)

    def from_host(
        self, span: DeviceExtents, address: int, part: Extent, tell: Tell = tell_nobody
    ) -> None:
        """Copy from memory, at the bus's speed where that is pinned."""
        for low, nbytes in parts(part.nbytes):
            here = self._mapped[span.fd][0] + part.offset + low
            self._driver.from_host(here, address + low, nbytes)
            tell(nbytes)

    def is_equal(
        self, span: DeviceExtents, other: DeviceExtents, of: DeviceTier, part: Extent
    ) -> bool:
        """Compare nothing: the bytes would have to come to the host, as a copy does."""
        del span, other, of, part
        return False

    def view(self, span: DeviceExtents, host: HostCopy) -> Bytes:
        """Return the bytes by way of the host copy, which a later offload overwrites."""
        self.to_host(span, host.address, Extent(offset=0, nbytes=span.nbytes))
        return host.view()

    def close(self) -> None:
        """Free everything."""
        for fd in list(self._mapped):
            self._free(fd)

    def _free(self, fd: int) -> None:
        """Undo `reserve`, each step whatever becomes of the others."""
        address, nbytes, handle = self._mapped.pop(fd)
        # They run last to first: it is unmapped, and then addresses, memory and descriptor go.
        with ExitStack() as steps:
            steps.callback(os.close, fd)
            steps.callback(self._driver.release, handle)
            steps.callback(self._driver.free_address, address, nbytes)
            steps.callback(self._driver.unmap, address, nbytes)
            self._driver.settle()
