"""A second scheduler goes on where the first one stopped: nothing is spawned or applied twice."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from plexclient.wire.v1 import operations_pb2, service_pb2, statemanager_pb2
from plexsvc.clock import SystemClock
from plexsvc.errors import ErrorCode, PlexError
from plexsvc.ids import DeploymentId, JobId, NodeId, WpgId
from plexsvc.scheduler.api.servicer import SchedulerServicer
from plexsvc.scheduler.config import SchedulerConfig
from plexsvc.scheduler.core.events import Event, JobEndRequested, RelocationRequested
from plexsvc.scheduler.core.state import Wpg
from plexsvc.scheduler.core.view import ClusterView
from plexsvc.scheduler.core.vocabulary import JobState, Place
from plexsvc.scheduler.driver.former import read_former
from plexsvc.scheduler.ledger.durable import Durable
from plexsvc.scheduler.live import LiveScheduler
from plexsvc.scheduler.orders import adopt
from plexsvc.scheduler.orders.reach import Reach
from plexsvc.scheduler.orders.versions import Versions
from plexsvc.store.opening import open_store
from plexsvc.store.store import Store
from tests.fakes.fake_cluster import FakeAgent, no_room
from tests.rigs.keys import KEYS
from tests.rigs.scheduler_rig import TENANT, Rig, held_open, start_rig, until

ANSWERED = operations_pb2.OPERATION_STATE_ANSWERED


@asynccontextmanager
async def second(
    rig: Rig, directory: Path, *, config: SchedulerConfig | None = None
) -> AsyncIterator[Rig]:
    """Run a scheduler that takes over from a rig's: of its nodes, those that are known."""
    rig.running.cancel()
    await asyncio.wait({rig.running})
    url = f"sqlite:///{directory}/plex.db"
    former = read_former(url)
    store = open_store(url, now_us=2)
    added = store.nodes()
    targets = [f"127.0.0.1:{agent.port}" for agent in rig.agents]
    configured = [target for target in targets if target not in {row.agent for row in added}]
    driver = LiveScheduler(
        config or rig.driver.config,
        store,
        SystemClock(),
        configured,
        rig.rollout,
        KEYS,
        former,
        added=added,
    )
    try:
        async with asyncio.TaskGroup() as group:
            running = group.create_task(driver.run())
            await driver.ready()
            servicer = SchedulerServicer(driver)
            yield replace(rig, driver=driver, scheduler=servicer, store=store, running=running)
            running.cancel()
    finally:
        store.close()


async def test_what_ran_is_sent_again_and_what_was_answered_is_recalled(tmp_path: Path) -> None:
    async with start_rig(tmp_path, nodes=[{"train": 1}]) as rig:
        await rig.job("job")
        await rig.deploy("job")
        answered = rig.operation("job")
        assert (await rig.scheduler.submit(answered)).state == ANSWERED
        begun, go = held_open(rig, "zero_grad")
        async with asyncio.TaskGroup() as group:
            runs = rig.operation("job", "zero_grad")
            running = group.create_task(rig.scheduler.submit(runs))
            await begun.wait()
            waits = rig.operation("job")
            waiting = group.create_task(rig.scheduler.submit(waits))
            await until(lambda: len(rig.driver.cluster.operations) >= 3)
            async with second(rig, tmp_path) as after:
                spawned = len(rig.agents[0].specs)
                go.set()
                again = [after.scheduler.submit(one) for one in (answered, waits, runs)]
                results = await asyncio.gather(*again)
                assert [result.state for result in results] == [ANSWERED] * 3
                assert (await after.run("job")).state == ANSWERED
                assert len(rig.agents[0].specs) == spawned
                assert (await after.end("job")).state == service_pb2.JOB_STATE_COMPLETED
            running.cancel()
            waiting.cancel()


