"""vLLM engines for benchmarks: in this process, on parts of GPUs, and in a job's loop.

As a program, `python -m benchmarks.engine_rig BYTES` starts one within BYTES of the GPU it sees,
generates, and prints what it took.
"""

from __future__ import annotations

import asyncio
import json
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import plexclient as plex
from benchmarks import service
from plexclient.wire.v1 import operations_pb2, rollout_pb2
from plexsvc.cluster.config import NodeConfig
from plexsvc.cluster.nodes import plan
from plexsvc.node.toml import dumps
from plexsvc.statelink.cuda import Gpu
from plexsvc.weights.random_model import ModelShape, make_model

TOKENS: Final = 24
PROMPT: Final = (5, 6, 7, 8)
HEADS: Final = ModelShape(hidden=512, layers=4, heads=8, kv_heads=4, head_dim=64, ffn=1024)
"""A head of 64: the least that vLLM's GPU kernels take."""


@asynccontextmanager
async def engine(*, device_bytes: int) -> AsyncIterator[Any]:
    """Yield a vLLM engine on a small random model."""
    from plexsvc.node.child import set_environment
    from plexsvc.rollout.preload import ZYGOTE_ENV, preload

    set_environment(ZYGOTE_ENV)
    preload()
    from plexsvc.clock import SystemClock
    from plexsvc.rollout.engines.executor import StepExecutor
    from plexsvc.rollout.engines.vllm import VllmConfig, VllmEngine

    with tempfile.TemporaryDirectory(prefix="pxe") as place:
        model = Path(place) / "model"
        make_model(model, seed=0, shape=HEADS)
        config = VllmConfig(
            model=model,
            dtype="",
            max_model_len=128,
            kv_cache_bytes=0,
            max_num_seqs=0,
            device_bytes=device_bytes,
        )
        clock = SystemClock()
        executor = StepExecutor(clock=clock)
        made = await VllmEngine.start(config, clock=clock, executor=executor)
        try:
            yield made
        finally:
            await made.dispose()
            executor.close()


async def sample(
    made: Any,
    *,
    name: str,
    temperature: float,
    generated: Sequence[int],
) -> list[int]:
    """Return the tokens that follow `generated`, up to `TOKENS` in all."""
    request = rollout_pb2.InstanceRequest(
        request_id=name,
        prompt=operations_pb2.Prompt(
            token_ids=PROMPT, generated=generated, draws_used=len(generated)
        ),
        sampling=operations_pb2.SamplingParams(
            n=1, max_tokens=TOKENS, temperature=temperature, seed=11, ignore_eos=True
        ),
    )
    tokens: list[int] = []
    async for deltas in made.generate([request]):
        for delta in deltas:
            tokens += delta.token_ids
    return tokens


async def runner_of(made: Any) -> str:
    """Return the module of vLLM's model runner."""

    def ask() -> str:
        found = made._core.collective_rpc(lambda worker: type(worker.model_runner).__module__)
        return str(found[0])

    return await asyncio.wrap_future(made._executor.call(ask))


async def continued() -> dict[str, object]:
    """Return whether samples go on from each third of their tokens as they would have."""
    found: dict[str, object] = {}
    async with engine(device_bytes=0) as made:
        found["runner"] = await runner_of(made)
        for name, temperature in (("greedy", 0.0), ("seeded", 1.0)):
            whole = await sample(made, name=name, temperature=temperature, generated=())
            rest = [
                await sample(
                    made, name=f"{name}{at}", temperature=temperature, generated=whole[:at]
                )
                for at in range(0, TOKENS, TOKENS // 3)
            ]
            wanted = [whole[at:] for at in range(0, TOKENS, TOKENS // 3)]
            found[f"{name}_goes_on"] = rest == wanted
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class _Nodes:
    nodes: tuple[NodeConfig, ...]


def loop_on_one_device(gpus: Sequence[Gpu]) -> dict[str, object]:
    """Run three steps of a job on the node planned for `gpus`, and time each part."""
    seconds: dict[str, list[float]] = {}

    def timed(name: str, act: Any) -> Any:
        started = time.perf_counter()
        done = act()
        seconds.setdefault(name, []).append(round(time.perf_counter() - started, 3))
        return done

    with tempfile.TemporaryDirectory(prefix="pxl") as place:
        model = Path(place) / "model"
        make_model(model, seed=0, shape=HEADS)
        with (
            service.running(dumps(_Nodes(nodes=plan(gpus)))) as cluster,
            cluster.job("first-hour") as job,
        ):
            dtype = "bfloat16" if gpus else "float32"
            optimizer = plex.AdamW(lr=1e-4)
            actor = timed(
                "deploy_actor",
                lambda: job.deploy(
                    "actor", model=model, backend="megatron", optimizer=optimizer, dtype=dtype
                ),
            )
            rollout = timed(
                "deploy_rollout",
                lambda: job.deploy("rollout", model=actor, backend="vllm", dtype=dtype),
            )
            gaps = []
            for seed in range(3):
                timed("sync", lambda: rollout.sync(actor))
                samples = timed(
                    "generate",
                    lambda seed=seed: rollout.generate(
                        [list(PROMPT)] * 8, n=4, max_tokens=TOKENS, temperature=1.0, seed=seed
                    ),
                )
                batch = plex.Batch.from_samples(samples, advantages=[1.0] * 32)
                passed = timed(
                    "forward_backward",
                    lambda batch=batch: actor.forward_backward(
                        batch, loss="ppo", clip=0.2, return_logprobs=True
                    ),
                )
                assert batch.mask is not None, "made from samples"
                gaps.append(float(abs(passed.logprobs - batch.logprobs)[batch.mask > 0].mean()))
                timed("step", actor.step)
    return {"seconds": seconds, "mean_logprob_gaps": gaps}


async def _main(device_bytes: int) -> None:
    started = time.perf_counter()
    async with engine(device_bytes=device_bytes) as made:
        up = time.perf_counter() - started
        tokens = await sample(made, name="r", temperature=1.0, generated=())
        report = {"start_s": round(up, 1), "tokens": len(tokens), "runner": await runner_of(made)}
        print(json.dumps({**report, "device_bytes": made.facts.device_bytes}))


if __name__ == "__main__":
    asyncio.run(_main(int(sys.argv[1])))
