"""Latency of a Tinker session's heartbeat while thousands of its futures are waited for.

    python -m benchmarks.tinker_heartbeat [--futures 2048 8192] [--connections 1000]

A real service trains a tiny model. Requests whose predecessor has not come wait in its order, and
each is waited for by `retrieve_future`, on as many connections as the SDK opens. Then heartbeats
are timed, one after the other, on a connection of their own, and requests that do nothing. At the
end the predecessor comes, and no answer may have a status of 5xx.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

import aiohttp

from tests.rigs.live_cluster import TRAIN, start_cluster
from tests.rigs.tiny_models import make_qwen3

BEATS = 200
EXTRA = 'tokens = { tml-bench = "default" }\nrouter.http_listen = "127.0.0.1:0"\n'


class Client:
    """Asks the front, and counts statuses."""

    def __init__(self, http: aiohttp.ClientSession, base: str) -> None:
        self._http, self._base = http, base
        self.statuses: Counter[int] = Counter()

    async def ask(self, path: str, **body: Any) -> Any:
        """Return the answer of a POST."""
        async with self._http.post(f"{self._base}/api/v1/{path}", json=body) as answer:
            self.statuses[answer.status] += 1
            return await answer.json()

    async def wait_for(self, request_id: str) -> Any:
        """Return what a future becomes, however long it takes."""
        while True:
            told = await self.ask("retrieve_future", request_id=request_id)
            if told.get("type") != "try_again":
                return told


async def beat(client: Client, session: str) -> None:
    """Keep a session alive, as the SDK does."""
    while True:
        await client.ask("session_heartbeat", session_id=session)
        await asyncio.sleep(10.0)


async def timed(client: Client, path: str, **body: Any) -> list[float]:
    """Return what each of some requests took, one after the other."""
    took_ms = []
    for _ in range(BEATS):
        begun_s = time.perf_counter()
        await client.ask(path, **body)
        took_ms.append(1e3 * (time.perf_counter() - begun_s))
    return took_ms


async def measure(base: str, model: str, *, futures: int, connections: int) -> dict[str, Any]:
    """Return the latencies of heartbeats beside so many waiting futures."""
    headers = {"X-API-Key": "tml-bench"}
    connector = aiohttp.TCPConnector(limit=connections)
    timeout = aiohttp.ClientTimeout(total=600)
    async with (
        aiohttp.ClientSession(headers=headers, connector=connector, timeout=timeout) as waiters,
        aiohttp.ClientSession(headers=headers, timeout=timeout) as http,
        asyncio.TaskGroup() as group,
    ):
        client, waiter = Client(http, base), Client(waiters, base)
        session = (await client.ask("create_session", tags=[], sdk_version="0"))["session_id"]
        lora = {"rank": 0}
        made = await client.ask(
            "create_model", session_id=session, model_seq_id=0, base_model=model, lora_config=lora
        )
        told = await client.wait_for(made["request_id"])
        assert "model_id" in told, told
        model_id = told["model_id"]
        beating = group.create_task(beat(client, session))
        waiting = []
        for seq in range(2, futures + 2):
            begun = await client.ask("optim_step", model_id=model_id, seq_id=seq, adam_params={})
            waiting.append(group.create_task(waiter.wait_for(begun["request_id"])))
        await asyncio.sleep(2.0)  # until all of them wait
        took_ms = await timed(client, "session_heartbeat", session_id=session)
        empty_ms = await timed(client, "client/config")
        begun = await client.ask("optim_step", model_id=model_id, seq_id=1, adam_params={})
        told = [await client.wait_for(begun["request_id"]), *[await one for one in waiting]]
        beating.cancel()
        reason = {"type": "success"}
        await client.ask(f"sessions/{session}/finish", reason=reason, detail=None)
    return {
        "futures": futures,
        "connections": connections,
        "p50_ms": round(statistics.median(took_ms), 2),
        "p95_ms": round(statistics.quantiles(took_ms, n=20)[-1], 2),
        "empty_p50_ms": round(statistics.median(empty_ms), 2),
        "answered": sum("metrics" in one for one in told),
        "errors": Counter(str(one)[:300] for one in told if "metrics" not in one).most_common(3),
        "statuses": dict(client.statuses + waiter.statuses),
    }


def main() -> None:
    """Measure and print, a line of JSON each."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--futures", type=int, nargs="+", default=[2048])
    parser.add_argument("--connections", type=int, default=1000)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as place:
        model = make_qwen3(Path(place) / "tiny", seed=1)
        with start_cluster(Path(place), nodes={"only": [TRAIN]}, extra=EXTRA) as live:
            for futures in given.futures:
                base, limit = f"http://{live.http}", given.connections
                found = measure(base, str(model), futures=futures, connections=limit)
                print(json.dumps(asyncio.run(found)), flush=True)


if __name__ == "__main__":
    main()
