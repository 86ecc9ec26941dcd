"""What the edge keeps of jobs that are gone: nothing."""

from __future__ import annotations

from pathlib import Path

from plexsvc.ids import OperationId
from plexsvc.scheduler.config import SchedulerConfig
from tests.rigs.scheduler_rig import start_rig


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
