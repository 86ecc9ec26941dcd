"""Registry of device tiers: each kind of memory that a device may have, and how it is opened."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Final

from plexsvc.errors import ErrorCode, PlexError
from plexsvc.statemanager.config import DeviceConfig, StateManagerConfig
from plexsvc.statemanager.cuda import CudaDevice
from plexsvc.statemanager.tiers import ArenaFile, CpuArena, DeviceTier

Open = Callable[[DeviceConfig, StateManagerConfig, ArenaFile | None], DeviceTier]
"""Opens a device, over what a predecessor left of it."""


def _open_arena(
    device: DeviceConfig, config: StateManagerConfig, left: ArenaFile | None
) -> DeviceTier:
    arena = CpuArena(
        device.bytes_total,
        keep_pages=config.keep_pages,
        huge_pages=config.huge_pages,
        left=left,
    )
    if left is not None and os.fstat(left.fd).st_size != arena.nbytes:
        text = f"device {device.index} was left with another size than {arena.nbytes} bytes"
        raise PlexError(ErrorCode.INTERNAL, f"{text}; start without its records")
    return arena


TIERS: Final[Mapping[str, Open]] = {
    "cpu": _open_arena,
    "cuda": lambda device, _config, _left: CudaDevice(device.index),
}


def open_tier(
    device: DeviceConfig, config: StateManagerConfig, *, left: ArenaFile | None = None
) -> DeviceTier:
    """Return the memory of a configured device; an arena lies in the file a predecessor `left`.

    Raises:
        PlexError: `bad_request` for a kind of memory that this machine does not have; `internal`
            when what was left is not of this configuration.
    """
    if device.memory not in TIERS:
        raise PlexError(
            ErrorCode.BAD_REQUEST,
            f"device {device.index}: memory {device.memory!r} is unknown; use {' or '.join(TIERS)}",
        )
    return TIERS[device.memory](device, config, left)
