"""What the Tinker front adds to a small operation, and what two tenants of it gain by sharing.

    python -m benchmarks.tinker_front [--operations 300] [--steps 12] [--wait-s 1.0]

A real service on CPUs. First, one optimizer step at a time: by the native client over gRPC, and by
the front over HTTP (`optim_step`, then `retrieve_future`), alternately, each on a deployment and a
device of its own. Then two programs of the unmodified SDK train all parameters of a model on one
device, each step after a wait: one after the other, then both at once. The gain is the time of both
runs alone over that of both together; losses are compared.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import aiohttp

import plexclient as plex
from benchmarks.tinker_heartbeat import Client
from tests.rigs import tinker_sdk
from tests.rigs.live_cluster import MIB, LiveCluster, start_cluster
from tests.rigs.tiny_models import make_qwen3
from tests.rigs.waiting import wait_until

KEYS = ("tml-mine", "tml-theirs")
EXTRA = """
tokens = { tml-mine = "default", theirs = "ops" }
router.http_listen = "127.0.0.1:0"
router.tinker.small = { model = "SMALL" }
router.tinker.large = { model = "LARGE" }
"""
TRAIN = f'{{ kind = "train", bytes_total = {64 * MIB} }}'


async def small_operations(live: LiveCluster, model: Path, *, count: int) -> dict[str, Any]:
    """Return the latencies of steps by both ways, in ms."""
    native: list[float] = []
    front: list[float] = []
    with live.connect() as cluster, cluster.job("native") as job:
        actor = job.deploy(
            "actor",
            role="actor",
            model=str(model),
            backend="megatron",
            optimizer=plex.AdamW(lr=1e-4),
        )
        headers = {"X-API-Key": KEYS[0]}
        async with aiohttp.ClientSession(headers=headers) as http:
            client = Client(http, f"http://{live.http}")
            model_id = await made(client)
            for seq in range(1, count + 1):
                begun_s = time.perf_counter()
                await actor.step.aio()
                native.append(1e3 * (time.perf_counter() - begun_s))
                begun_s = time.perf_counter()
                asked = {"model_id": model_id, "seq_id": seq, "adam_params": {}}
                begun = await client.ask("optim_step", **asked)
                told = await client.wait_for(begun["request_id"])
                front.append(1e3 * (time.perf_counter() - begun_s))
                assert "metrics" in told, told
    found = {"native": summary(native[20:]), "front": summary(front[20:])}
    added = found["front"]["p50_ms"] - found["native"]["p50_ms"]
    return {"small_operation": found, "added_p50_ms": round(added, 2), "target_ms": 2.0}


async def made(client: Client) -> str:
    """Return the id of a new model that trains all its parameters."""
    session = (await client.ask("create_session", tags=[], sdk_version="0"))["session_id"]
    lora = {"rank": 0}
    begun = await client.ask(
        "create_model", session_id=session, model_seq_id=0, base_model="small", lora_config=lora
    )
    return str((await client.wait_for(begun["request_id"]))["model_id"])


def summary(took_ms: list[float]) -> dict[str, float]:
    """Return what is shown of latencies."""
    p95 = statistics.quantiles(took_ms, n=20)[-1]
    return {"p50_ms": round(statistics.median(took_ms), 2), "p95_ms": round(p95, 2)}


def together(
    live: LiveCluster, place: Path, keys: tuple[str, ...], **given: Any
) -> tuple[float, list[Any]]:
    """Return how long the programs of some tenants take once all are ready, and their losses."""
    begin = place / f"begin-{len(keys)}-{time.monotonic_ns()}"
    given |= {"model": "large", "begin": str(begin)}
    started = [tinker_sdk.start(live, "paced", key=key, **given) for key in keys]
    ready = lambda: len(list(place.glob(f"{begin.name}.*"))) == len(keys)  # noqa: E731 - once
    wait_until(ready, what="tenants to be ready", timeout_s=300)
    begin.touch()
    told = [tinker_sdk.answer(one, timeout_s=600) for one in started]
    took_s = max(one["ended_s"] for one in told) - min(one["begun_s"] for one in told)
    return took_s, [one["losses"] for one in told]


def two_tenants(live: LiveCluster, place: Path, **given: Any) -> dict[str, Any]:
    """Return what two tenants gain by sharing a device."""
    alone = [together(live, place, (key,), **given) for key in KEYS]
    both_s, losses = together(live, place, KEYS, **given)
    alone_s = [round(took_s, 2) for took_s, _ in alone]
    return {
        **given,
        "alone_s": alone_s,
        "together_s": round(both_s, 2),
        "gain": round(sum(alone_s) / both_s, 2),
        "target": 1.6,
        "bits_as_alone": losses == [found for _, (found,) in alone],
    }


def main() -> None:
    """Measure and print, a line of JSON each."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--operations", type=int, default=300)
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--rows", type=int, default=16, help="sequences of a batch")
    parser.add_argument("--wait-s", type=float, default=1.0)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as path:
        place = Path(path)
        small = make_qwen3(place / "small", seed=1)
        large = make_qwen3(place / "large", seed=1, hidden=128, layers=4, ffn=512)
        extra = EXTRA.replace("SMALL", str(small)).replace("LARGE", str(large))
        with start_cluster(place, nodes={"only": [TRAIN, TRAIN]}, extra=extra) as live:
            found = asyncio.run(small_operations(live, small, count=given.operations))
            print(json.dumps(found), flush=True)
        (place / "two").mkdir()
        with start_cluster(place / "two", nodes={"only": [TRAIN]}, extra=extra) as live:
            rates = {"steps": given.steps, "rows": given.rows, "wait_s": given.wait_s}
            print(json.dumps(two_tenants(live, place, **rates)), flush=True)


if __name__ == "__main__":
    main()
