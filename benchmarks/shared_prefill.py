"""Prefill of prompts with several samples: what one engine computes once.

    python -m benchmarks.shared_prefill [--prompts 8] [--n 8] [--tokens 200] [--rounds 5]

One vLLM engine of about 27 M random parameters (float32, CPU) makes the first token of `n` samples
of each prompt, and of as many prompts that share nothing. Ideally n samples cost one prefill.
`share` is the part of that saving which vLLM's cached tokens are, `share_of_time` the part by
processor time, which has the sampling of all and the attention of the last block of each in it.
Rounds alternate; times are medians. Prints one JSON line; fails when cached tokens are below 85 %
of the ideal.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from benchmarks.service import report
from plexclient.wire.v1 import rollout_pb2
from tests.rigs.rollout_requests import request
from tests.rigs.tiny_models import make_qwen3

WANTED: Final = 0.85


class Prefills:
    """An engine whose cached tokens are counted."""

    def __init__(self, engine: Any) -> None:
        self.cached = 0
        self._engine, self._runs = engine, 0
        core = engine._core
        step = core.step_fn

        def counted() -> Any:
            outputs, ran = step()
            for part in (outputs or {}).values():
                stats = [one.prefill_stats for one in part.outputs if one.prefill_stats]
                self.cached += sum(one.num_cached_tokens for one in stats)
            return outputs, ran

        core.step_fn = counted

    async def run(self, prompts: Sequence[Sequence[int]], *, n: int) -> tuple[float, int]:
        """Make one token of `n` samples of each; return processor seconds and cached tokens."""
        await asyncio.wrap_future(
            self._engine._executor.call(
                lambda: self._engine._core.reset_prefix_cache(reset_running_requests=True)
            )
        )
        self._runs += 1
        self.cached = 0
        requests: list[rollout_pb2.InstanceRequest] = [
            request(list(prompt), name=f"{self._runs}/{at}/{one}", index=at, seed=one, max_tokens=1)
            for at, prompt in enumerate(prompts)
            for one in range(n)
        ]
        began_s = time.process_time()
        async for _ in self._engine.generate(requests):
            pass
        return time.process_time() - began_s, self.cached


async def measure(options: argparse.Namespace, model: Path) -> dict[str, float]:
    """Return seconds and cached tokens of prompts that are shared, and that are not."""
    from plexsvc.clock import SystemClock
    from plexsvc.rollout.engines.executor import StepExecutor
    from plexsvc.rollout.engines.vllm import VllmConfig, VllmEngine

    clock = SystemClock()
    executor = StepExecutor(clock=clock)
    config = VllmConfig(
        model=model,
        dtype="float32",
        max_model_len=512,
        kv_cache_bytes=1 << 30,
        max_num_seqs=options.prompts * options.n,
    )
    engine = await VllmEngine.start(config, clock=clock, executor=executor)
    prefills = Prefills(engine)
    dice = random.Random(0)
    distinct = [
        [dice.randrange(2, 48) for _ in range(options.tokens)]
        for _ in range(options.prompts * options.n)
    ]
    shared_s, alone_s, once_s = [], [], []
    cached = unexpected = 0
    await prefills.run(distinct, n=1)
    for _ in range(options.rounds):
        seconds, cached = await prefills.run(distinct[: options.prompts], n=options.n)
        shared_s.append(seconds)
        seconds, unexpected = await prefills.run(distinct, n=1)
        alone_s.append(seconds)
        seconds, _ = await prefills.run(distinct[: options.prompts], n=1)
        once_s.append(seconds)
    await engine.dispose()
    executor.close()
    shared, alone, once = (statistics.median(times) for times in (shared_s, alone_s, once_s))
    ideal = options.prompts * (options.n - 1) * options.tokens
    return {
        "cached_tokens": cached,
        "ideal_tokens": ideal,
        "cached_tokens_of_distinct_prompts": unexpected,
        "share": cached / ideal,
        "shared_s": round(shared, 3),
        "distinct_s": round(alone, 3),
        "once_s": round(once, 3),
        "share_of_time": round((alone - shared) / (alone - once), 3),
    }


def main() -> None:
    """Measure and print."""
    from plexsvc.node.child import set_environment
    from plexsvc.rollout.preload import ZYGOTE_ENV, preload

    parser = argparse.ArgumentParser()
    for name, default in (("prompts", 8), ("n", 8), ("tokens", 200), ("rounds", 5)):
        parser.add_argument(f"--{name}", type=int, default=default)
    options = parser.parse_args()
    set_environment(ZYGOTE_ENV)
    preload()
    with tempfile.TemporaryDirectory(prefix="pxs") as place:
        model = make_qwen3(
            Path(place) / "model", seed=0, hidden=512, layers=8, heads=8, kv_heads=4, head_dim=64,
            ffn=1536,
        )  # fmt: skip
        found = asyncio.run(measure(options, model))
    report(**vars(options), cores=os.cpu_count(), **found)
    if found["share"] < WANTED:
        sys.exit(f"{found['share']:.0%} of the ideal saving; {WANTED:.0%} is due")


if __name__ == "__main__":
    main()
