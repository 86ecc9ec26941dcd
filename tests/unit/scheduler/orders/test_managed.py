"""Saves are copied first, then written for as long as they get on, and stop when cancelled."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import fields
from pathlib import Path

import pytest

from plexclient.wire.errors import to_wire
from plexclient.wire.v1 import operations_pb2, service_pb2, statemanager_pb2
from plexsvc.errors import ErrorCode, bad_request
from plexsvc.node.config import AgentConfig
from plexsvc.scheduler.config import SchedulerConfig
from tests.rigs.scheduler_rig import Rig, start_rig

ANSWERED = operations_pb2.OPERATION_STATE_ANSWERED


class SlowDisk:
    """Writes when it is told to."""

    def __init__(self) -> None:
        self.asked = asyncio.Event()
        self.left = asyncio.Event()
        self.goes_on = asyncio.Event()

    async def write(
        self, request: statemanager_pb2.MaterializeRequest
    ) -> AsyncIterator[statemanager_pb2.MaterializeReply]:
        assert request.copies.holders, "a save works from copies"
        self.asked.set()
        yield statemanager_pb2.MaterializeReply(nbytes=1)
        try:
            await self.goes_on.wait()
        finally:
            self.left.set()
        yield statemanager_pb2.MaterializeReply(nbytes=2, files=["model.safetensors"])


class TwoDisks:
    """The first node's state manager has another one write a file, too."""

    def __init__(self, rig: Rig) -> None:
        self.asked = list[tuple[str, str, str]]()
        self.left = asyncio.Event()
        self.goes_on = asyncio.Event()
        self.goes_on.set()
        self.replies = [statemanager_pb2.MaterializeReply(written=[WRITTEN])]
        self.written = rig.behaviour.written

    async def make(
        self, request: statemanager_pb2.MaterializeRequest
    ) -> AsyncIterator[statemanager_pb2.MaterializeReply]:
        try:
            shares = [statemanager_pb2.Share(node_id="node-1", shards=[ASKED])]
            yield statemanager_pb2.MaterializeReply(shares=shares, directory="/lab/.out.tmp-1")
        finally:
            self.left.set()
        yield statemanager_pb2.MaterializeReply(
            nbytes=2, files=["model-00001-of-00002.safetensors"]
        )

    async def write(
        self, node_id: str, request: statemanager_pb2.WriteShardsRequest
    ) -> AsyncIterator[statemanager_pb2.MaterializeReply]:
        self.asked.extend((node_id, request.directory, one.file) for one in request.shards)
        await self.goes_on.wait()
        for reply in self.replies:
            yield reply


ASKED = statemanager_pb2.Shard(file="model-00002-of-00002.safetensors", tensors=["a"])
WRITTEN = statemanager_pb2.Shard(file=ASKED.file, nbytes=5, blocks=["ab"])


@pytest.fixture
async def disks(tmp_path: Path) -> AsyncIterator[tuple[Rig, TwoDisks]]:
    config = SchedulerConfig(progress_timeout_us=1_000_000)
    nodes = [{"train": 1}, {"train": 1}]
    async with start_rig(tmp_path, nodes=nodes, config=config) as rig:
        found = TwoDisks(rig)
        rig.behaviour.on_materialize, rig.behaviour.on_shards = found.make, found.write
        await rig.job("job-1")
        await rig.deploy("job-1")
        yield rig, found


async def test_other_nodes_write_what_they_are_asked_and_the_first_is_told(
    disks: tuple[Rig, TwoDisks],
) -> None:
    rig, found = disks
    result = await rig.run("job-1", "save")
    assert result.metrics["nbytes"] == 2, result
    assert found.asked == [("node-1", "/lab/.out.tmp-1", ASKED.file)]
    assert found.written == [WRITTEN]


async def test_a_save_that_another_node_refuses_is_refused_and_stops(
    disks: tuple[Rig, TwoDisks],
) -> None:
    rig, found = disks
    error = to_wire(bad_request("node-1 did not write: the disk is full"))
    found.replies = [statemanager_pb2.MaterializeReply(error=error)]
    result = await rig.run("job-1", "save")
    assert "node-1 did not write: the disk is full" in result.error.message
    await found.left.wait()
    assert copies(rig) == ["job-1/actor~copied"]


async def test_a_save_of_which_another_node_writes_nothing_is_given_up(
    disks: tuple[Rig, TwoDisks],
) -> None:
    rig, found = disks
    found.goes_on.clear()
    result = await rig.run("job-1", "save")
    assert "0 bytes were written and none since" in result.error.message
    await found.left.wait()


@pytest.fixture
async def disk(rig: Rig) -> SlowDisk:
    disk = SlowDisk()
    rig.behaviour.on_materialize = disk.write
    await rig.job("job-1")
    await rig.deploy("job-1")
    return disk


@pytest.fixture
async def rig(tmp_path: Path) -> AsyncIterator[Rig]:
    config = SchedulerConfig(progress_timeout_us=1_000_000)
    async with start_rig(tmp_path, nodes=[{"train": 1}], config=config) as started:
        yield started


def copies(rig: Rig) -> list[str]:
    return [name for name, _ in rig.behaviour.released if name.endswith("~copied")]


async def test_the_next_operation_runs_while_a_save_is_written(rig: Rig, disk: SlowDisk) -> None:
    async with asyncio.TaskGroup() as tasks:
        save = tasks.create_task(rig.run("job-1", "save"))
        await disk.asked.wait()
        assert (await rig.run("job-1", "step")).state == ANSWERED
        assert not save.done()
        disk.goes_on.set()
    assert save.result().metrics["nbytes"] == 2
    assert copies(rig) == ["job-1/actor~copied"]


async def test_a_save_of_which_nothing_is_written_is_given_up(rig: Rig, disk: SlowDisk) -> None:
    async with asyncio.timeout(120):
        result = await rig.run("job-1", "save")
        await disk.left.wait()
    assert result.error.code == ErrorCode.UNAVAILABLE
    assert "1 bytes were written and none since" in result.error.message
    assert copies(rig) == ["job-1/actor~copied"]
    rig.seqs["job-1/actor"] -= 1  # the number was given back
    assert (await rig.run("job-1", "step")).state == ANSWERED


async def test_a_save_of_a_cancelled_job_stops(rig: Rig, disk: SlowDisk) -> None:
    async with asyncio.timeout(120), asyncio.TaskGroup() as tasks:
        save = tasks.create_task(rig.run("job-1", "save"))
        await disk.asked.wait()
        await rig.end("job-1", service_pb2.JOB_STATE_CANCELLED)
        await disk.left.wait()
    assert save.result().error.code == ErrorCode.CANCELLED
    assert copies(rig) == ["job-1/actor~copied"]


async def test_a_release_outlives_the_time_until_a_state_manager_that_hangs_is_replaced(
    rig: Rig, disk: SlowDisk
) -> None:
    disk.goes_on.set()
    await rig.run("job-1", "save")
    assert copies(rig) == ["job-1/actor~copied"]
    found_us = {one.name: one.default for one in fields(AgentConfig)}["state_manager_silence_us"]
    assert rig.behaviour.release_deadline_s > 2 * found_us / 1e6
