"""Work that a lost instance costs: its samples go on elsewhere, against starting them again.

    python -m benchmarks.migration [--samples 16] [--group 1] [--max-tokens 256] [--rounds 5]

One vLLM engine of about 27 M random parameters runs a batch whole, up to a point of the loss (10,
25 and 50 % of its tokens), and from that point on, from prompt and tokens with an empty cache, as
an instance does that takes it over. The extra work of a loss is the processor time of the first
part and the rest, less that of the whole; starting again costs the first part anew. `bound` is the
most that migration could save on this machine: the prefill of prompt and tokens, measured up to its
first token, against the first part. With `--group N`, N samples share a prompt, and the engine that
takes them over has it cached. Rounds alternate; figures are of medians. Prints one JSON line.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from plexclient.wire.v1 import rollout_pb2
from tests.rigs.rollout_requests import collect, request
from tests.rigs.tiny_models import make_qwen3

SHARES: Final = (0.1, 0.25, 0.5)
PROMPT_TOKENS: Final = 64


class Batch:
    """The same samples, run from any of their tokens to any other."""

    def __init__(self, engine: Any, *, samples: int, group: int, max_tokens: int) -> None:
        self.engine, self.samples, self.group = engine, samples, group
        self.max_tokens = max_tokens
        self.tokens: list[Sequence[int]] = [()] * samples
        self.differing = 0
        """Samples that went on otherwise than at first."""
        self._runs = 0

    async def run(self, start: int, end: int) -> float:
        """Generate tokens [start, end) of each sample; return the processor seconds it took."""
        await asyncio.wrap_future(
            self.engine._executor.call(
                lambda: self.engine._core.reset_prefix_cache(reset_running_requests=True)
            )
        )
        if start and self.group > 1:  # others of these prompts are there
            await self._take(0, 1)
        return await self._take(start, end)

    async def _take(self, start: int, end: int) -> float:
        self._runs += 1
        began_s = time.process_time()
        stream = self.engine.generate(self._requests(start, end))
        answers = collect([delta async for deltas in stream for delta in deltas])
        took_s = time.process_time() - began_s
        found: list[Sequence[int]] = [answers[index, 0].tokens for index in range(self.samples)]
        if not self.tokens[0]:
            self.tokens = found
        wanted = [tokens[start:end] for tokens in self.tokens]
        self.differing += sum(a != b for a, b in zip(found, wanted, strict=True))
        return took_s

    def _requests(self, start: int, end: int) -> list[rollout_pb2.InstanceRequest]:
        return [
            request(
                [2 + (7 * (index // self.group) + at) % 40 for at in range(PROMPT_TOKENS)],
                name=f"{self._runs}/{index}",
                index=index,
                seed=index,
                max_tokens=end,
                generated=self.tokens[index][:start],
                ignore_eos=True,
            )
            for index in range(self.samples)
        ]


async def measure(options: argparse.Namespace, model: Path) -> dict[str, float]:
    """Return the extra work of a loss at each share of the tokens."""
    from plexsvc.clock import SystemClock
    from plexsvc.rollout.engines.executor import StepExecutor
    from plexsvc.rollout.engines.vllm import VllmConfig, VllmEngine

    clock = SystemClock()
    executor = StepExecutor(clock=clock)
    config = VllmConfig(
        model=model,
        dtype="float32",
        max_model_len=512,
        kv_cache_bytes=1 << 28,
        max_num_seqs=options.samples,
    )
    engine = await VllmEngine.start(config, clock=clock, executor=executor)
    batch = Batch(
        engine, samples=options.samples, group=options.group, max_tokens=options.max_tokens
    )
    points = [round(options.max_tokens * share) for share in SHARES]
    spans = [(0, batch.max_tokens)]
    spans += [s for at in points for s in ((0, at), (at, at + 1), (at, batch.max_tokens))]
    took: dict[tuple[int, int], list[float]] = {}
    await batch.run(0, batch.max_tokens)
    for _ in range(options.rounds):
        for span in spans:
            took.setdefault(span, []).append(await batch.run(*span))
    await engine.dispose()
    executor.close()
    seconds = {span: statistics.median(times) for span, times in took.items()}
    whole = seconds[0, batch.max_tokens]
    found = {"whole_s": round(whole, 3), "differing_samples": batch.differing}
    for share, at in zip(SHARES, points, strict=True):
        again = seconds[0, at]
        moved = again + seconds[at, batch.max_tokens] - whole
        name = f"at_{round(100 * share)}"
        found[f"{name}_again_s"], found[f"{name}_moved_s"] = round(again, 3), round(moved, 3)
        found[f"{name}_less"] = round(1 - moved / again, 3)
        found[f"{name}_bound"] = round(1 - seconds[at, at + 1] / again, 3)
    return found


def main() -> None:
    """Measure and print."""
    from plexsvc.node.child import set_environment
    from plexsvc.rollout.preload import ZYGOTE_ENV, preload

    parser = argparse.ArgumentParser()
    parser.add_argument("--samples", type=int, default=16)
    parser.add_argument("--group", type=int, default=1)
    parser.add_argument("--max-tokens", type=int, default=256)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    set_environment(ZYGOTE_ENV)
    preload()
    with tempfile.TemporaryDirectory(prefix="pxm") as place:
        model = make_qwen3(
            Path(place) / "model", seed=0, hidden=512, layers=8, heads=8, kv_heads=4, head_dim=64,
            ffn=1536,
        )  # fmt: skip
        found = asyncio.run(measure(options, model))
    print(
        json.dumps(
            {"samples": options.samples, "group": options.group, "cores": os.cpu_count(), **found}
        )
    )


if __name__ == "__main__":
    main()
