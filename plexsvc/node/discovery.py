"""Devices that a host has when nobody configured any: its GPUs, and part of its memory."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from plexsvc.node.config import DeviceConfig
from plexsvc.statelink.cuda import Gpu

TRAIN_SHARE: Final = 0.95
"""Part of a GPU that trains: its states, contexts and passes. Their estimates are upper bounds."""
ROLLOUT_SHARE: Final = 0.9
"""Part of a GPU that an engine takes, its activations included."""
SHARED_TRAIN_SHARE: Final = 0.5
SHARED_ROLLOUT_SHARE: Final = 0.4
"""Parts of the only GPU of a machine, which trains and generates."""

GRANULE: Final = 2 << 20
_LIMIT: Final = Path("/sys/fs/cgroup/memory.max")
"""Only a container, which sees its own control group as the root, has it there."""


def on_gpus(gpus: Sequence[Gpu], *, kind: str = "") -> tuple[DeviceConfig, ...]:
    """Return devices on all `gpus`: of one kind, or else of two.

    The first half of the GPUs trains and the other generates; a single one does both.
    """
    if kind:
        share = TRAIN_SHARE if kind == "train" else ROLLOUT_SHARE
        return tuple(_device(kind, gpu, share=share) for gpu in gpus)
    if len(gpus) == 1:
        return (
            _device("train", gpus[0], share=SHARED_TRAIN_SHARE),
            _device("rollout", gpus[0], share=SHARED_ROLLOUT_SHARE),
        )
    half = (len(gpus) + 1) // 2  # training has the odd one
    trains = [_device("train", gpu, share=TRAIN_SHARE) for gpu in gpus[:half]]
    return (*trains, *(_device("rollout", gpu, share=ROLLOUT_SHARE) for gpu in gpus[half:]))


def half_of_memory(limit: Path = _LIMIT) -> int:
    """Return half of the bytes of this host's memory, or of what this container may take of it."""
    whole = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    allowed = limit.read_text().strip() if limit.exists() else "max"
    return min(whole, int(allowed) if allowed != "max" else whole) // 2


def _device(kind: str, gpu: Gpu, *, share: float) -> DeviceConfig:
    nbytes = int(gpu.nbytes * share) // GRANULE * GRANULE
    return DeviceConfig(kind=kind, bytes_total=nbytes, memory="cuda", gpu=gpu.index)
