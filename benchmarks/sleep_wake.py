"""Sleep and wake of an engine against a plain fill of the same bytes.

    python -m benchmarks.sleep_wake [--rounds 5] [--kv-mib 256]

One vLLM engine of about 27 M random parameters (float32, CPU) serves a version that lies in a file
in memory. A round loads the version while the engine is awake (a plain fill), then has it sleep and
wake with the same version, and compares its tokens with those before. `memory_kept` is the part of
weights and KV cache that stays in memory during sleep. Times are medians. Prints one JSON line;
fails when a token differs or more than a tenth is kept.
"""

from __future__ import annotations

import argparse
import asyncio
import mmap
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from safetensors.numpy import load_file

from benchmarks.service import report
from plexsvc.ids import VersionId
from plexsvc.weights.reading import OpenedPart, OpenedVersion
from tests.rigs.rollout_requests import collect, request
from tests.rigs.tiny_models import make_qwen3
from tests.rigs.vllm_process import publish_arrays

MOST_KEPT: Final = 0.1


def resident_bytes() -> int:
    """Return what this process has in memory."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * mmap.PAGESIZE


async def tokens_of(engine: Any, *, name: str) -> list[Sequence[int]]:
    """Return the tokens of 16 seeded samples."""
    asked = [
        request([2 + (7 * at + i) % 40 for i in range(64)], name=name, index=at, seed=at)
        for at in range(16)
    ]
    found = collect([delta async for deltas in engine.generate(asked) for delta in deltas])
    return [found[at, 0].tokens for at in range(16)]


async def measure(options: argparse.Namespace, place: Path) -> dict[str, Any]:
    """Return medians of each part and what stays in memory."""
    from plexsvc.clock import SystemClock
    from plexsvc.rollout.engines.executor import StepExecutor
    from plexsvc.rollout.engines.vllm import VllmConfig, VllmEngine

    model = make_qwen3(
        place / "model", seed=0, hidden=512, layers=8, heads=8, kv_heads=4, head_dim=64, ffn=1536
    )
    arrays = load_file(model / "model.safetensors")
    manifest = publish_arrays(place / "version", arrays, version=1)
    with (place / "version").open("rb") as stream:
        data = memoryview(mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ))
    published = OpenedVersion(parts=[OpenedPart(manifest=manifest, data=data)])
    clock = SystemClock()
    executor = StepExecutor(clock=clock)
    config = VllmConfig(
        model=model,
        dtype="float32",
        max_model_len=512,
        kv_cache_bytes=options.kv_mib << 20,
        max_num_seqs=16,
    )
    engine = await VllmEngine.start(config, clock=clock, executor=executor)
    seconds: dict[str, list[float]] = {"fill": [], "sleep": [], "wake": []}
    kept, differing, slept = [], 0, 0
    await engine.load_version(published, version=VersionId("actor", 1, 0))
    wanted = await tokens_of(engine, name="first")
    for number in range(1, options.rounds + 1):
        version = VersionId("actor", 1, number)
        began_s = time.perf_counter()
        await engine.load_version(published, version=version)
        seconds["fill"].append(time.perf_counter() - began_s)
        awake_bytes, began_s = resident_bytes(), time.perf_counter()
        slept = await engine.sleep()
        seconds["sleep"].append(time.perf_counter() - began_s)
        kept.append(1 - (awake_bytes - resident_bytes()) / slept)
        began_s = time.perf_counter()
        await engine.wake(published, version=version)
        seconds["wake"].append(time.perf_counter() - began_s)
        found = await tokens_of(engine, name=str(number))
        differing += sum(a != b for a, b in zip(found, wanted, strict=True))
    held_bytes = engine.facts.device_bytes
    await engine.dispose()
    executor.close()
    return {
        "weights_mb": round(len(data) / 1e6, 1),
        "held_mb": round(held_bytes / 1e6, 1),
        "given_back_mb": round(slept / 1e6, 1),
        "memory_kept": round(max(kept), 3),
        "samples_differing": differing,
        **{f"{name}_s": round(statistics.median(each), 4) for name, each in seconds.items()},
    }


def main() -> None:
    """Measure and print."""
    from plexsvc.node.child import set_environment
    from plexsvc.rollout.preload import ZYGOTE_ENV, preload

    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--kv-mib", type=int, default=256)
    options = parser.parse_args()
    set_environment(ZYGOTE_ENV)
    preload()
    with tempfile.TemporaryDirectory(prefix="pxw", dir="/dev/shm") as place:
        found = asyncio.run(measure(options, Path(place)))
    report(**vars(options), cores=os.cpu_count(), load=os.getloadavg()[0], **found)
    if found["samples_differing"] or found["memory_kept"] > MOST_KEPT:
        sys.exit("an engine that wakes makes the same tokens, and one asleep keeps a tenth at most")


if __name__ == "__main__":
    main()
