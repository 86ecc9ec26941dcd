"""Throughput of a rollout manager: tokens that one process on one core records and relays.

    python -m benchmarks.manager_throughput --samples 256

Three processes: an instance that sends deltas of two tokens as fast as they are taken, a manager
(`plexsvc.rollout.main`) held to one core, and this client, which reads the stream. gRPC is on both
sides of the manager. A second generate is sent at a pace; each of its tokens carries when it was
sent, so the client sees what the manager adds, of which gathering frames is `rollout.frame_us`. The
bound beside it is the record alone: the same deltas added and sealed in this process.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path

from plexclient.wire.v1 import (
    common_pb2,
    operations_pb2,
    rollout_pb2,
    service_pb2,
    worker_pb2,
    worker_pb2_grpc,
)
from plexsvc.ids import new_operation_id
from plexsvc.node import toml
from plexsvc.rollout.config import ManagerConfig
from plexsvc.rollout.recordfiles import RecordFile
from plexsvc.rollout.records import OperationRecord
from plexsvc.rpc import loops
from plexsvc.rpc.channels import listen, new_server, open_channel
from plexsvc.rpc.keys import ClusterKeys, keep_keys, read_keys
from plexsvc.rpc.services import add_service

FENCE = common_pb2.Fence(scheduler_epoch=1, lease_no=1, incarnation=1)
EACH = 2
"""Tokens of a delta."""
STEP_S = 0.05
"""Between two deltas of a sample in the paced generate: 40 tokens a second of each."""
PACED = 7
"""The seed that asks for the pace."""
CYCLE_US = 1 << 31


def now() -> int:
    return time.monotonic_ns() // 1000 % CYCLE_US


def delta(
    prompt_index: int, position: int, *, last: bool, stamp: int
) -> operations_pb2.SampleDelta:
    made = operations_pb2.SampleDelta(
        prompt_index=prompt_index,
        position=position,
        token_ids=[stamp] * EACH,
        logprobs=[-1.0] * EACH,
        versions=[operations_pb2.VersionSpan(start=position, end=position + EACH)],
    )
    if last:
        made.finish_reason = operations_pb2.FINISH_REASON_LENGTH
    return made


# -- the instance


async def generate(request: rollout_pb2.InstanceGenerateRequest) -> AsyncGenerator[bytes]:
    wanted = [one.prompt_index for one in request.requests]
    sampling = request.requests[0].sampling
    is_paced = sampling.min_tokens == PACED

    def frame(position: int) -> bytes:
        last = position + EACH >= sampling.max_tokens
        deltas = [delta(one, position, last=last, stamp=now()) for one in wanted]
        return rollout_pb2.InstanceFrame(deltas=deltas).SerializeToString()

    positions = range(0, sampling.max_tokens, EACH)
    ready = [] if is_paced else [frame(position) for position in positions]
    for number, position in enumerate(positions):
        if is_paced:
            await asyncio.sleep(STEP_S)
        yield ready[number] if ready else frame(position)


async def instance(address: str, keys: ClusterKeys) -> None:
    async def stats(*_: object) -> rollout_pb2.InstanceStats:
        return rollout_pb2.InstanceStats()

    async def describe(*_: object) -> worker_pb2.DescribeReply:
        return worker_pb2.DescribeReply(vocab_size=CYCLE_US, max_sequence_length=1 << 20)

    server = new_server(keys)
    add_service(
        server,
        rollout_pb2.DESCRIPTOR.services_by_name["RolloutInstance"],
        calls={"Stats": stats},
        streams={"Generate": lambda request, _: generate(request)},
    )
    worker = worker_pb2.DESCRIPTOR.services_by_name["Worker"]
    add_service(server, worker, calls={"Describe": describe})
    listen(server, address, keys, key="listen")
    await server.start()
    print(json.dumps({"address": address}), flush=True)
    await server.wait_for_termination()


# -- the client


def operation(samples: int, tokens: int, *, paced: bool) -> operations_pb2.Operation:
    sampling = operations_pb2.SamplingParams(
        n=1, max_tokens=tokens, temperature=1.0, min_tokens=PACED if paced else 0
    )
    prompts = [operations_pb2.Prompt(token_ids=[3, 4, 5])] * samples
    return operations_pb2.Operation(
        operation_id=new_operation_id(),
        job_id="job",
        deployment_id="rollout",
        seq=1,  # one without a number is a turn
        generate=operations_pb2.Generate(prompts=prompts, sampling=sampling),
    )


async def execute(
    stub: worker_pb2_grpc.WorkerAsyncStub, given: operations_pb2.Operation, **more: object
) -> None:
    request = worker_pb2.ExecuteRequest(fence=FENCE, wpg_id="wpg", operation=given, **more)
    reply = await stub.Execute(request, timeout=300)
    assert not reply.result.HasField("error"), reply.result.error


async def run(
    stub: worker_pb2_grpc.WorkerAsyncStub, given: operations_pb2.Operation
) -> tuple[int, list[float]]:
    """Return how many tokens came, and how long each paced one was under way, in milliseconds."""
    tokens, late_ms = 0, []
    is_paced = given.generate.sampling.min_tokens == PACED
    async with asyncio.TaskGroup() as group:
        group.create_task(execute(stub, given))
        request = worker_pb2.StreamFramesRequest(operation_id=given.operation_id)
        async for frame in stub.StreamFrames(request, timeout=300):
            at_us = now()
            for one in frame.deltas:
                tokens += len(one.token_ids)
                if is_paced:
                    late_ms += [(at_us - stamp) % CYCLE_US / 1e3 for stamp in one.token_ids]
    return tokens, late_ms


def processor_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def peak_mib(pid: int) -> int:
    status = Path(f"/proc/{pid}/status").read_text()
    (line,) = [line for line in status.splitlines() if line.startswith("VmHWM")]
    return int(line.split()[1]) >> 10


def record_alone(samples: int, tokens: int, place: Path) -> float:
    """Return the tokens a second of processor time that a record takes."""
    given = operation(samples, tokens, paced=False)
    made = OperationRecord(given, file=RecordFile(place, given))
    made.open_samples(given)
    steps = [
        [delta(one, at, last=at + EACH >= tokens, stamp=1) for one in range(samples)]
        for at in range(0, tokens, EACH)
    ]
    started_s = time.process_time()
    for number, deltas in enumerate(steps):
        for one in deltas:
            is_last = number == len(steps) - 1
            made.add((one.prompt_index, 0), one, known=0, is_last=is_last)
        made.seal()
    took_s = time.process_time() - started_s
    made.discard()
    return samples * tokens / took_s


async def measure(args: argparse.Namespace) -> dict[str, object]:
    async with AsyncExitStack() as stack:
        place = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        keys, records = keep_keys(place / "keys.json"), place / "records"
        records.mkdir()
        config = replace(
            ManagerConfig(max_pending=args.samples),
            listen=f"unix:{place}/manager.sock",
            keys_file=place / "keys.json",
            records_dir=records,
        )
        (place / "manager.toml").write_text(toml.dumps(config))
        manager = _start("plexsvc.rollout.main", "--config", str(place / "manager.toml"))
        stack.callback(manager.kill)
        engine = _start("benchmarks.manager_throughput", "--instance", str(place))
        stack.callback(engine.kill)
        for process in (manager, engine):
            assert process.stdout is not None
            await asyncio.to_thread(process.stdout.readline)
        for thread in os.listdir(f"/proc/{manager.pid}/task"):
            os.sched_setaffinity(int(thread), {0})
        channel = await stack.enter_async_context(open_channel(config.listen, keys))
        stub = worker_pb2_grpc.WorkerStub(channel)
        begin = operations_pb2.Operation(
            operation_id=new_operation_id(),
            job_id="job",
            deployment_id="rollout",
            initialize=operations_pb2.Initialize(),
        )
        told = service_pb2.Deployment(deployment_id="rollout", vocab_size=CYCLE_US)
        at = [f"unix:{place}/instance.sock"]
        await execute(stub, begin, deployment=told, instance_addresses=at)
        await run(stub, operation(args.samples, 32, paced=False))
        before_mib = peak_mib(manager.pid)
        before_s, started_s = processor_s(manager.pid), time.monotonic()
        tokens, _ = await run(stub, operation(args.samples, args.tokens, paced=False))
        wall_s = time.monotonic() - started_s
        used_s = processor_s(manager.pid) - before_s
        record_mib = peak_mib(manager.pid) - before_mib
        _, late_ms = await run(stub, operation(args.samples, 160, paced=True))
        late_ms.sort()
        return {
            "samples": args.samples,
            "tokens": tokens,
            "tokens_per_s": round(tokens / wall_s),
            "tokens_per_processor_s": round(tokens / used_s),
            "record_alone_per_processor_s": round(record_alone(args.samples, 512, records)),
            "manager_mib": before_mib,
            "record_mib": record_mib,
            "added_ms_p50": round(late_ms[len(late_ms) // 2], 1),
            "added_ms_p99": round(late_ms[len(late_ms) * 99 // 100], 1),
            "paced_tokens_per_s": round(args.samples * EACH / STEP_S),
            "frame_ms": config.frame_us / 1000,
            "cores": os.cpu_count(),
            "load": os.getloadavg()[0],
        }


def _start(module: str, *args: str) -> subprocess.Popen[bytes]:
    argv = [sys.executable, "-m", module, *args]
    return subprocess.Popen(argv, stdout=subprocess.PIPE)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--samples", type=int, default=256)
    parser.add_argument("--tokens", type=int, default=8192, help="of each sample")
    parser.add_argument("--instance", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.instance:
        keys = read_keys(args.instance / "keys.json")
        loops.run(instance(f"unix:{args.instance}/instance.sock", keys))
    else:
        print(json.dumps({"manager_throughput": loops.run(measure(args))}))


if __name__ == "__main__":
    main()
