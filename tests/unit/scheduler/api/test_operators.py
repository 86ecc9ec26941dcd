"""What operators see and order, on a driver over fake nodes with two tenants."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from plexclient.wire.v1 import service_pb2 as pb
from plexsvc.errors import ErrorCode, PlexError
from plexsvc.ids import JobId, show
from plexsvc.scheduler.config import SchedulerConfig
from tests.rigs.scheduler_rig import TENANT, Rig, start_rig

RIVAL = "rival"
CORDON, DRAIN, UNCORDON = pb.NODE_CHANGE_CORDON, pb.NODE_CHANGE_DRAIN, pb.NODE_CHANGE_UNCORDON


@pytest.fixture
async def two(tmp_path: Path) -> AsyncIterator[Rig]:
    """Two nodes with a training device each: a job of the lab on one, a rival's on the other."""
    async with start_rig(tmp_path, nodes=[{"train": 1}, {"train": 1}]) as rig:
        await rig.job("job-1")
        await rig.deploy("job-1")
        await of_rival(rig, "job-2")
        yield rig


async def of_rival(rig: Rig, job_id: str) -> None:
    request = pb.CreateJobRequest(job_id=job_id, name=job_id, tenant=RIVAL)
    await rig.scheduler.call("CreateJob", request, pb.Job)
    spec = pb.DeploymentSpec(role="actor", backend="noop")
    await rig.scheduler.call(
        "CreateDeployment",
        pb.CreateDeploymentRequest(
            deployment_id=f"{job_id}/actor", job_id=job_id, tenant=RIVAL, name="actor", spec=spec
        ),
        pb.Deployment,
    )


async def nodes(rig: Rig, *, tenant: str = "ops", is_operator: bool = True) -> list[pb.NodeView]:
    request = pb.ListNodesRequest(tenant=tenant, is_operator=is_operator)
    return list((await rig.scheduler.call("ListNodes", request, pb.ListNodesReply)).nodes)


async def change(rig: Rig, node_id: str, to: pb.NodeChange) -> pb.NodeView:
    return await rig.scheduler.call(
        "ChangeNode",
        pb.ChangeNodeRequest(tenant="ops", is_operator=True, node_id=node_id, change=to),
        pb.NodeView,
    )


async def add(rig: Rig, agent: str) -> pb.NodeView:
    return await rig.scheduler.call(
        "AddNode", pb.AddNodeRequest(is_operator=True, agent=agent), pb.NodeView
    )


async def refusal(call: object) -> PlexError:
    with pytest.raises(PlexError) as caught:
        await call  # type: ignore[misc] # any awaitable
    return caught.value


async def test_nodes_show_who_lives_there_and_hide_foreign_names(two: Rig) -> None:
    seen = [(n.node_id, n.state, [r.deployment_id for r in n.residents]) for n in await nodes(two)]
    assert seen == [("node-0", "up", ["job-1/actor"]), ("node-1", "up", ["job-2/actor"])]
    mine = await nodes(two, tenant=TENANT, is_operator=False)
    assert [[(r.job_id, r.job_name, r.tenant, r.role) for r in n.residents] for n in mine] == [
        [("job-1", "job-1", TENANT, "actor")],
        [("", "", "", "actor")],
    ]
    assert mine[0].host_bytes_used == 11
    assert [(d.kind, d.bytes_total) for d in mine[0].devices] == [("train", 100)]


async def test_a_cordoned_node_takes_nothing_until_it_is_opened(two: Rig) -> None:
    found = await change(two, "node-1", CORDON)
    assert (found.state, "uncordon" in found.reason) == ("cordoned", True)
    await two.job("job-3")
    placed = await two.deploy("job-3")
    assert [block.node_id for block in placed.blocks] == ["node-0"]
    assert (await change(two, "node-1", UNCORDON)).state == "up"


async def test_an_empty_node_is_drained_at_once(two: Rig) -> None:
    agent = two.new_agent("node-9", train=1)
    added = await add(two, await agent.start())
    assert (added.node_id, added.state) == ("node-9", "up")
    assert (await change(two, "node-9", DRAIN)).state == "drained"


async def test_adding_again_changes_nothing_and_bad_additions_say_why(two: Rig) -> None:
    agent = two.new_agent("node-9", train=1)
    where = await agent.start()
    await add(two, where)
    assert (await add(two, where)).node_id == "node-9"
    assert len(await nodes(two)) == 3
    twin = two.new_agent("node-9", train=1)
    taken = await refusal(add(two, await twin.start()))
    assert (taken.code, where in taken.message) == (ErrorCode.BAD_REQUEST, True)
    nobody = await refusal(add(two, "127.0.0.1:1"))
    assert (nobody.code, "plexctl node join" in nobody.message) == (ErrorCode.UNAVAILABLE, True)
    assert len(await nodes(two)) == 3


