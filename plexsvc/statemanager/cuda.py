"""The device tier of a GPU: physical memory created here and granted to ranks.

NOT RUN on a GPU yet; see docs/status.md.
"""

from __future__ import annotations

import os

from plexsvc.errors import ErrorCode, PlexError
from plexsvc.statelink.cuda import Driver
from plexsvc.statelink.mapping import Extent
from plexsvc.statemanager.tiers import HostCopy, Span
from plexsvc.weights.pieces import Bytes


class CudaDevice:
    """Memory of one CUDA device; each region is one physical allocation, mapped here and there."""

    kind = "cuda"

    def __init__(self, device_index: int) -> None:
        self._driver = Driver(device_index)
        self._driver.enter()
        self._mapped: dict[int, tuple[int, int]] = {}  # by descriptor: address, handle

    @property
    def left(self) -> None:
        """Nothing: the memory ends with its owner."""

    def claim(self, nbytes: int, extents: tuple[Extent, ...]) -> Span:
        """Refuse: no predecessor's memory is left.

        Raises:
            PlexError: `internal`.
        """
        text = f"{nbytes} device bytes at {extents} ended with their state manager"
        raise PlexError(ErrorCode.INTERNAL, f"{text}; start without its records")

    def tidy(self) -> None:
        """Do nothing: there is nothing to claim."""

    def reserve(self, nbytes: int, *, is_zeroed: bool) -> Span:
        """Return new device memory.

        Raises:
            PlexError: `no_room` when the device lacks it.
        """
        self._driver.enter()
        handle, fd = self._driver.create(nbytes)
        address = self._driver.reserve(nbytes)
        self._driver.map(address, nbytes, handle)
        if is_zeroed:
            self._driver.zero(address, nbytes)
            self._driver.settle()
        self._mapped[fd] = address, handle
        return Span(nbytes=nbytes, extents=(Extent(offset=0, nbytes=nbytes),), fd=fd)

    def release(self, span: Span, *, is_final: bool) -> None:
        """Free the memory on the device; every release is final here."""
        del is_final
        self._driver.settle()
        address, handle = self._mapped.pop(span.fd)
        self._driver.unmap(address, span.nbytes)
        self._driver.free_address(address, span.nbytes)
        self._driver.release(handle)
        os.close(span.fd)

    def to_host(self, span: Span, host: HostCopy) -> None:
        """Copy to pinned memory at the bus's speed."""
        self._driver.enter()
        host.pin(self._driver.pin, self._unpin)
        self._driver.to_host(host.address, self._mapped[span.fd][0], span.nbytes)

    def from_host(self, span: Span, host: HostCopy) -> None:
        """Copy from pinned memory at the bus's speed."""
        self._driver.enter()
        host.pin(self._driver.pin, self._unpin)
        self._driver.from_host(self._mapped[span.fd][0], host.address, span.nbytes)

    def view(self, span: Span, host: HostCopy) -> Bytes:
        """Return the bytes by way of the host copy, which a later offload overwrites."""
        self.to_host(span, host)
        return host.view()

    def close(self) -> None:
        """Free everything."""
        for fd in list(self._mapped):
            _, handle = self._mapped.pop(fd)
            self._driver.release(handle)
            os.close(fd)

    def _unpin(self, address: int) -> None:
        self._driver.enter()
        self._driver.unpin(address)
