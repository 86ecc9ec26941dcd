"""The live scheduler over fake nodes: real journal, real gRPC, whole lives of jobs."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from plexclient.wire.v1 import (
    common_pb2,
    operations_pb2,
    service_pb2,
    worker_pb2,
)
from plexsvc.errors import ErrorCode, PlexError
from plexsvc.ids import NodeId
from plexsvc.scheduler.config import SchedulerConfig
from plexsvc.scheduler.core.events import NodeCordoned
from plexsvc.scheduler.core.vocabulary import JobState
from plexsvc.scheduler.driver import journal, storing
from plexsvc.store.opening import open_store
from plexsvc.store.rows import JournalRow
from plexsvc.store.store import Store
from tests.rigs import stored
from tests.rigs.router_rig import until
from tests.rigs.scheduler_rig import TENANT, Rig, held_open, start_rig

ANSWERED = operations_pb2.OPERATION_STATE_ANSWERED


async def test_a_job_deploys_runs_and_ends_leaving_nothing(rig: Rig) -> None:
    await rig.job("job-1")
    deployment = await rig.deploy("job-1")
    assert (deployment.state, deployment.vocab_size) == ("ready", 32)
    assert deployment.staging_nodes[0].node_id == "node-0"
    result = await rig.run("job-1", "step")
    assert (result.state, result.times.run_us) == (ANSWERED, 1000)
    job = await rig.end("job-1")
    assert (job.state, job.operations_done) == (service_pb2.JOB_STATE_COMPLETED, 1)
    assert rig.behaviour.stopped == ["wpg-1-1/0"]
    assert rig.behaviour.forgotten == ["wpg-1-1"]
    assert not rig.driver.cluster.wpgs
    assert not rig.driver.registry.by_wpg
    assert not rig.driver.registry.held


async def test_whoever_posts_a_fact_may_wait_for_what_follows(rig: Rig) -> None:
    fact = NodeCordoned(node_id=NodeId("node-0"))
    assert await rig.driver.post(fact).decision == []
    joined, cordoned = journal.replay(stored.journal(rig.store))
    assert cordoned == replace(fact, at_us=cordoned.at_us)
    assert cordoned.at_us > joined.at_us


async def test_whoever_waits_for_what_follows_is_told_that_the_scheduler_stopped(
    tmp_path: Path,
) -> None:
    slow = SchedulerConfig(inline_append_us=0)  # the store's thread has it when the driver stops
    async with start_rig(tmp_path, nodes=[{"train": 1}], config=slow) as rig:
        decision = rig.driver.post(NodeCordoned(node_id=NodeId("node-0"))).decision
    with pytest.raises(PlexError, match="the scheduler stopped") as raised:
        await decision
    assert raised.value.code is ErrorCode.UNAVAILABLE


async def test_ranks_are_told_all_they_need(rig: Rig) -> None:
    await rig.job("job-1")
    await rig.deploy("job-1", tp=2)
    specs = sorted(rig.agents[0].specs, key=lambda spec: spec.rank)
    assert [spec.proc_id for spec in specs] == ["wpg-1-1/0", "wpg-1-1/1"]
    told = json.loads(specs[1].config_json)
    assert told["rank"] == told["device_index"] == 1
    assert told["world_size"] == told["parallel"]["tp"] == 2
    assert told["rendezvous"] == "file:///run/node-0/wpg-1-1-1.rdzv"
    assert told["optimizer"] is None
    assert told["data_socket"] == "/run/node-0.sock"


async def test_two_jobs_take_turns_on_one_device(tmp_path: Path) -> None:
    async with start_rig(tmp_path, nodes=[{"train": 1}]) as rig:
        for job in ("a", "b"):
            await rig.job(job)
            await rig.deploy(job)
        for _ in range(2):
            await asyncio.gather(rig.run("a", "step"), rig.run("b", "step"))
        assert rig.behaviour.most_executing == 1
        to_device = [move for move in rig.behaviour.moves if move[1] == 2]
        assert len(to_device) >= 2
        assert rig.behaviour.leases == sorted(rig.behaviour.leases)


async def test_two_devices_work_at_the_same_time(rig: Rig) -> None:
    for job in ("a", "b"):
        await rig.job(job)
        await rig.deploy(job)
    both = asyncio.Event()

    async def meet(_: worker_pb2.ExecuteRequest) -> None:
        if rig.behaviour.executing == 2:
            both.set()
        await both.wait()

    rig.behaviour.on_execute = meet
    await asyncio.gather(rig.run("a"), rig.run("b"))
    assert rig.behaviour.most_executing == 2


async def test_whoever_is_told_something_is_told_what_is_on_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    on_the_loop = SchedulerConfig(inline_append_us=60_000_000)
    async with start_rig(tmp_path, nodes=[{"train": 1}], config=on_the_loop) as rig:
        await rig.job("job-1")
        await rig.deploy("job-1")
        synced: list[bool] = []
        append = rig.store.append_now

        def note(events: Sequence[JournalRow], *, is_synced: bool) -> bool:
            synced.append(is_synced)
            return append(events, is_synced=is_synced)

        monkeypatch.setattr(rig.store, "append_now", note)
        begun, go = held_open(rig, "step")
        async with asyncio.TaskGroup() as group:
            call = group.create_task(rig.run("job-1", "step"))
            await begun.wait()
            assert synced == [False]
            go.set()
            assert (await call).state == ANSWERED
        assert synced == [False, True]
        assert (await rig.run("job-1", "step", seq=1)).error.code == ErrorCode.STALE_SEQUENCE
        assert synced == [False, True, False, True]


async def test_managed_state_is_written_and_digested_by_the_state_manager(rig: Rig) -> None:
    await rig.job("job-1")
    await rig.deploy("job-1")
    assert (await rig.run("job-1", "state_digest")).texts == {"param": "abc"}
    assert (await rig.run("job-1", "export")).texts["files"] == "model.safetensors"
    assert (await rig.run("job-1", "save")).metrics["nbytes"] == 7


async def test_a_silent_client_loses_its_job_after_its_time_to_live(rig: Rig) -> None:
    await rig.job("patient", ttl_us=3_600_000_000)
    await asyncio.sleep(0)  # lets the watch begin with the patient one alone
    await rig.job("job-1", ttl_us=50_000)
    record = rig.driver.registry.job("job-1", tenant=TENANT)
    await rig.driver.recorder.until_ended(record)
    assert record.state is JobState.CANCELLED
    assert "no KeepAlive for 0.05 s" in record.reason


async def test_jobs_and_deployments_can_be_created_twice(rig: Rig) -> None:
    assert await rig.job("job-1") == await rig.job("job-1")
    first, second = await asyncio.gather(rig.deploy("job-1"), rig.deploy("job-1"))
    assert first.wpg_id == second.wpg_id
    assert len(rig.agents[0].specs) == 1


async def test_a_deployment_is_not_taken_for_another_one_of_its_name(rig: Rig) -> None:
    await rig.job("job-1")
    await rig.deploy("job-1")
    with pytest.raises(PlexError, match=r"'actor' .* has parallel {tp: 1} .* with {tp: 2}") as err:
        await rig.deploy("job-1", tp=2)
    assert err.value.code == ErrorCode.BAD_REQUEST


async def test_another_tenants_job_is_not_found(rig: Rig) -> None:
    await rig.job("job-1")
    with pytest.raises(PlexError) as refused:
        await rig.scheduler.call(
            "KeepAlive",
            service_pb2.KeepAliveRequest(job_id="job-1", tenant="others"),
            service_pb2.KeepAliveReply,
        )
    assert refused.value.code == ErrorCode.NOT_FOUND


async def test_malformed_operations_are_refused(rig: Rig) -> None:
    await rig.job("job-1")
    await rig.deploy("job-1")
    bad = rig.operation("job-1")
    bad.operation_id = b"short"
    assert (await rig.scheduler.submit(bad)).error.code == ErrorCode.BAD_REQUEST
    bad = rig.operation("job-1", "initialize")
    assert (await rig.scheduler.submit(bad)).error.code == ErrorCode.BAD_REQUEST
    stale = rig.operation("job-1", seq=1)
    await rig.scheduler.submit(stale)
    stale = rig.operation("job-1", seq=1)
    assert (await rig.scheduler.submit(stale)).error.code == ErrorCode.STALE_SEQUENCE


async def test_status_timeline_and_explanations_come_from_the_record(rig: Rig) -> None:
    await rig.job("job-1")
    await rig.deploy("job-1")
    begun, go = held_open(rig, "step")
    first, second = rig.operation("job-1", "step"), rig.operation("job-1", "step")
    async with asyncio.TaskGroup() as group:
        group.create_task(rig.scheduler.submit(first))
        group.create_task(rig.scheduler.submit(second))
        await begun.wait()
        told = await rig.scheduler.call(
            "ExplainOperation",
            service_pb2.ExplainRequest(
                operation_id=second.operation_id, job_id="job-1", tenant=TENANT
            ),
            service_pb2.ExplainReply,
        )
        assert "of its own deployment to end" in told.text
        status = await rig.scheduler.call(
            "GetStatus", service_pb2.GetStatusRequest(tenant=TENANT), service_pb2.ClusterStatus
        )
        go.set()
    assert status.devices[0].running_wpg == "wpg-1-1"
    assert (status.jobs[0].phase, status.nodes[0].host_bytes_used) == ("step", 11)
    spans = (
        await rig.scheduler.call(
            "Timeline", service_pb2.TimelineRequest(tenant=TENANT), service_pb2.TimelineReply
        )
    ).spans
    assert [span.kind for span in spans] == ["initialize", "step", "step"]
    others = (
        await rig.scheduler.call(
            "Timeline", service_pb2.TimelineRequest(tenant="x"), service_pb2.TimelineReply
        )
    ).spans
    assert [span.job_id for span in others] == ["", "", ""]
    operators = service_pb2.TimelineRequest(tenant="x", is_operator=True)
    named = (await rig.scheduler.call("Timeline", operators, service_pb2.TimelineReply)).spans
    assert [span.job_id for span in named] == ["job-1", "job-1", "job-1"]


async def test_the_journal_replayed_in_a_new_core_gives_the_same_end(rig: Rig) -> None:
    await rig.job("job-1")
    await rig.deploy("job-1")
    await rig.run("job-1", "step")
    await rig.end("job-1")
    recorded = journal.read(stored.journal(rig.store))
    replayed = recorded.configured.new_core()
    for event in recorded:
        replayed.handle(event)
    live = rig.driver._driver.core.cluster
    assert replayed.cluster.roll.ended == live.roll.ended
    assert replayed.cluster.devices.last_lease_no == live.devices.last_lease_no
    assert replayed.view.timeline.after(0, limit=99) == live.devices.timeline.after(0, limit=99)


async def test_the_tables_tell_what_happened(tmp_path: Path) -> None:
    async with start_rig(tmp_path, nodes=[{"train": 1}]) as rig:
        await rig.job("job-1")
        await rig.deploy("job-1")
        operation = rig.operation("job-1", "step")
        await rig.scheduler.submit(operation)
        await rig.end("job-1")
        rig.store.append([], rig.driver.recorder.take_rows())
        assert [(job.job_id, job.state) for job in stored.jobs(rig.store)] == [
            ("job-1", "completed")
        ]
        row = stored.operation(rig.store, operation.operation_id)
        assert row is not None
        assert (row.state, row.digest, row.lease_no) == ("answered", "01", 1)
        assert stored.deployments(rig.store, job_id="job-1")[0].state == "stopped"


async def limit_pages(rig: Rig, more: int) -> None:
    """Let SQLite's file grow by so many pages: beyond, its disk is full."""
    found = rig.driver._storing
    assert found is not None
    await found.run(partial(_limit_pages, rig.store, more))