async def test_orders_about_what_is_not_there_say_what_is(two: Rig) -> None:
    unknown = await refusal(change(two, "node-7", DRAIN))
    assert (unknown.code, "node-0, node-1" in unknown.message) == (ErrorCode.NOT_FOUND, True)
    pin = pb.PinJobRequest(is_operator=True, job_id="nobody", is_pinned=True)
    assert (
        await refusal(two.scheduler.call("PinJob", pin, pb.PinJobReply))
    ).code is ErrorCode.NOT_FOUND
    move = pb.MoveJobRequest(is_operator=True, job_id="job-1", node_id="node-7")
    assert (
        await refusal(two.scheduler.call("MoveJob", move, pb.MovesReply))
    ).code is ErrorCode.NOT_FOUND
    await two.end("job-1")
    move = pb.MoveJobRequest(is_operator=True, job_id="job-1")
    assert (
        await refusal(two.scheduler.call("MoveJob", move, pb.MovesReply))
    ).code is ErrorCode.JOB_ENDED


async def test_a_job_that_only_rolls_out_cannot_be_moved(rig: Rig) -> None:
    await rig.job("job-1")
    await rig.deploy("job-1", "rollout", role="rollout")
    move = pb.MoveJobRequest(is_operator=True, job_id="job-1")
    refused = await refusal(rig.scheduler.call("MoveJob", move, pb.MovesReply))
    assert (refused.code, "no training" in refused.message) == (ErrorCode.BAD_REQUEST, True)


async def test_a_pin_is_told_by_explain_and_pack_and_comes_off_again(two: Rig) -> None:
    for is_pinned in (True, False):
        pin = pb.PinJobRequest(is_operator=True, job_id="job-1", is_pinned=is_pinned)
        assert (await two.scheduler.call("PinJob", pin, pb.PinJobReply)).is_pinned == is_pinned
        told = await two.scheduler.call(
            "ExplainOperation", pb.ExplainRequest(job_id="job-1", tenant=TENANT), pb.ExplainReply
        )
        assert told.text.startswith("job-1 is running" + " and pinned" * is_pinned)
        pack = await two.scheduler.call("GetPack", pb.PackRequest(is_operator=True), pb.PackReply)
        pins = {r.job_id: r.is_pinned for g in pack.groups for r in g.residents}
        assert pins == {"job-1": is_pinned, "job-2": False}


async def test_a_pack_shows_groups_with_names_for_those_who_may_read_them(two: Rig) -> None:
    pack = await two.scheduler.call(
        "GetPack", pb.PackRequest(tenant=TENANT, window_us=5_000_000), pb.PackReply
    )
    assert (pack.window_us, pack.policy) == (5_000_000, "plex")
    groups = [(list(g.devices), [(r.name, r.is_cold) for r in g.residents]) for g in pack.groups]
    assert groups == [(["node-0:0"], [("actor", True)]), (["node-1:0"], [("", True)])]
    assert all(r.period_us and not r.place for g in pack.groups for r in g.residents)


async def test_a_deployment_that_waits_is_in_the_pack_with_its_reason(rig: Rig) -> None:
    for job_id in ("job-1", "job-2", "job-3"):
        await rig.job(job_id)
    for job_id in ("job-1", "job-2"):
        await rig.deploy(job_id, "rollout", role="rollout")
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(rig.deploy("job-3", "rollout", role="rollout"))
        while not rig.driver.cluster.unplaced:
            await rig.driver.clock.sleep(1000)
        pack = await rig.scheduler.call("GetPack", pb.PackRequest(tenant=TENANT), pb.PackReply)
        foreign = await rig.scheduler.call("GetPack", pb.PackRequest(tenant=RIVAL), pb.PackReply)
        told = await rig.scheduler.call(
            "ExplainOperation", pb.ExplainRequest(job_id="job-3", tenant=TENANT), pb.ExplainReply
        )
        await rig.end("job-1")
    assert [(w.deployment_id, w.name, "0 are idle" in w.reason) for w in pack.waiting] == [
        ("job-3/rollout", "rollout", True)
    ]
    assert [(w.job_id, "another tenant's waits" in w.reason) for w in foreign.waiting] == [
        ("", True)
    ]
    assert "rollout waits for devices since" in told.text


def shape(**more: object) -> pb.JobShape:
    cycle = [pb.CycleSegment(phase="train", offset_us=0, duration_us=3_000_000)]
    facts = {"job_id": "new", "num_devices": 1, "period_us": 30_000_000, "segments": cycle}
    return pb.JobShape(**(facts | more))  # type: ignore[arg-type]


