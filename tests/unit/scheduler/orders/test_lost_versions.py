"""Versions that instances sample from, after their node is lost."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest

from plexclient.wire.v1 import statemanager_pb2
from plexsvc.errors import bad_request
from plexsvc.ids import DeploymentId, NodeId, VersionId
from plexsvc.scheduler.config import SchedulerConfig
from plexsvc.scheduler.orders import managed
from tests.rigs.scheduler_rig import Rig, start_rig, until

ACTOR = DeploymentId("job-1/actor")
SERVED = VersionId(ACTOR, 1, 3)


@pytest.fixture
async def pair(tmp_path: Path) -> AsyncIterator[Rig]:
    """Two nodes of one training device, which count as lost soon."""
    config = SchedulerConfig(node_lease_us=2_000_000, connect_retry_us=10_000)
    async with start_rig(tmp_path, nodes=[{"train": 1}] * 2, config=config) as started:
        await started.job("job-1")
        yield started


async def serve(rig: Rig, *, durable: bool) -> None:
    """Have instances sample what a deployment published after a step."""
    await rig.deploy("job-1", durable=durable)
    for kind in ("forward_backward", "step", "publish"):
        await rig.run("job-1", kind)
    rig.rollout.used = {SERVED}
    if durable:
        found = rig.driver.registry.deployments[ACTOR].durable
        await until(lambda: found is not None and found.second_seq == 2)


async def told(rig: Rig) -> list[str]:
    """Return the holders that instances are told of after the first node is lost."""
    await rig.agents[0].stop()
    await until(lambda: bool(rig.rollout.located))
    (source,) = rig.rollout.located
    assert isinstance(source, statemanager_pb2.PublishedVersion)
    assert VersionId.of(source) == SERVED
    return [holder.node_id for holder in source.holders]


@pytest.mark.parametrize("is_read", [False, True])
async def test_a_rebuilt_deployment_publishes_again_what_its_state_is(
    pair: Rig, is_read: bool
) -> None:
    await serve(pair, durable=True)
    await pair.run("job-1", "forward_backward")
    if is_read:
        pair.behaviour.publish_errors = [bad_request("it was released already")]
    assert await told(pair) == ["node-1"]
    assert pair.driver.reach.versions.find(ACTOR, 3).nodes == ("node-1",)


async def test_a_version_that_is_its_state_no_more_is_lost(pair: Rig) -> None:
    await serve(pair, durable=True)
    for kind in ("forward_backward", "step"):
        await pair.run("job-1", kind)
    assert await told(pair) == []


async def test_a_version_of_a_deployment_that_is_not_rebuilt_is_lost(pair: Rig) -> None:
    await serve(pair, durable=False)
    assert await told(pair) == []


async def test_a_version_is_there_if_one_replica_of_each_part_is(pair: Rig) -> None:
    await serve(pair, durable=False)
    reach = pair.driver.reach
    (has,) = (made := reach.versions.find(ACTOR, 3)).nodes
    (lacks,) = {"node-0", "node-1"} - {has}
    for parts, is_there in ((("p", "p"), True), (("p", "q"), False), ((), False)):
        both = replace(made, nodes=(NodeId(lacks), has), parts=parts)
        assert await managed.is_there(reach, both) is is_there
