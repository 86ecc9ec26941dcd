"""Requests a second through the reward proxy, its processor time for each, and a sandboxed check.

`python -m benchmarks.reward_proxy` prints one JSON line. The proxy is a process of its own, as
under `plexctl up`, and so is each worker. Samples are scored by `exact`, so what is measured is the
way through the proxy and a worker; a request's processor time is the proxy's alone.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import secrets
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from plexclient.wire.v1 import reward_pb2 as pb
from plexclient.wire.v1 import reward_pb2_grpc
from plexsvc.reward.core.vocabulary import WorkerId
from plexsvc.reward.messages import Ready, StageDone, Task
from plexsvc.reward.workers import LocalWorkers
from plexsvc.rpc import loops
from plexsvc.rpc.channels import open_channel
from plexsvc.rpc.keys import ClusterKeys, make_keys, write_keys

TESTS = '[{"stdin": "4", "stdout": "8"}]'
GROUP = 8
WORKERS = 2
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


async def scored(stub: Any, asked: pb.ScoreRequest) -> list[float]:
    """Return the time that each sample ran, once all are answered."""
    return [r.time_us / 1e3 async for r in stub.Score(asked, timeout=300)]


async def added_ms(stub: Any, *, rate: float, lasts_s: float) -> list[float]:
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
    heard: asyncio.Queue[Ready | StageDone | str] = asyncio.Queue()
    task = Task("code_python", 0, text=CODE, reference=TESTS, settings="", files={})
    found: list[float] = []
    async with LocalWorkers(lambda _, message: heard.put_nowait(message)) as workers:
        for number in range(-1, starts):  # the first waits for the zygote, too
            begun_s = time.monotonic()
            workers.start(WorkerId(number), modules=())
            assert isinstance(await heard.get(), Ready)
            workers.send(WorkerId(number), task)
            done = await heard.get()
            assert isinstance(done, StageDone)
            assert done.score == 1, done
            found.append((time.monotonic() - begun_s) * 1e3)
            workers.stop(WorkerId(number))
            await heard.get()
    return sorted(found[1:])


@contextmanager
def own_process(directory: Path, keys: ClusterKeys) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """Yield a proxy that runs as it does below `plexctl up`, with two workers, and its address."""
    write_keys(directory / "keys.json", keys)
    (directory / "proxy.toml").write_text(
        f'listen = "unix:{directory}/p.sock"\nkeys_file = "{directory}/keys.json"\n'
        f'programs_dir = "{directory}/programs"\nmax_workers = {WORKERS}\n'
    )
    argv = ("-m", "plexsvc.reward.main", "--config", str(directory / "proxy.toml"))
    death = ("--parent-death", str(os.getpid()))
    with subprocess.Popen([sys.executable, *argv, *death], stdout=subprocess.PIPE, text=True) as it:
        try:
            assert it.stdout is not None
            yield it, json.loads(it.stdout.readline())["address"]
        finally:
            it.terminate()


def used_s(pid: int) -> float:
    """Return the processor time of a process, without that of its children."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


async def measure(samples: int, checks: int) -> dict[str, Any]:
    """Return the figures."""
    directory = Path(tempfile.mkdtemp(prefix="plexsvc-"))
    keys = make_keys()
    with own_process(directory, keys) as (process, address):
        async with open_channel(address, keys) as channel:
            stub: Any = reward_pb2_grpc.RewardStub(channel)
            await scored(stub, request("exact", "a", '"a"', samples=64))
            loops.keep_what_is_there()
            begun_s, before_s = time.monotonic(), used_s(process.pid)
            await scored(stub, request("exact", "a", '"a"', samples=samples))
            took_s, took_processor_s = time.monotonic() - begun_s, used_s(process.pid) - before_s
            own_per_s = samples / took_s
            added = {
                name: spread(await added_ms(stub, rate=rate, lasts_s=5))
                for name, rate in (("at_1000", 1000.0), ("at_half_of_own", own_per_s / 2))
            }
            asked = request("code_python", CODE, TESTS, samples=checks)
            times_ms = sorted(await scored(stub, asked))
    colds_ms = await cold_ms(10)
    return {
        "benchmark": "reward_proxy",
        "requests_per_s": round(own_per_s),
        "requests_per_processor_s": round(samples / took_processor_s),
        "added_ms": added,
        "sandboxed_check_ms": spread(times_ms),
        "check_on_a_cold_worker_ms": spread(colds_ms),
        "load_before": round(LOAD, 1),
    }


def spread(ordered_ms: list[float]) -> dict[str, float]:
    """Return what there is to say of times in order."""
    found = {
        "best": ordered_ms[0],
        "median": statistics.median(ordered_ms),
        "p99": ordered_ms[int(0.99 * len(ordered_ms))],
        "worst": ordered_ms[-1],
    }
    return {name: round(ms, 1) for name, ms in found.items()}


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--samples", type=int, default=4096)
    parser.add_argument("--checks", type=int, default=50)
    arguments = parser.parse_args()
    found = loops.run(asyncio.wait_for(measure(arguments.samples, arguments.checks), 600))
    sys.stdout.write(json.dumps(found) + "\n")


LOAD = os.getloadavg()[0]

if __name__ == "__main__":
    main()
