"""The device tier of a GPU: physical memory created here and granted to ranks.

NOT RUN on a GPU yet; see docs/status.md.
"""

from __future__ import annotations

import os
from contextlib import ExitStack

from plexsvc.errors import internal
from plexsvc.statelink.cuda import open_driver
from plexsvc.statelink.mapping import Extent
from plexsvc.statemanager.caller import Tell, tell_nobody
from plexsvc.statemanager.hostcopy import HostCopy, parts
from plexsvc.statemanager.tiers import DeviceExtents, DeviceTier
from plexsvc.weights.pieces import Bytes


class CudaDevice:
    """Memory of one GPU; each region is one physical allocation, mapped here and there."""

    kind = "cuda"

    def __init__(self, gpu: int) -> None:
        self._driver = open_driver(gpu)
        self.granule_bytes = self._driver.granularity
        self._mapped: dict[int, tuple[int, int, int]] = {}  # by descriptor: address, bytes, handle

    @property
    def left(self) -> None:
        """Nothing: the memory ends with its owner."""

    def claim(self, nbytes: int, extents: tuple[Extent, ...]) -> DeviceExtents:
        """Refuse: no predecessor's memory is left.

        Raises:
            PlexError: `internal`.
        """
        text = f"{nbytes} device bytes at {extents} ended with their state manager"
        raise internal(f"{text}; start without its records")

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
            handle, fd = driver.create(nbytes)
            undo.callback(driver.release, handle)
            undo.callback(os.close, fd)
            address = driver.reserve(nbytes)
            undo.callback(driver.free_address, address, nbytes)
            driver.map(address, nbytes, handle)
            undo.callback(driver.unmap, address, nbytes)
            # New physical memory holds whatever its last owner left there.
            start = 0 if is_zeroed else nbytes
            if rest := driver.round_up(nbytes) - start:
                driver.zero(address + start, rest)
            tell(nbytes)
            undo.pop_all()
        self._mapped[fd] = address, nbytes, handle
        return DeviceExtents(nbytes=nbytes, extents=(Extent(offset=0, nbytes=nbytes),), fd=fd)

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
