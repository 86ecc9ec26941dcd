"""The nodes of a cluster that nobody configured: this machine, by its GPUs."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Final

from plexsvc.cluster.config import DEFAULT_NODES, NodeConfig
from plexsvc.node.config import DeviceConfig
from plexsvc.statelink.cuda import Gpu

TRAIN_SHARE: Final = 0.7
"""Part of a GPU that trains which holds state; activations and contexts take the rest."""
ROLLOUT_SHARE: Final = 0.9
"""Part of a GPU that an engine takes, its activations included."""
SHARED_TRAIN_SHARE: Final = 0.4
SHARED_ROLLOUT_SHARE: Final = 0.4
"""Parts of the only GPU of a machine, which trains and generates."""

GRANULE: Final = 2 << 20


def plan(gpus: Sequence[Gpu]) -> tuple[NodeConfig, ...]:
    """Return one node with devices on all `gpus`, or the small one of a machine without any.

    The first half of the GPUs trains and the other generates; a single one does both.
    """
    if not gpus:
        return DEFAULT_NODES
    if len(gpus) == 1:
        devices = [
            _device("train", gpus[0], share=SHARED_TRAIN_SHARE),
            _device("rollout", gpus[0], share=SHARED_ROLLOUT_SHARE),
        ]
    else:
        half = (len(gpus) + 1) // 2
        devices = [_device("train", gpu, share=TRAIN_SHARE) for gpu in gpus[:half]]
        devices += [_device("rollout", gpu, share=ROLLOUT_SHARE) for gpu in gpus[half:]]
    return (NodeConfig(node_id="local", devices=tuple(devices), host_bytes=_half_of_memory()),)


def _device(kind: str, gpu: Gpu, *, share: float) -> DeviceConfig:
    nbytes = int(gpu.nbytes * share) // GRANULE * GRANULE
    return DeviceConfig(kind=kind, bytes_total=nbytes, memory="cuda", gpu=gpu.index)


def _half_of_memory() -> int:
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2
