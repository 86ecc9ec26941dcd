"""Tokens/s of generate through manager and instance, against the same engine stepped bare.

    python -m benchmarks.generate_overhead [--samples 64] [--max-tokens 128] [--rounds 3]

One process holds one vLLM engine of about 27 M random parameters. `direct` adds the requests to its
core and steps it in a loop, nothing else; `service` sends the same requests through the rollout
manager of this process. Rounds alternate; the ratio is of the medians. Prints one JSON line.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from plexclient.wire.v1 import common_pb2, operations_pb2, rollout_pb2, service_pb2, worker_pb2
from plexsvc import config as config_files
from plexsvc.clock import SystemClock
from plexsvc.ids import new_operation_id
from plexsvc.rollout.config import InstanceConfig, ManagerConfig
from plexsvc.rollout.manager import RolloutManager
from plexsvc.rollout.preload import ZYGOTE_ENV, preload
from tests.rigs.keys import KEYS, keys_file
from tests.rigs.tiny_models import make_qwen3

ROOT = Path(__file__).resolve().parents[1]
PROMPT_TOKENS = 32
FENCE = common_pb2.Fence(scheduler_epoch=1, lease_no=1, incarnation=1)


def prompts(samples: int) -> list[list[int]]:
    return [[(31 * i + 7 * j) % 4000 + 2 for j in range(PROMPT_TOKENS)] for i in range(samples)]


def sampling(max_tokens: int) -> operations_pb2.SamplingParams:
    return operations_pb2.SamplingParams(
        n=1, max_tokens=max_tokens, temperature=1.0, ignore_eos=True, seed=1
    )


# -- the engine's process


def serve(config: dict[str, Any]) -> None:
    """Print the address, then a line of microseconds for each line `SAMPLES MAX_TOKENS` read."""
    preload()
    asyncio.run(_serve(config_files.parse(config, InstanceConfig, where="benchmark")))


async def _serve(config: InstanceConfig) -> None:
    from plexsvc.rollout.engines.executor import StepExecutor
    from plexsvc.rollout.engines.vllm import VllmConfig, VllmEngine
    from plexsvc.rollout.instance import serve_engine

    clock = SystemClock()
    executor = StepExecutor(clock=clock)
    vllm_config = VllmConfig(
        model=Path(config.model),
        dtype=config.dtype,
        max_model_len=config.max_model_len,
        kv_cache_bytes=config.kv_cache_bytes,
        max_num_seqs=config.max_num_seqs,
    )
    engine = await VllmEngine.start(vllm_config, clock=clock, executor=executor)

    def answer_direct() -> None:
        for line in sys.stdin:
            samples, max_tokens = map(int, line.split())
            took_us = executor.call(lambda s=samples, m=max_tokens: direct(engine, s, m)).result()
            print(took_us, flush=True)

    async with asyncio.TaskGroup() as group:
        group.create_task(asyncio.to_thread(answer_direct))
        await serve_engine(
            engine,
            config,
            clock=clock,
            open_version=lambda _: memoryview(b""),
            ready=lambda address: print(address, flush=True),
        )


def direct(engine: Any, samples: int, max_tokens: int) -> int:
    """Run the requests on the bare core, on the executor's thread; return microseconds."""
    from plexsvc.rollout.engines.vllm import admission

    core, clock = engine._core, SystemClock()
    core.reset_prefix_cache()
    requests = []
    for index, prompt in enumerate(prompts(samples)):
        request = rollout_pb2.InstanceRequest(
            request_id=f"direct{index}",
            prompt=operations_pb2.Prompt(token_ids=prompt),
            sampling=sampling(max_tokens),
        )
        requests.append(admission.build(request, model=engine._model, at_us=clock.wall_us()))
    started_us = clock.monotonic_us()
    for request in requests:
        core.add_request(*core.preprocess_add_request(request))
    generated = 0
    while core.scheduler.has_requests():
        outputs, ran = core.step_fn()
        core.post_step(ran)
        generated += sum(len(o.new_token_ids) for step in outputs.values() for o in step.outputs)
    took_us = clock.monotonic_us() - started_us
    assert generated == samples * max_tokens, generated
    core.reset_prefix_cache()
    return took_us


# -- the manager