async def test_ranks_are_asked_all_at_once(tmp_path: Path) -> None:
    async with start_rig(tmp_path, nodes=[{"train": 2}]) as rig:
        for job in ("a", "b"):
            await rig.job(job)
            await rig.deploy(job)
        both, asked = asyncio.Event(), list[None]()

        async def answer_once_both_are_asked() -> None:
            asked.append(None)
            if len(asked) == 2:
                both.set()
            await both.wait()

        rig.behaviour.on_describe = answer_once_both_are_asked
        async with second(rig, tmp_path) as after:
            for job in ("a", "b"):
                assert (await after.run(job)).state == ANSWERED


async def test_a_takeover_that_finds_no_room_on_disk_leaves_what_the_next_one_needs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with start_rig(tmp_path, nodes=[{"train": 1}]) as rig:
        await rig.job("job")
        await rig.deploy("job")
        with monkeypatch.context() as no_room:
            full = PlexError(ErrorCode.DISK_FULL, "no snapshot was kept")
            no_room.setattr(Store, "keep_snapshot", Mock(side_effect=full))
            with pytest.raises(ExceptionGroup) as failed:
                async with second(rig, tmp_path):
                    pass
            assert failed.group_contains(PlexError, match="no snapshot was kept")
        async with second(rig, tmp_path) as after:
            assert (await after.run("job")).state == ANSWERED


def durable_of(rig: Rig) -> Durable:
    found = rig.driver.registry.deployments[DeploymentId("job/actor")].durable
    assert found is not None
    return found


async def until_answered(rig: Rig) -> str:
    """Send a no-op until it has an answer, as clients do; return the code of its error."""
    operation = rig.operation("job")
    while (result := await rig.scheduler.submit(operation)).error.retryable:
        pass
    return result.error.code


@pytest.mark.parametrize("is_kept", [True, False])
async def test_a_durable_deployment_is_rebuilt_by_the_next_service(
    tmp_path: Path, is_kept: bool
) -> None:
    async with start_rig(tmp_path, nodes=[{"train": 1}]) as rig:
        await rig.job("job")
        await rig.deploy("job", durable=True)
        await rig.run("job", "step")
        await until(lambda: durable_of(rig).seq == 1)
        if not is_kept:
            rig.behaviour.publish_errors.append(no_room())
        await rig.run("job", "step")
        await until(lambda: durable_of(rig).seq == 1 + is_kept)
        await until(lambda: not rig.behaviour.publish_errors)
        async with second(rig, tmp_path) as after:
            await until(lambda: durable_of(after).seq == 2)
            await after.agents[0].die("wpg-1-1/0")
            assert await until_answered(after) == ""
            assert after.behaviour.versions == [2]


async def test_a_copy_is_kept_until_the_store_knows_the_next_one(tmp_path: Path) -> None:
    async with start_rig(tmp_path, nodes=[{"train": 1}]) as rig:
        await rig.job("job")
        await rig.deploy("job", durable=True)
        for _ in range(2):
            await rig.run("job", "step")
        await until(lambda: ("job/actor~durable", 1) in rig.behaviour.released)
        (row,) = rig.store.deployments(["job"])
        known = Versions(keep=1)
        known.restore(DeploymentId("job/actor"), row.versions)
        assert {one.version for one in known.known()} == {2}


@pytest.mark.parametrize("steps", [0, 1, 2])
async def test_what_ran_since_the_copy_is_replayed_by_the_next_service(
    tmp_path: Path, steps: int
) -> None:
    async with start_rig(tmp_path, nodes=[{"train": 1}]) as rig:
        await rig.job("job")
        await rig.deploy("job", durable=True)
        for step in range(steps):
            for _ in range(2 - step):
                await rig.run("job", "forward_backward")
            await rig.run("job", "step")
        seq = [0, 3, 5][steps]
        await until(lambda: durable_of(rig).seq == seq)
        await rig.run("job", "forward_backward")
        async with second(rig, tmp_path) as after:
            assert durable_of(after).seq == seq
            await after.agents[0].die("wpg-1-1/0")
            assert await until_answered(after) == ""
            assert after.behaviour.versions == [seq] * (steps > 0)
            ran = [(kind, seq) for on, kind, seq in after.behaviour.executed if on == "wpg-2-2"]
            assert ran[:2] == [("initialize", 0), ("forward_backward", seq + 1)]


