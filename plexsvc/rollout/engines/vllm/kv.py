"""KV memory of a vLLM core that shares its device: blocks withheld from it, their pages given back.

A core allocates its KV tensors once, for as many blocks as it may ever have. A block is withheld by
taking it from the pool of free blocks, as a request would: the scheduler then admits nothing that
needs it. On a CPU its pages go back to the system; the address stays, so the block can be returned
at any time and gets pages when it is written.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import groupby
from typing import Any, TypeAlias

import vllm.v1.engine.core as vllm_core

from plexsvc.rollout.engines import pages

CachedBlock: TypeAlias = tuple[int, object]
"""Number of a block and the hash of what was computed into it."""


class KvMemory:
    """The blocks of one core. Used on the executor's thread alone, between steps."""

    def __init__(self, core: vllm_core.EngineCore) -> None:
        self._pool = core.scheduler.kv_cache_manager.block_pool
        self._withheld: list[Any] = []
        found = core.collective_rpc(lambda worker: worker.model_runner.kv_caches)[0]
        self._tensors = [tensor for tensor in found if tensor.device.type == "cpu"]
        count = self._pool.num_gpu_blocks
        self.num_blocks = count - 1  # one is vLLM's null block
        self.block_bytes = sum(t.numel() * t.element_size() // count for t in found)
        for address, nbytes in self._spans():
            pages.keep_small(address, nbytes)
        reset = self._pool.reset_prefix_cache

        def reset_whole() -> bool:
            """Drop what is cached: vLLM does so only while no block is taken."""
            self._return(len(self._withheld))
            limit = self.limit_blocks
            done = bool(reset())
            self.limit(limit)
            return done

        self._pool.reset_prefix_cache = reset_whole
        self.limit_blocks = self.num_blocks

    @property
    def used_blocks(self) -> int:
        """Return how many blocks requests hold."""
        return self.num_blocks - self._pool.get_num_free_blocks() - len(self._withheld)

    @property
    def used_bytes(self) -> int:
        """Return what requests hold."""
        return self.used_blocks * self.block_bytes

    def limit(self, blocks: int) -> int:
        """Let the core have so many blocks; return how many more its requests hold for now."""
        self.limit_blocks = min(blocks, self.num_blocks)
        wanted = self.num_blocks - self.limit_blocks
        if wanted < len(self._withheld):
            self._return(len(self._withheld) - wanted)
        else:
            free = self._pool.get_num_free_blocks()
            count = min(wanted - len(self._withheld), free)
            taken = self._pool.get_new_blocks(count)
            self._withheld += taken
            self._give_back([block.block_id for block in taken])
        return wanted - len(self._withheld)

    def cached(self) -> Iterator[CachedBlock]:
        """Yield the blocks that no request holds and that hold something computed. `O(blocks)`."""
        for block in self._pool.blocks:
            if block.block_hash is not None and block.ref_cnt == 0:
                yield block.block_id, block.block_hash

    def forget(self, blocks: Iterable[CachedBlock]) -> None:
        """Drop what was computed into unused blocks, and give their pages back."""
        numbers = [number for number, _ in blocks]
        self._pool.evict_blocks(set(numbers))
        self._give_back(numbers)

    def resident_bytes(self) -> int:
        """Return how much of the KV tensors is in memory. `O(pages)`."""
        return sum(pages.resident_bytes(address, nbytes) for address, nbytes in self._spans())

    def _return(self, count: int) -> None:
        kept = len(self._withheld) - count
        self._pool.free_blocks(self._withheld[kept:])
        del self._withheld[kept:]

    def _give_back(self, numbers: list[int]) -> None:
        runs = groupby(enumerate(sorted(numbers)), key=lambda item: item[1] - item[0])
        for _, run in runs:
            members = [number for _, number in run]
            for tensor in self._tensors:
                for address, nbytes in _spans_of(tensor, members[0], len(members)):
                    pages.give_back(address, nbytes)

    def _spans(self) -> Iterator[tuple[int, int]]:
        for tensor in self._tensors:
            yield from _spans_of(tensor, 0, self._pool.num_gpu_blocks)


def _spans_of(tensor: Any, first: int, count: int) -> Iterator[tuple[int, int]]:
    """Yield address and length of what `count` blocks take in a tensor of shape [blocks, ...]."""
    each = tensor.stride(0) * tensor.element_size()
    yield tensor.data_ptr() + first * each, count * each