def _limit_pages(store: Store, more: int) -> None:
    assert store._appender is not None
    held = store._appender._connection
    pages = held.execute("pragma page_count").fetchone()[0] + more
    held.execute(f"pragma max_page_count={pages}")
    store._connection.exec_driver_sql(f"pragma max_page_count={pages}")
    store._connection.rollback()


def is_full(rig: Rig) -> bool:
    try:
        rig.driver.check_open()
    except PlexError:
        return True
    return False


async def test_a_full_disk_refuses_new_work_by_name_and_keeps_what_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(storing, "RETRY_US", 1000)
    async with start_rig(tmp_path, nodes=[{"train": 1}]) as rig:
        await rig.job("job-1")
        await rig.deploy("job-1")
        begun, finish = held_open(rig, "step")
        async with asyncio.TaskGroup() as group:
            running = group.create_task(rig.run("job-1", "step"))
            await begun.wait()
            await limit_pages(rig, 0)
            waiting = [group.create_task(rig.run("job-1")) for _ in range(200)]
            await until(lambda: rig.driver._storing.failure)
            finish.set()
            with pytest.raises(PlexError, match=r"disk of sqlite.*plex\.db is full") as refused:
                await rig.job("job-2")
            assert (refused.value.code, refused.value.retryable) == (ErrorCode.DISK_FULL, True)
            assert (await rig.run("job-1", seq=999)).error.code == ErrorCode.DISK_FULL
            assert not running.done()
            beat = service_pb2.KeepAliveRequest(job_id="job-1", tenant=TENANT)
            told = await rig.scheduler.call("KeepAlive", beat, service_pb2.KeepAliveReply)
            assert "is full" in told.notice  # or nobody would know why the step takes so long
            why = service_pb2.ExplainRequest(job_id="job-1", tenant=TENANT)
            why_told = await rig.scheduler.call("ExplainOperation", why, service_pb2.ExplainReply)
            assert why_told.text.startswith("nothing is decided, for the disk of")
            why.operation_id = bytes(range(16))
            with pytest.raises(PlexError, match="waits to be decided, for the disk of") as refused:
                await rig.scheduler.call("ExplainOperation", why, service_pb2.ExplainReply)
            assert refused.value.code == ErrorCode.NOT_FOUND
            await limit_pages(rig, 100_000)
        assert running.result().state == ANSWERED
        states = {call.result().state for call in waiting if not call.result().HasField("error")}
        assert states == {ANSWERED}
        assert (await rig.job("job-2")).job_id == "job-2"


