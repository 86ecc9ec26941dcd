"""Router memory while it relays one batch: growth of the router process's resident memory.

    python -m benchmarks.router_memory [--sizes-mib 512 2048]

A router process relays batches of 512 MiB and 2 GiB to a state manager stand-in that throws the
bytes away, reading as fast as they come and then slowly. The router's resident memory is sampled
throughout; the growth over what it had before the batch must stay below 64 MiB. Client, scheduler
stand-in and state manager stand-in live in this process, the router in its own.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import signal
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import grpc
import grpc.aio
import numpy as np

from plexclient.ids import new_operation_id
from plexclient.wire import tensors
from plexclient.wire.v1 import common_pb2, service_pb2_grpc
from plexclient.wire.v1 import service_pb2 as pb
from plexsvc.rpc.channels import listen, new_server, open_channel
from tests.rigs.keys import KEYS, keys_file

MIB = 1 << 20
TOKEN = "bench"
SEQUENCES = 1024
SAMPLE_S = 0.02
TARGET_MIB = 64


@dataclass(slots=True)
class FakeSink:
    """A state manager that throws staged bytes away and a scheduler with one deployment."""

    pause_s: float = 0.0
    received: int = 0
    announced: list[bytes] = field(default_factory=list)
    address: str = ""

    async def stage(self, messages: AsyncIterator[bytes], _: grpc.aio.ServicerContext) -> bytes:
        """Read an upload and forget it."""
        async for message in messages:
            self.received += len(message)
            if self.pause_s:
                await asyncio.sleep(self.pause_s)
        return pb.StageReply().SerializeToString()

    async def get_deployment(
        self, request: pb.GetDeploymentRequest, _: grpc.aio.ServicerContext
    ) -> pb.Deployment:
        """Return the one deployment there is, whoever asks."""
        return pb.Deployment(
            deployment_id=request.deployment_id,
            job_id=request.job_id,
            tenant=request.tenant,
            state="ready",
            spec=pb.DeploymentSpec(role="actor", micro_batch_tokens=1 << 30),
            staging_nodes=[pb.NodeAddress(node_id="n0", state_manager=self.address)],
        )

    async def payload_staged(
        self, request: pb.PayloadStagedRequest, _: grpc.aio.ServicerContext
    ) -> pb.PayloadStagedReply:
        """Note that an upload was announced with the plan of its sequences."""
        assert not request.HasField("error"), request.error
        assert len(request.plan.lengths) == SEQUENCES
        self.announced.append(request.operation_id)
        return pb.PayloadStagedReply()

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[str]:
        """Serve both services on one port."""
        server = new_server(KEYS)
        stage = grpc.stream_unary_rpc_method_handler(self.stage)
        deployment = grpc.unary_unary_rpc_method_handler(
            self.get_deployment,
            request_deserializer=pb.GetDeploymentRequest.FromString,
            response_serializer=pb.Deployment.SerializeToString,
        )
        staged = grpc.unary_unary_rpc_method_handler(
            self.payload_staged,
            request_deserializer=pb.PayloadStagedRequest.FromString,
            response_serializer=pb.PayloadStagedReply.SerializeToString,
        )
        server.add_generic_rpc_handlers(
            (
                grpc.method_handlers_generic_handler("plexsvc.v1.StateManager", {"Stage": stage}),
                grpc.method_handlers_generic_handler(
                    "plexsvc.v1.Scheduler", {"GetDeployment": deployment, "PayloadStaged": staged}
                ),
            )
        )
        self.address = listen(server, "127.0.0.1:0", KEYS, key="sink")
        await server.start()
        try:
            yield self.address
        finally:
            await server.stop(0)


@asynccontextmanager
async def router_process(scheduler: str) -> AsyncIterator[tuple[str, int]]:
    """Run a router apart; yield its address and process id."""
    directory = tempfile.mkdtemp(prefix="plex-bench-")
    text = f"""
