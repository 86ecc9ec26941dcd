"""Latency of a serving engine alone and with a guest, on the same requests, by policy and load.

    python -m benchmarks.lending [--trace azure_llm_2023_conv.csv.gz] [--rates 1 2 4] [--seconds 30]

A serving engine (a random Qwen3 of about 0.7 M parameters) gets requests that arrive as in a part
of the trace, faster or slower by one factor, so that they come at each of the rates a second;
prompts and answers have the trace's lengths divided by `--shorter`. Without a trace they come by
chance, in bursts. Each guest (27 M parameters) samples for a job: batches of prompts, one after the
other; baselines know one guest. Policies: `alone` (no guest), `lending`, `alternate` (a step of
each in turn) and `priority` (the guest steps when serving has nothing to do). All run in one
process on one executor.

Of idle compute, the share harvested is the guest's part of the time that the engine alone did not
step. TPOT is the mean of a request's tokens after its first. Prints one JSON line.
"""

from __future__ import annotations

import argparse
import asyncio
import csv
import gzip
import json
import os
import random
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt

from plexclient.wire.v1 import operations_pb2, rollout_pb2
from plexsvc.clock import SystemClock
from plexsvc.rollout.core.lending import Objectives
from plexsvc.rollout.engines.executor import Steppable
from plexsvc.rollout.serving.config import ServingConfig
from plexsvc.rollout.serving.engine import ServingEngine
from plexsvc.rollout.serving.report import LatencyLog, percentiles
from tests.rigs.tiny_models import make_qwen3

if TYPE_CHECKING:
    from plexsvc.rollout.engines.vllm import VllmEngine

MAX_LEN: Final = 512
VOCAB: Final = 50
UNBOUNDED: Final = 2048
"""Tokens of a step where nobody bounds them: vLLM's default."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One request of the trace."""

    at_s: float
    prompt: int
    answer: int


