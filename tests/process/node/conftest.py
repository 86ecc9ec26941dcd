"""A real node agent with a fake state manager, tiny zygotes, and a client for it."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from plexclient.wire.v1 import common_pb2, node_pb2, node_pb2_grpc
from plexsvc.node import toml
from plexsvc.node.config import AgentConfig, DeviceConfig, ImageConfig
from plexsvc.rpc.channels import open_channel
from tests.rigs.keys import KEYS, keys_file

ROOT = Path(__file__).parents[3]
IMAGE = ImageConfig(
    name="train", preload="tests.fakes.fake_preload", entrypoint="tests.fakes.fake_rank:main"
)


@dataclass(slots=True)
class RunningAgent:
    """An agent process and a stub to it."""

    process: asyncio.subprocess.Process
    stub: node_pb2_grpc.NodeAsyncStub
    runtime_dir: Path
    seen: list[node_pb2.NodeEvent] = field(default_factory=list)

    async def spawn(
        self,
        function: str,
        *,
        proc_id: str = "wpg_1/0",
        incarnation: int = 1,
        epoch: int = 1,
        **config: object,
    ) -> node_pb2.SpawnReply:
        spec = node_pb2.ProcSpec(
            proc_id=proc_id,
            image="train",
            config_json=json.dumps({"function": function, **config}),
            wpg_id=proc_id.split("/", maxsplit=1)[0],
        )
        fence = common_pb2.Fence(scheduler_epoch=epoch, incarnation=incarnation)
        return await self.stub.Spawn(node_pb2.SpawnRequest(fence=fence, spec=spec), timeout=120)

    async def stop(self, proc_id: str, *, grace_us: int = 5_000_000, epoch: int = 1) -> None:
        fence = common_pb2.Fence(scheduler_epoch=epoch)
        request = node_pb2.StopRequest(fence=fence, proc_id=proc_id, grace_us=grace_us)
        await self.stub.Stop(request, timeout=120)

    async def stacks(self, proc_id: str) -> node_pb2.WriteStacksReply:
        fence = common_pb2.Fence(scheduler_epoch=1)
        request = node_pb2.WriteStacksRequest(fence=fence, proc_id=proc_id)
        return await self.stub.WriteStacks(request, timeout=120)

    async def renew(self, *, epoch: int = 1, ttl_us: int) -> node_pb2.RenewReply:
        request = node_pb2.RenewRequest(scheduler_epoch=epoch, ttl_us=ttl_us)
        return await self.stub.Renew(request, timeout=120)

    async def describe(self) -> node_pb2.NodeDescription:
        return await self.stub.Describe(node_pb2.NodeDescribeRequest(), timeout=120)

    async def next_event(self, kind: str, *, after: int = 0) -> node_pb2.NodeEvent:
        """Return the first event of `kind` above `after`, waiting for it."""
        call = self.stub.Events(node_pb2.EventsRequest(after_index=after), timeout=120)
        async for event in call:
            if event.WhichOneof("event") == kind:
                call.cancel()
                return event
        raise AssertionError(f"the stream ended before a {kind} event")


AgentStarter = Callable[..., "asyncio.Future[RunningAgent]"]


@asynccontextmanager
async def started(config: AgentConfig) -> AsyncIterator[RunningAgent]:
    path = config.runtime_dir / "agent.toml"
    path.write_text(toml.dumps(config))
    process = await asyncio.create_subprocess_exec(  # noqa: TID251 - no gRPC runs yet
        *(sys.executable, "-m", "plexsvc.node.agent", "--config", str(path)),
        *("--parent-death", str(os.getpid())),
        stdout=asyncio.subprocess.PIPE,
        cwd=ROOT,
    )
    try:
        assert process.stdout is not None
        where = json.loads(await process.stdout.readline())
        async with open_channel(where["address"], KEYS) as channel:
            yield RunningAgent(process, node_pb2_grpc.NodeStub(channel), config.runtime_dir)
    finally:
        if process.returncode is None:
            process.send_signal(signal.SIGTERM)
        await process.wait()


def agent_config(runtime_dir: Path, **changes: object) -> AgentConfig:
    values: dict[str, object] = {
        "node_id": "node-a",
        "devices": (DeviceConfig(kind="train", bytes_total=1 << 20),),
        "runtime_dir": runtime_dir,
        "keys_file": keys_file(runtime_dir),
        "images": (IMAGE,),
        "state_manager_argv": (sys.executable, "-m", "tests.fakes.fake_state_manager"),
    }
    return AgentConfig(**(values | changes))  # type: ignore[arg-type]  # a table of mixed values


@pytest.fixture
async def agent(tmp_path: Path) -> AsyncIterator[RunningAgent]:
    async with started(agent_config(tmp_path)) as running:
        yield running


@pytest.fixture
async def frail_agent(tmp_path: Path) -> AsyncIterator[RunningAgent]:
    """An agent that replaces its state manager once."""
    async with started(agent_config(tmp_path, max_restarts=1)) as running:
        yield running


@pytest.fixture
async def impatient_agent(tmp_path: Path) -> AsyncIterator[RunningAgent]:
    """An agent that gives a process a fifth of a second to be ready."""
    async with started(agent_config(tmp_path, ready_timeout_us=200_000)) as running:
        await running.spawn("serve", proc_id="warm/0")  # answered or not, the zygote is warm then
        yield running
