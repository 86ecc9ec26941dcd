"""The driver moves a deployment between fake nodes: state, payloads, versions; what it drops."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from plexclient.wire.v1 import operations_pb2, service_pb2, worker_pb2
from plexsvc.errors import ErrorCode, PlexError
from plexsvc.ids import DeploymentId, NodeId
from plexsvc.scheduler.core.actions import RelocationChanged
from plexsvc.scheduler.core.events import RelocationRequested
from plexsvc.scheduler.core.vocabulary import Place, RelocationStage
from plexsvc.scheduler.driver import journal
from tests.fakes.fake_cluster import no_room, staged_payload
from tests.rigs import stored
from tests.rigs.scheduler_rig import TENANT, Rig, listen, start_rig

ANSWERED = operations_pb2.OPERATION_STATE_ANSWERED


@pytest.fixture
async def pair(tmp_path: Path) -> AsyncIterator[Rig]:
    """Two nodes with two training devices each; `job-1` has its actor on the first."""
    async with start_rig(tmp_path, nodes=[{"train": 2}, {"train": 2}]) as started:
        await started.job("job-1")
        yield started


async def move(rig: Rig, *places: tuple[str, int]) -> RelocationChanged:
    """Move the actor of `job-1` and return how that ended."""
    ended: asyncio.Future[RelocationChanged] = asyncio.get_running_loop().create_future()

    def changed(action: RelocationChanged) -> None:
        is_over = action.stage in {RelocationStage.DONE, RelocationStage.FAILED}
        if is_over and not ended.done():
            ended.set_result(action)

    listen(rig.driver, RelocationChanged, changed)
    event = RelocationRequested(
        deployment_id=DeploymentId("job-1/actor"),
        places=tuple(Place(node_id=NodeId(node), device=device) for node, device in places),
        reason="asked",
    )
    rig.driver.post(event)
    return await asyncio.wait_for(ended, 120)


async def view(rig: Rig) -> service_pb2.Deployment:
    return await rig.scheduler.call(
        "GetDeployment",
        service_pb2.GetDeploymentRequest(
            deployment_id="job-1/actor", job_id="job-1", tenant=TENANT
        ),
        service_pb2.Deployment,
    )


async def test_new_ranks_start_from_copies_and_the_deployment_is_shown_there(pair: Rig) -> None:
    await pair.deploy("job-1", tp=2)
    await pair.run("job-1", "step")
    seen: list[worker_pb2.ExecuteRequest] = []

    async def note(request: worker_pb2.ExecuteRequest) -> None:
        seen.append(request)

    pair.behaviour.on_execute = note
    assert (await move(pair, ("node-1", 1), ("node-0", 0))).fault is None
    holders = [holder for request in seen for holder in request.published.holders]
    assert {holder.node_id for holder in holders} == {"node-0"}
    assert all(holder.state_manager for holder in holders)
    assert {request.fence.incarnation for request in seen} == {2}
    told = await view(pair)
    assert (told.wpg_id, told.incarnation, told.state) == ("wpg-1-2", 2, "ready")
    assert [(b.node_id, b.first) for b in told.blocks] == [("node-1", 1), ("node-0", 0)]
    assert [node.node_id for node in told.staging_nodes] == ["node-1", "node-0"]
    result = await pair.run("job-1", "step")
    assert result.state == ANSWERED
    assert [request.wpg_id for request in seen[-2:]] == ["wpg-1-2"] * 2
    await pair.end("job-1")
    assert sorted(pair.behaviour.stopped) == [f"wpg-1-{w}/{r}" for w in (1, 2) for r in (0, 1)]
    assert sorted(pair.behaviour.forgotten) == ["wpg-1-1", "wpg-1-2", "wpg-1-2"]
    assert pair.behaviour.released == [("job-1/actor~carried", 1)]
    registry = pair.driver.registry
    assert not registry.by_wpg
    assert not registry.held
    assert not registry.copies


async def test_a_copy_refused_on_one_node_is_released_on_the_others(pair: Rig) -> None:
    await pair.deploy("job-1", tp=2)
    await move(pair, ("node-1", 1), ("node-0", 0))
    pair.behaviour.publish_errors = [None, no_room()]
    ended = await move(pair, ("node-0", 0), ("node-0", 1))
    assert ended.fault is not None
    assert ended.fault.code is ErrorCode.NO_ROOM
    assert len(pair.behaviour.released) == 3, "that of the first move, and both nodes' of this one"
    assert (await view(pair)).wpg_id == "wpg-1-2"
    assert (await pair.run("job-1", "step")).state == ANSWERED
    await pair.end("job-1")
    assert not pair.driver.registry.by_wpg


async def test_a_new_rank_that_dies_is_told_apart_from_the_old(pair: Rig) -> None:
    await pair.deploy("job-1")

    async def die(request: worker_pb2.ExecuteRequest) -> None:
        if request.operation.HasField("initialize"):
            await pair.agents[1].die("wpg-1-2/0")
            await asyncio.sleep(10)

    pair.behaviour.on_execute = die
    ended = await move(pair, ("node-1", 0))
    assert ended.fault is not None
    assert ended.fault.code is ErrorCode.WORKER_DIED
    assert (await pair.run("job-1", "step")).state == ANSWERED
    await pair.end("job-1")
    assert not pair.driver.registry.held
    assert not pair.driver.registry.copies


async def test_versions_are_released_where_they_lie(pair: Rig) -> None:
    await pair.deploy("job-1")
    await pair.run("job-1", "publish")
    await move(pair, ("node-1", 0))
    await pair.run("job-1", "publish")
    found = pair.driver.reach.versions.find(DeploymentId("job-1/actor"), 1)
    assert found.nodes == ("node-0",)
    await pair.end("job-1")
    assert ("job-1/actor", 1) in pair.behaviour.released
    assert ("job-1/actor", 2) in pair.behaviour.released


async def test_managed_state_on_two_nodes_is_copied_for_one_of_them(pair: Rig) -> None:
    await pair.deploy("job-1", tp=2)
    await move(pair, ("node-1", 1), ("node-0", 0))
    assert (await pair.run("job-1", "state_digest")).texts == {"param": "abc"}
    assert [name for name, _ in pair.behaviour.released[-2:]] == ["job-1/actor~copied"] * 2
    assert (await pair.run("job-1", "save")).metrics["nbytes"] == 7
    assert [name for name, _ in pair.behaviour.released[-2:]] == ["job-1/actor~copied"] * 2


def staged(
    rig: Rig, *, on: str
) -> tuple[operations_pb2.Operation, service_pb2.PayloadStagedRequest]:
    operation = rig.operation("job-1", "forward", payload=staged_payload(1 << 20))
    announced = service_pb2.PayloadStagedRequest(
        operation_id=operation.operation_id,
        job_id="job-1",
        tenant=TENANT,
        deployment_id="job-1/actor",
        node_ids=[on],
    )
    return operation, announced


async def submit(
    rig: Rig, operation: operations_pb2.Operation, announced: service_pb2.PayloadStagedRequest
) -> operations_pb2.OperationResult:
    async with asyncio.TaskGroup() as group:
        call = group.create_task(rig.scheduler.submit(operation))
        await asyncio.sleep(0)  # lets the submission in
        await rig.scheduler.call("PayloadStaged", announced, service_pb2.PayloadStagedReply)
    return call.result()


async def test_a_payload_staged_where_the_deployment_was_follows_it(pair: Rig) -> None:
    await pair.deploy("job-1")
    await move(pair, ("node-1", 0))
    operation, announced = staged(pair, on="node-0")
    pair.behaviour.staged["node-0", operation.operation_id] = b"batch"
    assert (await submit(pair, operation, announced)).state == ANSWERED
    assert pair.behaviour.staged["node-1", operation.operation_id] == b"batch"


async def test_a_state_manager_that_dies_of_a_payload_gets_it_again(pair: Rig) -> None:
    await pair.deploy("job-1")
    await move(pair, ("node-1", 0))
    operation, announced = staged(pair, on="node-0")
    pair.behaviour.staged["node-0", operation.operation_id] = b"batch"
    pair.behaviour.stage_failures = 2
    assert (await submit(pair, operation, announced)).state == ANSWERED
    assert pair.behaviour.staged["node-1", operation.operation_id] == b"batch"


async def test_payloads_that_wait_during_the_move_are_passed_on_at_once(pair: Rig) -> None:
    await pair.deploy("job-1")
    gate = asyncio.Event()
    waiting: list[asyncio.Task[operations_pb2.OperationResult]] = []

    async def hold(request: worker_pb2.ExecuteRequest) -> None:
        if request.operation.HasField("initialize"):
            for _ in range(3):
                operation, announced = staged(pair, on="node-0")
                pair.behaviour.staged["node-0", operation.operation_id] = b"batch"
                waiting.append(group.create_task(submit(pair, operation, announced)))
        elif request.operation.seq == 1:
            await gate.wait()

    pair.behaviour.on_execute = hold
    async with asyncio.timeout(120), asyncio.TaskGroup() as group:
        assert (await move(pair, ("node-1", 0))).fault is None
        while sum(node == "node-1" for node, _ in pair.behaviour.staged) < len(waiting):  # noqa: ASYNC110 - fakes answer in their own time
            await asyncio.sleep(0.01)
        gate.set()
    assert [task.result().state for task in waiting] == [ANSWERED] * 3


async def test_a_payload_that_is_nowhere_is_uploaded_again(pair: Rig) -> None:
    await pair.deploy("job-1")
    await move(pair, ("node-1", 0))
    operation, announced = staged(pair, on="node-0")
    result = await submit(pair, operation, announced)
    assert result.error.code == ErrorCode.UNAVAILABLE
    assert "upload it again" in result.error.message
    announced.node_ids[:] = ["node-1"]
    assert (await submit(pair, operation, announced)).state == ANSWERED


async def test_a_spawn_that_fails_leaves_the_deployment(pair: Rig) -> None:
    await pair.deploy("job-1")
    pair.behaviour.spawn_error = PlexError(ErrorCode.BAD_REQUEST, "no such image")
    ended = await move(pair, ("node-1", 0))
    assert ended.fault is not None
    assert ended.fault.code is ErrorCode.BAD_REQUEST
    assert (await pair.run("job-1", "step")).state == ANSWERED


async def test_the_journal_replays_relocations(pair: Rig) -> None:
    await pair.deploy("job-1")
    await move(pair, ("node-1", 0))
    await pair.run("job-1", "step")
    await pair.end("job-1")
    recorded = journal.read(stored.journal(pair.store))
    core = recorded.configured.new_core()
    for event in recorded:
        core.handle(event)
    roll, live = core.cluster.roll, pair.driver._driver.core.cluster.roll
    assert (roll.ended, roll.last_wpg_no) == (live.ended, live.last_wpg_no)
    assert core.view.timeline.after(0, limit=99) == pair.driver.cluster.timeline.after(0, limit=99)


async def test_instances_move_and_their_manager_is_told(tmp_path: Path) -> None:
    nodes = [{"train": 1, "rollout": 1}, {"rollout": 1}]
    async with start_rig(tmp_path, nodes=nodes) as rig:
        await rig.job("job-1")
        await rig.deploy("job-1", "actor", role="rollout")
        ended = await move(rig, ("node-1", 1))
        assert ended.fault is not None  # node-1 has one device, of index 0
        assert (await move(rig, ("node-1", 0))).fault is None
        assert (await view(rig)).staging_nodes[0].node_id == "node-1"
        assert len(set(rig.rollout.addresses)) == 2
        assert (await rig.run("job-1", "generate")).state == ANSWERED
        assert rig.rollout.forgotten == []
        await rig.end("job-1")
        assert rig.rollout.forgotten == ["job-1/actor"]
        assert not rig.driver.registry.by_wpg


async def test_a_manager_that_went_over_too_early_comes_back(tmp_path: Path) -> None:
    async with start_rig(tmp_path, nodes=[{"rollout": 1}, {"rollout": 1}]) as rig:
        await rig.job("job-1")
        await rig.deploy("job-1", "actor", role="rollout")
        first = list(rig.rollout.addresses)

        async def die(request: worker_pb2.ExecuteRequest) -> None:
            if request.operation.HasField("initialize") and request.wpg_id == "wpg-1-2":
                await rig.agents[1].die("wpg-1-2/0")
                await asyncio.sleep(1)

        rig.behaviour.on_execute = die
        ended = await move(rig, ("node-1", 0))
        assert ended.fault is not None
        assert ended.fault.code is ErrorCode.WORKER_DIED
        assert (await rig.run("job-1", "generate")).state == ANSWERED
        assert rig.rollout.addresses[-1:] == first
        assert (await view(rig)).staging_nodes[0].node_id == "node-0"