async def through_service(manager: RolloutManager, samples: int, max_tokens: int) -> int:
    """Run the requests as one operation, reading its stream to the end; return microseconds."""
    operation = operations_pb2.Operation(
        operation_id=new_operation_id(),
        deployment_id="rollout",
        seq=1,  # one without a number is a turn
        generate=operations_pb2.Generate(
            prompts=[operations_pb2.Prompt(token_ids=p) for p in prompts(samples)],
            sampling=sampling(max_tokens),
        ),
    )
    clock, tokens = SystemClock(), 0
    started_us = clock.monotonic_us()
    async with asyncio.TaskGroup() as group:
        group.create_task(execute(manager, operation))
        request = worker_pb2.StreamFramesRequest(operation_id=operation.operation_id)
        async for data in manager.stream_frames(request):
            frame = operations_pb2.GenerateFrame.FromString(data)
            tokens += sum(len(delta.token_ids) for delta in frame.deltas)
    took_us = clock.monotonic_us() - started_us
    assert tokens == samples * max_tokens, tokens
    return took_us


async def execute(
    manager: RolloutManager, operation: operations_pb2.Operation, **more: object
) -> None:
    request = worker_pb2.ExecuteRequest(fence=FENCE, wpg_id="wpg", operation=operation, **more)
    reply = await manager.execute(request)
    assert not reply.result.HasField("error"), reply.result.error


async def measure(child: subprocess.Popen[str], options: argparse.Namespace) -> dict[str, object]:
    assert child.stdin is not None
    assert child.stdout is not None
    address = (await asyncio.to_thread(child.stdout.readline)).strip()
    direct_us, service_us = [], []
    async with asyncio.TaskGroup() as group:
        config = ManagerConfig(records_dir=Path(tempfile.mkdtemp()))
        manager = RolloutManager(config, SystemClock(), KEYS)
        host = group.create_task(manager.run())
        await asyncio.sleep(0)
        initialize = operations_pb2.Operation(
            operation_id=new_operation_id(),
            deployment_id="rollout",
            initialize=operations_pb2.Initialize(),
        )
        await execute(
            manager,
            initialize,
            instance_addresses=[address],
            deployment=service_pb2.Deployment(deployment_id="rollout"),
        )
        for turn in range(options.rounds + 1):
            tokens = options.max_tokens if turn else 8  # the first turn warms up
            child.stdin.write(f"{options.samples} {tokens}\n")
            child.stdin.flush()
            took_us = int(await asyncio.to_thread(child.stdout.readline))
            served_us = await through_service(manager, options.samples, tokens)
            if turn:
                direct_us.append(took_us)
                service_us.append(served_us)
        host.cancel()
    return report(direct_us, service_us, options)


def report(
    direct_us: list[int], service_us: list[int], options: argparse.Namespace
) -> dict[str, object]:
    total = options.samples * options.max_tokens
    plain, served = statistics.median(direct_us), statistics.median(service_us)
    return {
        "benchmark": "generate_overhead",
        "samples": options.samples,
        "max_tokens": options.max_tokens,
        "rounds": options.rounds,
        "direct_tokens_per_s": round(total / plain * 1e6),
        "service_tokens_per_s": round(total / served * 1e6),
        "ratio": round(plain / served, 4),
        "target": 0.95,
        "direct_us": direct_us,
        "service_us": service_us,
        "cpus": os.cpu_count(),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--samples", type=int, default=64)
    parser.add_argument("--max-tokens", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--serve", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        serve(json.loads(options.serve))
        return
    with tempfile.TemporaryDirectory() as directory:
        model = make_qwen3(
            Path(directory) / "model",
            seed=0,
            hidden=512,
            layers=8,
            heads=8,
            kv_heads=4,
            head_dim=64,
            ffn=1536,
            vocab=4096,
        )
        config = {
            "wpg_id": "wpg",
            "rank": 0,
            "incarnation": 1,
            "scheduler_epoch": 1,
            "tenant": "tenant",
            "job_id": "job",
            "deployment_id": "rollout",
            "model": str(model),
            "max_model_len": 512,
            "kv_cache_bytes": 512 << 20,
            "max_num_seqs": options.samples,
            "listen": f"unix:{directory}/instance.sock",
            "keys_file": str(keys_file(Path(directory))),
        }
        child = subprocess.Popen(
            [sys.executable, __file__, "--serve", json.dumps(config)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=os.environ | dict(ZYGOTE_ENV) | {"PYTHONPATH": str(ROOT)},  # noqa: TID251 - a child's environment
            text=True,
        )
        try:
            print(json.dumps(asyncio.run(measure(child, options))))
        finally:
            child.kill()
            child.wait()


if __name__ == "__main__":
    main()
