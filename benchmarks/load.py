"""Load on a call: open loop at a fixed rate, closed loop at saturation; how busy the machine is."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from pathlib import Path

Call = Callable[[int], Awaitable[None]]
"""Makes one call for job `i` and returns when it is answered."""


async def open_loop(
    call: Call, *, jobs: int, rate_hz: float, seconds: float, seed: int
) -> list[float]:
    """Return latencies in ms of `jobs` jobs that each call `rate_hz` times a second.

    A call starts when its time has come, whatever became of the ones before; its latency counts
    from that time, so that a stall shows in every call it delays.
    """
    loop = asyncio.get_running_loop()
    dice = random.Random(seed)
    start = loop.time() + 0.1
    found: list[float] = []

    async def run(job: int, at: float) -> None:
        await call(job)
        found.append((loop.time() - at) * 1e3)

    period = 1 / rate_hz
    times = sorted(
        (start + phase + n * period, job)
        for job, phase in enumerate(dice.random() * period for _ in range(jobs))
        for n in range(int(seconds * rate_hz))
    )
    async with asyncio.TaskGroup() as group:
        for at, job in times:
            if (wait := at - loop.time()) > 0:
                await asyncio.sleep(wait)
            group.create_task(run(job, at))
    return found


async def saturate(call: Call, *, jobs: int, seconds: float) -> float:
    """Return calls a second when each of `jobs` jobs calls again as soon as it is answered."""
    loop = asyncio.get_running_loop()
    end = loop.time() + seconds
    done = 0

    async def run(job: int) -> None:
        nonlocal done
        while loop.time() < end:
            await call(job)
            done += 1

    async with asyncio.TaskGroup() as group:
        for job in range(jobs):
            group.create_task(run(job))
    return done / seconds


def percentile(values: Sequence[float], share: float) -> float:
    """Return the value below which `share` of `values` lie."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def busy_s() -> float:
    """Return the processor seconds this machine has worked since it started, whoever for."""
    user, nice, system, _, _, irq, softirq, *_ = map(
        int, Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:]
    )
    return (user + nice + system + irq + softirq) / os.sysconf("SC_CLK_TCK")


def family(pid: int) -> list[int]:
    """Return the processes that descend from `pid`, itself excluded."""
    children: dict[int, list[int]] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            parent = int(stat.read_text().rpartition(")")[2].split()[1])
            children.setdefault(parent, []).append(int(stat.parent.name))
    found = [pid]
    for parent in found:
        found += children.get(parent, ())
    return found[1:]


def worked_ms(pids: Iterable[int]) -> float:
    """Return the processor milliseconds that processes have worked, all their threads together."""
    total_ns = 0
    for pid in pids:
        for thread in Path(f"/proc/{pid}/task").glob("*/schedstat"):
            with contextlib.suppress(OSError):
                total_ns += int(thread.read_text().split()[0])
    return total_ns / 1e6


async def settle(*, busy_cores: float = 0.3, timeout_s: int = 60) -> None:
    """Return when the machine was nearly idle for two seconds, or has not been for `timeout_s`.

    Processes that were just started go on loading what they may need.
    """
    for _ in range(timeout_s // 2):
        before = busy_s()
        await asyncio.sleep(2)
        if (busy_s() - before) / 2 < busy_cores:
            return


def sync_times(count: int) -> list[float]:
    """Return in ms what it takes to write 8 KiB and sync them, as a commit does, `count` times."""
    found = []
    with tempfile.TemporaryFile(buffering=0) as file:
        file.write(bytes(1 << 20))
        os.fsync(file.fileno())
        for n in range(count):
            began_s = time.perf_counter()
            os.pwrite(file.fileno(), bytes(8192), n % 128 * 8192)
            os.fdatasync(file.fileno())
            found.append((time.perf_counter() - began_s) * 1e3)
    return found