async def test_a_what_if_changes_nothing_and_says_where_or_why_not(two: Rig) -> None:
    before = (
        await two.scheduler.call("GetPack", pb.PackRequest(is_operator=True), pb.PackReply)
    ).groups
    fits = await two.scheduler.call(
        "WhatIf", pb.WhatIfRequest(is_operator=True, job=shape()), pb.WhatIfReply
    )
    assert (fits.fits, len(fits.devices), len(fits.neighbours)) == (True, 1, 1)
    assert not fits.opens_group
    foreign = await two.scheduler.call(
        "WhatIf", pb.WhatIfRequest(tenant="third", job=shape()), pb.WhatIfReply
    )
    assert [n.job_id for n in foreign.neighbours] == [""]
    lacking = await two.scheduler.call(
        "WhatIf", pb.WhatIfRequest(job=shape(rollout_devices=1)), pb.WhatIfReply
    )
    assert (lacking.fits, "0 are idle" in lacking.reasons[0]) == (False, True)
    large = await two.scheduler.call(
        "WhatIf", pb.WhatIfRequest(job=shape(num_devices=64)), pb.WhatIfReply
    )
    assert (large.fits, "no 64 train devices" in large.reasons[-1]) == (False, True)
    heavy = await two.scheduler.call(
        "WhatIf", pb.WhatIfRequest(job=shape(state_bytes=1 << 60)), pb.WhatIfReply
    )
    assert (heavy.fits, "than any train device has" in heavy.reasons[-1]) == (False, True)
    kind = await refusal(
        two.scheduler.call("WhatIf", pb.WhatIfRequest(job=shape(), kind="abacus"), pb.WhatIfReply)
    )
    assert kind.code is ErrorCode.NO_PLACEMENT
    mode = await refusal(
        two.scheduler.call("WhatIf", pb.WhatIfRequest(job=shape(mode="odd")), pb.WhatIfReply)
    )
    assert (mode.code, "sync, async1" in mode.message) == (ErrorCode.BAD_REQUEST, True)
    assert (
        await two.scheduler.call("GetPack", pb.PackRequest(is_operator=True), pb.PackReply)
    ).groups == before


async def test_a_report_shows_each_tenant_by_name_to_operators_only(two: Rig) -> None:
    for _ in range(3):
        await two.run("job-1", "step")
    two.rollout.bills["job-1/actor"] = pb.JobUse(pooled_us=5, cost=0.5)
    report = await two.scheduler.call(
        "GetReport", pb.ReportRequest(is_operator=True), pb.ReportReply
    )
    assert [(t.tenant, t.jobs) for t in report.tenants] == [(TENANT, 1), (RIVAL, 1)]
    assert [job.job_id for job in report.jobs] == ["job-1", "job-2"]
    assert report.jobs[0].device_us > 0
    assert [(t.weight, t.waiting) for t in report.tenants] == [(1, 0), (1, 0)]
    assert all(0 < t.share_ppm < 1_000_000 for t in report.tenants)
    assert [(t.pooled_us, t.cost) for t in report.tenants] == [(5, 0.5), (0, 0)]
    assert [(job.pooled_us, job.cost) for job in report.jobs] == [(5, 0.5), (0, 0)]
    own = await two.scheduler.call("GetReport", pb.ReportRequest(tenant=TENANT), pb.ReportReply)
    assert [(t.tenant, t.jobs) for t in own.tenants] == [(TENANT, 1), ("", 1)]
    assert [job.job_id for job in own.jobs] == ["job-1"]


async def test_who_waited_for_whom_is_in_the_report(tmp_path: Path) -> None:
    async with start_rig(tmp_path, nodes=[{"train": 1}]) as rig:
        await rig.job("job-1")
        await rig.deploy("job-1")
        await of_rival(rig, "job-2")
        rival = pb.ReportRequest(tenant=RIVAL)
        for _ in range(3):
            theirs = rig.operation("job-2", "step")
            theirs.tenant = RIVAL
            await asyncio.gather(rig.run("job-1", "step"), rig.scheduler.submit(theirs))
        report = await rig.scheduler.call(
            "GetReport", pb.ReportRequest(is_operator=True), pb.ReportReply
        )
        waits = {(w.waiting, w.blocking): w.wait_us for w in report.matrix}
        assert any(w > 0 for w in waits.values())
        assert all(waiting != blocking for waiting, blocking in waits)
        assert sum(t.wait_us for t in report.tenants) == sum(waits.values())
        assert sum(t.switches for t in report.tenants) >= 2
        for one in (await rig.scheduler.call("GetReport", rival, pb.ReportReply)).matrix:
            assert {one.waiting, one.blocking} == {RIVAL, ""}


