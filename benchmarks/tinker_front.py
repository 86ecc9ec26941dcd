"""What the Tinker front adds to a small operation, and what two tenants of it gain by sharing.

    python -m benchmarks.tinker_front small [--operations 300] [--loss]
    python -m benchmarks.tinker_front two [--steps 12] [--rows 16] [--wait-s 1.0]

A real service on CPUs. `small`: one optimizer step at a time, or pass with `--loss`, by the native
client over gRPC, and by the front over HTTP (a request, then `retrieve_future`), alternately in
blocks of ten, each on a deployment and a device of its own. Two requests that do nothing, of the
same server, are a third way: what HTTP itself costs. `two`: two programs of the unmodified
SDK train all parameters of a model on one device, each step after a wait: one after the other, then
both at once. The gain is the time of both runs alone over that of both together; losses are
compared.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import aiohttp

import plexclient as plex
from benchmarks.tinker_heartbeat import Client
from tests.rigs import tinker_sdk
from tests.rigs.live_cluster import MIB, LiveCluster, Service
from tests.rigs.tiny_models import make_qwen3
from tests.rigs.waiting import wait_until

TOKENS = list(range(3, 11))
KEYS = ("tml-mine", "tml-theirs")
EXTRA = """
tokens = { tml-mine = "default", theirs = "ops" }
router.http_listen = "127.0.0.1:0"
router.tinker.small = { model = "SMALL" }
router.tinker.large = { model = "LARGE" }
"""
TRAIN = f'{{ kind = "train", bytes_total = {64 * MIB} }}'


BLOCK = 10
"""Operations of one way before those of the other: processor time is read between."""


async def small_operations(
    live: LiveCluster, model: Path, *, service: int, count: int, is_loss: bool
) -> dict[str, Any]:
    """Return the latencies and the processor time of operations by both ways, in ms."""
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
            ways = {
                "native": native(actor, is_loss=is_loss),
                "front": front(client, await made(client), is_loss=is_loss),
                "nothing": nothing(client),
            }
            found = {name: Found(service) for name in ways}
            for at in range(0, count, BLOCK):
                for name, way in ways.items():
                    await found[name].block(way, is_warm=at > 0)
    told = {name: one.told() for name, one in found.items()}
    added = {
        f"added_{what}": round(told["front"][what] - told["native"][what], 2)
        for what in ("p50_ms", "service_ms", "client_ms")
    }
    return {"operation": "loss" if is_loss else "step", **told, **added, "target_p50_ms": 2.0}


def native(actor: plex.Actor, *, is_loss: bool) -> Callable[[], Awaitable[object]]:
    """Return what runs an operation by the native client."""
    if not is_loss:
        return actor.step.aio
    batch = plex.Batch.from_sequences([[*TOKENS, 9]], prompt_lengths=[1])
    return lambda: actor.forward_backward.aio(batch, loss="cross_entropy", return_logprobs=True)


def front(client: Client, model_id: str, *, is_loss: bool) -> Callable[[], Awaitable[object]]:
    """Return what runs an operation by the front."""
    seq = iter(range(1, 2**31))
    column = {"data": [*TOKENS[1:], 9], "dtype": "int64", "shape": [len(TOKENS)]}
    chunks = [{"type": "encoded_text", "tokens": TOKENS}]
    datum = {"model_input": {"chunks": chunks}, "loss_fn_inputs": {"target_tokens": column}}
    given = {"data": [datum], "loss_fn": "cross_entropy"}

    async def run() -> None:
        asked: dict[str, Any] = {"model_id": model_id, "seq_id": next(seq)}
        if is_loss:
            begun = await client.ask("forward_backward", **asked, forward_backward_input=given)
        else:
            begun = await client.ask("optim_step", **asked, adam_params={})
        told = await client.wait_for(begun["request_id"])
        assert "metrics" in told, told

    return run


def nothing(client: Client) -> Callable[[], Awaitable[object]]:
    """Return what makes as many requests as `front`, of which each does nothing."""

    async def run() -> None:
        for _ in range(2):
            await client.ask("client/config")

    return run


class Found:
    """What one way took."""

    def __init__(self, service: int) -> None:
        self._service = service
        self._took_ms: list[float] = []
        self._service_ms = self._client_ms = 0.0

    async def block(self, way: Callable[[], Awaitable[object]], *, is_warm: bool) -> None:
        """Run a block of operations, counted once others were before."""
        service_ms, client_ms = processor_ms(self._service), 1e3 * time.process_time()
        took_ms = []
        for _ in range(BLOCK):
            begun_s = time.perf_counter()
            await way()
            took_ms.append(1e3 * (time.perf_counter() - begun_s))
        if is_warm:
            self._took_ms += took_ms
            self._service_ms += processor_ms(self._service) - service_ms
            self._client_ms += 1e3 * time.process_time() - client_ms

    def told(self) -> dict[str, float]:
        """Return what is shown, processor time for each operation."""
        count = len(self._took_ms)
        p95 = statistics.quantiles(self._took_ms, n=20)[-1]
        return {
            "p50_ms": round(statistics.median(self._took_ms), 2),
            "p95_ms": round(p95, 2),
            "service_ms": round(self._service_ms / count, 2),
            "client_ms": round(self._client_ms / count, 2),
        }


def processor_ms(pid: int) -> float:
    """Return the processor time that the threads of a process have had."""
    parts = Path(f"/proc/{pid}/task").glob("*/schedstat")
    return sum(int(part.read_text().split()[0]) for part in parts) / 1e6


async def made(client: Client) -> str:
    """Return the id of a new model that trains all its parameters."""
    session = (await client.ask("create_session", tags=[], sdk_version="0"))["session_id"]
    lora = {"rank": 0}
    begun = await client.ask(
        "create_model", session_id=session, model_seq_id=0, base_model="small", lora_config=lora
    )
    return str((await client.wait_for(begun["request_id"]))["model_id"])


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
    """Measure and print a line of JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("part", choices=("small", "two"))
    parser.add_argument("--operations", type=int, default=300)
    parser.add_argument("--loss", action="store_true", help="passes in place of steps")
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--rows", type=int, default=16, help="sequences of a batch")
    parser.add_argument("--wait-s", type=float, default=1.0)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as path:
        place = Path(path)
        small = make_qwen3(place / "small", seed=1)
        large = make_qwen3(place / "large", seed=1, hidden=128, layers=4, ffn=512)
        extra = EXTRA.replace("SMALL", str(small)).replace("LARGE", str(large))
        devices = [TRAIN] * (2 if given.part == "small" else 1)
        with Service(place, nodes={"only": devices}, extra=extra) as service:
            if given.part == "small":
                pid, count = service.process.pid, given.operations
                measuring = small_operations(
                    service.live, small, service=pid, count=count, is_loss=given.loss
                )
                print(json.dumps(asyncio.run(measuring)), flush=True)
            else:
                rates = {"steps": given.steps, "rows": given.rows, "wait_s": given.wait_s}
                print(json.dumps(two_tenants(service.live, place, **rates)), flush=True)


if __name__ == "__main__":
    main()
