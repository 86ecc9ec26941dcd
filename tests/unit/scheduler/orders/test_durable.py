"""Copies after each step, and what a rebuilt deployment runs again."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path

import pytest

from plexclient.wire.v1 import common_pb2, operations_pb2, service_pb2, statemanager_pb2, worker_pb2
from plexsvc.errors import ErrorCode, PlexError
from plexsvc.ids import DeploymentId, NodeId
from plexsvc.scheduler.config import SchedulerConfig
from plexsvc.scheduler.core.events import NodeCordoned, NodeUncordoned
from plexsvc.scheduler.ledger.durable import Durable
from plexsvc.scheduler.ledger.jobs import DeploymentRecord
from tests.fakes.fake_cluster import applied, no_room, staged_payload
from tests.rigs.scheduler_rig import TENANT, Rig, held_open, start_rig, until

ANSWERED = operations_pb2.OPERATION_STATE_ANSWERED


@pytest.fixture
async def durable(rig: Rig) -> Durable:
    """What `job-1/actor`, which is up, is rebuilt from."""
    await rig.job("job-1")
    await rig.deploy("job-1", durable=True)
    return of(rig)


def ran_on(rig: Rig, wpg_id: str) -> list[tuple[str, int]]:
    return [(kind, seq) for on, kind, seq in rig.behaviour.executed if on == wpg_id]


@pytest.fixture
async def pair(tmp_path: Path) -> AsyncIterator[Rig]:
    """Two nodes of one training device, which count as lost soon; a durable `job-1/actor`."""
    config = SchedulerConfig(node_lease_us=2_000_000, connect_retry_us=10_000)
    async with start_rig(tmp_path, nodes=[{"train": 1}] * 2, config=config) as started:
        await started.job("job-1")
        await started.deploy("job-1", durable=True)
        yield started


def of_deployment(rig: Rig) -> DeploymentRecord:
    return rig.driver.registry.deployments[DeploymentId("job-1/actor")]


def of(rig: Rig) -> Durable:
    found = of_deployment(rig).durable
    assert found is not None
    return found


async def insist(rig: Rig, operation: operations_pb2.Operation) -> operations_pb2.OperationResult:
    """Send an operation until it has an answer, as clients do."""
    while True:
        result = await rig.scheduler.submit(operation)
        if result.error.code != ErrorCode.UNAVAILABLE:
            return result


async def test_a_copy_takes_the_place_of_the_one_before(rig: Rig, durable: Durable) -> None:
    for kind in ("forward_backward", "step", "forward_backward", "step"):
        await rig.run("job-1", kind)
    await until(lambda: durable.seq == 4)
    assert not durable.since
    await until(lambda: rig.behaviour.released == [("job-1/actor~durable", 2)])
    await rig.end("job-1")
    await until(lambda: ("job-1/actor~durable", 4) in rig.behaviour.released)


async def test_what_was_applied_since_the_copy_runs_again(rig: Rig, durable: Durable) -> None:
    kinds = ("forward_backward", "step", "forward_backward", "noop", "forward_backward")
    for kind in kinds:
        await rig.run("job-1", kind)
    await until(lambda: durable.seq == 2)
    await rig.agents[0].die("wpg-1-1/0")
    assert (await insist(rig, rig.operation("job-1", "step"))).state == ANSWERED
    assert ran_on(rig, "wpg-1-2") == [
        ("initialize", 0),
        ("forward_backward", 3),
        ("forward_backward", 5),
        ("step", 6),
    ]
    assert rig.behaviour.versions == [2]
    assert "after seq 2 and 2 operations since" in str(durable.pause)


async def test_a_rank_that_dies_before_it_says_what_it_takes_is_replaced(rig: Rig) -> None:
    await rig.job("job-1")
    rig.behaviour.describe_failures = 1_000
    async with asyncio.TaskGroup() as group:
        deploying = group.create_task(rig.deploy("job-1", durable=True))
        await until(lambda: rig.behaviour.describe_failures < 1_000)
        await rig.agents[0].die("wpg-1-1/0")
        rig.behaviour.describe_failures = 0
    assert deploying.result().deployment_id == "job-1/actor"
    assert ran_on(rig, "wpg-1-2") == [("initialize", 0)]


async def lose_first_node(rig: Rig) -> None:
    await rig.agents[0].stop()
    await until(lambda: len(rig.driver.cluster.nodes) == 1)


async def test_a_lost_node_s_deployment_goes_on_from_the_second_copy(pair: Rig) -> None:
    durable = of(pair)
    for kind in ("forward_backward", "step", "forward_backward"):
        await pair.run("job-1", kind)
    await until(lambda: durable.second is not None)
    assert pair.behaviour.copied == [("node-1", ["node-0"], 2)]
    await lose_first_node(pair)
    assert (await insist(pair, pair.operation("job-1", "step"))).state == ANSWERED
    assert ran_on(pair, "wpg-1-2") == [("initialize", 0), ("forward_backward", 3), ("step", 4)]
    assert pair.behaviour.versions == [2]
    await until(lambda: str(durable).endswith("not if its node is lost: no other node has room"))
    assert durable.seq == 4
    await pair.end("job-1")
    released = {("job-1/actor~durable", seq) for seq in (2, 4)}
    await until(lambda: released <= set(pair.behaviour.released))


async def test_a_second_copy_that_lags_is_gone_on_from_with_all_that_ran_since(pair: Rig) -> None:
    durable = of(pair)
    await pair.run("job-1", "step")
    await until(lambda: durable.second_seq == 1)
    pair.behaviour.publish_errors += [None, no_room()]
    await pair.run("job-1", "step")
    await until(lambda: not pair.behaviour.publish_errors and not durable.is_sending)
    assert "if its node is lost, after seq 1 on node-1" in str(durable)
    await lose_first_node(pair)
    assert (await insist(pair, pair.operation("job-1", "step"))).state == ANSWERED
    assert ran_on(pair, "wpg-1-2") == [("initialize", 0), ("step", 2), ("step", 3)]
    assert pair.behaviour.versions == [1]


async def run_staged(rig: Rig) -> bytes:
    """Run a pass whose inputs are staged on the first node; return their id."""
    operation = rig.operation("job-1", "forward_backward", payload=staged_payload(7))
    operation.payload.staged.staging_id = operation.operation_id
    rig.behaviour.staged["node-0", operation.operation_id] = b"payload"
    announced = service_pb2.PayloadStagedRequest(
        operation_id=operation.operation_id,
        job_id="job-1",
        deployment_id="job-1/actor",
        tenant=operation.tenant,
        node_ids=["node-0"],
    )
    async with asyncio.TaskGroup() as group:
        first = group.create_task(rig.scheduler.submit(operation))
        await rig.scheduler.call("PayloadStaged", announced, service_pb2.PayloadStagedReply)
    assert first.result().state == ANSWERED
    return operation.operation_id


async def test_inputs_of_what_ran_without_a_second_copy_follow_one_that_comes(pair: Rig) -> None:
    of(pair).lose_second("there was no room")
    pair.behaviour.hangs.add("Publish")
    await pair.run("job-1", "step")
    staging_id = await run_staged(pair)
    assert ("node-1", staging_id) not in pair.behaviour.staged
    pair.behaviour.answers.set()
    await until(lambda: ("node-1", staging_id) in pair.behaviour.staged)
    await lose_first_node(pair)
    assert (await insist(pair, pair.operation("job-1", "step"))).state == ANSWERED
    assert ran_on(pair, "wpg-1-2") == [("initialize", 0), ("forward_backward", 2), ("step", 3)]


async def test_inputs_come_back_to_a_node_that_was_lost_and_is_there_again(pair: Rig) -> None:
    staging_id = await run_staged(pair)
    assert pair.behaviour.staged.pop(("node-0", staging_id)) == b"payload"
    await pair.agents[0].die("wpg-1-1/0")
    assert (await insist(pair, pair.operation("job-1", "step"))).state == ANSWERED
    assert ran_on(pair, "wpg-1-2") == [("initialize", 0), ("forward_backward", 1), ("step", 2)]
    assert pair.behaviour.staged["node-0", staging_id] == b"payload"


async def test_staged_inputs_are_sent_to_another_node_and_dropped_there(pair: Rig) -> None:
    durable = of(pair)
    staging_id = await run_staged(pair)
    assert pair.behaviour.staged["node-1", staging_id] == b"payload"
    await lose_first_node(pair)
    assert (await insist(pair, pair.operation("job-1", "step"))).state == ANSWERED
    assert ran_on(pair, "wpg-1-2") == [("initialize", 0), ("forward_backward", 1), ("step", 2)]
    await until(lambda: durable.seq == 2)
    await until(lambda: staging_id in pair.behaviour.dropped)


@pytest.mark.parametrize("is_copied", [True, False], ids=["copied", "not-copied"])
@pytest.mark.parametrize("steps", [0, 1], ids=["runs-again", "is-behind-the-copy"])
async def test_results_on_a_lost_node_are_read_elsewhere_unless_no_copy_came_to_be(
    pair: Rig, *, is_copied: bool, steps: int
) -> None:
    durable, may_begin = of(pair), asyncio.Event()

    async def leave(request: worker_pb2.ExecuteRequest) -> worker_pb2.ExecuteReply | None:
        """Have each pass leave a result of seven bytes in its node's staging memory."""
        if request.operation.HasField("initialize"):
            await may_begin.wait()
        if not request.operation.HasField("forward_backward"):
            return None
        node_id = "node-0" if request.wpg_id == "wpg-1-1" else "node-1"
        reply, staging_id, payload = applied(request.operation), request.wpg_id, staged_payload(7)
        payload.staged.staging_id, payload.staged.node_ids[:] = staging_id.encode(), [node_id]
        reply.result.shards.add(payload=payload)
        if is_copied:
            pair.behaviour.staged[node_id, payload.staged.staging_id] = b"results"
        return reply

    pair.behaviour.on_execute = leave
    answer = await pair.run("job-1", "forward_backward")
    (first,) = (shard.payload.staged for shard in answer.shards)
    assert list(first.node_ids) == (["node-0", "node-1"] if is_copied else ["node-0"])
    for _ in range(steps):
        await pair.run("job-1", "step")
        await until(lambda: durable.second_seq == 2)
    asked = service_pb2.GetResultRequest(
        operation_id=answer.operation_id, job_id="job-1", tenant=TENANT
    )
    ask = partial(pair.scheduler.call, "GetResult", asked, operations_pb2.OperationResult)
    await lose_first_node(pair)
    await until(lambda: durable.is_lost)
    with pytest.raises(PlexError, match="is rebuilt") as early:
        await ask()
    assert early.value.code is ErrorCode.UNAVAILABLE
    may_begin.set()
    assert (await insist(pair, pair.operation("job-1", "zero_grad"))).state == ANSWERED
    if steps and not is_copied:
        with pytest.raises(PlexError, match="acknowledged or dropped") as gone:
            await ask()
        assert gone.value.code is ErrorCode.RESULT_GONE
        return
    (now,) = (shard.payload.staged for shard in (await ask()).shards)
    assert now.staging_id == (b"wpg-1-1" if is_copied else b"wpg-1-2")
    assert "node-1" in now.node_ids
    is_dropped = b"wpg-1-2" in pair.behaviour.dropped
    assert is_dropped == (is_copied and not steps), "only what nobody will read"


