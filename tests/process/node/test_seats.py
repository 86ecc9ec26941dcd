"""Ranks that share an engine: one process for all, which each leaves without the others' harm."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from plexclient.wire.v1 import (
    common_pb2,
    node_pb2,
    rollout_pb2,
    rollout_pb2_grpc,
    worker_pb2,
    worker_pb2_grpc,
)
from plexsvc.errors import ErrorCode
from plexsvc.node.config import DeviceConfig, ImageConfig
from plexsvc.rpc.channels import open_channel
from tests.process.node.conftest import RunningAgent, agent_config, started
from tests.rigs.keys import KEYS
from tests.rigs.processes import is_alive
from tests.rigs.strangers import AGENTS, SERVICES, members_secrets, refusal

pytestmark = pytest.mark.process

IMAGE = ImageConfig(
    name="rollout",
    preload="tests.fakes.fake_preload",
    entrypoint="tests.fakes.fake_shared_engine:main",
)
SEATS = 3


@pytest.fixture
async def agent(tmp_path: Path) -> AsyncIterator[RunningAgent]:
    devices = (DeviceConfig(kind="rollout", bytes_total=1 << 20),) * 4
    async with started(agent_config(tmp_path, devices=devices, images=(IMAGE,))) as running:
        yield running


async def spawn(
    agent: RunningAgent, name: str, *, rank: int = 0, shares: str = "base", incarnation: int = 1
) -> node_pb2.SpawnReply:
    config = {
        "wpg_id": name,
        "rank": rank,
        "incarnation": incarnation,
        "scheduler_epoch": 1,
        "tenant": name,
        "job_id": name,
        "deployment_id": f"{name}/rollout",
        "model": "",
        "device_index": rank,
        "adapter_bytes": SEATS,
    }
    spec = node_pb2.ProcSpec(
        proc_id=f"{name}/{rank}",
        image="rollout",
        config_json=json.dumps(config),
        wpg_id=name,
        rank=rank,
        shares=shares,
    )
    fence = common_pb2.Fence(scheduler_epoch=1, incarnation=incarnation)
    reply = await agent.stub.Spawn(node_pb2.SpawnRequest(fence=fence, spec=spec), timeout=120)
    assert reply.error.code == "", reply.error
    return reply


async def described(address: str) -> worker_pb2.DescribeReply:
    async with open_channel(address, KEYS) as channel:
        request = worker_pb2.DescribeRequest()
        return await worker_pb2_grpc.WorkerStub(channel).Describe(request, timeout=120)


async def serves(address: str) -> bool:
    async with open_channel(address, KEYS) as channel:
        stub = rollout_pb2_grpc.RolloutInstanceStub(channel)
        stats = await stub.Stats(rollout_pb2.InstanceStatsRequest(), timeout=120)
        return not stats.HasField("broken")


async def test_each_has_an_address_and_leaves_alone_and_the_last_ends_the_engine(
    agent: RunningAgent,
) -> None:
    acme, rival = await spawn(agent, "acme"), await spawn(agent, "rival")
    assert acme.pid == rival.pid, "one process"
    assert acme.address != rival.address
    told = [await described(one.address) for one in (acme, rival)]
    assert [one.wpg_id for one in told] == ["acme", "rival"]
    assert told[0].engine == told[1].engine != ""
    procs = (await agent.describe()).procs
    assert [(one.proc_id, one.address) for one in procs] == [
        ("acme/0", acme.address),
        ("rival/0", rival.address),
    ], "the engine itself is nobody's rank"
    again = await spawn(agent, "acme")
    assert again.address == acme.address, "a repeat starts nothing"
    await agent.stop("acme/0")
    left = (await agent.next_event("exited")).exited
    assert (left.proc_id, left.exit_code, left.signal) == ("acme/0", 0, 0)
    assert is_alive(acme.pid)
    assert await serves(rival.address)
    await agent.stop("rival/0")
    assert not is_alive(acme.pid)
    assert not (await agent.describe()).procs


async def test_others_of_its_wpg_and_what_finds_no_seat_get_a_further_engine(
    agent: RunningAgent,
) -> None:
    first = await spawn(agent, "acme")
    assert (await spawn(agent, "acme", rank=1)).pid != first.pid, "it asked for two engines"
    assert (await spawn(agent, "other", shares="another base")).pid != first.pid
    beside = [await spawn(agent, f"tenant-{number}") for number in range(SEATS - 1)]
    assert {one.pid for one in beside} == {first.pid}
    second = await spawn(agent, "late")
    assert second.pid != first.pid


async def test_an_engine_that_is_killed_ends_the_rank_of_each_and_a_new_one_takes_them(
    agent: RunningAgent,
) -> None:
    acme, rival = await spawn(agent, "acme"), await spawn(agent, "rival")
    os.kill(acme.pid, signal.SIGKILL)
    first = await agent.next_event("exited")
    second = await agent.next_event("exited", after=first.index)
    assert {first.exited.proc_id, second.exited.proc_id} == {"acme/0", "rival/0"}
    assert {first.exited.signal, second.exited.signal} == {signal.SIGKILL}
    again = [await spawn(agent, name, incarnation=2) for name in ("acme", "rival")]
    assert again[0].pid == again[1].pid != acme.pid
    assert await serves(again[0].address)
    replaced = await spawn(agent, "acme", incarnation=3)
    assert replaced.pid != again[0].pid, "whoever replaces a rank that hangs kills its engine"
    assert not is_alive(rival.pid)


async def test_an_engine_opens_and_ends_seats_for_members_alone(agent: RunningAgent) -> None:
    taken = await spawn(agent, "acme")
    engine = (await described(taken.address)).engine
    service = SERVICES[AGENTS]
    for method in service.methods:
        for metadata in members_secrets(KEYS).values():
            async with open_channel(engine, None) as channel:
                error = await refusal(channel, service, method, metadata)
            assert error.code is ErrorCode.UNAUTHENTICATED, method.full_name
    assert await serves(taken.address)