@pytest.mark.parametrize("kind", ["forward_backward", "step", "publish", "save"])
async def test_what_was_answered_is_recalled_when_its_ranks_are_gone_too(
    tmp_path: Path, kind: str
) -> None:
    async with start_rig(tmp_path, nodes=[{"train": 1}]) as rig:
        await rig.job("job")
        await rig.deploy("job", durable=True)
        operation = rig.operation("job", kind)
        told = await rig.scheduler.submit(operation)
        assert told.state == ANSWERED
        ran = rig.behaviour.executed.count(("wpg-1-1", kind, 1))
        await rig.agents[0].ranks.pop("wpg-1-1/0").stop(None)
        async with second(rig, tmp_path) as after:
            again = await after.scheduler.submit(operation)
            assert again.state == ANSWERED, again
            assert (again.texts, again.weight_version) == (told.texts, told.weight_version)
            assert await until_answered(after) == ""
            assert after.behaviour.executed.count(("wpg-1-1", kind, 1)) == ran


async def test_one_whose_store_knows_nothing_of_its_gradients_ends_naming_its_last_step(
    tmp_path: Path,
) -> None:
    async with start_rig(tmp_path, nodes=[{"train": 1}]) as rig:
        await rig.job("job")
        await rig.deploy("job", durable=True)
        await rig.run("job", "step")
        await until(lambda: durable_of(rig).seq == 1)
        await rig.run("job", "forward_backward")
        async with second(rig, tmp_path) as after:
            durable_of(after).unknown_to = 2  # as of a service that kept nothing
            await after.agents[0].die("wpg-1-1/0")
            assert await until_answered(after) == ErrorCode.DEPLOYMENT_FAILED
            fault = after.driver.registry.deployments[DeploymentId("job/actor")].fault
            assert fault is not None
            assert "its last durable step is seq 1" in fault.message


async def test_the_answer_of_a_save_is_recalled_and_no_other_job_gets_it(tmp_path: Path) -> None:
    async with start_rig(tmp_path, nodes=[{"train": 2}]) as rig:
        for job in ("job", "other"):
            await rig.job(job)
            await rig.deploy(job)
        save = rig.operation("job", "save")
        told = await rig.scheduler.submit(save)
        assert told.state == ANSWERED
        async with second(rig, tmp_path) as after:
            copied = len(after.behaviour.versions)
            stolen = after.operation("other", "save")
            stolen.operation_id = save.operation_id
            refused = await after.scheduler.submit(stolen)
            assert refused.error.code == ErrorCode.BAD_REQUEST
            again = await after.scheduler.submit(save)
            assert (again.state, again.texts) == (ANSWERED, told.texts)
            assert len(after.behaviour.versions) == copied


async def test_the_answer_of_a_pull_is_recalled(tmp_path: Path) -> None:
    async with start_rig(tmp_path, nodes=[{"train": 1, "rollout": 1}]) as rig:
        await rig.job("job")
        await rig.deploy("job")
        await rig.deploy("job", "rollout", role="rollout", instances=1)
        publish = rig.operation("job", "publish")
        assert (await rig.scheduler.submit(publish)).state == ANSWERED
        pull = rig.operation("job", "pull", name="rollout", after=(publish.operation_id,))
        pull.pull.source_deployment_id, pull.pull.version = "job/actor", publish.seq
        told = await rig.scheduler.submit(pull)
        assert told.state == ANSWERED
        async with second(rig, tmp_path) as after:
            again = await after.scheduler.submit(pull)
            assert (again.state, again.weight_version) == (ANSWERED, publish.seq), again


