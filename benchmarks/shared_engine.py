"""One engine for the adapters of N deployments against N engines into which each is merged.

    python -m benchmarks.shared_engine [--adapters 2 4] [--samples 8] [--tokens 64]

The same samples are asked of both at once. Told are processor time and memory of the engines'
processes, the time from the first request to the last answer, and how long a version takes to load.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import tempfile
import time
from contextlib import AsyncExitStack, ExitStack
from pathlib import Path
from typing import Any

from plexclient.wire.v1 import rollout_pb2_grpc
from plexsvc import families, lora
from plexsvc.rpc.channels import open_channel
from tests.rigs.adapter_seats import adapters, load, seat
from tests.rigs.engine_contract import Stub
from tests.rigs.keys import KEYS
from tests.rigs.rollout_requests import call, request
from tests.rigs.tiny_models import make_qwen3
from tests.rigs.vllm_process import instances, vllm_instance

RANK = 8


def processor_s(pids: list[int]) -> float:
    fields = (Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split() for pid in pids)
    return sum(int(one[11]) + int(one[12]) for one in fields) / os.sysconf("SC_CLK_TCK")


def memory_mib(pids: list[int]) -> float:
    rolls = (Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines() for pid in pids)
    shares = (int(row.split()[1]) for roll in rolls for row in roll if row.startswith("Pss:"))
    return sum(shares) / 1024


async def sample(stub: Stub, name: str, *, samples: int, tokens: int) -> None:
    asked = [
        request([3 + i, 4, 12, 5, 16], name=name, index=i, max_tokens=tokens, ignore_eos=True)
        for i in range(samples)
    ]
    async for _ in stub.Generate(call(*asked)):
        pass


async def measured(stubs: list[Stub], model: Path, place: Path, options: Any) -> dict[str, float]:
    loads = []
    for number, stub in enumerate(stubs):
        arrays = adapters(model, seed=number, rank=RANK)
        for version in (1, 2, 3):
            reply = await load(stub, place / f"{number}-{version}", arrays, version=version)
            loads.append(reply.load_us / 1e3)
    pids = sorted(instances())
    sizes = {"samples": options.samples, "tokens": options.tokens}
    await asyncio.gather(*(sample(one, f"warm{i}", **sizes) for i, one in enumerate(stubs)))
    before_s, started_s = processor_s(pids), time.monotonic()
    await asyncio.gather(*(sample(one, f"s{i}", **sizes) for i, one in enumerate(stubs)))
    return {
        "processes": len(pids),
        "wall_s": round(time.monotonic() - started_s, 2),
        "processor_s": round(processor_s(pids) - before_s, 2),
        "memory_mib": round(memory_mib(pids)),
        "load_ms": round(sorted(loads)[len(loads) // 2], 1),
    }


async def run(options: Any, *, count: int) -> dict[str, Any]:
    place = Path(tempfile.mkdtemp())
    sizes = {"hidden": 512, "layers": 8, "heads": 8, "kv_heads": 4, "head_dim": 64, "ffn": 1536}
    model = make_qwen3(place / "model", seed=1, vocab=4096, **sizes)
    each = lora.Lora(rank=RANK, alpha=1.0).elements(families.read(model)) * 4
    found: dict[str, Any] = {"adapters": count, "load": os.getloadavg()[0]}
    async with AsyncExitStack() as stack:
        with ExitStack() as engines:
            merged = [engines.enter_context(vllm_instance(model)) for _ in range(count)]
            channels = [await stack.enter_async_context(open_channel(a, KEYS)) for a in merged]
            stubs = [rollout_pb2_grpc.RolloutInstanceStub(channel) for channel in channels]
            found["merged"] = await measured(stubs, model, place, options)
        with vllm_instance(model, lora_rank=RANK, adapter_bytes=count * each) as engine:
            async with AsyncExitStack() as seats:
                taken = [
                    await seats.enter_async_context(seat(engine, f"t{number}", place))
                    for number in range(count)
                ]
                found["shared"] = await measured(taken, model, place, options)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--adapters", type=int, nargs="+", default=[2, 4])
    parser.add_argument("--samples", type=int, default=8)
    parser.add_argument("--tokens", type=int, default=64)
    options = parser.parse_args()
    for count in options.adapters:
        print(json.dumps(asyncio.run(run(options, count=count)), indent=2))


if __name__ == "__main__":
    main()
