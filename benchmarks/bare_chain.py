"""A bare gRPC chain: what the hops of an operation cost when nobody does anything.

    python -m benchmarks.bare_chain

Each hop is a process that parses an `Operation`, passes it on with a deadline and hands the
`OperationResult` back; the last is one of as many worker processes as there are jobs. Run as a
command it measures itself; `chain` gives other benchmarks a chain of the same hops in the same run.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager

import grpc
import grpc.aio

from benchmarks import load
from plexclient.ids import new_operation_id
from plexclient.wire.channels import CHANNEL_OPTIONS
from plexclient.wire.v1 import operations_pb2 as ops
from plexsvc.rpc import loops
from plexsvc.rpc.channels import SERVER_OPTIONS, open_channel
from plexsvc.tether import die_with_parent

SERVICE = "bench.Chain"
METHOD = f"/{SERVICE}/Submit"
DEADLINE_S = 30.0


def job_of(operation: ops.Operation) -> int:
    """Return the number of the job an operation is of: the end of its deployment's id."""
    return int(operation.deployment_id.rpartition("-")[2])


def callers(
    channels: Sequence[grpc.aio.Channel], *, method: str = METHOD
) -> list[grpc.aio.UnaryUnaryMultiCallable]:
    """Return the method on each channel."""
    return [
        channel.unary_unary(
            method,
            request_serializer=ops.Operation.SerializeToString,
            response_deserializer=ops.OperationResult.FromString,
        )
        for channel in channels
    ]


async def serve_hop(targets: Sequence[str]) -> None:
    """Serve one hop that passes on to `targets` by job; print its address; until killed."""
    channels = [open_channel(target, None) for target in targets]
    onward = callers(channels)

    async def submit(operation: ops.Operation, _: grpc.aio.ServicerContext) -> ops.OperationResult:
        if not onward:
            return ops.OperationResult(
                operation_id=operation.operation_id, state=ops.OPERATION_STATE_ANSWERED
            )
        return await onward[job_of(operation) % len(onward)](operation, timeout=DEADLINE_S)

    handler = grpc.unary_unary_rpc_method_handler(
        submit,
        request_deserializer=ops.Operation.FromString,
        response_serializer=ops.OperationResult.SerializeToString,
    )
    server = grpc.aio.server(options=list(SERVER_OPTIONS))
    server.add_generic_rpc_handlers(
        (grpc.method_handlers_generic_handler(SERVICE, {"Submit": handler}),)
    )
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    os.write(1, f"127.0.0.1:{port}\n".encode())  # whole lines, though 64 workers share the pipe
    await server.wait_for_termination()


def serve_workers(count: int) -> None:
    """Fork `count` workers, before gRPC is initialised; each prints its address."""
    parent = os.getpid()
    for _ in range(count):
        if os.fork() == 0:
            die_with_parent(parent)
            loops.run(serve_hop([]))
            os._exit(0)
    for _ in range(count):
        os.wait()


@contextlib.contextmanager
def process(*arguments: str, addresses: int) -> Iterator[list[str]]:
    """Run a part of the chain; yield the addresses it prints."""
    command = [sys.executable, "-m", "benchmarks.bare_chain", *arguments]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as running:
        try:
            assert running.stdout is not None
            yield [running.stdout.readline().strip() for _ in range(addresses)]
        finally:
            running.kill()


@contextlib.contextmanager
def chain(*, middles: int, workers: int) -> Iterator[str]:
    """Run client → `middles` hops → one of `workers`; yield the first hop's address."""
    with contextlib.ExitStack() as stack:
        targets = stack.enter_context(process("workers", str(workers), addresses=workers))
        for _ in range(middles):
            targets = stack.enter_context(process("hop", *targets, addresses=1))
        yield targets[0]


@asynccontextmanager
async def clients(
    address: str, count: int, *, more: Sequence[tuple[str, int]] = ()
) -> AsyncIterator[list[grpc.aio.Channel]]:
    """Yield `count` connections of their own, as many clients would have, with `more` options."""
    options = [
        *{**dict(CHANNEL_OPTIONS), "grpc.use_local_subchannel_pool": 1, **dict(more)}.items()
    ]
    async with AsyncExitStack() as stack:
        yield [
            await stack.enter_async_context(grpc.aio.insecure_channel(address, options=options))
            for _ in range(count)
        ]


def bare_call(channels: Sequence[grpc.aio.Channel]) -> load.Call:
    """Return the call that sends a no-op of job `i` down the chain."""
    methods = callers(channels)

    async def call(job: int) -> None:
        operation = ops.Operation(
            operation_id=new_operation_id(),
            job_id=f"job-{job}",
            deployment_id=f"job/actor-{job}",
            seq=1,
            noop=ops.Noop(),
        )
        await methods[job](operation, timeout=DEADLINE_S)

    return call


async def measure(*, middles: int, jobs: int, seconds: float) -> dict[str, float]:
    """Return latencies and saturated throughput of the chain alone."""
    with chain(middles=middles, workers=jobs) as address:
        async with clients(address, jobs) as channels:
            call = bare_call(channels)
            await load.open_loop(call, jobs=jobs, rate_hz=5, seconds=1, seed=0)
            found = await load.open_loop(call, jobs=jobs, rate_hz=5, seconds=seconds, seed=1)
            rate = await load.saturate(call, jobs=jobs, seconds=seconds / 2)
    return {
        "p50_ms": round(load.percentile(found, 0.5), 2),
        "p99_ms": round(load.percentile(found, 0.99), 2),
        "saturated_per_s": round(rate),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parts = parser.add_subparsers(dest="part")
    parts.add_parser("workers").add_argument("count", type=int)
    parts.add_parser("hop").add_argument("targets", nargs="*")
    run = parts.add_parser("run")
    run.add_argument("--middles", type=int, default=2)
    run.add_argument("--jobs", type=int, default=64)
    run.add_argument("--seconds", type=float, default=8)
    arguments = parser.parse_args()
    match arguments.part:
        case "workers":
            serve_workers(arguments.count)
        case "hop":
            loops.run(serve_hop(arguments.targets))
        case "run":
            found = loops.run(
                measure(middles=arguments.middles, jobs=arguments.jobs, seconds=arguments.seconds)
            )
            command = f"python -m benchmarks.bare_chain run --middles {arguments.middles}"
            print(json.dumps({"benchmark": "bare_chain", "command": command, **found}))
        case _:
            parser.error("name a part: run, workers or hop")


if __name__ == "__main__":
    main()
