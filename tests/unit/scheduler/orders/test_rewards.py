"""Hosts of reward workers: one on each node that has slots, and a proxy that is told of them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from plexclient.wire.v1 import reward_pb2 as pb
from plexclient.wire.v1 import service_pb2
from plexsvc.errors import ErrorCode, PlexError
from plexsvc.rpc.channels import listen, new_server
from plexsvc.rpc.services import add_service
from plexsvc.scheduler.config import SchedulerConfig
from plexsvc.scheduler.orders import rewards
from tests.rigs.keys import KEYS
from tests.rigs.router_rig import until
from tests.rigs.scheduler_rig import Rig, start_rig

NODES = [{"train": 1}, {"train": 1, "reward": 2}]


class Told:
    """A proxy that remembers the last that it was told."""

    def __init__(self) -> None:
        self.hosts: list[pb.HostFacts] = []
        self.epochs: set[int] = set()
        self.kills = 0
        self.answers = asyncio.Event()
        self.answers.set()

    async def use_hosts(self, request: pb.UseHostsRequest, _: Any) -> pb.UseHostsReply:
        await self.answers.wait()
        self.hosts = list(request.hosts)
        self.epochs.add(request.fence.scheduler_epoch)
        return pb.UseHostsReply()

    def kill(self) -> None:
        """Die, and be back at once."""
        self.kills += 1
        self.answers.set()

    @property
    def address(self) -> str:
        """Where the only host serves."""
        return self.hosts[0].address if self.hosts else ""


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rewards, "LOOK_US", 10_000)
    monkeypatch.setattr(rewards, "PAUSE_US", 20_000)
    monkeypatch.setattr(rewards, "TELL_S", 0.5)
    monkeypatch.setattr(rewards, "SILENT_US", 1_000_000)


@asynccontextmanager
async def told_of(directory: Path) -> AsyncIterator[tuple[Rig, Told]]:
    """Run a scheduler that tells a proxy of the nodes' hosts."""
    told, server = Told(), new_server(KEYS)
    add_service(server, rewards.SERVICE, calls={"UseHosts": told.use_hosts})
    proxy = listen(server, "127.0.0.1:0", KEYS, key="fake")
    await server.start()
    config = SchedulerConfig(node_lease_us=500_000, connect_retry_us=10_000)
    try:
        async with (
            start_rig(directory, nodes=NODES, config=config) as rig,
            asyncio.TaskGroup() as tasks,
        ):
            running = tasks.create_task(rig.driver.reward_hosts.run(proxy, kill=told.kill))
            yield rig, told
            running.cancel()
    finally:
        await server.stop(None)


async def test_each_node_with_slots_has_one_host_and_another_when_it_dies(tmp_path: Path) -> None:
    async with told_of(tmp_path) as (rig, told):
        await until(lambda: told.address)
        (facts,) = told.hosts
        first = facts.address
        assert (facts.node_id, facts.cpus, facts.memory_bytes) == ("node-1", 4, 200)
        assert (facts.gpus, facts.is_open) == (0, True)
        assert told.epochs == {rig.driver.epoch}
        (spec,) = rig.agents[1].specs
        assert (spec.image, spec.config_json) == ("reward", "")
        assert not rig.agents[0].specs
        await rig.agents[1].die(spec.proc_id)
        await until(lambda: told.address not in {"", first})
        assert len(rig.agents[1].ranks) == 1


async def test_a_closed_node_is_told_as_one_that_takes_no_more(tmp_path: Path) -> None:
    async with told_of(tmp_path) as (rig, told):
        await until(lambda: told.address)
        change = service_pb2.ChangeNodeRequest(
            node_id="node-1", change=service_pb2.NODE_CHANGE_CORDON, is_operator=True
        )
        await rig.scheduler.call("ChangeNode", change, service_pb2.NodeView)
        await until(lambda: not told.hosts[0].is_open)
        assert told.address


async def test_a_node_that_is_lost_is_told_without_a_host_until_it_is_back(tmp_path: Path) -> None:
    async with told_of(tmp_path) as (rig, told):
        await until(lambda: told.address)
        agent = rig.agents[1]
        assert agent.server is not None
        await agent.server.stop(None)
        await until(lambda: not told.address)
        assert [facts.node_id for facts in told.hosts] == ["node-1"]
        await agent.start(agent.port)
        await until(lambda: told.address)


async def test_a_host_that_does_not_come_up_is_started_again(tmp_path: Path) -> None:
    async with told_of(tmp_path) as (rig, told):
        await until(lambda: told.address)
        rig.behaviour.spawn_error = PlexError(ErrorCode.WORKER_DIED, "it fell over")
        (proc_id,) = rig.agents[1].ranks
        await rig.agents[1].die(proc_id)
        await until(lambda: len(rig.agents[1].specs) > 2)
        assert not told.address
        rig.behaviour.spawn_error = None
        await until(lambda: told.address)
        assert len({spec.proc_id for spec in rig.agents[1].specs}) == len(rig.agents[1].specs)


async def test_a_proxy_that_hangs_is_killed_and_its_successor_is_told(tmp_path: Path) -> None:
    async with told_of(tmp_path) as (_, told):
        await until(lambda: told.address)
        told.answers.clear()
        told.hosts = []
        await until(lambda: told.address)
        assert told.kills == 1