async def test_copies_that_nobody_knows_of_are_released_and_versions_stay(tmp_path: Path) -> None:
    async with start_rig(tmp_path, nodes=[{"train": 1}]) as rig:
        await rig.job("job")
        await rig.deploy("job", durable=True)
        await rig.run("job", "step")
        await until(lambda: durable_of(rig).seq == 1)
        await rig.run("job", "publish")
        writes, goes_on = asyncio.Event(), asyncio.Event()

        async def write(
            request: statemanager_pb2.MaterializeRequest,
        ) -> AsyncIterator[statemanager_pb2.MaterializeReply]:
            writes.set()
            await goes_on.wait()
            yield statemanager_pb2.MaterializeReply(nbytes=7, files=[request.path])

        rig.behaviour.on_materialize = write
        async with asyncio.TaskGroup() as group:
            saving = group.create_task(rig.run("job", "save"))
            await writes.wait()
            before = len(rig.behaviour.released)
            async with second(rig, tmp_path) as after:
                freed = [name for name, _ in after.behaviour.released[before:]]
                assert set(freed) == {"job/actor~copied"}
                goes_on.set()
            saving.cancel()


@pytest.mark.parametrize("goes_on", [False, True])
async def test_a_save_that_was_being_written_is_made_again_of_the_same_state_or_not_at_all(
    tmp_path: Path, goes_on: bool
) -> None:
    async with start_rig(tmp_path, nodes=[{"train": 1}]) as rig:
        await rig.job("job")
        await rig.deploy("job")
        writes, ends = asyncio.Event(), asyncio.Event()

        async def write(
            request: statemanager_pb2.MaterializeRequest,
        ) -> AsyncIterator[statemanager_pb2.MaterializeReply]:
            writes.set()
            await ends.wait()
            yield statemanager_pb2.MaterializeReply(nbytes=7, files=[request.path])

        rig.behaviour.on_materialize = write
        async with asyncio.TaskGroup() as group:
            save = rig.operation("job", "save")
            saving = group.create_task(rig.scheduler.submit(save))
            await writes.wait()
            if goes_on:
                assert (await rig.run("job", "step")).state == ANSWERED
            async with second(rig, tmp_path) as after:
                ends.set()
                again = await after.scheduler.submit(save)
                assert "copy" in again.error.message
                assert again.error.retryable is not goes_on
                if not goes_on:
                    assert (await after.scheduler.submit(save)).state == ANSWERED
                assert (await after.run("job", "step")).state == ANSWERED
            saving.cancel()


@pytest.mark.parametrize("stage", ["spawning", "waiting", "carrying", "restoring"])
async def test_a_relocation_goes_on_with_the_next_service(tmp_path: Path, stage: str) -> None:
    async with start_rig(tmp_path, nodes=[{"train": 1}, {"train": 1}]) as rig:
        await rig.job("job")
        await rig.deploy("job")
        deployment = rig.driver.cluster.deployments[DeploymentId("job/actor")]
        await rig.run("job", "forward_backward" if stage == "waiting" else "step")
        begun, go = held_open(rig, "initialize")
        if stage == "spawning":
            rig.behaviour.spawn_failures = 1 << 30
        elif stage == "carrying":
            rig.behaviour.hangs.add("Publish")
        place = Place(node_id=NodeId("node-1"), device=0)
        asked = RelocationRequested(
            deployment_id=deployment.deployment_id, places=(place,), reason="asked"
        )
        rig.driver.post(asked)
        await until(lambda: getattr(deployment.relocation, "stage", "") == stage)
        if stage == "restoring":
            await begun.wait()
        rig.running.cancel()
        await asyncio.wait({rig.running})
        rig.behaviour.spawn_failures = 0
        rig.behaviour.hangs.clear()
        go.set()
        async with second(rig, tmp_path) as after:
            if stage == "waiting":
                await after.run("job", "step")
            record = after.driver.registry.deployments[DeploymentId("job/actor")]
            await until(lambda: record.nodes == ["node-1"])
            assert (await after.run("job", "step")).state == ANSWERED
            assert len(after.behaviour.versions) == 1 + (stage == "restoring"), "it read a copy"
            await until(lambda: len(after.driver.cluster.wpgs) == 1)
            assert {name for name, _ in after.behaviour.released} == {"job/actor~carried"}
            async with second(after, tmp_path) as last:
                record = last.driver.registry.deployments[DeploymentId("job/actor")]
                assert record.former_nodes == ("node-0",), "results may still lie there"


