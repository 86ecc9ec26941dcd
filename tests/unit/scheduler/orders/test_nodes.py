"""Nodes that fall silent, come back or restart, and what becomes of their ranks."""

from __future__ import annotations

import asyncio
from pathlib import Path

from plexclient.wire.v1 import (
    operations_pb2,
)
from plexsvc.errors import ErrorCode
from plexsvc.scheduler.config import SchedulerConfig
from plexsvc.scheduler.core.events import NodeLost
from plexsvc.scheduler.driver import journal
from tests.rigs.router_rig import until
from tests.rigs.scheduler_rig import Rig, held_open, start_rig

ANSWERED = operations_pb2.OPERATION_STATE_ANSWERED


async def test_a_node_that_falls_silent_is_lost_and_its_jobs_told(tmp_path: Path) -> None:
    config = SchedulerConfig(node_lease_us=150_000, connect_retry_us=10_000)
    async with start_rig(tmp_path, nodes=[{"train": 1}], config=config) as rig:
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
        kinds = [type(event) for event in journal.replay(rig.store.journal())]
        assert NodeLost in kinds


async def test_a_node_that_comes_back_is_rid_of_its_old_ranks_before_it_takes_new_ones(
    tmp_path: Path,
) -> None:
    config = SchedulerConfig(node_lease_us=150_000, connect_retry_us=10_000)
    async with start_rig(tmp_path, nodes=[{"train": 1}], config=config) as rig:
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