async def test_a_scheduler_that_was_replaced_stops(tmp_path: Path) -> None:
    with pytest.raises(ExceptionGroup) as stopped:  # noqa: PT012 - it may raise anywhere inside
        async with start_rig(tmp_path, nodes=[{"train": 1}]) as rig:
            open_store(f"sqlite:///{tmp_path}/plex.db", now_us=2).close()
            await rig.job("job-1")
            await asyncio.Event().wait()
    assert stopped.group_contains(PlexError, match="must stop", depth=None)


async def test_bounds_of_jobs_payloads_and_answers_are_those_of_the_configuration(
    tmp_path: Path,
) -> None:
    config = SchedulerConfig(
        max_deployments_per_job=1,
        max_held_payload_bytes=200,
        max_result_bytes=1,
        max_session_ttl_us=30_000_000,
    )
    async with start_rig(tmp_path, nodes=[{"train": 2}], config=config) as rig:
        job = await rig.job("job-1", ttl_us=3_600_000_000)
        assert job.session_ttl_us == 30_000_000
        await rig.deploy("job-1")
        with pytest.raises(PlexError, match=r"it may have 1"):
            await rig.deploy("job-1", "critic")
        large = rig.operation("job-1", "forward", payload=inline(300))
        refused = (await rig.scheduler.submit(large)).error
        assert refused.code == ErrorCode.QUEUE_FULL
        assert "more would exceed 200" in refused.message
        large.payload.CopyFrom(inline(100))
        assert (await rig.scheduler.submit(large)).state == ANSWERED
        assert (await rig.run("job-1")).state == ANSWERED
        assert len(rig.driver.results) == 1  # the newest answer stays, whatever its size


def inline(nbytes: int) -> common_pb2.Payload:
    return common_pb2.Payload(inline=common_pb2.TensorBundle(data=bytes(nbytes)))
