"""Managers that real node agents fork: found again, and followed by one of another node.

The nodes have joined, as on hosts of their own: each shows a certificate of its own.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from plexclient.samples import TokenRecord
from plexclient.wire.v1 import (
    common_pb2,
    node_pb2,
    operations_pb2,
    service_pb2,
    worker_pb2,
    worker_pb2_grpc,
)
from plexsvc.clock import SystemClock
from plexsvc.errors import ErrorCode, PlexError
from plexsvc.ids import new_operation_id
from plexsvc.node.config import AgentConfig
from plexsvc.rollout.config import RolloutConfig
from plexsvc.rollout.managers import Managers
from plexsvc.rpc.channels import open_channel
from plexsvc.rpc.keys import write_keys
from plexsvc.scheduler.orders.managers import ManagerHosts
from plexsvc.store.rows import RecordRow
from tests.fakes.fake_instances import FakeInstance, serving
from tests.process.node.conftest import IMAGE, RunningAgent, agent_config, started
from tests.rigs.keys import KEYS, member
from tests.rigs.processes import managers as manager_processes

pytestmark = pytest.mark.process

PROMPTS = [[3, 4, 5], [6, 7, 8, 9]]
IMAGES = AgentConfig.__dataclass_fields__["images"].default


@dataclass(slots=True)
class Nodes:
    """Two nodes with real agents, of which `left` has the instance."""

    agents: dict[str, RunningAgent]
    links: dict[str, Any]
    hosts: ManagerHosts
    instance: FakeInstance
    place: Path
    seq: int = 0

    def pids(self, node_id: str) -> list[int]:
        return manager_processes(below=self.agents[node_id].process.pid)

    async def serves(self, node_id: str, address: str) -> bool:
        """Whether a process of a node serves there."""
        return address in [one.address for one in (await self.agents[node_id].describe()).procs]

    def lose(self, node_id: str) -> None:
        """Kill an agent and all below it; nobody starts it again."""
        os.kill(self.agents[node_id].process.pid, signal.SIGKILL)
        self.links[node_id].is_up = False

    def operation(self, **body: Any) -> operations_pb2.Operation:
        self.seq += 1
        return operations_pb2.Operation(
            operation_id=new_operation_id(),
            job_id="job",
            deployment_id="rollout",
            seq=self.seq,
            **body,
        )

    def generate(self) -> operations_pb2.Operation:
        sampling = operations_pb2.SamplingParams(n=2, max_tokens=12, temperature=1.0, seed=3)
        prompts = [operations_pb2.Prompt(token_ids=one) for one in PROMPTS]
        return self.operation(generate=operations_pb2.Generate(prompts=prompts, sampling=sampling))

    async def execute(
        self, leads: Managers, operation: operations_pb2.Operation, **more: Any
    ) -> operations_pb2.OperationResult:
        fence = common_pb2.Fence(scheduler_epoch=1, lease_no=1, incarnation=1)
        request = worker_pb2.ExecuteRequest(fence=fence, wpg_id="wpg", operation=operation, **more)
        return (await leads.execute(request)).result

    async def initialize(self, leads: Managers) -> None:
        spec = service_pb2.DeploymentSpec(max_model_len=1000)
        deployment = service_pb2.Deployment(deployment_id="rollout", vocab_size=50, spec=spec)
        result = await self.execute(
            leads,
            self.operation(initialize=operations_pb2.Initialize()),
            deployment=deployment,
            instance_addresses=[self.instance.address],
        )
        assert not result.HasField("error"), result


def link_of(node_id: str, agent: RunningAgent) -> Any:
    description = node_pb2.NodeDescription(node_id=node_id)
    return SimpleNamespace(node_id=node_id, agent=agent.stub, is_up=True, description=description)


@asynccontextmanager
async def two_nodes(place: Path, *, held: bool = False) -> AsyncIterator[Nodes]:
    async with AsyncExitStack() as stack:
        agents: dict[str, RunningAgent] = {}
        for node_id in ("left", "right"):
            (place / node_id).mkdir(mode=0o700)
            keys = place / node_id / "node.json"
            write_keys(keys, member(node_id))
            images = (IMAGE, next(one for one in IMAGES if one.name == "manager"))
            config = agent_config(
                place / node_id,
                node_id=node_id,
                images=images,
                keys_file=keys,
                listen="127.0.0.1:0",
            )
            agents[node_id] = await stack.enter_async_context(started(config))
            await agents[node_id].renew(ttl_us=120_000_000)
        links = {node_id: link_of(node_id, agent) for node_id, agent in agents.items()}

        def link(node_id: str) -> Any:
            if not links[node_id].is_up:
                raise PlexError(ErrorCode.NODE_LOST, f"{node_id} is lost")
            return links[node_id]

        notes: dict[str, bytes] = {}

        async def remember(row: Any) -> None:
            if isinstance(row, RecordRow):
                notes[row.key] = row.body

        places = [SimpleNamespace(node_id="left")]
        deployments = {"rollout": SimpleNamespace(wpg=SimpleNamespace(places=places))}
        reach = SimpleNamespace(
            nodes=SimpleNamespace(links=list(links.values()), link=link),
            registry=SimpleNamespace(deployments=deployments),
            fence=lambda **_: common_pb2.Fence(scheduler_epoch=1, incarnation=1),
            clock=SystemClock(),
            rpc_s=30.0,
            epoch=1,
        )
        hosts = ManagerHosts(cast("Any", reach), is_open=lambda _: True, remember=remember)
        instance = await stack.enter_async_context(serving(held=held))
        yield Nodes(agents, links, hosts, instance, place)


@asynccontextmanager
async def leading(nodes: Nodes) -> AsyncIterator[Managers]:
    leads = Managers(RolloutConfig(), clock=SystemClock(), keys=KEYS, directory=nodes.place)
    leads.hosts = nodes.hosts
    async with asyncio.TaskGroup() as tasks:
        running = tasks.create_task(leads.run())
        yield leads
        running.cancel()


async def read(
    leads: Managers, operation: operations_pb2.Operation, into: TokenRecord, *, tokens: int
) -> int:
    """Read the frames after those that were read, until there are `tokens` more or all."""
    request = worker_pb2.StreamFramesRequest(
        operation_id=operation.operation_id, after_cursor=into.cursor
    )
    count = 0
    async with open_channel(leads.address_of("rollout"), KEYS) as channel:
        stream = worker_pb2_grpc.WorkerStub(channel).StreamFrames(request, timeout=120)
        async for frame in stream:
            count += sum(len(delta.tokens) for delta in into.add(frame))
            if count >= tokens:
                stream.cancel()
                break
    return count


def reader(operation: operations_pb2.Operation) -> TokenRecord:
    return TokenRecord(PROMPTS, sampling=operation.generate.sampling)


def tokens_of(record: TokenRecord) -> list[list[int]]:
    return [one.tokens for one in record.samples()]


async def test_a_manager_that_is_killed_has_a_successor_and_a_lost_node_an_heir(
    tmp_path: Path,
) -> None:
    async with two_nodes(tmp_path, held=True) as nodes, leading(nodes) as leads:
        await nodes.initialize(leads)
        assert await nodes.serves("left", leads.address_of("rollout")), "where the instance is"
        first, second = nodes.generate(), nodes.generate()
        nodes.instance.engine.allow(3)
        into, unread = reader(first), reader(second)
        async with asyncio.TaskGroup() as group:
            running = group.create_task(nodes.execute(leads, first))
            await until_led(leads, first, into)
            (manager,) = nodes.pids("left")
            os.kill(manager, signal.SIGKILL)
            nodes.instance.engine.release()
        assert not running.result().HasField("error"), running.result()
        await read(leads, first, into, tokens=1 << 30)
        expected = tokens_of(into)
        await until_copied(nodes)
        answered = await nodes.execute(leads, second)
        nodes.lose("left")
        async with asyncio.timeout(120):  # a manager may answer while its node dies
            while not await nodes.serves("right", leads.address_of("rollout")):  # noqa: ASYNC110
                await asyncio.sleep(0.05)
        assert await nodes.execute(leads, second) == answered
        await read(leads, second, unread, tokens=1 << 30)
        assert tokens_of(unread) == expected


async def until_led(
    leads: Managers, operation: operations_pb2.Operation, into: TokenRecord
) -> None:
    """Return when some tokens were read."""
    assert await read(leads, operation, into, tokens=8) >= 8


async def until_copied(nodes: Nodes) -> None:
    """Return when the node without the instance has a copy."""
    copies = nodes.place / "right" / "logs" / "records-0" / "copies"
    async with asyncio.timeout(120):
        while not [path for path in copies.rglob("*") if path.is_file()]:  # noqa: ASYNC110
            await asyncio.sleep(0.05)


async def test_the_next_service_finds_the_manager_that_runs(tmp_path: Path) -> None:
    async with two_nodes(tmp_path) as nodes:
        async with leading(nodes) as leads:
            await nodes.initialize(leads)
            pids = nodes.pids("left")
            address = leads.address_of("rollout")
        assert await nodes.hosts.start("left", 0, config_json="{}") == address
        assert nodes.pids("left") == pids
        await nodes.hosts.kill("left", 0)
        assert nodes.pids("left") == []