@pytest.mark.parametrize("is_copied", [True, False], ids=["copy", "model"])
async def test_one_rebuilt_on_its_second_copy_s_node_outlives_that_without_a_step(
    tmp_path: Path, *, is_copied: bool
) -> None:
    config = SchedulerConfig(node_lease_us=2_000_000, connect_retry_us=10_000)
    async with start_rig(tmp_path, nodes=[{"train": 1}] * 3, config=config) as rig:
        await rig.job("job-1")
        await rig.deploy("job-1", durable=True)
        durable, third = of(rig), NodeId("node-2")
        rig.driver.post(NodeCordoned(node_id=third))
        if not is_copied:  # beside the first copy there are the weights of its model
            rig.behaviour.publish_errors += [None, no_room()]
        await rig.run("job-1", "step")
        await until(lambda: durable.seq == 1 and not durable.is_sending)
        assert durable.second_seq == is_copied
        await rig.agents[0].stop()
        await until(lambda: durable.pause is not None and not durable.is_lost)
        rig.behaviour.publish_errors.clear()
        assert durable.second_seq is None
        rig.driver.post(NodeUncordoned(node_id=third))
        await until(lambda: durable.second_seq == is_copied)
        await rig.agents[1].stop()
        assert (await insist(rig, rig.operation("job-1", "step"))).state == ANSWERED
        replayed = [] if is_copied else [("step", 1)]
        assert ran_on(rig, "wpg-1-3") == [("initialize", 0), *replayed, ("step", 2)]