async def test_an_operation_whose_client_stays_away_fails_and_holds_nobody(tmp_path: Path) -> None:
    async with start_rig(tmp_path, nodes=[{"train": 1}]) as rig:
        await rig.job("job", ttl_us=500_000)
        await rig.deploy("job")
        begun, _ = held_open(rig, "zero_grad")
        async with asyncio.TaskGroup() as group:
            running = group.create_task(rig.run("job", "zero_grad"))
            await begun.wait()
            async with second(rig, tmp_path) as after:
                record = after.driver.registry.jobs["job"]  # type: ignore[index]  # a plain name
                await after.driver.recorder.until_ended(record)
                assert "session expired" in record.reason
            running.cancel()


async def test_a_rank_that_is_gone_fails_its_deployment_alone(tmp_path: Path) -> None:
    async with start_rig(tmp_path, nodes=[{"train": 2}]) as rig:
        for job in ("dies", "lives"):
            await rig.job(job)
            await rig.deploy(job)
        dying = rig.driver.registry.deployments["dies/actor"].wpg  # type: ignore[index]  # the same
        assert dying is not None
        del rig.agents[0].ranks[f"{dying.wpg_id}/0"]
        async with second(rig, tmp_path) as after:
            refused = await after.run("dies")
            assert refused.error.code == ErrorCode.DEPLOYMENT_FAILED
            assert "it ended while no service ran" in refused.error.message
            assert (await after.run("lives")).state == ANSWERED


@asynccontextmanager
async def added_node(rig: Rig, **kinds: int) -> AsyncIterator[FakeAgent]:
    """Have an operator add a node."""
    agent = rig.new_agent("added", **kinds)
    request = service_pb2.AddNodeRequest(is_operator=True, agent=await agent.start())
    await rig.scheduler.call("AddNode", request, service_pb2.NodeView)
    yield agent


async def test_what_runs_on_a_node_that_was_added_goes_on(tmp_path: Path) -> None:
    async with start_rig(tmp_path, nodes=[{"rollout": 1}]) as rig, added_node(rig, train=1) as node:
        await rig.job("job")
        await rig.deploy("job")
        async with second(rig, tmp_path) as after:
            spawned = len(node.specs)
            assert (await after.run("job")).state == ANSWERED
            assert len(node.specs) == spawned


