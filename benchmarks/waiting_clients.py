"""No-op latency and memory of a service with 256 clients, of whose operations 4,096 wait.

    python -m benchmarks.waiting_clients [--seconds 600] [--rate 5]

64 jobs have 64 operations waiting each, which came over three connections: the first one's payload
is still under way, of which the scheduler is told now and then, as a router apart tells it, and the
others come after it. 64 more jobs issue 5 no-ops a second each, in an open loop, over a connection
each (`noop_latency`), for a while before the others wait, too. Once a second a status is asked for,
and the resident memory of the service's process sampled; growth is that of the last tenth of the
samples over the second tenth, by medians. A run in which one of the 4,096 is answered is void.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import statistics
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import grpc.aio

from benchmarks import bare_chain, load
from benchmarks.noop_latency import CALL_S, JOBS, RATE_HZ, NoopJob, Service, free_port, service
from benchmarks.service import report
from plexclient import payloads
from plexclient.ids import new_deployment_id, new_job_id
from plexclient.wire.v1 import operations_pb2, service_pb2_grpc
from plexclient.wire.v1 import service_pb2 as pb
from plexsvc.rpc import loops
from plexsvc.rpc.channels import open_channel
from plexsvc.rpc.keys import ClusterKeys, read_keys
from tests.rigs.workloads import fixed_batch

WAITING = 64
"""Operations that each of the other jobs has waiting: as many as a deployment may."""
CONNECTIONS = 3
"""Of each of those jobs."""
PATIENT = [("grpc.keepalive_timeout_ms", 30_000), ("grpc.http2.ping_timeout_ms", 30_000)]
"""Options of all connections: on a busy machine one process may answer their pings late."""
TOLD_S = 60.0
"""How often the scheduler is told of payloads under way; it gives them up after 300 s."""
TARGET_P50_MS = 5.0
TARGET_GROWTH = 0.05


def resident_bytes(pid: int) -> int:
    """Return what a process has resident."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * 4096


@dataclass(frozen=True, slots=True)
class Line:
    """The operations of a job that wait: the first for its payload, and others for that."""

    first: operations_pb2.Operation
    answers: list[asyncio.Future[operations_pb2.OperationResult]]

    def check(self) -> None:
        """Look whether all wait.

        Raises:
            RuntimeError: with the answer of one that does not.
        """
        for answer in self.answers:
            if answer.done():
                raise RuntimeError(f"one of those that should wait was answered: {answer.result()}")


async def wait_in_line(clients: Service, index: int) -> Line:
    """Submit operations of a job of which none can run, each over the next of its connections."""
    job, answers = clients.jobs[index], []
    inputs = payloads.inputs(fixed_batch(index, sequences=2000).arrays())
    first = job.next()
    first.ClearField("noop")
    first.forward_backward.loss = "ppo"
    first.payload.CopyFrom(inputs.payload(first.operation_id))
    for number in range(WAITING):
        over = CONNECTIONS * index + number % CONNECTIONS
        answers.append(await clients.send(first if number == 0 else job.next(), over=over))
    return Line(first, answers)


async def keep_waiting(address: str, *, keys: ClusterKeys, lines: Sequence[Line]) -> None:
    """Say of payloads that they still come, as routers do."""
    async with open_channel(address, keys) as channel:
        scheduler = service_pb2_grpc.SchedulerStub(channel)
        while True:
            for line in lines:
                request = pb.PayloadStagedRequest(
                    operation_id=line.first.operation_id,
                    job_id=line.first.job_id,
                    deployment_id=line.first.deployment_id,
                    tenant="default",
                    is_under_way=True,
                )
                with contextlib.suppress(grpc.aio.AioRpcError):  # the next time, then
                    await scheduler.PayloadStaged(request, timeout=CALL_S)
                await asyncio.sleep(TOLD_S / len(lines))