async def test_a_job_is_explained_to_its_tenant_and_to_operators_only(two: Rig) -> None:
    async def ask(request: pb.ExplainRequest) -> pb.ExplainReply:
        return await two.scheduler.call("ExplainOperation", request, pb.ExplainReply)

    told = await ask(pb.ExplainRequest(job_id="job-1", tenant=TENANT))
    assert "actor is idle" in told.text
    assert any("node-0:0" in fact for fact in told.facts)
    assert (await ask(pb.ExplainRequest(job_id="job-2", is_operator=True))).text.startswith("job-2")
    hidden = await refusal(ask(pb.ExplainRequest(job_id="job-2", tenant=TENANT)))
    assert hidden.code is ErrorCode.NOT_FOUND
    await two.end("job-1")
    ended = await ask(pb.ExplainRequest(job_id="job-1", tenant=TENANT))
    assert ended.text == "job-1 (job-1) is completed: done"


async def test_an_operation_is_explained_without_naming_its_job(two: Rig) -> None:
    operation = two.operation("job-1", "step")
    await two.scheduler.submit(operation)
    shown = bytes.fromhex(show(operation.operation_id).removeprefix("op_"))
    for operation_id in (operation.operation_id, shown):
        ask = pb.ExplainRequest(operation_id=operation_id, tenant=TENANT)
        told = await two.scheduler.call("ExplainOperation", ask, pb.ExplainReply)
        assert "applied and answered" in told.text
        ask.tenant = RIVAL
        hidden = await refusal(two.scheduler.call("ExplainOperation", ask, pb.ExplainReply))
        assert hidden.code is ErrorCode.NOT_FOUND


async def test_an_id_that_begins_as_several_do_names_them(two: Rig) -> None:
    ids = [b"same" + last * 12 for last in (b"a", b"b")]
    for operation_id in ids:
        operation = two.operation("job-1", "step")
        operation.operation_id = operation_id
        await two.scheduler.submit(operation)
    ask = pb.ExplainRequest(operation_id=b"same", tenant=TENANT)
    unclear = await refusal(two.scheduler.call("ExplainOperation", ask, pb.ExplainReply))
    assert unclear.code is ErrorCode.BAD_REQUEST
    assert all(operation_id.hex() in unclear.message for operation_id in ids)


async def test_what_cannot_leave_a_draining_node_says_why(tmp_path: Path) -> None:
    config = SchedulerConfig(max_deployments_per_group=1)
    async with start_rig(tmp_path, nodes=[{"train": 1}, {"train": 1}], config=config) as rig:
        for job_id in ("job-1", "job-2"):
            await rig.job(job_id)
            await rig.deploy(job_id)
        drained = await change(rig, "node-1", DRAIN)
        assert (drained.state, drained.reason) == (
            "draining",
            "1 still here: 0 on the move, 1 stay",
        )
        full = "holds 1 jobs (max_jobs)"
        assert full in drained.residents[0].next
        told = await rig.scheduler.call(
            "ExplainOperation", pb.ExplainRequest(job_id="job-2", tenant=TENANT), pb.ExplainReply
        )
        assert any("node-1 is being drained" in fact and full in fact for fact in told.facts)
        refused = await refusal(
            rig.scheduler.call(
                "MoveJob", pb.MoveJobRequest(is_operator=True, job_id="job-1"), pb.MovesReply
            )
        )
        assert refused.code is ErrorCode.NO_PLACEMENT
        closed = pb.MoveJobRequest(is_operator=True, job_id="job-1", node_id="node-1")
        assert (
            "is cordoned"
            in (await refusal(rig.scheduler.call("MoveJob", closed, pb.MovesReply))).message
        )
        status = await rig.scheduler.call(
            "GetStatus", pb.GetStatusRequest(tenant=TENANT), pb.ClusterStatus
        )
        assert [node.state for node in status.nodes] == ["up", "draining"]
        await rig.end("job-2")
        assert [n.state for n in await nodes(rig)] == ["up", "drained"]


async def test_a_priority_above_the_tenants_is_refused_and_opens_nothing(tmp_path: Path) -> None:
    config = SchedulerConfig(tenant_priorities={TENANT: 5})
    async with start_rig(tmp_path, nodes=[{"train": 1}], config=config) as rig:
        for name, tenant, priority in (("job-1", TENANT, 6), ("job-2", RIVAL, 1)):
            request = pb.CreateJobRequest(job_id=name, tenant=tenant, priority=priority)
            refused = await refusal(rig.scheduler.call("CreateJob", request, pb.Job))
            assert (refused.code, "operator" in refused.message) == (ErrorCode.FORBIDDEN, True)
            assert JobId(name) not in rig.driver.registry.jobs
        for name, tenant, priority in (("job-1", TENANT, 5), ("job-2", RIVAL, -1)):
            request = pb.CreateJobRequest(job_id=name, tenant=tenant, priority=priority)
            await rig.scheduler.call("CreateJob", request, pb.Job)
            assert JobId(name) in rig.driver.registry.jobs
