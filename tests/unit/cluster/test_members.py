"""What a launcher says of its hosts becomes nodes that come, are drained, and are forgotten."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Self

from plexclient.wire.v1 import service_pb2 as pb
from plexsvc.cluster.members import follow
from plexsvc.ids import NodeId
from plexsvc.node.launchers.launcher import Host
from plexsvc.rpc import certificates
from plexsvc.scheduler.config import SchedulerConfig
from tests.rigs.scheduler_rig import TENANT, start_rig, until

CONFIG = SchedulerConfig(node_lease_us=1_800_000, rpc_timeout_us=600_000, connect_retry_us=10_000)


class FakeLauncher:
    """Says of its hosts what the test has it say."""

    leaves = False

    def __init__(self) -> None:
        self.hosts: dict[NodeId, Host] = {}
        self.changed = asyncio.Event()
        self.admitted: dict[NodeId, str] = {}

    def admit(self, node_id: NodeId, certificate: str) -> None:
        self.admitted[node_id] = certificate

    async def looked(self) -> None:
        """Return once what was said has been acted on: the second look waits for the first."""
        for _ in range(2):
            await until(lambda: not self.changed.is_set())
            self.changed.set()
        await until(lambda: not self.changed.is_set())

    def say(self, host: Host) -> None:
        self.hosts = {host.node_id: host}
        self.changed.set()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *failure: object) -> None:
        pass


async def test_a_host_comes_leaves_is_forgotten_once_its_lease_ran_out_and_comes_again(
    tmp_path: Path,
) -> None:
    async with start_rig(tmp_path, nodes=[{"train": 1}, {"train": 1}], config=CONFIG) as rig:
        _, agent = rig.agents
        _, link = rig.driver.nodes.links
        node_id, cordoned = NodeId(agent.node_id), rig.driver.cluster.cordoned
        launcher = FakeLauncher()
        async with asyncio.TaskGroup() as tasks:
            following = tasks.create_task(follow(launcher, rig.driver))
            launcher.say(Host(node_id=node_id, address=link.target, is_leaving=True))
            await until(lambda: cordoned == {node_id: True})
            launcher.say(Host(node_id=node_id, is_gone=True))
            await until(lambda: link.is_gone)
            assert not rig.driver.nodes.absent
            assert link.is_up
            assert link in rig.driver.nodes.links
            await agent.stop()
            await until(lambda: link not in rig.driver.nodes.links)
            await until(lambda: not cordoned)
            launcher.say(Host(node_id=node_id, address=await agent.start()))
            await until(lambda: rig.driver.nodes.is_up(node_id))
            assert rig.driver.nodes.link(node_id).target != link.target
            following.cancel()


async def test_an_agent_at_another_address_is_taken_in_once_the_old_lease_ran_out(
    tmp_path: Path,
) -> None:
    async with start_rig(tmp_path, nodes=[{"train": 1}], config=CONFIG) as rig:
        (agent,), (link,) = rig.agents, rig.driver.nodes.links
        node_id = NodeId(agent.node_id)
        launcher = FakeLauncher()
        async with asyncio.TaskGroup() as tasks:
            following = tasks.create_task(follow(launcher, rig.driver))
            await agent.stop()
            launcher.say(Host(node_id=node_id, address=await agent.start()))
            await until(lambda: link not in rig.driver.nodes.links)
            await until(lambda: rig.driver.nodes.is_up(node_id))
            await until(lambda: [row.node_id for row in rig.store.nodes()] == [node_id])
            following.cancel()


async def test_operators_are_told_why_a_host_has_no_agent(tmp_path: Path) -> None:
    async with start_rig(tmp_path, nodes=[{"train": 1}], config=CONFIG) as rig:
        launcher = FakeLauncher()
        async with asyncio.TaskGroup() as tasks:
            following = tasks.create_task(follow(launcher, rig.driver))
            launcher.say(Host(node_id=NodeId("odd"), problem="no GPU"))
            await until(lambda: bool(rig.driver.nodes.absent))
            for is_operator in (True, False):
                request = pb.ListNodesRequest(tenant=TENANT, is_operator=is_operator)
                reply = await rig.scheduler.call("ListNodes", request, pb.ListNodesReply)
                found = [(node.node_id, node.reason) for node in reply.nodes[1:]]
                assert found == ([("odd", "no GPU")] if is_operator else [])
            following.cancel()


async def test_a_host_that_asks_gets_its_own_certificate_until_it_is_shut_out(
    tmp_path: Path,
) -> None:
    async with start_rig(tmp_path, nodes=[{"train": 1}], config=CONFIG) as rig:
        (agent,), (link,) = rig.agents, rig.driver.nodes.links
        node_id, launcher = NodeId(agent.node_id), FakeLauncher()
        mine, others = (
            certificates.request_for(certificates.new_key(), node_id=name)
            for name in (node_id, "other")
        )
        async with asyncio.TaskGroup() as tasks:
            following = tasks.create_task(follow(launcher, rig.driver))
            launcher.say(Host(node_id=node_id, request=others))
            await launcher.looked()
            assert launcher.admitted == {}
            launcher.say(Host(node_id=node_id, request=mine))
            await until(lambda: node_id in launcher.admitted)
            assert certificates.read(launcher.admitted[node_id]).node_id == node_id
            launcher.say(Host(node_id=node_id, address=link.target))
            asked = pb.ShutOutNodeRequest(is_operator=True, node_id=node_id)
            await rig.scheduler.call("ShutOutNode", asked, pb.ShutOutNodeReply)
            await until(lambda: link not in rig.driver.nodes.links)
            before = dict(launcher.admitted)
            for host in (
                Host(node_id=node_id, address=link.target),
                Host(node_id=node_id, request=mine),
            ):
                launcher.say(host)
                await launcher.looked()
            assert rig.driver.nodes.links == []
            assert launcher.admitted == before
            following.cancel()