@pytest.mark.parametrize("is_home", [True, False], ids=["home", "copy"])
async def test_another_node_that_is_lost_amid_the_replay_costs_nothing(
    tmp_path: Path, *, is_home: bool
) -> None:
    config = SchedulerConfig(node_lease_us=2_000_000, connect_retry_us=10_000)
    async with start_rig(tmp_path, nodes=[{"train": 1}] * 3, config=config) as rig:
        await rig.job("job-1")
        await rig.deploy("job-1", durable=True)
        durable = of(rig)
        for kind in ("forward_backward", "step", "forward_backward"):
            await rig.run("job-1", kind)
        await until(lambda: durable.second is not None)
        assert durable.second is not None
        (copy,) = durable.second.nodes
        rig.driver.post(NodeCordoned(node_id=copy))  # it is rebuilt on the third
        begun, go = asyncio.Event(), asyncio.Event()

        async def hold(request: worker_pb2.ExecuteRequest) -> None:
            if request.wpg_id == "wpg-1-2" and request.operation.HasField("forward_backward"):
                begun.set()
                await go.wait()

        rig.behaviour.on_execute = hold
        await rig.agents[0].stop()
        await asyncio.wait_for(begun.wait(), 120)
        (home,) = of_deployment(rig).nodes
        assert copy != home
        rig.driver.post(NodeUncordoned(node_id=copy))
        lost = home if is_home else copy
        await next(agent for agent in rig.agents if agent.node_id == lost).stop()
        if not is_home:
            await until(lambda: len(rig.driver.cluster.nodes) == 1)
            go.set()
        assert (await insist(rig, rig.operation("job-1", "step"))).state == ANSWERED
        last = "wpg-1-3" if is_home else "wpg-1-2"
        assert ran_on(rig, last) == [("initialize", 0), ("forward_backward", 3), ("step", 4)]


