"""The router as a process of its own: says where it is, serves, stops when told."""

from __future__ import annotations

import asyncio
import json
import signal
import sys
from pathlib import Path

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from plexclient.wire.v1 import operations_pb2 as ops
from plexclient.wire.v1 import service_pb2 as pb
from plexsvc.rpc.channels import open_channel
from tests.fakes import fake_scheduler
from tests.fakes.fake_scheduler import FakeScheduler
from tests.rigs.keys import keys_file
from tests.rigs.router_rig import JOB, RawClient, actor, batch, metadata

pytestmark = [pytest.mark.process, pytest.mark.slow]

COMMAND = (sys.executable, "-m", "plexsvc.router.main", "--config")


async def start(config: Path, text: str) -> asyncio.subprocess.Process:
    config.write_text(text)  # noqa: ASYNC240 - a few bytes, before anything runs
    pipe = asyncio.subprocess.PIPE
    return await asyncio.create_subprocess_exec(  # noqa: TID251 - no gRPC runs yet
        *COMMAND, str(config), stdout=pipe, stderr=pipe
    )


async def test_a_router_apart_serves_its_scheduler_and_stops_on_sigterm(tmp_path: Path) -> None:
    fake = FakeScheduler()
    fake.jobs[JOB] = pb.Job(job_id=JOB, tenant="acme")
    fake.deploy(actor())
    keys = f'keys_file = "{keys_file(tmp_path)}"\n'
    async with fake_scheduler.serve(fake) as target:
        text = f'scheduler = "{target}"\nlisten = "127.0.0.1:0"\n{keys}[tokens]\nsecret = "acme"\n'
        process = await start(tmp_path / "router.toml", text)
        try:
            assert process.stdout is not None
            address = json.loads(await process.stdout.readline())["address"]
            async with open_channel(address, None) as channel:
                client = RawClient(channel)
                operation = client.operation(
                    batch([4, 5]), forward_backward=ops.ForwardBackward(loss="ppo")
                )
                result = await client.submit(operation)
                bad = client.operation(forward_backward=ops.ForwardBackward(loss="pp0"))
                refused = await client.submit(bad)
                jobs = await client.stub.ListJobs(
                    pb.ListJobsRequest(), metadata=metadata(), timeout=60
                )
        finally:
            process.send_signal(signal.SIGTERM)
            await process.communicate()
    assert process.returncode == 0
    assert result.state == ops.OPERATION_STATE_ANSWERED
    assert refused.error.code == "unknown_loss"
    assert [job.job_id for job in jobs.jobs] == [JOB]
    assert fake.effects == [operation.operation_id]


async def test_a_probe_without_a_token_learns_whether_the_scheduler_is_heard(
    tmp_path: Path,
) -> None:
    states = health_pb2.HealthCheckResponse
    keys = f'keys_file = "{keys_file(tmp_path)}"\n'
    async with fake_scheduler.serve(FakeScheduler()) as target:
        text = f'scheduler = "{target}"\nlisten = "127.0.0.1:0"\n{keys}'
        process = await start(tmp_path / "router.toml", text)
        assert process.stdout is not None
        address = json.loads(await process.stdout.readline())["address"]
        channel = open_channel(address, None)
        stub = health_pb2_grpc.HealthStub(channel)

        async def told(service: str = "") -> int:
            request = health_pb2.HealthCheckRequest(service=service)
            return (await stub.Check(request, timeout=60)).status

        assert await told() == states.SERVING
        assert await told("plexsvc.v1.Router") == states.SERVING
        with pytest.raises(grpc.aio.AioRpcError) as unknown:
            await told("plexsvc.v1.Rooter")
        assert unknown.value.code() is grpc.StatusCode.NOT_FOUND
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await stub.Watch(health_pb2.HealthCheckRequest(), timeout=60).read()
        assert refused.value.code() is grpc.StatusCode.UNAUTHENTICATED
    async with asyncio.timeout(60):
        while await told() != states.NOT_SERVING:  # noqa: ASYNC110 - it tells nobody
            await asyncio.sleep(0.1)
    await channel.close()
    process.send_signal(signal.SIGTERM)
    await process.communicate()


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ('listen = "127.0.0.1:0"\n', "scheduler"),
        (
            'scheduler = "127.0.0.1:1"\nlisten = "999.1.1.1:1"\nkeys_file = "keys.json"\n',
            "router.listen",
        ),
        ("max_chunks = 3\n", "max_chunks"),
    ],
)
async def test_a_configuration_that_cannot_serve_ends_with_two_and_says_why(
    tmp_path: Path, text: str, word: str
) -> None:
    text = text.replace("keys.json", str(keys_file(tmp_path)))
    process = await start(tmp_path / "router.toml", text)
    _, stderr = await process.communicate()
    assert process.returncode == 2
    assert word in stderr.decode()
