"""Moves of a WPG that spans nodes."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from pathlib import Path

import pytest

from plexclient.wire.v1 import (
    common_pb2,
    operations_pb2,
    rollout_pb2,
    statemanager_pb2,
)
from plexsvc.errors import ErrorCode, PlexError
from plexsvc.scheduler.config import SchedulerConfig
from tests.fakes.fake_cluster import no_room
from tests.rigs.scheduler_rig import Rig, held_open, start_rig, until

ANSWERED = operations_pb2.OPERATION_STATE_ANSWERED
SLEEP, WAKE = rollout_pb2.INSTANCES_MOVE_SLEEP, rollout_pb2.INSTANCES_MOVE_WAKE
AWAIT_PULL = rollout_pb2.INSTANCES_MOVE_AWAIT_PULL
DEVICE = common_pb2.RESIDENCY_DEVICE
HOST = common_pb2.RESIDENCY_HOST
TWO_NODES = [{"train": 1}, {"train": 1}]
MEETING_S = 10


async def deploy_two(rig: Rig) -> None:
    """Bring two jobs up that both span both nodes; the second one's state is on the devices."""
    for job in ("a", "b"):
        await rig.job(job)
        await rig.deploy(job, tp=2)


async def test_the_nodes_of_a_group_move_at_once(tmp_path: Path) -> None:
    async with start_rig(tmp_path, nodes=TWO_NODES) as rig:
        await deploy_two(rig)
        moving: dict[bytes, set[str]] = {}
        met: dict[bytes, asyncio.Event] = {}

        async def meet(node_id: str, request: statemanager_pb2.MoveRequest) -> None:
            moving.setdefault(request.move_id, set()).add(node_id)
            both = met.setdefault(request.move_id, asyncio.Event())
            if len(moving[request.move_id]) == len(TWO_NODES):
                both.set()
            await asyncio.wait_for(both.wait(), MEETING_S)

        rig.behaviour.on_move = meet
        assert (await rig.run("a")).state == ANSWERED
        assert moving, "the jobs share their devices"
        assert all(nodes == {"node-0", "node-1"} for nodes in moving.values())


async def test_a_move_that_one_node_refuses_is_taken_back_on_all(tmp_path: Path) -> None:
    config = SchedulerConfig(move_retry_us=1000)
    async with start_rig(tmp_path, nodes=TWO_NODES, config=config) as rig:
        await deploy_two(rig)
        seen: list[tuple[bytes, str, int]] = []
        refused: list[bytes] = []

        async def refuse_once(node_id: str, request: statemanager_pb2.MoveRequest) -> None:
            seen.append((request.move_id, node_id, request.to))
            if request.to == DEVICE and node_id == "node-1" and not refused:
                refused.append(request.move_id)
                rig.behaviour.move_errors = [no_room()]

        rig.behaviour.on_move = refuse_once
        assert (await rig.run("a")).state == ANSWERED
        steps = [(to, node_id) for move_id, node_id, to in seen if move_id == refused[0]]
        assert sorted(steps[:2]) == [(DEVICE, "node-0"), (DEVICE, "node-1")]
        assert sorted(steps[2:]) == [(HOST, "node-0"), (HOST, "node-1")]


async def test_instances_sleep_and_wake_and_one_that_does_not_answer_is_ended(
    tmp_path: Path,
) -> None:
    async with start_rig(tmp_path, nodes=[{"train": 1, "rollout": 1}]) as rig:
        for job in ("a", "b"):
            await rig.job(job)
            await rig.deploy(job, "rollout", role="rollout", shared=True)
        assert rig.rollout.moves == [("a/rollout", SLEEP)]
        assert (await rig.run("a", "generate", name="rollout")).state == ANSWERED
        assert rig.rollout.moves[1:] == [("b/rollout", SLEEP), ("a/rollout", WAKE)]
        rig.rollout.unreached = list(rig.rollout.addresses[:1])
        assert (await rig.run("b", "generate", name="rollout")).state == ANSWERED
        assert not rig.rollout.replaced, "it is started again in its turn"
        assert (await rig.run("a", "generate", name="rollout")).state == ANSWERED
        await until(lambda: rig.rollout.replaced == [("a/rollout", 0)])
        await rig.end("a")
        await rig.end("b")


async def test_instances_are_left_asleep_for_the_pull_that_wakes_them(tmp_path: Path) -> None:
    async with start_rig(tmp_path, nodes=[{"train": 1, "rollout": 1}]) as rig:
        for job in ("a", "b"):
            await rig.job(job)
            await rig.deploy(job, "rollout", role="rollout", shared=True)
        await rig.deploy("a")
        publish = rig.operation("a", "publish")
        assert (await rig.scheduler.submit(publish)).state == ANSWERED
        pull = rig.operation("a", "pull", name="rollout", after=(publish.operation_id,))
        pull.pull.source_deployment_id, pull.pull.version = "a/actor", publish.seq
        assert (await rig.scheduler.submit(pull)).state == ANSWERED
        assert rig.rollout.moves[1:] == [("b/rollout", SLEEP), ("a/rollout", AWAIT_PULL)]


async def ended(deploying: Awaitable[object]) -> str:
    with pytest.raises(PlexError) as caught:
        await deploying
    return caught.value.code


async def test_a_deployment_that_waits_for_its_turn_to_start_may_end(tmp_path: Path) -> None:
    async with start_rig(tmp_path, nodes=[{"train": 1, "rollout": 1}]) as rig:
        await rig.job("a")
        await rig.deploy("a", "rollout", role="rollout", shared=True)
        begun, go_on = held_open(rig, "generate")
        async with asyncio.TaskGroup() as group:
            running = group.create_task(rig.run("a", "generate", name="rollout"))
            await asyncio.wait_for(begun.wait(), MEETING_S)
            await rig.job("b")
            deploys = group.create_task(
                ended(rig.deploy("b", "rollout", role="rollout", shared=True))
            )
            await until(lambda: "b/rollout" in rig.driver.registry.deployments)
            await rig.end("b")
            assert await deploys == ErrorCode.JOB_ENDED
            go_on.set()
        assert running.result().state == ANSWERED