async def test_a_node_lost_after_the_first_step_of_a_rebuilt_deployment_costs_nothing(
    tmp_path: Path,
) -> None:
    config = SchedulerConfig(node_lease_us=2_000_000, connect_retry_us=10_000)
    async with start_rig(tmp_path, nodes=[{"train": 1}] * 3, config=config) as rig:
        await rig.job("job-1")
        await rig.deploy("job-1", durable=True)
        durable = of(rig)
        await rig.run("job-1", "step")
        await until(lambda: durable.second is not None)
        assert durable.second is not None
        (copy,) = durable.second.nodes
        rig.driver.post(NodeCordoned(node_id=copy))  # it is rebuilt on the third
        await rig.agents[0].stop()
        rig.behaviour.publish_errors += [None, no_room()]  # and makes no second copy
        assert (await insist(rig, rig.operation("job-1", "step"))).state == ANSWERED
        await until(lambda: durable.seq == 2 and not durable.is_sending)
        rig.driver.post(NodeUncordoned(node_id=copy))
        (home,) = of_deployment(rig).nodes
        await next(agent for agent in rig.agents if agent.node_id == home).stop()
        assert (await insist(rig, rig.operation("job-1", "step"))).state == ANSWERED
        assert ran_on(rig, "wpg-1-3") == [("initialize", 0), ("step", 2), ("step", 3)]


