"""A vLLM core beside another on one device: what a policy sees of it, and how it holds it back.

A core allocates its KV tensors once, for as many blocks as it may ever have. A block is withheld by
taking it from the pool of free blocks, as a request would: the scheduler then admits nothing that
needs it. On a CPU its pages go back to the system; the address stays, so the block can be returned
at any time and gets pages when it is written.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any, TypeAlias

import vllm.v1.engine.core as vllm_core

from plexsvc.clock import Clock
from plexsvc.rollout.core.lending import Guest, Serving
from plexsvc.rollout.core.step_times import Stepped, StepWork
from plexsvc.rollout.engines import pages
from plexsvc.rollout.engines.executor import Steppable

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


class SharedCore:
    """One core of several in a process. Used on the executor's thread alone."""

    def __init__(
        self,
        core: vllm_core.EngineCore,
        steppable: Steppable,
        *,
        clock: Clock,
        hand_back: Callable[[Sequence[str]], None] | None = None,
    ) -> None:
        """End requests by `hand_back` when memory is taken from them."""
        self.steppable, self.kv = steppable, KvMemory(core)
        self._core = core
        self._scheduler, self._clock, self._hand_back = core.scheduler, clock, hand_back
        self._stepped: Stepped | None = None
        self._begun_us: deque[int] = deque()
        """When each batch in flight was scheduled; they end in that order."""
        self._ended_us = 0
        self._newest_us: dict[str, int] = {}
        self._known: set[str] = set()
        schedule, update = core.scheduler.schedule, core.scheduler.update_from_output

        def scheduled(*arguments: Any, **named: Any) -> Any:
            self._begun_us.append(clock.monotonic_us())
            return schedule(*arguments, **named)

        def updated(batch: Any, *arguments: Any, **named: Any) -> Any:
            self._end(batch.num_scheduled_tokens)
            return update(batch, *arguments, **named)

        core.scheduler.schedule, core.scheduler.update_from_output = scheduled, updated

    @property
    def version(self) -> str:
        """Return the label of the weights in use."""
        return str(self._core.get_weight_version())

    def take_step(self) -> Stepped | None:
        """Return the step that ended since the last call, if any did."""
        stepped, self._stepped = self._stepped, None
        return stepped

    def _end(self, counts: Mapping[str, int]) -> None:
        """Note that the oldest batch in flight has ended, which had so many tokens of each."""
        now_us, begun_us = self._clock.monotonic_us(), self._begun_us.popleft()
        began_us = max(begun_us, self._ended_us)  # the device had the batch before until then
        self._ended_us = now_us
        if counts:
            singles = sum(count == 1 for count in counts.values())
            step = StepWork(prompt_tokens=sum(counts.values()) - singles, samples=singles)
            self._stepped = Stepped(step, began_us)
            self._newest_us.update(dict.fromkeys(counts, now_us))

    def new_prompts(self) -> list[int]:
        """Return the lengths of prompts that came since the last call."""
        fresh = [one for one in self._scheduler.waiting if one.request_id not in self._known]
        self._known.update(one.request_id for one in fresh)
        return [one.num_prompt_tokens for one in fresh]

    def as_serving(self, *, is_short_of_memory: bool) -> Serving:
        """Return what the core has to do, as one that serves."""
        running = self._scheduler.running
        has_tokens = [one for one in running if one.num_output_tokens]
        live = {one.request_id for one in running}
        self._newest_us = {name: at for name, at in self._newest_us.items() if name in live}
        self._known &= live | {one.request_id for one in self._scheduler.waiting}
        now_us = self._clock.monotonic_us()
        newest = [self._newest_us.get(one.request_id, now_us) for one in has_tokens]
        return Serving(
            queued=sum(self._scheduler.get_request_counts()) - len(has_tokens),
            newest_token_us=newest,
            seats=self._scheduler.max_num_running_reqs,
            is_short_of_memory=is_short_of_memory,
        )

    def as_guest(self) -> Guest:
        """Return what the core has to do, as a guest."""
        samples = sum(one.num_output_tokens > 0 for one in self._scheduler.running)
        # What has ended and is only to be cleared away waits for the next step.
        is_held = not self.steppable.has_work()
        has_requests = any(self._scheduler.get_request_counts())
        return Guest(has_work=has_requests and not is_held, samples=samples)

    def allow(self, tokens: int) -> None:
        """Bound the tokens of the next steps."""
        self._scheduler.max_num_scheduled_tokens = tokens

    def limit(self, nbytes: int) -> None:
        """Bound the KV memory, now: requests beyond it are handed back, the newest first."""
        blocks = nbytes // self.kv.block_bytes
        excess = self.kv.limit(blocks)
        for one in reversed(list(self._scheduler.running)):
            if excess <= 0 or self._hand_back is None:
                return
            self._hand_back([one.request_id])
            excess = self.kv.limit(blocks)

    def hand_back_all(self) -> None:
        """End all requests; their callers take them elsewhere."""
        held = (*self._scheduler.running, *self._scheduler.waiting)
        if self._hand_back is not None and held:
            self._hand_back([one.request_id for one in held])
