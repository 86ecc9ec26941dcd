"""Quotas: a job beyond its tenant's is refused, and what runs goes on."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from plexclient.wire.v1 import service_pb2 as pb
from plexsvc.errors import ErrorCode, PlexError
from tests.rigs.scheduler_rig import TENANT, Rig, held_open, start_rig


async def bind(rig: Rig, most: int) -> list[pb.QuotaView]:
    request = pb.SetQuotaRequest(owner=TENANT, what="jobs", most=most, is_lifted=not most)
    return list((await rig.scheduler.call("SetQuota", request, pb.ListQuotasReply)).quotas)


async def test_a_job_beyond_its_tenants_quota_is_refused_and_those_it_has_go_on(
    tmp_path: Path,
) -> None:
    async with start_rig(tmp_path, nodes=[{"train": 1}]) as rig:
        await rig.job("job-1")
        await rig.job("job-2")
        assert await bind(rig, 1) == [pb.QuotaView(owner=TENANT, what="jobs", most=1, used=2)]
        with pytest.raises(PlexError, match=r"has 2 jobs, and its quota is 1") as caught:
            await rig.job("job-3")
        assert caught.value.code is ErrorCode.QUEUE_FULL
        assert set(rig.driver.registry.jobs) == {"job-1", "job-2"}
        await rig.job("job-1")
        other = pb.CreateJobRequest(job_id="job-4", name="job-4", tenant="rival")
        await rig.scheduler.call("CreateJob", other, pb.Job)
        assert await bind(rig, 3) == [pb.QuotaView(owner=TENANT, what="jobs", most=3, used=2)]
        assert [row.most for row in rig.store.quotas()] == [3]
        await rig.job("job-3")
        assert await bind(rig, 0) == []
        await rig.job("job-5")


async def test_routers_that_watch_are_told_of_quotas_of_requests_alone(tmp_path: Path) -> None:
    async with start_rig(tmp_path, nodes=[{"train": 1}]) as rig:

        async def watched() -> pb.WatchTokensReply:
            request = pb.WatchTokensRequest()
            return await rig.scheduler.call("WatchTokens", request, pb.WatchTokensReply)

        before = await watched()
        await bind(rig, 1)
        asked = pb.SetQuotaRequest(owner=TENANT, what="requests", most=9)
        await rig.scheduler.call("SetQuota", asked, pb.ListQuotasReply)
        told = await watched()
        assert told.revision > before.revision
        assert list(told.quotas) == [pb.QuotaView(owner=TENANT, what="requests", most=9)]
        asked = pb.SetQuotaRequest(owner=TENANT, what="requests", is_lifted=True)
        await rig.scheduler.call("SetQuota", asked, pb.ListQuotasReply)
        assert not (await watched()).quotas


async def test_a_tenant_that_has_spent_its_cap_is_told_ended_and_opens_no_job(
    tmp_path: Path,
) -> None:
    async with start_rig(tmp_path, nodes=[{"train": 1}]) as rig, asyncio.TaskGroup() as group:
        await rig.job("job-1")
        await rig.deploy("job-1")
        begun, go = held_open(rig, "step")
        running = group.create_task(rig.run("job-1", "step"))
        await begun.wait()
        waiting = group.create_task(rig.run("job-1", "step"))
        asked = pb.SetQuotaRequest(owner=TENANT, what="spend", most=1)
        (quota,) = (await rig.scheduler.call("SetQuota", asked, pb.ListQuotasReply)).quotas
        assert (quota.what, quota.most) == ("spend", 1)
        refused = (await waiting).error
        assert refused.code == "over_budget"
        assert "its cap is 1" in refused.message
        alive = pb.KeepAliveRequest(job_id="job-1", tenant=TENANT)
        told = await rig.scheduler.call("KeepAlive", alive, pb.KeepAliveReply)
        assert "of the 1 device-seconds that it may" in told.notice
        go.set()
        assert not (await running).HasField("error")
        with pytest.raises(PlexError, match="over_budget: tenant 'lab' has spent"):
            await rig.job("job-2")
        listed = await rig.scheduler.call("ListQuotas", pb.ListQuotasRequest(), pb.ListQuotasReply)
        assert listed.quotas[0].used >= 1
        asked = pb.SetQuotaRequest(owner=TENANT, what="spend", most=1000)
        await rig.scheduler.call("SetQuota", asked, pb.ListQuotasReply)
        await rig.job("job-2")


async def test_deployments_beyond_a_tenants_devices_are_refused_and_leave_nothing(
    tmp_path: Path,
) -> None:
    async with start_rig(tmp_path, nodes=[{"train": 4}]) as rig:
        await rig.job("job-1")
        asked = pb.SetQuotaRequest(owner=TENANT, what="devices", most=2)
        await rig.scheduler.call("SetQuota", asked, pb.ListQuotasReply)
        with pytest.raises(PlexError, match="asks for 4 devices, and its quota is 2") as caught:
            await rig.deploy("job-1", tp=4)
        assert caught.value.code is ErrorCode.NO_PLACEMENT
        assert rig.driver.registry.deployments == {}
        await rig.deploy("job-1", tp=2)
        await rig.deploy("job-1", tp=2)
        with pytest.raises(
            PlexError, match="has deployments on 2 devices and asks for 1"
        ) as caught:
            await rig.deploy("job-1", "critic")
        assert caught.value.code is ErrorCode.QUEUE_FULL
        listed = await rig.scheduler.call("ListQuotas", pb.ListQuotasRequest(), pb.ListQuotasReply)
        assert list(listed.quotas) == [pb.QuotaView(owner=TENANT, what="devices", most=2, used=2)]
        await rig.end("job-1")
        await rig.job("job-2")
        await rig.deploy("job-2", tp=2)


async def deploy(rig: Rig, name: str, model: Path) -> None:
    spec = pb.DeploymentSpec(
        role=name, backend="megatron", model=str(model), model_root=str(model.parent)
    )
    spec.optimizer.SetInParent()
    asked = pb.CreateDeploymentRequest(
        deployment_id=f"job-1/{name}", job_id="job-1", tenant=TENANT, name=name, spec=spec
    )
    await rig.scheduler.call("CreateDeployment", asked, pb.Deployment)


async def test_deployments_beyond_a_tenants_host_memory_are_refused_before_they_wait(
    tmp_path: Path, tiny_model: Path
) -> None:
    async with start_rig(tmp_path, nodes=[{"train": 2, "rollout": 1}]) as rig:
        await rig.job("job-1")
        await deploy(rig, "actor", tiny_model)
        asked = pb.SetQuotaRequest(owner=TENANT, what="host_bytes", most=10**12)
        (quota,) = (await rig.scheduler.call("SetQuota", asked, pb.ListQuotasReply)).quotas
        each = quota.used
        assert each > 0
        asked = pb.SetQuotaRequest(owner=TENANT, what="host_bytes", most=2 * each - 1)
        await rig.scheduler.call("SetQuota", asked, pb.ListQuotasReply)
        with pytest.raises(
            PlexError, match=f"{each} host_bytes and asks for {each} more"
        ) as caught:
            await deploy(rig, "critic", tiny_model)
        assert caught.value.code is ErrorCode.QUEUE_FULL
        assert len(rig.driver.registry.deployments) == 1
        asked = pb.SetQuotaRequest(owner=TENANT, what="host_bytes", most=2 * each)
        await rig.scheduler.call("SetQuota", asked, pb.ListQuotasReply)
        await deploy(rig, "critic", tiny_model)
        await rig.deploy("job-1", "rollout", role="rollout")  # it has no state in host memory
