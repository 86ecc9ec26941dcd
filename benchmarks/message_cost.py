"""What gRPC alone takes for a message there and back: calls or a stream, two ways to poll.

    python -m benchmarks.message_cost [--jobs 64] [--rounds 4]

A server process echoes bytes, 64 connections send it 5 messages a second each (open loop), as
`noop_latency` has it. `calls`: a unary call a message. `streams`: a message on an open stream, read
and written by the handler itself. The server polls in gRPC's event engine's threads (its default)
or in the threads that wait (`plexsvc/__init__.py`). Rounds alternate; figures are medians.
`wakeups`: voluntary context switches of the server, a message. Prints one JSON line.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import statistics
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import grpc
import grpc.aio

from benchmarks import bare_chain, load, service
from plexsvc.rpc import loops
from plexsvc.rpc.channels import SERVER_OPTIONS

SERVICE = "bench.Echo"
MESSAGE = bytes(150)
"""As long as a no-op operation."""

RATE_HZ = 5
CALL_S = 30.0
POLLING = {"event_engine": "", "waiting_threads": os.environ["GRPC_EXPERIMENTS"]}  # noqa: TID251 - told to the servers


async def serve() -> None:
    """Echo until killed; print the address."""

    async def call(message: bytes, _: grpc.aio.ServicerContext) -> bytes:
        return message

    async def stream(_: object, context: grpc.aio.ServicerContext) -> None:
        while (message := await context.read()) is not grpc.aio.EOF:
            await context.write(message)

    server = grpc.aio.server(options=list(SERVER_OPTIONS))
    handlers = {
        "Call": grpc.unary_unary_rpc_method_handler(call),
        "Stream": grpc.stream_stream_rpc_method_handler(stream),
    }
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, handlers),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    print(f"127.0.0.1:{port}", flush=True)
    await server.wait_for_termination()


@contextlib.contextmanager
def serving(experiments: str) -> Iterator[tuple[str, int]]:
    """Run a server; yield its address and process id."""
    command = [sys.executable, "-m", "benchmarks.message_cost", "--serve"]
    env = {**os.environ, "GRPC_EXPERIMENTS": experiments}  # noqa: TID251 - a child's environment
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=env) as running:
        try:
            assert running.stdout is not None
            yield running.stdout.readline().strip(), running.pid
        finally:
            running.kill()


def wakeups(pid: int) -> int:
    """Return how often the threads of a process have waited and been woken."""
    found = 0
    for status in Path(f"/proc/{pid}/task").glob("*/status"):
        with contextlib.suppress(OSError):
            lines = dict(line.split(":", 1) for line in status.read_text().splitlines())
            found += int(lines["voluntary_ctxt_switches"])
    return found


def calls(channels: list[grpc.aio.Channel]) -> load.Call:
    """Return the echo as a call of its own."""
    methods = [channel.unary_unary(f"/{SERVICE}/Call") for channel in channels]

    async def call(job: int) -> None:
        await methods[job](MESSAGE, timeout=CALL_S)

    return call


def streams(channels: list[grpc.aio.Channel]) -> load.Call:
    """Return the echo as a message on a stream of each channel."""
    opened = [channel.stream_stream(f"/{SERVICE}/Stream")() for channel in channels]
    turns = [asyncio.Lock() for _ in channels]

    async def call(job: int) -> None:
        async with turns[job]:
            await opened[job].write(MESSAGE)
            await opened[job].read()

    return call


class Phase:
    """One way to send to one server, and what it took."""

    def __init__(self, call: load.Call, *, pid: int) -> None:
        self._call = call
        self._pid = pid
        self._found: list[dict[str, float]] = []

    async def warm_up(self, *, jobs: int) -> None:
        """Open what is opened once."""
        await load.open_loop(self._call, jobs=jobs, rate_hz=RATE_HZ, seconds=1, seed=0)

    async def run(self, *, jobs: int, seconds: float, seed: int) -> None:
        """Measure once more."""
        server_ms, client_ms = load.worked_ms([self._pid]), load.worked_ms([os.getpid()])
        woken = wakeups(self._pid)
        times = await load.open_loop(
            self._call, jobs=jobs, rate_hz=RATE_HZ, seconds=seconds, seed=seed
        )
        count = len(times)
        self._found.append(
            {
                "p50_ms": load.percentile(times, 0.5),
                "p99_ms": load.percentile(times, 0.99),
                "server_cpu_ms": (load.worked_ms([self._pid]) - server_ms) / count,
                "client_cpu_ms": (load.worked_ms([os.getpid()]) - client_ms) / count,
                "wakeups": (wakeups(self._pid) - woken) / count,
            }
        )

    def figures(self) -> dict[str, float]:
        """Return the medians over rounds."""
        return {
            name: round(statistics.median(found[name] for found in self._found), 2)
            for name in self._found[0]
        }


@contextlib.asynccontextmanager
async def phases(jobs: int) -> AsyncIterator[dict[str, Phase]]:
    """Yield every way over every server."""
    async with contextlib.AsyncExitStack() as stack:
        made = {}
        for polling, experiments in POLLING.items():
            address, pid = stack.enter_context(serving(experiments))
            for way in (calls, streams):
                channels = await stack.enter_async_context(bare_chain.clients(address, jobs))
                made[f"{way.__name__}/{polling}"] = Phase(way(channels), pid=pid)
        yield made


async def measure(*, jobs: int, rounds: int, seconds: float) -> dict[str, dict[str, float]]:
    """Return the figures of every phase."""
    async with phases(jobs) as made:
        for phase in made.values():
            await phase.warm_up(jobs=jobs)
        await load.settle()
        for turn in range(rounds):
            for phase in made.values():
                await phase.run(jobs=jobs, seconds=seconds, seed=turn)
    return {name: phase.figures() for name, phase in made.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--seconds", type=float, default=4.0)
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.serve:
        loops.run(serve())
        return
    jobs, rounds, seconds = arguments.jobs, arguments.rounds, arguments.seconds
    found = loops.run(measure(jobs=jobs, rounds=rounds, seconds=seconds))
    service.report(benchmark="message_cost", **found)


if __name__ == "__main__":
    main()