async def test_without_a_second_copy_a_lost_node_ends_the_deployment(pair: Rig) -> None:
    durable = of(pair)
    pair.behaviour.publish_errors += [None, no_room()]
    await pair.run("job-1", "step")
    await until(lambda: durable.seq == 1 and not durable.is_sending)
    durable.lose_second("no other node has room")
    await lose_first_node(pair)
    refused = (await insist(pair, pair.operation("job-1", "step"))).error
    assert refused.code == ErrorCode.DEPLOYMENT_FAILED
    assert "its last durable step is seq 1: the copy of its state went" in refused.message


@pytest.mark.usefixtures("durable")
async def test_an_operation_that_ran_is_sent_again_by_its_client(rig: Rig) -> None:
    begun = asyncio.Event()

    async def hang(request: worker_pb2.ExecuteRequest) -> worker_pb2.ExecuteReply | None:
        if request.operation.HasField("step") and not begun.is_set():
            begun.set()
            await asyncio.Event().wait()
        return None

    rig.behaviour.on_execute = hang
    await rig.run("job-1", "forward_backward")
    step = rig.operation("job-1", "step")
    async with asyncio.TaskGroup() as group:
        first = group.create_task(rig.scheduler.submit(step))
        await begun.wait()
        await rig.agents[0].die("wpg-1-1/0")
    assert first.result().error.code == ErrorCode.UNAVAILABLE
    assert (await insist(rig, step)).state == ANSWERED
    assert ran_on(rig, "wpg-1-2") == [("initialize", 0), ("forward_backward", 1), ("step", 2)]


async def test_another_result_than_before_ends_the_deployment(rig: Rig, durable: Durable) -> None:
    await rig.run("job-1", "step")
    await until(lambda: durable.seq == 1)
    await rig.run("job-1", "forward_backward")

    async def other(request: worker_pb2.ExecuteRequest) -> worker_pb2.ExecuteReply | None:
        reply = applied(request.operation)
        reply.digest = b"other"
        return reply

    rig.behaviour.on_execute = other
    await rig.agents[0].die("wpg-1-1/0")
    refused = (await insist(rig, rig.operation("job-1", "step"))).error
    assert refused.code == ErrorCode.DEPLOYMENT_FAILED
    assert "its last durable step is seq 1" in refused.message


async def test_what_writes_weights_waits_for_the_copy_and_others_do_not(
    rig: Rig, durable: Durable
) -> None:
    rig.behaviour.hangs.add("Publish")
    await rig.run("job-1", "step")
    await rig.run("job-1", "forward_backward")
    async with asyncio.TaskGroup() as group:
        step = group.create_task(rig.run("job-1", "step"))
        await until(lambda: not durable.copied.is_set())
        await asyncio.sleep(0.05)
        assert ran_on(rig, "wpg-1-1")[-1] == ("forward_backward", 2)
        rig.behaviour.answers.set()
    assert step.result().state == ANSWERED


async def test_what_waited_for_the_copy_when_its_ranks_died_runs_on_the_next(
    rig: Rig, durable: Durable
) -> None:
    rig.behaviour.hangs.add("Publish")
    await rig.run("job-1", "step")
    async with asyncio.TaskGroup() as group:
        step = group.create_task(insist(rig, rig.operation("job-1", "step")))
        await until(lambda: len(rig.driver.registry.held) == 1)
        await rig.agents[0].die("wpg-1-1/0")
        await until(lambda: "wpg-1-1" in rig.behaviour.forgotten)
        rig.behaviour.answers.set()
    assert step.result().state == ANSWERED
    assert ran_on(rig, "wpg-1-2") == [("initialize", 0), ("step", 2)]
    await until(lambda: durable.seq == 2)


