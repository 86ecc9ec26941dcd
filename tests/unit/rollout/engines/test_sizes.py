"""Sizes of engines on CPUs and on parts of GPUs."""

from __future__ import annotations

import pytest

from plexsvc.errors import PlexError
from plexsvc.rollout.engines.sizes import CPU_KV_CACHE_BYTES, choose

GIB = 1 << 30


def test_an_engine_takes_the_share_of_its_device_and_no_more_of_the_gpu() -> None:
    half = choose(kv_cache_bytes=0, max_num_seqs=0, device_bytes=70 * GIB, gpu_bytes=140 * GIB)
    assert (half.gpu_share, half.kv_cache_bytes) == (0.5, None)
    whole = choose(kv_cache_bytes=0, max_num_seqs=0, device_bytes=0, gpu_bytes=140 * GIB)
    assert whole.gpu_share == 1.0


def test_a_gpu_runs_more_sequences_than_a_cpu_unless_it_is_told() -> None:
    on_gpu = choose(kv_cache_bytes=0, max_num_seqs=0, device_bytes=0, gpu_bytes=GIB)
    on_cpu = choose(kv_cache_bytes=0, max_num_seqs=0, device_bytes=GIB, gpu_bytes=0)
    assert on_gpu.max_num_seqs > on_cpu.max_num_seqs
    assert on_cpu.kv_cache_bytes == CPU_KV_CACHE_BYTES
    assert on_cpu.gpu_share is None
    told = choose(kv_cache_bytes=5, max_num_seqs=7, device_bytes=GIB, gpu_bytes=GIB)
    assert (told.kv_cache_bytes, told.max_num_seqs) == (5, 7)


def test_a_budget_that_the_gpu_does_not_have_is_refused() -> None:
    with pytest.raises(PlexError, match=r"bad_request.*41 bytes, its GPU has 40"):
        choose(kv_cache_bytes=0, max_num_seqs=0, device_bytes=41, gpu_bytes=40)
