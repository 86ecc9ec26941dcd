"""Environment of a process by the node's table of devices: it sees its own GPUs and no other."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence

from plexsvc.errors import bad_request
from plexsvc.node.config import DeviceConfig


def environment(devices: Sequence[DeviceConfig], index: int) -> Mapping[str, str]:
    """Return what a process on device `index` must have in its environment before CUDA starts.

    A process on a GPU sees it as GPU 0, one on several as GPUs from 0; one on a CPU device sees
    none, whatever the machine has.

    Raises:
        PlexError: `bad_request` for a device or a GPU that is not there.
    """
    if not 0 <= index < len(devices):
        raise bad_request(
            f"device {index} is asked for; this node has {len(devices)} (node.devices)"
        )
    device = devices[index]
    if device.memory != "cuda":
        return {"CUDA_VISIBLE_DEVICES": ""}
    return {"CUDA_VISIBLE_DEVICES": ",".join(map(_name, device.gpus(index)))}


def of_rewards(devices: Sequence[DeviceConfig]) -> list[str]:
    """Return the GPUs of reward workers, by the names that CUDA knows them by.

    Raises:
        PlexError: `bad_request` for a GPU that is not there.
    """
    gpus = [device.gpu for device in devices if device.kind == "reward"]
    return [_name(gpu) for gpu in gpus if gpu is not None]


def _name(gpu: int) -> str:
    """Return the name of the agent's own GPU `gpu`; the agent may see a part of the machine's."""
    seen = os.environ.get("CUDA_VISIBLE_DEVICES", "")  # noqa: TID251 - as CUDA reads it, for a child
    names = [name.strip() for name in seen.split(",")] if seen else []
    if names and gpu >= len(names):
        text = f"GPU {gpu} is configured, the node agent sees {seen!r} (CUDA_VISIBLE_DEVICES)"
        raise bad_request(f"{text}; change gpu of the device")
    return names[gpu] if names else str(gpu)