keys_file = "{keys_file(Path(directory))}"
scheduler = "{scheduler}"
listen = "127.0.0.1:0"
max_batch_tokens = {1 << 30}
[tokens]
{TOKEN} = "bench"
"""
    with tempfile.NamedTemporaryFile("w", suffix=".toml") as config:
        config.write(text)
        config.flush()
        process = await asyncio.create_subprocess_exec(  # noqa: TID251 - no gRPC runs yet
            *(sys.executable, "-m", "plexsvc.router.main", "--config", config.name),
            stdout=asyncio.subprocess.PIPE,
        )
        try:
            assert process.stdout is not None
            card = json.loads(await process.stdout.readline())
            yield card["address"], process.pid
        finally:
            process.send_signal(signal.SIGTERM)
            await process.wait()


def resident_mib(pid: int) -> float:
    """Return a process's resident memory."""
    status = Path(f"/proc/{pid}/status").read_text()
    line = next(line for line in status.splitlines() if line.startswith("VmRSS"))
    return int(line.split()[1]) / 1024


async def requests(nbytes: int) -> AsyncIterator[pb.StageRequest]:
    """Yield an upload of `nbytes` of zero tokens in `SEQUENCES` sequences."""
    count = nbytes // 4
    bounds = np.linspace(0, count, SEQUENCES + 1).astype(np.int64)
    specs, total = tensors.layout({"cu_seqlens": bounds})
    specs.append(
        common_pb2.TensorSpec(
            name="tokens", dtype="I32", shape=[count], offset=total, nbytes=4 * count
        )
    )
    yield pb.StageRequest(
        header=pb.StageHeader(
            operation_id=new_operation_id(),
            job_id="job-bench",
            deployment_id="job-bench/actor",
            tensors=specs,
            nbytes=total + 4 * count,
        )
    )
    head = tensors.encode({"cu_seqlens": bounds}).data
    yield pb.StageRequest(chunk=common_pb2.Chunk(offset=0, data=head))
    piece = bytes(tensors.CHUNK_BYTES)
    for offset in range(total, total + 4 * count, len(piece)):
        data = piece[: total + 4 * count - offset]
        yield pb.StageRequest(chunk=common_pb2.Chunk(offset=offset, data=data))


async def watch(pid: int, *, stop: asyncio.Event) -> float:
    """Return the most resident memory seen until `stop`."""
    peak = 0.0
    while not stop.is_set():
        peak = max(peak, resident_mib(pid))
        try:
            await asyncio.wait_for(stop.wait(), SAMPLE_S)
        except TimeoutError:
            continue
    return max(peak, resident_mib(pid))


async def relay(stub: service_pb2_grpc.RouterStub, *, nbytes: int, pid: int) -> dict[str, float]:
    """Upload once; return the growth and the rate."""
    before = resident_mib(pid)
    stop = asyncio.Event()
    metadata = (("authorization", f"Bearer {TOKEN}"),)
    async with asyncio.TaskGroup() as group:
        watching = group.create_task(watch(pid, stop=stop))
        started = time.perf_counter()
        reply = await stub.StagePayload(requests(nbytes), metadata=metadata, timeout=600)
        elapsed = time.perf_counter() - started
        stop.set()
    assert not reply.HasField("error"), reply.error
    return {
        "growth_mib": round(watching.result() - before, 1),
        "before_mib": round(before, 1),
        "mib_per_s": round(nbytes / MIB / elapsed, 1),
    }


async def measure(sizes_mib: list[int], *, slow_s: float) -> dict[str, dict[str, float]]:
    """Relay each size with a fast and a slow reader, smallest first, in one router process."""
    sink = FakeSink()
    found: dict[str, dict[str, float]] = {}
    async with (
        sink.serving() as scheduler,
        router_process(scheduler) as (address, pid),
        open_channel(address, None) as channel,
    ):
        stub = service_pb2_grpc.RouterStub(channel)
        await relay(stub, nbytes=MIB, pid=pid)
        for reader, pause_s in (("fast", 0.0), ("slow", slow_s)):
            sink.pause_s = pause_s
            for size in sizes_mib:
                found[f"{size}_mib_{reader}"] = await relay(stub, nbytes=size * MIB, pid=pid)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sizes-mib", type=int, nargs="+", default=[512, 2048])
    parser.add_argument("--slow-ms", type=float, default=3.0, help="pause after each 256 KiB")
    arguments = parser.parse_args()
    found = asyncio.run(measure(arguments.sizes_mib, slow_s=arguments.slow_ms / 1e3))
    worst = max(entry["growth_mib"] for entry in found.values())
    print(
        json.dumps(
            {
                "benchmark": "router_memory",
                "command": "python -m benchmarks.router_memory",
                "worst_growth_mib": worst,
                "target_mib": TARGET_MIB,
                "is_met": worst <= TARGET_MIB,
                **found,
            }
        )
    )


if __name__ == "__main__":
    main()
