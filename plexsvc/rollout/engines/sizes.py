"""Sizes of an engine: its KV cache, the sequences of one step, its share of a GPU."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from plexsvc.errors import bad_request

CPU_KV_CACHE_BYTES: Final = 64 << 20
CPU_NUM_SEQS: Final = 64
CUDA_NUM_SEQS: Final = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineSizes:
    """What an engine is started with."""

    max_num_seqs: int
    kv_cache_bytes: int | None
    """None: what its share of the GPU leaves beside weights, activations and graphs."""
    gpu_share: float | None
    """Part of the GPU's memory that the whole engine may take; None on a CPU."""


def choose(
    *, kv_cache_bytes: int, max_num_seqs: int, device_bytes: int, gpu_bytes: int
) -> EngineSizes:
    """Return the sizes for what was asked (0: nothing) on a GPU of `gpu_bytes` (0: a CPU).

    `device_bytes` is the budget of the device, which may be a part of the GPU (0: all of it).

    Raises:
        PlexError: `bad_request` for a budget that the GPU does not have.

    >>> choose(kv_cache_bytes=0, max_num_seqs=0, device_bytes=30, gpu_bytes=40).gpu_share
    0.75
    """
    if gpu_bytes == 0:
        return EngineSizes(
            max_num_seqs=max_num_seqs or CPU_NUM_SEQS,
            kv_cache_bytes=kv_cache_bytes or CPU_KV_CACHE_BYTES,
            gpu_share=None,
        )
    if device_bytes > gpu_bytes:
        text = f"the device is configured with {device_bytes} bytes, its GPU has {gpu_bytes}"
        raise bad_request(f"{text}; lower bytes_total of the device")
    return EngineSizes(
        max_num_seqs=max_num_seqs or CUDA_NUM_SEQS,
        kv_cache_bytes=kv_cache_bytes or None,
        gpu_share=(device_bytes or gpu_bytes) / gpu_bytes,
    )