async def test_a_job_that_ends_while_ranks_are_asked_does_not_end_the_adoption(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    attach, adopted = adopt._attach, adopt.adopt
    views: list[ClusterView] = []

    async def adopt_seen(reach: Reach, view: ClusterView, *args: Any, **kwargs: Any) -> None:
        views.append(view)
        await adopted(reach, view, *args, **kwargs)

    async def attach_then_end(
        reach: Reach, view: ClusterView, wpg_id: WpgId
    ) -> tuple[Wpg, list[Event]] | None:
        found = await attach(reach, view, wpg_id)
        if found is not None and found[0].job_id == "first":
            ended = JobEndRequested(job_id=JobId("first"), outcome=JobState.CANCELLED, reason="")
            reach.post(ended)
            await until(lambda: wpg_id not in views[0].wpgs)
        return found

    async with start_rig(tmp_path, nodes=[{"train": 2}]) as rig:
        for job in ("first", "second"):
            await rig.job(job)
            await rig.deploy(job)
        monkeypatch.setattr(adopt, "adopt", adopt_seen)
        monkeypatch.setattr(adopt, "_attach", attach_then_end)
        async with second(rig, tmp_path) as after:
            assert not (await after.run("second")).HasField("error")


async def test_an_added_node_that_is_gone_holds_nobody_up_and_joins_anew(tmp_path: Path) -> None:
    quick = SchedulerConfig(
        node_lease_us=1_800_000, rpc_timeout_us=600_000, connect_retry_us=10_000
    )
    async with start_rig(tmp_path, nodes=[{"train": 1}]) as rig, added_node(rig, train=1) as node:
        for job in ("first", "second"):
            await rig.job(job)
            await rig.deploy(job)
        assert node.server is not None
        await node.server.stop(None)
        (left,) = node.ranks
        async with second(rig, tmp_path, config=quick) as after:
            found = [await after.run(job) for job in ("first", "second")]
            assert sorted(result.error.code for result in found) == [
                "",
                ErrorCode.DEPLOYMENT_FAILED,
            ]
            await node.start(node.port)
            await until(lambda: len(after.driver.cluster.nodes) == 2)
            assert left not in node.ranks


async def test_instances_that_died_or_were_being_started_again_come_back(tmp_path: Path) -> None:
    async with start_rig(tmp_path, nodes=[{"rollout": 2}]) as rig:
        await rig.job("job")
        made = await rig.deploy("job", "rollout", role="rollout", instances=2)
        (agent,), wpg_id = rig.agents, made.wpg_id
        rig.behaviour.spawn_failures = 1 << 30
        await agent.die(f"{wpg_id}/0")
        await until(lambda: bool(rig.driver.cluster.wpgs[wpg_id].absent))  # type: ignore[index]  # a plain name
        rig.running.cancel()
        await asyncio.wait({rig.running})
        await agent.ranks.pop(f"{wpg_id}/1").stop(None)
        rig.behaviour.spawn_failures = 0
        async with second(rig, tmp_path) as after:
            await until(lambda: not after.driver.cluster.wpgs[wpg_id].absent)  # type: ignore[index]  # the same
            assert sorted(index for _, index in after.rollout.replaced) == [0, 1]
            assert (await after.run("job", "generate", name="rollout")).state == ANSWERED


@pytest.mark.parametrize("is_known", [False, True])
async def test_an_id_of_another_job_is_no_operation_of_this_one(
    tmp_path: Path, is_known: bool
) -> None:
    async with start_rig(tmp_path, nodes=[{"train": 2}]) as rig:
        for job in ("mine", "other"):
            await rig.job(job)
            await rig.deploy(job)
        operation = rig.operation("mine")
        if is_known:
            await rig.scheduler.submit(operation)
        async with second(rig, tmp_path) as after:
            stolen = after.operation("other")
            stolen.operation_id = operation.operation_id
            found = await after.scheduler.submit(stolen)
            assert found.error.code == (ErrorCode.BAD_REQUEST if is_known else "")


async def test_who_asks_for_what_was_not_sent_again_yet_is_told_to_ask_again(
    tmp_path: Path,
) -> None:
    async with start_rig(tmp_path, nodes=[{"train": 1}]) as rig:
        await rig.job("job")
        await rig.deploy("job")
        answered = rig.operation("job")
        await rig.scheduler.submit(answered)
        async with second(rig, tmp_path) as after:
            request = service_pb2.GetResultRequest(
                job_id="job", tenant=TENANT, operation_id=rig.operation("job").operation_id
            )
            request.no_wait = True
            with pytest.raises(PlexError, match="has not been sent again") as refused:
                await after.scheduler.call("GetResult", request, operations_pb2.OperationResult)
            assert refused.value.retryable
            request.operation_id = answered.operation_id
            await after.scheduler.call("GetResult", request, operations_pb2.OperationResult)
