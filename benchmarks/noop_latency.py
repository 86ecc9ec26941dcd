"""Latency of a no-op operation, client → router → scheduler → worker → client, journal on.

    python -m benchmarks.noop_latency [--jobs 64] [--rounds 5] [--seconds 4]

64 jobs on 64 virtual groups (a device and a rank process each, backend `noop`: nothing is computed)
each issue 5 operations a second, open loop, over connections of their own, each with one stream of
operations (`Router.Operate`) as the SDK has it; one process makes all calls with bare stubs. A
router apart has one stream to the scheduler (`Scheduler.Operate`). The same load goes down a bare
gRPC chain of the same hops and as many worker processes, on the same event loop, in the same run,
every hop a unary call: two hops for router and scheduler in one process (embedded), three for a
router apart. Rounds alternate, so that drift hits all alike; figures are medians over rounds.
`busy_cores` is what the whole machine worked, whoever for; `cpu_ms` is what each part worked for
one operation of the open loop (`node`: agent, state manager and ranks; `bare`: hops and workers of
both chains); `sync` is what a sync of 8 KiB takes between rounds: an operation waits for two.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc.aio

from benchmarks import bare_chain, load
from plexclient.ids import new_deployment_id, new_job_id, new_operation_id
from plexclient.wire.v1 import operations_pb2 as ops
from plexclient.wire.v1 import service_pb2 as pb
from plexclient.wire.v1 import service_pb2_grpc
from plexsvc.cluster.places import keys_file
from plexsvc.rpc import loops

JOBS = 64
RATE_HZ = 5
SESSION_TTL_US = 3_600_000_000
CALL_S = 60.0
ACK_EVERY = 50
BOOT_S = 120
SYNCS = 200
TARGETS = {"embedded": {"p50_ms": 2.5, "p99_ms": 8.0}, "apart": {"p50_ms": 4.0, "p99_ms": 12.0}}


@dataclass(slots=True)
class NoopJob:
    """A job with one noop deployment; counts its operations and acknowledges them."""

    job_id: str
    deployment_id: str
    seq: int = 0
    unfinished: set[int] = field(default_factory=set)

    def next(self) -> ops.Operation:
        """Return the next operation."""
        self.seq += 1
        self.unfinished.add(self.seq)
        return ops.Operation(
            operation_id=new_operation_id(),
            job_id=self.job_id,
            deployment_id=self.deployment_id,
            seq=self.seq,
            noop=ops.Noop(),
        )

    @property
    def acknowledged(self) -> int:
        """Return the number up to which every answer has come."""
        return min(self.unfinished, default=self.seq + 1) - 1


class Stream:
    """A connection's stream of operations: a future an operation, one task that reads."""

    def __init__(self, call: grpc.aio.StreamStreamCall) -> None:
        self._call = call
        self._due: dict[bytes, asyncio.Future[ops.OperationResult]] = {}
        self._writing = asyncio.Lock()
        self._loop = asyncio.get_running_loop()

    async def send(self, operation: ops.Operation) -> asyncio.Future[ops.OperationResult]:
        """Submit an operation; return its answer to be."""
        future = self._due[operation.operation_id] = self._loop.create_future()
        async with self._writing:
            await self._call.write(operation)
        return future

    async def read(self) -> None:
        """Hand answers to those who wait, until the stream is given up."""
        await self._call.initial_metadata()
        while (result := await self._call.read()) is not grpc.aio.EOF:
            due = self._due.pop(result.operation_id)
            if not due.done():  # else its call was given up
                due.set_result(result)


class Service:
    """The jobs over one router: calls are no-ops of job `i`."""

    def __init__(
        self, channels: list[grpc.aio.Channel], *, token: str, jobs: list[NoopJob]
    ) -> None:
        self._stubs = [service_pb2_grpc.RouterStub(channel) for channel in channels]
        self._metadata = (("authorization", f"Bearer {token}"),)
        self._streams: list[Stream] = []
        self.jobs = jobs

    async def deploy(self, index: int) -> None:
        """Register job `index` and bring its deployment up."""
        job, stub = self.jobs[index], self._stubs[index]
        await stub.CreateJob(
            pb.CreateJobRequest(
                job_id=job.job_id, name=f"noop-{index}", session_ttl_us=SESSION_TTL_US
            ),
            metadata=self._metadata,
            timeout=CALL_S,
        )
        request = pb.CreateDeploymentRequest(
            deployment_id=job.deployment_id,
            job_id=job.job_id,
            name="actor",
            spec=pb.DeploymentSpec(role="actor", backend="noop"),
        )
        await stub.CreateDeployment(request, metadata=self._metadata, timeout=CALL_S)

    @contextlib.asynccontextmanager
    async def streaming(self) -> AsyncIterator[None]:
        """Keep a stream of operations open on each connection."""
        self._streams = [Stream(stub.Operate(metadata=self._metadata)) for stub in self._stubs]
        async with asyncio.TaskGroup() as group:
            readers = [group.create_task(stream.read()) for stream in self._streams]
            yield
            for reader in readers:
                reader.cancel()

    async def send(
        self, operation: ops.Operation, *, over: int
    ) -> asyncio.Future[ops.OperationResult]:
        """Submit an operation over one of the connections."""
        return await self._streams[over].send(operation)

    async def call(self, index: int) -> None:
        """Run one no-op of job `index`; acknowledge now and then, as the SDK does."""
        job, stub = self.jobs[index], self._stubs[index]
        operation = job.next()
        async with asyncio.timeout(CALL_S):
            result = await (await self._streams[index].send(operation))
        if result.HasField("error"):
            raise RuntimeError(f"{result.error.code}: {result.error.message}")
        job.unfinished.discard(operation.seq)
        if operation.seq % ACK_EVERY == 0:
            acks = pb.KeepAliveRequest(
                job_id=job.job_id, acks={job.deployment_id: job.acknowledged}
            )
            await stub.KeepAlive(acks, metadata=self._metadata, timeout=CALL_S)


