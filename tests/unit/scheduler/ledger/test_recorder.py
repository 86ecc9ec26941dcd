"""What the edge keeps of jobs that are gone: nothing."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from plexclient.wire.v1 import service_pb2
from plexsvc.ids import OperationId
from plexsvc.scheduler import live
from plexsvc.scheduler.config import SchedulerConfig
from plexsvc.store.rows import OperationGone, OperationRow
from tests.rigs import stored
from tests.rigs.scheduler_rig import TENANT, Rig, start_rig


async def test_answers_nobody_acknowledged_go_with_their_job(tmp_path: Path) -> None:
    config = SchedulerConfig(max_ended_jobs=1)
    async with start_rig(tmp_path, nodes=[{"train": 1}], config=config) as rig:
        for job in ("a", "b"):
            await rig.job(job)
            await rig.deploy(job)
            operation = await rig.run(job, "step")
            assert rig.driver.results.get(OperationId(operation.operation_id)) is not None
            await rig.end(job)
        assert list(rig.driver.registry.jobs) == ["b"]
        assert len(rig.driver.results) == 1
        recorder = rig.driver.recorder
        assert (list(recorder._owned), len(recorder._answered)) == (["b/actor"], 1)


@pytest.fixture
def by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows are written when the test takes them, and not before."""
    monkeypatch.setattr(live, "ROWS_FLUSH_US", 1 << 60)


async def acknowledge(rig: Rig, *, seq: int, left: int) -> None:
    """Say that the client has the answers up to `seq`; return when `left` are kept for it."""
    acks = service_pb2.KeepAliveRequest(job_id="a", tenant=TENANT, acks={"a/actor": seq})
    await rig.scheduler.call("KeepAlive", acks, service_pb2.KeepAliveReply)
    async with asyncio.timeout(120):
        while len(rig.driver.recorder._answered) > left:  # noqa: ASYNC110 - a task lets them go
            await asyncio.sleep(0.005)


@pytest.mark.usefixtures("by_hand")
async def test_rows_of_operations_go_once_acknowledged_or_when_their_job_is_forgotten(
    tmp_path: Path,
) -> None:
    config = SchedulerConfig(max_ended_jobs=1)
    async with start_rig(tmp_path, nodes=[{"train": 1}], config=config) as rig:
        await rig.job("a")
        await rig.deploy("a")
        ran = [await rig.run("a", "step") for _ in range(3)]

        def kept() -> list[bool]:
            rig.store.append([], rig.driver.recorder.take_rows())
            return [stored.operation(rig.store, each.operation_id) is not None for each in ran]

        assert kept() == [True, True, True]
        await acknowledge(rig, seq=2, left=1)
        assert kept() == [False, False, True]
        await rig.end("a")
        await rig.job("b")
        await rig.end("b")
        assert kept() == [False, False, False]


@pytest.mark.usefixtures("by_hand")
async def test_the_row_of_an_operation_that_is_acknowledged_at_once_is_never_written(
    tmp_path: Path,
) -> None:
    async with start_rig(tmp_path, nodes=[{"train": 1}]) as rig:
        await rig.job("a")
        await rig.deploy("a")
        await rig.run("a", "step")
        await acknowledge(rig, seq=1, left=0)
        rows = rig.driver.recorder.take_rows()
        assert not any(isinstance(row, OperationRow | OperationGone) for row in rows)
