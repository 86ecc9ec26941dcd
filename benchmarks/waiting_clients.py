"""No-op latency and memory of a service with 256 clients, of whose operations 4,096 wait.

    python -m benchmarks.waiting_clients [--seconds 240]

64 jobs have 64 operations waiting each, which came over three connections: the first one's payload
never comes, and the others come after it. 64 more jobs issue 5 no-ops a second each, in an open
loop, over a connection each (`noop_latency`), for a while before the others wait, too. Once a
second a status is asked for, and the resident memory of the service's process sampled; growth is
that of the last tenth of the samples over the second tenth, by medians. A payload that does not
come is waited for 300 s: a run is shorter.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import statistics
import time
from pathlib import Path

from benchmarks import bare_chain, load
from benchmarks.noop_latency import CALL_S, JOBS, RATE_HZ, NoopJob, Service, free_port, service
from benchmarks.service import report
from plexclient.ids import new_deployment_id, new_job_id
from plexclient.wire.v1 import service_pb2 as pb
from plexclient.wire.v1 import service_pb2_grpc
from plexclient.wire.v1.operations_pb2 import OperationResult
from plexsvc.rpc import loops

WAITING = 64
"""Operations that each of the other jobs has waiting: as many as a deployment may."""
CONNECTIONS = 3
"""Of each of those jobs."""
PATIENT = [("grpc.keepalive_timeout_ms", 30_000), ("grpc.http2.ping_timeout_ms", 30_000)]
"""Options of all connections: on a busy machine one process may answer their pings late."""
TARGET_P50_MS = 5.0
TARGET_GROWTH = 0.05


def resident_bytes(pid: int) -> int:
    """Return what a process has resident."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * 4096


async def wait_in_line(clients: Service, index: int) -> list[asyncio.Future[OperationResult]]:
    """Submit operations of a job of which none can run, each over the next of its connections."""
    job, answers = clients.jobs[index], []
    for number in range(WAITING):
        operation = job.next()
        if number == 0:
            operation.ClearField("noop")
            operation.forward_backward.loss = "ppo"
            operation.payload.staged.nbytes = 1 << 20
        over = CONNECTIONS * index + number % CONNECTIONS
        answers.append(await clients.send(operation, over=over))
    return answers


async def measure(address: str, *, token: str, pid: int, seconds: float) -> dict[str, object]:
    """Return the figures of one run."""
    metadata = (("authorization", f"Bearer {token}"),)
    async with contextlib.AsyncExitStack() as stack:
        enter = stack.enter_async_context
        jobs = [NoopJob(one, new_deployment_id(one, "actor")) for one in _ids(2 * JOBS)]
        lines = await enter(bare_chain.clients(address, CONNECTIONS * JOBS, more=PATIENT))
        waiting = Service(lines, token=token, jobs=jobs[:JOBS])
        active = Service(
            await enter(bare_chain.clients(address, JOBS, more=PATIENT)),
            token=token,
            jobs=jobs[JOBS:],
        )
        for index in range(JOBS):
            await waiting.deploy(index)
            await active.deploy(index)
        await enter(waiting.streaming())
        await enter(active.streaming())
        await load.settle()
        alone = await load.open_loop(
            active.call, jobs=JOBS, rate_hz=RATE_HZ, seconds=seconds / 10, seed=0
        )
        answers = [one for index in range(JOBS) for one in await wait_in_line(waiting, index)]
        operator = service_pb2_grpc.RouterStub(lines[0])
        status_ms, resident = list[float](), list[int]()

        async def look() -> None:
            while True:
                began = time.monotonic()
                await operator.GetStatus(pb.GetStatusRequest(), metadata=metadata, timeout=CALL_S)
                status_ms.append((time.monotonic() - began) * 1e3)
                resident.append(resident_bytes(pid))
                await asyncio.sleep(1)

        async with asyncio.TaskGroup() as group:
            looking = group.create_task(look())
            found = await load.open_loop(
                active.call, jobs=JOBS, rate_hz=RATE_HZ, seconds=seconds, seed=0
            )
            looking.cancel()
        waits = sum(not answer.done() for answer in answers)
    tenth = len(resident) // 10
    before = statistics.median(resident[tenth : 2 * tenth])
    growth = statistics.median(resident[-tenth:]) / before - 1
    p50_ms = load.percentile(found, 0.5)
    return {
        "benchmark": "waiting_clients",
        "clients": (1 + CONNECTIONS) * JOBS,
        "waiting": waits,
        "seconds": seconds,
        "p50_ms": round(p50_ms, 2),
        "p50_ms_before": round(load.percentile(alone, 0.5), 2),
        "p99_ms": round(load.percentile(found, 0.99), 2),
        "status_p50_ms": round(load.percentile(status_ms, 0.5), 1),
        "resident_mib": [round(one / 2**20) for one in resident[:: max(1, tenth)]],
        "growth": round(growth, 4),
        "is_met": waits == JOBS * WAITING and p50_ms <= TARGET_P50_MS and growth <= TARGET_GROWTH,
    }


def _ids(count: int) -> list[str]:
    return [new_job_id() for _ in range(count)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=240.0)
    arguments = parser.parse_args()
    with service(devices=2 * JOBS, scheduler_listen=f"127.0.0.1:{free_port()}") as card:
        run = measure(
            card["address"], token=card["token"], pid=card["pid"], seconds=arguments.seconds
        )
        report(**loops.run(run))


if __name__ == "__main__":
    main()
