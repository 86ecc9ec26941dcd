"""Requests a second through the reward proxy, its processor time for each, and a sandboxed check.

`python -m benchmarks.reward_proxy` prints one JSON line. Samples are scored by `exact`, so what is
measured is the way through the proxy and a worker.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import secrets
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from plexclient.wire.v1 import reward_pb2 as pb
from plexclient.wire.v1 import reward_pb2_grpc
from plexsvc.reward.config import RewardConfig
from plexsvc.reward.core.vocabulary import WorkerId
from plexsvc.reward.main import serving
from plexsvc.reward.messages import Done, Ready, Task
from plexsvc.reward.workers import LocalWorkers
from plexsvc.rpc import loops
from plexsvc.rpc.channels import open_channel
from plexsvc.rpc.keys import make_keys, write_keys

TESTS = '[{"stdin": "4", "stdout": "8"}]'
GROUP = 8
CODE = "print(int(input()) * 2)"


def request(program: str, text: str, reference: str, *, samples: int) -> pb.ScoreRequest:
    """Return a batch of equal samples."""
    made = [pb.ScoreSample(index=i, text=text, reference=reference) for i in range(samples)]
    return pb.ScoreRequest(
        tenant="t",
        job_id="j",
        batch_id=secrets.token_bytes(16),
        program=program,
        samples=made,
    )


async def scored(stub: Any, asked: pb.ScoreRequest) -> list[float]:  # noqa: ANN401 - gRPC's
    """Return the time that each sample ran, once all are answered."""
    return [r.time_us / 1e3 async for r in stub.Score(asked, timeout=300)]


async def added_ms(stub: Any, *, rate: float, lasts_s: float) -> list[float]:  # noqa: ANN401 - gRPC's
    """Return what each sample took beside its run, in order, at so many samples a second.

    They come in requests of eight, as a rollout's do, whether earlier ones are answered or not.
    """
    batch, number = secrets.token_bytes(16), int(rate * lasts_s / GROUP)
    found: list[float] = []

    async def one(first: int) -> None:
        made = [pb.ScoreSample(index=first + i, text="a", reference='"a"') for i in range(GROUP)]
        asked = pb.ScoreRequest(
            tenant="t",
            job_id="half",
            batch_id=batch,
            program="exact",
            samples=made,
            batch_size=number * GROUP,
        )
        sent_s = time.monotonic()
        async for reply in stub.Score(asked, timeout=60):
            took_ms = (time.monotonic() - sent_s) * 1e3
            found.append(took_ms - reply.time_us / 1e3)

    async with asyncio.TaskGroup() as tasks:
        begun_s = time.monotonic()
        for index in range(number):
            await asyncio.sleep(max(0.0, begun_s + index * GROUP / rate - time.monotonic()))
            tasks.create_task(one(index * GROUP))
    return sorted(found)


async def cold_ms(starts: int) -> list[float]:
    """Return how long a check takes from the start of its worker, in order."""
    heard: asyncio.Queue[Ready | Done | str] = asyncio.Queue()
    task = Task("code_python", 0, text=CODE, reference=TESTS, settings="", files={})
    found: list[float] = []
    async with LocalWorkers(lambda _, message: heard.put_nowait(message)) as workers:
        for number in range(-1, starts):  # the first waits for the zygote, too
            begun_s = time.monotonic()
            workers.start(WorkerId(number), modules=())
            assert isinstance(await heard.get(), Ready)
            workers.send(WorkerId(number), task)
            done = await heard.get()
            assert isinstance(done, Done)
            assert done.score == 1, done
            found.append((time.monotonic() - begun_s) * 1e3)
            workers.stop(WorkerId(number))
            await heard.get()
    return sorted(found[1:])


async def measure(samples: int, checks: int) -> dict[str, Any]:
    """Return the figures."""
    directory = Path(tempfile.mkdtemp(prefix="plexsvc-"))
    keys = make_keys()
    write_keys(directory / "keys.json", keys)
    config = RewardConfig(
        listen=f"unix:{directory}/p.sock", keys_file=directory / "keys.json", max_workers=2
    )
    async with serving(config) as (_, address), open_channel(address, keys) as channel:
        stub: Any = reward_pb2_grpc.RewardStub(channel)
        await scored(stub, request("exact", "a", '"a"', samples=64))
        begun_s, used_s = time.monotonic(), time.process_time()
        await scored(stub, request("exact", "a", '"a"', samples=samples))
        took_s, used_s = time.monotonic() - begun_s, time.process_time() - used_s
        half_ms = await added_ms(stub, rate=samples / took_s / 2, lasts_s=5)
        asked = request("code_python", CODE, TESTS, samples=checks)
        times_ms = sorted(await scored(stub, asked))
    colds_ms = await cold_ms(10)
    return {
        "benchmark": "reward_proxy",
        "requests_per_s": round(samples / took_s),
        "requests_per_processor_s": round(samples / used_s),
        "added_ms_at_half_load": {
            "median": round(statistics.median(half_ms), 1),
            "p99": round(half_ms[int(0.99 * len(half_ms))], 1),
        },
        "sandboxed_check_ms": {
            "median": round(statistics.median(times_ms), 1),
            "best": round(times_ms[0], 1),
        },
        "check_on_a_cold_worker_ms": {
            "median": round(statistics.median(colds_ms), 1),
            "best": round(colds_ms[0], 1),
        },
        "load_before": round(os.getloadavg()[0], 1),
    }


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--samples", type=int, default=4096)
    parser.add_argument("--checks", type=int, default=50)
    arguments = parser.parse_args()
    found = loops.run(asyncio.wait_for(measure(arguments.samples, arguments.checks), 600))
    sys.stdout.write(json.dumps(found) + "\n")


if __name__ == "__main__":
    main()