def read_trace(path: Path, *, shorter: int) -> list[Request]:
    """Return the requests of a trace of the Azure or Mooncake kind."""
    with gzip.open(path, "rt") as file:
        rows = list(csv.DictReader(file))
    is_azure = "context_tokens" in rows[0]
    prompt, answer = (
        ("context_tokens", "generated_tokens") if is_azure else ("input_tokens", "output_tokens")
    )
    at_s = (
        (lambda row: float(row["t_s"])) if is_azure else lambda row: int(row["timestamp_ms"]) / 1e3
    )
    return [
        Request(
            at_s=at_s(row),
            prompt=min(MAX_LEN - 130, max(1, int(row[prompt]) // shorter)),
            answer=min(128, max(1, int(row[answer]) // shorter)),
        )
        for row in rows
    ]


def bursts() -> list[Request]:
    """Return an hour of requests that come by chance, some seconds five times as often."""
    dice, at_s, made = random.Random(0), 0.0, []
    while at_s < 3600:
        at_s += dice.expovariate(5.0 if dice.random() < 0.3 else 1.0)
        made.append(
            Request(at_s=at_s, prompt=dice.randrange(16, 300), answer=dice.randrange(4, 60))
        )
    return made


def at_rate(
    trace: Sequence[Request], *, rate: float, seconds: float, begin: float = 0.5
) -> list[Request]:
    """Return requests from a part of a trace on, faster or slower: so many in so long."""
    first = int(begin * len(trace))
    part = trace[first : first + max(2, round(rate * seconds))]
    began_s, took_s = part[0].at_s, part[-1].at_s - part[0].at_s
    return [replace(one, at_s=(one.at_s - began_s) * seconds / took_s) for one in part]


class Bench:
    """One serving engine with a guest, and the policies that step them."""

    def __init__(self, engine: ServingEngine) -> None:
        self.engine, self.latencies = engine, engine.latencies
        self._numbers = iter(range(1 << 30))
        assert engine.coserving is not None
        self.lending, self.guests = engine.coserving, engine.guests

    async def play(self, requests: Sequence[Request], *, policy: str) -> dict[str, Any]:
        """Serve the requests under a policy; return what came of it."""
        await asyncio.wrap_future(self.engine.executor.call(self.lending.lend))
        self.engine.executor.follow(self._policy(policy))
        self.engine.latencies = LatencyLog()
        loop = asyncio.get_running_loop()
        serving_us, before, began_s = self.lending.serving_us, self._harvested(), loop.time()
        async with asyncio.TaskGroup() as group:
            guests = [] if policy == "alone" else self.guests
            jobs = [group.create_task(self._job(guest)) for guest in guests]
            async with asyncio.TaskGroup() as serving:
                for one in requests:
                    await asyncio.sleep(max(0.0, began_s + one.at_s - loop.time()))
                    serving.create_task(self._serve(one))
            wall_s = loop.time() - began_s
            got = self._harvested() - before
            for job in jobs:
                job.cancel()
        await asyncio.wrap_future(self.engine.executor.call(self.lending.reclaim))
        seen = self.engine.latencies
        ttfts = [*seen.alone.ttft_ms, *seen.lending.ttft_ms]
        tpots = [*seen.alone.tpot_ms, *seen.lending.tpot_ms]
        objectives = self.engine.config.objectives
        within = [
            percentiles(times).get("p99", 0.0) <= limit_us / 1000
            for times, limit_us in ((ttfts, objectives.ttft_us), (tpots, objectives.tpot_us))
        ]
        return {
            "requests": len(requests),
            "wall_s": round(wall_s, 1),
            "ttft_ms": _rounded(percentiles(ttfts)),
            "tpot_ms": _rounded(percentiles(tpots)),
            "is_kept": all(within),
            "serving_share": round((self.lending.serving_us - serving_us) / 1e6 / wall_s, 3),
            "guest_share": round(sum(us for us, _ in got.tolist()) / 1e6 / wall_s, 3),
            "guest_shares": [round(us / 1e6 / wall_s, 3) for us, _ in got.tolist()],
            "guest_tokens_per_s": round(sum(tokens for _, tokens in got.tolist()) / wall_s, 1),
        }

    def _harvested(self) -> npt.NDArray[np.int64]:
        """Return for each guest the time of its steps, in microseconds, and its tokens."""
        return np.array(
            [
                (lent.harvest.guest_us, guest.stats().generated_tokens)
                for lent, guest in zip(self.lending.guests, self.guests, strict=True)
            ]
        )

    def _policy(self, name: str) -> Callable[[Sequence[Steppable]], Steppable | None]:
        if name in {"alone", "lending"}:
            return self.lending
        turns, lending = [0], self.lending
        serving, guest = lending._serving.steppable, lending.guests[0].engine

        def choose(ready: Sequence[Steppable]) -> Steppable | None:
            lending._observe(SystemClock().monotonic_us())
            guest.allow(UNBOUNDED)
            turns[0] += 1
            both = [one for one in (serving, guest.steppable) if one in ready]
            return both[turns[0] % len(both) if name == "alternate" else 0] if both else None

        return choose

    async def _serve(self, one: Request) -> None:
        from vllm import SamplingParams, TokensPrompt

        number, dice = next(self._numbers), random.Random(one.at_s)
        prompt = TokensPrompt(
            prompt_token_ids=[dice.randrange(2, VOCAB) for _ in range(one.prompt)]
        )
        params = SamplingParams(max_tokens=one.answer, temperature=1.0, ignore_eos=True)
        async for _ in self.engine.front.generate(prompt, params, f"s{number}"):
            pass

    async def _job(self, guest: VllmEngine) -> None:
        """Sample batch after batch, as a job does; a sample that is handed back is asked again."""
        while True:
            async with asyncio.TaskGroup() as batch:
                for _ in range(32):
                    batch.create_task(self._sample(guest))

    async def _sample(self, guest: VllmEngine) -> None:
        number = next(self._numbers)
        dice = random.Random(number)
        prompt, had = [dice.randrange(2, VOCAB) for _ in range(200)], list[int]()
        while len(had) < 128:
            request = rollout_pb2.InstanceRequest(
                request_id=f"g{number}/{len(had)}/{next(self._numbers)}",
                prompt=operations_pb2.Prompt(token_ids=prompt, generated=had, draws_used=len(had)),
                sampling=operations_pb2.SamplingParams(
                    n=1, max_tokens=128, temperature=1.0, seed=number, ignore_eos=True
                ),
            )
            async for deltas in guest.generate([request]):
                for delta in deltas:
                    had.extend(delta.token_ids)
            if len(had) < 128:
                await asyncio.sleep(0.5)  # it would go elsewhere


def _rounded(times: dict[str, float]) -> dict[str, float]:
    return {name: round(value, 1) for name, value in times.items()}


@contextmanager
def configured(options: argparse.Namespace) -> Iterator[ServingConfig]:
    """Yield a serving engine's configuration with models of its own."""
    with tempfile.TemporaryDirectory(prefix="pxl") as place:
        where = Path(place)
        make_qwen3(where / "chat", seed=1, hidden=128, layers=3, heads=4, head_dim=32, ffn=384)
        guests = [where / f"guest{number}" for number in range(options.guests)]
        for number, guest in enumerate(guests):
            make_qwen3(
                guest, seed=2 + number, hidden=512, layers=8, heads=8, kv_heads=4, head_dim=64,
                ffn=1536,
            )  # fmt: skip
        yield ServingConfig(
            model=where / "chat",
            name="chat",
            objectives=Objectives(
                ttft_us=round(options.ttft * 1e6), tpot_us=round(options.tpot * 1e6)
            ),
            socket=where / "chat.sock",
            max_model_len=MAX_LEN,
            max_num_seqs=64,
            kv_bytes=384 << 20,
            guests=tuple(guests),
        )


async def measure(config: ServingConfig, options: argparse.Namespace) -> dict[str, Any]:
    """Return what each policy does to each load."""
    trace = read_trace(options.trace, shorter=options.shorter) if options.trace else bursts()
    engine = await ServingEngine.start(config, clock=SystemClock())
    bench = Bench(engine)
    warm = at_rate(trace, rate=2.0, seconds=5.0)
    await bench.play(warm, policy="alone")
    await bench.play(warm, policy="lending")
    loads: dict[float, dict[str, Any]] = {rate: {} for rate in options.rates}
    for policy in options.policies:  # the baselines' long steps would spoil the lender's forecasts
        for rate, found in loads.items():
            requests = at_rate(trace, rate=rate, seconds=options.seconds, begin=options.begin)
            found[policy] = await bench.play(requests, policy=policy)
            print(rate, policy, found[policy], file=sys.stderr)
    for found in loads.values():
        if {"alone", "lending"} <= found.keys():
            idle = 1 - found["alone"]["serving_share"]
            found["harvested_of_idle"] = round(found["lending"]["guest_share"] / idle, 3)
    await engine.close()
    return {"loads": [{"rate": rate, **found} for rate, found in loads.items()]}


def main() -> None:
    """Measure and print."""
    from plexsvc.node.child import set_environment
    from plexsvc.rollout.preload import ZYGOTE_ENV, preload

    parser = argparse.ArgumentParser()
    parser.add_argument("--trace", type=Path, default=None)
    parser.add_argument("--rates", type=float, nargs="+", default=[0.5, 1.0, 2.0])
    parser.add_argument("--seconds", type=float, default=30.0)
    parser.add_argument("--begin", type=float, default=0.5, help="at which part of the trace")
    parser.add_argument("--shorter", type=int, default=8)
    parser.add_argument("--ttft", type=float, default=0.5)
    parser.add_argument("--tpot", type=float, default=0.15)
    parser.add_argument("--guests", type=int, default=1)
    parser.add_argument(
        "--policies", nargs="+", default=["alone", "lending", "alternate", "priority"]
    )
    options = parser.parse_args()
    set_environment(ZYGOTE_ENV)
    preload()
    with configured(options) as config:
        found = asyncio.run(measure(config, options))
    name = options.trace.name if options.trace else "bursts"
    print(json.dumps({"trace": name, "cores": os.cpu_count(), **found}))


if __name__ == "__main__":
    main()
