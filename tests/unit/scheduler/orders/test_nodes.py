"""Nodes that fall silent, come back or restart, and what becomes of their ranks."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

from plexclient.wire.v1 import operations_pb2
from plexclient.wire.v1 import service_pb2 as pb
from plexsvc.errors import ErrorCode
from plexsvc.scheduler.config import SchedulerConfig
from plexsvc.scheduler.core.events import NodeLost
from plexsvc.scheduler.driver import journal
from tests.rigs import stored
from tests.rigs.router_rig import until
from tests.rigs.scheduler_rig import TENANT, Rig, held_open, start_rig

ANSWERED = operations_pb2.OPERATION_STATE_ANSWERED

QUICK = SchedulerConfig(
    node_lease_us=1_800_000,
    rpc_timeout_us=600_000,
    connect_retry_us=10_000,
    node_forget_us=1_000_000,
)
"""Leases that outlive what a busy machine takes from a loop: it answers for the agents, too."""

KEEPS = replace(QUICK, node_forget_us=60_000_000)
"""The same, and a node that is lost is not forgotten."""


async def test_a_node_that_falls_silent_is_lost_and_its_jobs_told(tmp_path: Path) -> None:
    async with start_rig(tmp_path, nodes=[{"train": 1}], config=KEEPS) as rig:
        await rig.job("job-1")
        await rig.deploy("job-1")
        begun, _ = held_open(rig, "step")
        async with asyncio.TaskGroup() as group:
            call = group.create_task(rig.run("job-1", "step"))
            await begun.wait()
            assert rig.agents[0].server is not None
            await rig.agents[0].server.stop(None)
        assert call.result().error.code == ErrorCode.NODE_LOST
        assert "AioRpcError" not in call.result().error.message
        kinds = [type(event) for event in journal.replay(stored.journal(rig.store))]
        assert NodeLost in kinds


async def test_a_node_that_comes_back_is_rid_of_its_old_ranks_before_it_takes_new_ones(
    tmp_path: Path,
) -> None:
    async with start_rig(tmp_path, nodes=[{"train": 1}], config=KEEPS) as rig:
        (agent,) = rig.agents
        await rig.job("job-1")
        await rig.deploy("job-1")
        (old,) = agent.ranks
        link = rig.driver.nodes.links[0]
        assert agent.server is not None
        await agent.server.stop(None)
        await until(lambda: not link.is_up)
        assert old in agent.ranks
        rig.behaviour.stopped.clear()
        await agent.start(agent.port)
        await until(lambda: link.is_up)
        assert old in rig.behaviour.stopped
        assert old not in agent.ranks


async def test_agents_keep_their_ranks_longer_than_a_scheduler_may_be_silent(rig: Rig) -> None:
    config = SchedulerConfig()
    assert config.node_grace_us >= 2 * 30_000_000 > config.node_lease_us
    await until(lambda: rig.agents[0].ttls)
    assert set(rig.agents[0].ttls) == {config.node_grace_us}


async def test_ranks_that_a_restarted_agent_does_not_know_are_dead(tmp_path: Path) -> None:
    config = SchedulerConfig(connect_retry_us=10_000, exit_report_us=30_000)
    async with start_rig(tmp_path, nodes=[{"train": 1}], config=config) as rig:
        await rig.job("job-1")
        await rig.deploy("job-1")
        begun, _ = held_open(rig, "step")
        async with asyncio.TaskGroup() as group:
            call = group.create_task(rig.run("job-1", "step"))
            await begun.wait()
            await rig.agents[0].restart()
        assert call.result().error.code == ErrorCode.WORKER_DIED
        rig.behaviour.on_execute = None
        assert (await rig.deploy("job-1", "second")).state == "ready"
        assert (await rig.run("job-1", name="second")).state == ANSWERED


async def status(rig: Rig) -> pb.ClusterStatus:
    return await rig.scheduler.call(
        "GetStatus", pb.GetStatusRequest(tenant=TENANT), pb.ClusterStatus
    )


async def test_a_node_that_stays_away_is_forgotten_and_may_be_added_again(tmp_path: Path) -> None:
    async with start_rig(tmp_path, nodes=[{"train": 1}, {"train": 1}], config=QUICK) as rig:
        stays, leaves = rig.agents
        await leaves.stop()
        await until(lambda: len(rig.driver.nodes.links) == 1)
        await until(lambda: len(rig.driver.cluster.devices) == 1)
        found = await status(rig)
        assert [node.node_id for node in found.nodes] == [stays.node_id]
        assert [device.node_id for device in found.devices] == [stays.node_id]
        assert rig.store.nodes() == []
        added = pb.AddNodeRequest(is_operator=True, agent=await leaves.start())
        assert (await rig.scheduler.call("AddNode", added, pb.NodeView)).state == "up"
        assert len((await status(rig)).devices) == 2
        assert [row.node_id for row in rig.store.nodes()] == [leaves.node_id]
        await leaves.stop()
        await until(lambda: not rig.store.nodes())


async def test_a_node_that_comes_back_in_time_is_kept(tmp_path: Path) -> None:
    async with start_rig(tmp_path, nodes=[{"train": 1}], config=KEEPS) as rig:
        (agent,), (link,) = rig.agents, rig.driver.nodes.links
        assert agent.server is not None
        await agent.server.stop(None)
        await until(lambda: not link.is_up)
        await agent.start(agent.port)
        await until(lambda: link.is_up)
        assert rig.driver.nodes.links == [link]


async def test_an_instance_of_a_lost_node_is_spawned_on_one_that_is_up(tmp_path: Path) -> None:
    async with start_rig(tmp_path, nodes=[{"rollout": 1}] * 3, config=QUICK) as rig:
        await rig.job("a")
        request = pb.CreateDeploymentRequest(
            deployment_id="a/rollout",
            job_id="a",
            tenant=TENANT,
            name="rollout",
            spec=pb.DeploymentSpec(role="rollout", backend="vllm", num_instances=2),
        )
        await rig.scheduler.call("CreateDeployment", request, pb.Deployment)
        await rig.agents[1].stop()
        await until(lambda: rig.rollout.replaced == [("a/rollout", 1)])
        assert set(rig.agents[2].ranks) == {"wpg-1-1/1"}
        generated = await rig.run("a", "generate", name="rollout")
        assert generated.state == operations_pb2.OPERATION_STATE_ANSWERED
        blocks = (await status(rig)).deployments[0].blocks
        assert [block.node_id for block in blocks] == ["node-0", "node-2"]
