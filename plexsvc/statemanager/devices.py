"""The node's devices, opened by the kind of their memory."""

from __future__ import annotations

from plexsvc.errors import ErrorCode, PlexError
from plexsvc.statemanager.config import DeviceConfig
from plexsvc.statemanager.cuda import CudaDevice
from plexsvc.statemanager.tiers import ArenaFile, CpuArena, DeviceTier


def open_tier(
    device: DeviceConfig,
    *,
    keep_pages: bool,
    huge_pages: bool = True,
    left: ArenaFile | None = None,
) -> DeviceTier:
    """Return the memory of a configured device; an arena lies in the file a predecessor `left`.

    Raises:
        PlexError: `bad_request` for a kind of memory that this machine does not have.
    """
    if device.memory == "cpu":
        return CpuArena(device.bytes_total, keep_pages=keep_pages, huge_pages=huge_pages, left=left)
    if device.memory == "cuda":
        return CudaDevice(device.index)
    raise PlexError(
        ErrorCode.BAD_REQUEST,
        f"device {device.index}: memory {device.memory!r} is unknown; use cpu or cuda",
    )