async def test_a_copy_that_is_refused_leaves_the_one_before(rig: Rig, durable: Durable) -> None:
    await rig.run("job-1", "step")
    await until(lambda: durable.seq == 1)
    rig.behaviour.publish_errors.append(no_room())
    await rig.run("job-1", "step")
    await until(lambda: not rig.behaviour.publish_errors and durable.copied.is_set())
    assert (durable.seq, sorted(durable.since)) == (1, [2])
    await rig.agents[0].die("wpg-1-1/0")
    await insist(rig, rig.operation("job-1"))
    assert ran_on(rig, "wpg-1-2")[:2] == [("initialize", 0), ("step", 2)]


async def test_a_step_on_the_host_runs_again_on_parked_state(rig: Rig) -> None:
    await rig.job("job-1")
    await rig.deploy("job-1", durable=True, on_host=True)
    durable = of(rig)
    await rig.run("job-1", "forward_backward")
    await rig.run("job-1", "step")
    await until(lambda: durable.seq == 2)
    rig.behaviour.publish_errors.append(no_room())
    for kind in ("forward_backward", "step"):
        await rig.run("job-1", kind)
    await until(lambda: not rig.behaviour.publish_errors and durable.copied.is_set())
    seen = list[tuple[str, int]]()

    async def note(_: str, request: statemanager_pb2.MoveRequest) -> None:
        if request.wpg_id == "wpg-1-2":
            seen.append((common_pb2.Residency.Name(request.to), len(ran_on(rig, "wpg-1-2"))))

    rig.behaviour.on_move = note
    await rig.agents[0].die("wpg-1-1/0")
    await insist(rig, rig.operation("job-1", "forward_backward"))
    again = [("initialize", 0), ("forward_backward", 3), ("step", 4), ("forward_backward", 5)]
    assert ran_on(rig, "wpg-1-2") == again
    assert seen == [("RESIDENCY_HOST", 2), ("RESIDENCY_DEVICE", 3)]


async def test_more_than_is_kept_ends_the_deployment_naming_its_last_durable_step(
    rig: Rig, durable: Durable
) -> None:
    await rig.run("job-1", "step")
    await until(lambda: durable.seq == 1)
    durable.most_bytes = 1
    await rig.run("job-1", "forward_backward")
    await rig.agents[0].die("wpg-1-1/0")
    refused = (await insist(rig, rig.operation("job-1", "step"))).error
    assert refused.code == ErrorCode.DEPLOYMENT_FAILED
    assert "its last durable step is seq 1" in refused.message


async def test_a_checkpoint_that_is_written_meanwhile_replays_nothing(
    rig: Rig, durable: Durable
) -> None:
    begun, go = held_open(rig, "zero_grad")
    written = asyncio.Event()

    async def write(
        request: statemanager_pb2.MaterializeRequest,
    ) -> AsyncIterator[statemanager_pb2.MaterializeReply]:
        del request
        await written.wait()
        yield statemanager_pb2.MaterializeReply(nbytes=7, files=["model.safetensors"])

    rig.behaviour.on_materialize = write
    await rig.run("job-1", "forward_backward")
    async with asyncio.TaskGroup() as group:
        save = group.create_task(rig.run("job-1", "save"))
        group.create_task(insist(rig, rig.operation("job-1", "zero_grad")))
        await begun.wait()
        await rig.agents[0].die("wpg-1-1/0")
        await until(lambda: durable.is_lost)
        written.set()
        go.set()
    assert save.result().state == ANSWERED
    assert ran_on(rig, "wpg-1-1").count(("forward_backward", 1)) == 1
