"""Devices of a node, opened by the kind of their memory, and the bytes that they may ask for."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Sequence

from plexsvc.errors import bad_request, internal
from plexsvc.statelink.cuda import open_driver
from plexsvc.statemanager.config import StateManagerConfig, TierConfig
from plexsvc.statemanager.cuda import CudaDevice, keep_nothing
from plexsvc.statemanager.tiers import ArenaFile, CpuArena, DeviceTier


def check_budgets(devices: Sequence[TierConfig]) -> None:
    """Refuse devices of one GPU that together ask for more memory than its driver says it has.

    Raises:
        PlexError: `bad_request`, naming both.
    """
    asked = Counter[int]()
    for device in devices:
        if device.memory == "cuda":
            for gpu in range(device.gpu_index, device.gpu_index + device.tp):
                asked[gpu] += device.bytes_total // device.tp
    for gpu, nbytes in asked.items():
        _, total = open_driver(gpu).memory()
        if nbytes > total:
            text = f"the devices of GPU {gpu} have {nbytes} bytes together (bytes_total)"
            raise bad_request(
                f"{text}, the GPU has {total}; give them less, and leave a little for what is lost "
                "between blocks of memory"
            )


def open_tier(
    device: TierConfig,
    config: StateManagerConfig,
    *,
    left: ArenaFile | None = None,
    let_go: Callable[[], None] = keep_nothing,
) -> DeviceTier:
    """Return the memory of a configured device; an arena lies in the file a predecessor `left`.

    `let_go` returns when nobody keeps for a successor what was given back.

    Raises:
        PlexError: `bad_request` for a kind of memory that this machine does not have; `internal`
            when what was left is not of this configuration.
    """
    if device.memory == "cuda":
        return CudaDevice(device.gpu_index, let_go=let_go)
    if device.memory != "cpu":
        raise bad_request(
            f"device {device.index}: memory {device.memory!r} is unknown; use cpu or cuda"
        )
    arena = CpuArena(
        device.bytes_total, keep_pages=config.keep_pages, huge_pages=config.huge_pages, left=left
    )
    if left is not None and os.fstat(left.fd).st_size != arena.nbytes:
        text = f"device {device.index} was left with another size than {arena.nbytes} bytes"
        raise internal(f"{text}; start without its records")
    return arena