@dataclass(slots=True)
class Looks:
    """What was seen once a second."""

    status_ms: list[float] = field(default_factory=list)
    resident: list[int] = field(default_factory=list)

    async def go_on(
        self, status: Callable[[], Awaitable[object]], *, pid: int, lines: Sequence[Line]
    ) -> None:
        """Ask for a status, and look at the service's memory, again and again.

        Raises:
            RuntimeError: an operation does not wait any more.
        """
        while True:
            for line in lines:
                line.check()
            began = time.monotonic()
            await status()
            self.status_ms.append((time.monotonic() - began) * 1e3)
            self.resident.append(resident_bytes(pid))
            await asyncio.sleep(1)

    def figures(self) -> dict[str, Any]:
        """Return the time of a status, and how memory grew."""
        tenth = max(1, len(self.resident) // 10)
        before = statistics.median(self.resident[tenth : 2 * tenth])
        return {
            "status_p50_ms": round(load.percentile(self.status_ms, 0.5), 1),
            "resident_mib": [round(one / 2**20) for one in self.resident[::tenth]],
            "growth": round(statistics.median(self.resident[-tenth:]) / before - 1, 4),
        }


async def measure(
    card: dict[str, Any], *, scheduler: str, seconds: float, rate_hz: float
) -> dict[str, object]:
    """Return the figures of one run."""
    metadata = (("authorization", f"Bearer {card['token']}"),)
    async with contextlib.AsyncExitStack() as stack:
        enter = stack.enter_async_context
        jobs = [NoopJob(one, new_deployment_id(one, "actor")) for one in _ids(2 * JOBS)]
        channels = [
            await enter(bare_chain.clients(card["address"], count, more=PATIENT))
            for count in (CONNECTIONS * JOBS, JOBS)
        ]
        waiting = Service(channels[0], token=card["token"], jobs=jobs[:JOBS])
        active = Service(channels[1], token=card["token"], jobs=jobs[JOBS:])
        for index in range(JOBS):
            await waiting.deploy(index)
            await active.deploy(index)
        await enter(waiting.streaming())
        await enter(active.streaming())
        await load.settle()
        work = partial(load.open_loop, active.call, jobs=JOBS, rate_hz=rate_hz, seed=0)
        alone = await work(seconds=seconds / 30)
        lines = [await wait_in_line(waiting, index) for index in range(JOBS)]
        operator, looks = service_pb2_grpc.RouterStub(channels[0][0]), Looks()
        status = partial(
            operator.GetStatus, pb.GetStatusRequest(), metadata=metadata, timeout=CALL_S
        )
        async with asyncio.TaskGroup() as group:
            beside = [
                group.create_task(looks.go_on(status, pid=card["pid"], lines=lines)),
                group.create_task(
                    keep_waiting(scheduler, keys=read_keys(card["keys"]), lines=lines)
                ),
            ]
            found = await work(seconds=seconds)
            for task in beside:
                task.cancel()
        for line in lines:
            line.check()
    p50_ms, seen = load.percentile(found, 0.5), looks.figures()
    return {
        "benchmark": "waiting_clients",
        "clients": (1 + CONNECTIONS) * JOBS,
        "waiting": sum(len(line.answers) for line in lines),
        "seconds": seconds,
        "rate_hz": rate_hz,
        "p50_ms": round(p50_ms, 2),
        "p50_ms_before": round(load.percentile(alone, 0.5), 2),
        "p99_ms": round(load.percentile(found, 0.99), 2),
        "load": round(os.getloadavg()[1], 1),
        **seen,
        "is_met": p50_ms <= TARGET_P50_MS and seen["growth"] <= TARGET_GROWTH,
    }


def _ids(count: int) -> list[str]:
    return [new_job_id() for _ in range(count)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=600.0)
    parser.add_argument("--rate", type=float, default=RATE_HZ)
    arguments = parser.parse_args()
    scheduler = f"127.0.0.1:{free_port()}"
    with service(devices=2 * JOBS, scheduler_listen=scheduler) as card:
        run = measure(card, scheduler=scheduler, seconds=arguments.seconds, rate_hz=arguments.rate)
        report(**loops.run(run))


if __name__ == "__main__":
    main()
