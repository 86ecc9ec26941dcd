"""Device memory as a rank sees it: granted by descriptors, mapped at one address for life."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

from plexsvc.errors import bad_request
from plexsvc.statelink import mapping
from plexsvc.statelink.cuda import CudaMemory
from plexsvc.statelink.mapping import Extent, FixedMapping

if TYPE_CHECKING:
    import torch


class RegionMemory(Protocol):
    """One region's memory in the rank's address space."""

    @property
    def address(self) -> int:
        """Where it lies, for life."""

    def attach(self, fd: int, extents: Sequence[Extent], *, is_read_only: bool = False) -> None:
        """Map what the state manager granted; the caller closes `fd`."""

    def settle(self) -> None:
        """Wait until all the rank wrote is there for others to read."""

    def park(self) -> None:
        """Let go of the memory; the addresses stay reserved and inaccessible."""

    def tensor(self, nbytes: int) -> torch.Tensor:
        """Return the first `nbytes` as a flat uint8 tensor."""


class CpuMemory:
    """Extents of the device's arena, a memory file, at a fixed address."""

    def __init__(self, nbytes: int, *, is_populated: bool = True) -> None:
        self._mapping = FixedMapping(nbytes)
        self._is_populated = is_populated

    @property
    def address(self) -> int:
        """Where it lies, for life."""
        return self._mapping.address

    def attach(self, fd: int, extents: Sequence[Extent], *, is_read_only: bool = False) -> None:
        """Map the extents of the arena's descriptor."""
        self._mapping.attach(
            fd, extents, is_populated=self._is_populated, is_read_only=is_read_only
        )

    def settle(self) -> None:
        """Return at once: what a CPU wrote is there."""

    def park(self) -> None:
        """Make the range inaccessible."""
        self._mapping.park()

    def tensor(self, nbytes: int) -> torch.Tensor:
        """Return a tensor over the range; it does not own it."""
        import torch

        buffer = mapping.buffer_at(self._mapping.address, nbytes)
        return torch.frombuffer(buffer, dtype=torch.uint8)


class MappedHostMemory(CpuMemory):
    """A file of host memory at a fixed address, on a node with devices of any kind.

    One that is not `is_populated` takes pages only once something lies there.
    """

    def __init__(self, nbytes: int, *, is_populated: bool) -> None:
        whole = -(-nbytes // mapping.HUGE_PAGE_BYTES) * mapping.HUGE_PAGE_BYTES  # as on any device
        super().__init__(whole, is_populated=is_populated)


def on_host(name: str) -> str:
    """Return the name of the memory that a lent region is parked in."""
    return f"{name}@host"


def open_memory(kind: str, nbytes: int) -> RegionMemory:
    """Return unmapped memory for a region of `nbytes` on this process's device, which is of `kind`.

    Raises:
        PlexError: `bad_request` for a kind this build does not know.
    """
    if kind == "cpu":
        return CpuMemory(nbytes)
    if kind == "cuda":
        return CudaMemory(nbytes)
    raise bad_request(f"this device has memory of unknown kind {kind!r}")
