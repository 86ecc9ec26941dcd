"""Saves are copied first, then written for as long as they get on, and stop when cancelled."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import fields
from pathlib import Path

import pytest

from plexclient.wire.v1 import operations_pb2, service_pb2, statemanager_pb2
from plexsvc.errors import ErrorCode
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


@pytest.fixture
async def disk(rig: Rig) -> SlowDisk:
    disk = SlowDisk()
    rig.behaviour.on_materialize = disk.write
    await rig.job("job-1")
    await rig.deploy("job-1")
    return disk


@pytest.fixture
async def rig(tmp_path: Path) -> AsyncIterator[Rig]:
    config = SchedulerConfig(progress_timeout_us=300_000)
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
    async with asyncio.timeout(20):
        result = await rig.run("job-1", "save")
        await disk.left.wait()
    assert result.error.code == ErrorCode.UNAVAILABLE
    assert "1 bytes were written and none since" in result.error.message
    assert copies(rig) == ["job-1/actor~copied"]
    rig.seqs["job-1/actor"] -= 1  # the number was given back
    assert (await rig.run("job-1", "step")).state == ANSWERED


async def test_a_save_of_a_cancelled_job_stops(rig: Rig, disk: SlowDisk) -> None:
    async with asyncio.timeout(20), asyncio.TaskGroup() as tasks:
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