def free_port() -> int:
    """Return a port of loopback nobody listens on now."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port: int = found.getsockname()[1]
        return port


@contextlib.contextmanager
def service(*, devices: int, scheduler_listen: str) -> Iterator[dict[str, Any]]:
    """Run `plexctl up` with one node of `devices` virtual devices; yield its card."""
    listed = ", ".join(['{ kind = "train", bytes_total = 1048576 }'] * devices)
    with tempfile.TemporaryDirectory(prefix="plex-bench-") as scratch:
        home = Path(scratch)
        (home / "cluster.toml").write_text(
            f'state_dir = "{home}/state"\nlisten = "127.0.0.1:0"\n'
            f'scheduler_listen = "{scheduler_listen}"\n'
            f'[[nodes]]\nnode_id = "virtual"\ndevices = [{listed}]\n'
        )
        command = [sys.executable, "-m", "plexsvc.cli.main", "up", "--config"]
        with (home / "up.log").open("wb") as log:
            running = subprocess.Popen(
                [*command, str(home / "cluster.toml")], stdout=log, stderr=log
            )
        try:
            yield _card(home, running)
        finally:
            running.terminate()
            running.wait(timeout=60)


def _card(home: Path, running: subprocess.Popen[bytes]) -> dict[str, Any]:
    path, deadline = home / "state" / "cluster.json", time.monotonic() + BOOT_S
    while not path.exists():
        if running.poll() is not None or time.monotonic() > deadline:
            sys.exit(f"plexctl up did not come up:\n{(home / 'up.log').read_text()[-3000:]}")
        time.sleep(0.1)  # noqa: TID251 - waits for another process
    card: dict[str, Any] = json.loads(path.read_text())
    return {**card, "keys": keys_file(home / "state")}


@contextlib.contextmanager
def router_apart(scheduler: str, *, token: str, keys: Path) -> Iterator[tuple[str, int]]:
    """Run a router process before `scheduler`; yield its address and process id."""
    text = f'scheduler = "{scheduler}"\nlisten = "127.0.0.1:0"\nkeys_file = "{keys}"\n'
    text += f'[tokens]\n"{token}" = "default"\n'
    with tempfile.NamedTemporaryFile("w", suffix=".toml") as config:
        config.write(text)
        config.flush()
        command = [sys.executable, "-m", "plexsvc.router.main", "--config", config.name]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as running:
            try:
                assert running.stdout is not None
                yield json.loads(running.stdout.readline())["address"], running.pid
            finally:
                running.terminate()


@dataclass(slots=True)
class Phase:
    """One way to make the calls, and what it took."""

    name: str
    call: load.Call
    p50_ms: list[float] = field(default_factory=list)
    p99_ms: list[float] = field(default_factory=list)
    saturated_per_s: list[float] = field(default_factory=list)
    busy_cores: list[float] = field(default_factory=list)
    cpu_ms: dict[str, list[float]] = field(default_factory=dict)

    async def run(self, parts: Parts, *, seconds: float, seed: int, jobs: int) -> None:
        """Measure once more."""
        worked = parts.worked_ms()
        busy_s, began_s = load.busy_s(), time.monotonic()
        found = await load.open_loop(
            self.call, jobs=jobs, rate_hz=RATE_HZ, seconds=seconds, seed=seed
        )
        self.busy_cores.append((load.busy_s() - busy_s) / (time.monotonic() - began_s))
        for name, before_ms in worked.items():
            took_ms = parts.worked_ms()[name] - before_ms
            self.cpu_ms.setdefault(name, []).append(took_ms / len(found))
        self.p50_ms.append(load.percentile(found, 0.5))
        self.p99_ms.append(load.percentile(found, 0.99))
        self.saturated_per_s.append(await load.saturate(self.call, jobs=jobs, seconds=seconds / 2))

    def figures(self) -> dict[str, object]:
        """Return what was found."""
        return {
            "p50_ms": round(statistics.median(self.p50_ms), 2),
            "p99_ms": round(statistics.median(self.p99_ms), 2),
            "saturated_per_s": round(statistics.median(self.saturated_per_s)),
            "busy_cores": round(statistics.median(self.busy_cores), 2),
            "cpu_ms": {
                name: round(statistics.median(found), 2) for name, found in self.cpu_ms.items()
            },
            "p50_ms_of_rounds": [round(found, 2) for found in self.p50_ms],
            "p99_ms_of_rounds": [round(found, 2) for found in self.p99_ms],
        }


@dataclass(frozen=True, slots=True)
class Parts:
    """The processes whose work is told apart."""

    pids: dict[str, list[int]]

    @classmethod
    def of(cls, *, control: int, router: int) -> Parts:
        """Return the parts of a running service and of everything else this process started."""
        here = os.getpid()
        node = load.family(control)
        others = set(load.family(here)) - {control, router, *node}
        pids = {"client": [here], "router": [router], "control": [control], "node": node}
        return cls(pids | {"bare": sorted(others)})

    def worked_ms(self) -> dict[str, float]:
        """Return what each part has worked so far."""
        return {name: load.worked_ms(pids) for name, pids in self.pids.items()}


async def measure(
    addresses: dict[str, str],
    *,
    token: str,
    pids: dict[str, int],
    jobs: int,
    rounds: int,
    seconds: float,
) -> dict[str, dict[str, Any]]:
    """Return the figures of every phase, by its name in `addresses`, and of the disk."""
    made = [NoopJob(job_id, new_deployment_id(job_id, "actor")) for job_id in _ids(jobs)]
    async with contextlib.AsyncExitStack() as stack:
        channels = {
            name: await stack.enter_async_context(bare_chain.clients(address, jobs))
            for name, address in addresses.items()
        }
        embedded = Service(channels["embedded"], token=token, jobs=made)
        apart = Service(channels["apart"], token=token, jobs=made)
        for index in range(jobs):
            await embedded.deploy(index)
        await stack.enter_async_context(embedded.streaming())
        await stack.enter_async_context(apart.streaming())
        phases = [
            Phase("embedded", embedded.call),
            Phase("bare_2", bare_chain.bare_call(channels["bare_2"])),
            Phase("apart", apart.call),
            Phase("bare_3", bare_chain.bare_call(channels["bare_3"])),
        ]
        for phase in phases:
            await load.open_loop(phase.call, jobs=jobs, rate_hz=RATE_HZ, seconds=1, seed=0)
        await load.settle()
        parts = Parts.of(**pids)
        syncs: list[float] = []
        for turn in range(rounds):
            syncs += load.sync_times(SYNCS)
            for phase in phases:
                await phase.run(parts, seconds=seconds, seed=turn, jobs=jobs)
    sync = {
        "p50_ms": round(load.percentile(syncs, 0.5), 2),
        "p99_ms": round(load.percentile(syncs, 0.99), 2),
    }
    return {phase.name: phase.figures() for phase in phases} | {"sync": sync}


def _ids(count: int) -> list[str]:
    return [new_job_id() for _ in range(count)]


def summary(found: dict[str, dict[str, Any]]) -> dict[str, object]:
    """Return each mode beside its bare chain and its targets."""
    report: dict[str, object] = dict(found)
    for mode, bare in (("embedded", "bare_2"), ("apart", "bare_3")):
        ours, theirs, target = found[mode], found[bare], TARGETS[mode]
        ratios = {
            "p50": round(ours["p50_ms"] / theirs["p50_ms"], 2),
            "p99": round(ours["p99_ms"] / theirs["p99_ms"], 2),
            "saturated": round(ours["saturated_per_s"] / theirs["saturated_per_s"], 2),
        }
        is_met = {
            "p50": ours["p50_ms"] <= target["p50_ms"],
            "p99": ours["p99_ms"] <= target["p99_ms"],
            "p50_ratio": ratios["p50"] <= 2,
            "p99_ratio": ratios["p99"] <= 2,
            "saturated": ratios["saturated"] >= 0.5,
        }
        report[f"{mode}_to_bare"] = ratios
        report[f"{mode}_is_met"] = is_met
    return report


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=JOBS)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=4.0)
    arguments = parser.parse_args()
    jobs = arguments.jobs
    scheduler = f"127.0.0.1:{free_port()}"
    with (
        service(devices=jobs, scheduler_listen=scheduler) as card,
        router_apart(scheduler, token=card["token"], keys=card["keys"]) as (apart, router_pid),
        bare_chain.chain(middles=1, workers=jobs) as bare_2,
        bare_chain.chain(middles=2, workers=jobs) as bare_3,
    ):
        addresses = {
            "embedded": card["address"],
            "apart": apart,
            "bare_2": bare_2,
            "bare_3": bare_3,
        }
        found = loops.run(
            measure(
                addresses,
                token=card["token"],
                pids={"control": card["pid"], "router": router_pid},
                jobs=jobs,
                rounds=arguments.rounds,
                seconds=arguments.seconds,
            )
        )
    print(
        json.dumps(
            {
                "benchmark": "noop_latency",
                "command": "python -m benchmarks.noop_latency",
                "label": f"{jobs} jobs x {RATE_HZ} operations/s, noop backend, virtual groups",
                **summary(found),
            }
        )
    )


if __name__ == "__main__":
    main()
