"""Costs: operators see all jobs, tenants their own, whatever they ask for."""

from __future__ import annotations

from pathlib import Path

import pytest

from plexclient.wire.v1 import service_pb2 as pb
from plexsvc.errors import PlexError
from plexsvc.scheduler.ledger.bill import FIGURES
from tests.rigs.scheduler_rig import TENANT, Rig, start_rig

RIVAL = "rival"


async def costs(rig: Rig, **asked: object) -> list[pb.Cost]:
    request = pb.CostRequest(**asked)  # type: ignore[arg-type] # passed on
    return list((await rig.scheduler.call("GetCost", request, pb.CostReply)).costs)


async def test_a_tenant_sees_what_its_own_jobs_have_used_and_an_operator_all(
    tmp_path: Path,
) -> None:
    async with start_rig(tmp_path, nodes=[{"train": 2}]) as rig:
        await rig.job("job-1")
        await rig.deploy("job-1")
        other = pb.CreateJobRequest(job_id="job-2", name="job-2", tenant=RIVAL)
        await rig.scheduler.call("CreateJob", other, pb.Job)
        theirs = pb.CreateDeploymentRequest(
            deployment_id="job-2/actor",
            job_id="job-2",
            tenant=RIVAL,
            name="actor",
            spec=pb.DeploymentSpec(role="actor", backend="noop"),
        )
        await rig.scheduler.call("CreateDeployment", theirs, pb.Deployment)
        await rig.run("job-1", "step")
        await rig.run("job-1", "step")
        everything = await costs(rig, is_operator=True)
        kinds = [(one.owner, one.job_id, one.kind, one.count) for one in everything]
        assert kinds == [
            (TENANT, "job-1", "initialize", 1),
            (TENANT, "job-1", "step", 2),
            (RIVAL, "job-2", "initialize", 1),
        ]
        own = await costs(rig, tenant=TENANT)
        assert own == everything[:2]
        assert await costs(rig, tenant=TENANT, owner=RIVAL) == []
        assert await costs(rig, tenant=TENANT, job_id="job-2") == []
        assert await costs(rig, is_operator=True, owner=RIVAL) == everything[2:]
        assert await costs(rig, is_operator=True, job_id="job-1") == own
        now_us = rig.driver.clock.wall_us()
        assert await costs(rig, is_operator=True, since_us=now_us) == everything
        assert await costs(rig, is_operator=True, since_us=now_us + 3_600_000_000) == []
        report = await rig.scheduler.call(
            "GetReport", pb.ReportRequest(tenant=TENANT), pb.ReportReply
        )
        assert report.jobs[0].device_us == sum(one.device_us for one in own)
        busy_us = sum(device.busy_us for device in rig.driver.cluster.devices.values())
        assert sum(one.device_us for one in everything) == busy_us


async def test_the_operations_of_a_job_and_the_rest_sum_to_its_bill(tmp_path: Path) -> None:
    async with start_rig(tmp_path, nodes=[{"train": 2}]) as rig:
        await rig.job("job-1")
        await rig.deploy("job-1")
        await rig.run("job-1", "step")
        await rig.run("job-1", "step")
        bill = await costs(rig, tenant=TENANT, job_id="job-1")
        found = await costs(rig, tenant=TENANT, job_id="job-1", by_operation=True)
        steps = [one for one in found if one.kind == "step"]
        assert [(one.count, one.seq > 0, one.deployment_id) for one in steps] == [
            (1, True, "job-1/actor")
        ] * 2
        assert len({one.operation_id for one in steps}) == 2
        for kind in {one.kind for one in bill}:
            for name in FIGURES:
                total, summed = (
                    sum(getattr(one, name) for one in rows if one.kind == kind)
                    for rows in (bill, found)
                )
                assert summed == total, (kind, name)
        assert await costs(rig, tenant=RIVAL, job_id="job-1", by_operation=True) == []
        for asked in ({"by_operation": True}, {"job_id": "job-1", "since_us": 1}):
            with pytest.raises(PlexError, match="give a job, and no time"):
                await costs(rig, is_operator=True, **{"by_operation": True, **asked})
