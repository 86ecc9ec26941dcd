"""Managers that die and their successors: samples go on from their records."""

from __future__ import annotations

import asyncio

import pytest

from plexclient.samples import TokenRecord
from plexclient.wire.v1 import operations_pb2, worker_pb2
from plexsvc.errors import ErrorCode, PlexError
from plexsvc.rollout.recordfiles import RecordFile
from tests.fakes.fake_instances import publish
from tests.rigs.rollout_bench import APPLIED, Bench, bench
from tests.rigs.rollout_requests import collect


async def frames_until(b: Bench, operation: operations_pb2.Operation) -> list[bytes]:
    """Return the frames that a client reads until its stream breaks."""
    request = worker_pb2.StreamFramesRequest(operation_id=operation.operation_id)
    found: list[bytes] = []
    stream = b.worker.StreamFrames(request)
    async for frame in stream:
        found.append(frame.SerializeToString())
        if sum(len(d.token_ids) for f in map(parse, found) for d in f.deltas) >= 12:
            break
    stream.cancel()
    return found


def parse(data: bytes) -> operations_pb2.GenerateFrame:
    return operations_pb2.GenerateFrame.FromString(data)


async def test_a_successor_goes_on_from_the_tokens_that_readers_were_given() -> None:
    async with bench() as b:
        await b.pull(4)
        operation = b.generate(seed=3)
        await b.execute(operation)
        expected = await b.answers(operation)
    async with bench(held=True) as b:
        await b.pull(4)
        operation = b.generate(seed=3)
        async with asyncio.TaskGroup() as group:
            running = group.create_task(b.execute(operation))
            b.instances[0].engine.allow(3)
            given = await frames_until(b, operation)
            made = b.instances[0].engine.generated
            await b.kill_manager()
            b.instances[0].engine.release()
        # 36 are left, and calls of the manager before may make a few until they are dropped.
        assert b.instances[0].engine.generated - made < 48, "it does not begin anew"
        result = running.result()
        assert result.state == APPLIED
        assert result.weight_version == 4
        frames = await b.frames(operation.operation_id)
        assert [frame.SerializeToString() for frame in frames[: len(given)]] == given
        assert frames[-1].result == result
        answers = collect(delta for frame in frames for delta in frame.deltas)
        assert {key: one.tokens for key, one in answers.items()} == {
            key: one.tokens for key, one in expected.items()
        }
        assert all(one.versions == [4] * 12 for one in answers.values())
        assert (await b.execute(b.generate())).weight_version == 4


async def test_a_record_that_is_lost_begins_anew_and_its_reader_with_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(RecordFile, "append", lambda *_: None)
    async with bench(held=True) as b:
        operation = b.generate(seed=3)
        prompts = [list(prompt.token_ids) for prompt in operation.generate.prompts]
        reader = TokenRecord(prompts, sampling=operation.generate.sampling)
        async with asyncio.TaskGroup() as group:
            running = group.create_task(b.execute(operation))
            b.instances[0].engine.allow(3)
            for frame in await frames_until(b, operation):
                reader.add(parse(frame))
            await b.kill_manager()
            b.instances[0].engine.release()
        assert running.result().state == APPLIED
        for rest in await b.frames(operation.operation_id, after=reader.cursor):
            reader.add(rest)
        answers = await b.answers(operation)
        assert [one.tokens for one in reader.samples()] == [
            answers[key].tokens for key in sorted(answers)
        ]


async def test_a_generate_that_had_ended_is_answered_from_its_record() -> None:
    async with bench() as b:
        operation = b.generate()
        answered = await b.execute(operation)
        before = b.instances[0].engine.generated
        frames = await b.frames(operation.operation_id)
        await b.kill_manager()
        assert await b.execute(operation) == answered
        assert await b.frames(operation.operation_id) == frames
        assert b.instances[0].engine.generated == before


async def test_a_released_record_is_not_there_for_a_successor() -> None:
    async with bench() as b:
        operation = b.generate()
        await b.execute(operation)
        await b.managers.release("rollout", operation.operation_id)
        await b.kill_manager()
        with pytest.raises(PlexError) as caught:
            await b.frames(operation.operation_id)
        assert caught.value.code == ErrorCode.NOT_FOUND


@pytest.mark.parametrize("is_back", [False, True])
async def test_a_cancel_while_the_manager_is_away_ends_the_generate_at_its_successor(
    is_back: bool,
) -> None:
    async with bench(held=True) as b:
        operation = b.generate()
        request = worker_pb2.CancelRequest(
            operation_id=operation.operation_id, wpg_id="wpg", fence=b.fence
        )
        async with asyncio.TaskGroup() as group:
            running = group.create_task(b.execute(operation))
            b.instances[0].engine.allow(3)
            given = await frames_until(b, operation)
            await b.serving.aclose()
            if not is_back:
                group.create_task(b.managers.cancel(request))
                await asyncio.sleep(0.1)
            await b.kill_manager()
            if is_back:  # perhaps before it was told of the deployment
                group.create_task(b.managers.cancel(request))
        assert running.result().error.code == ErrorCode.CANCELLED
        frames = await b.frames(operation.operation_id)
        assert [frame.SerializeToString() for frame in frames[: len(given)]] == given
        assert frames[-1].result == running.result()


async def test_a_pull_under_way_is_done_by_the_successor() -> None:
    async with bench(instances=2) as b:
        await b.pull(1)
        await b.kill_manager()
        assert (await b.pull(2)).weight_version == 2
        assert (await b.execute(b.generate())).weight_version == 2


async def test_a_successor_knows_what_the_last_pull_loaded() -> None:
    async with bench() as b:
        pulls = [await b.pull(version) for version in (1, 2)]
        await b.replace_service()
        found = [b.managers.pulled("rollout", pull.operation_id) for pull in pulls]
        assert found == [None, 2]


async def test_a_pull_of_a_service_that_was_killed_before_it_noted_it_is_not_undone() -> None:
    async with bench(instances=2) as b:
        await b.pull(1)
        pull = b.operation(pull=operations_pb2.Pull(source_deployment_id="actor", version=2))
        request = worker_pb2.ExecuteRequest(
            fence=b.fence, wpg_id="wpg", operation=pull, published=publish(2)
        )
        pulled = await b.worker.Execute(request)  # its answer reaches nobody
        await b.replace_service(keeps_manager=True)
        await b.restored()
        assert await b.execute(pull, published=request.published) == pulled.result
        operation = b.generate()
        assert (await b.execute(operation)).weight_version == 2
        assert all(set(a.versions) == {2} for a in (await b.answers(operation)).values())


async def test_an_instance_that_a_successor_cannot_reach_is_reported_and_replaced(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("plexsvc.rollout.managers.SILENT_US", 100_000)
    async with bench(instances=2) as b:
        await b.pull(1)
        lost = b.instances[0]
        await lost.kill()
        await b.replace_service()
        reported: asyncio.Queue[tuple[str, str]] = asyncio.Queue()
        b.managers.report_to(lambda wpg_id, address, _: reported.put_nowait((wpg_id, address)))
        async with asyncio.timeout(120):
            assert await reported.get() == ("wpg", lost.address)
            b.instances[0] = await b.start_instance()
            await b.managers.replace("rollout", index=0, address=b.instances[0].address)
            assert (await b.pull(2)).weight_version == 2
            assert (await b.execute(b.generate())).weight_version == 2


async def test_jobs_are_spread_and_a_job_stays_together() -> None:
    async with bench(managers=2) as b:
        addresses = set()
        for number in range(4):
            operation = b.operation(initialize=operations_pb2.Initialize())
            operation.job_id, operation.deployment_id = f"job {number}", f"other {number}"
            request = worker_pb2.ExecuteRequest(
                fence=b.fence,
                wpg_id=f"wpg {number}",
                operation=operation,
                instance_addresses=[b.instances[0].address],
            )
            assert (await b.managers.execute(request)).result.state == APPLIED
            addresses.add(b.managers.address_of(f"other {number}"))
            twin = worker_pb2.ExecuteRequest()
            twin.CopyFrom(request)
            twin.operation.operation_id = bytes([number]) * 16
            twin.operation.deployment_id, twin.wpg_id = f"twin {number}", f"twin {number}"
            assert (await b.managers.execute(twin)).result.state == APPLIED
            of = b.managers.address_of
            assert of(f"twin {number}") == of(f"other {number}")
        assert len(addresses) == 2


async def test_a_manager_that_sends_no_beat_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("plexsvc.rollout.managers.LOOK_US", 1000)
    async with bench() as b:
        async with asyncio.timeout(120):
            await b.killed.wait()  # it beats every second, and is looked at a thousand times


async def copied(b: Bench, operation: operations_pb2.Operation) -> None:
    """Return when the peer has all that the manager has of a record."""
    copier = vars(vars(b.manager)["_copier"])
    async with asyncio.timeout(120):
        while not copier["_is_taken"] or operation.operation_id in copier["_behind"]:  # noqa: ASYNC110 - nobody tells
            await asyncio.sleep(0.005)


async def test_a_manager_of_another_node_goes_on_from_copied_tokens() -> None:
    async with bench() as b:
        await b.pull(4)
        operation = b.generate(seed=3)
        await b.execute(operation)
        expected = await b.answers(operation)
    async with bench(held=True, has_peer=True) as b:
        await b.pull(4)
        operation = b.generate(seed=3)
        prompts = [list(prompt.token_ids) for prompt in operation.generate.prompts]
        reader = TokenRecord(prompts, sampling=operation.generate.sampling)
        async with asyncio.timeout(120), asyncio.TaskGroup() as group:
            running = group.create_task(b.execute(operation))
            b.instances[0].engine.allow(3)
            for frame in await frames_until(b, operation):
                reader.add(parse(frame))
            await copied(b, operation)
            made = b.instances[0].engine.generated
            await b.kill_node()
            b.instances[0].engine.release()
        assert b.instances[0].engine.generated - made < 48, "it does not begin anew"
        assert running.result().state == APPLIED
        for rest in await b.frames(operation.operation_id, after=reader.cursor):
            reader.add(rest)
        assert [one.tokens for one in reader.samples()] == [
            expected[key].tokens for key in sorted(expected)
        ]
        assert all(set(one.versions) == {4} for one in reader.samples())


async def test_what_was_answered_and_not_read_outlives_its_node() -> None:
    async with bench(has_peer=True) as b:
        first, operation = b.generate(), b.generate(seed=5)
        await b.execute(first)
        await copied(b, first)
        answered = await b.execute(operation)
        frames = await b.frames(operation.operation_id)
        before = b.instances[0].engine.generated
        await b.kill_node()
        async with asyncio.timeout(120):
            assert await b.execute(operation) == answered
            again = await b.frames(operation.operation_id)
        assert [f.deltas for f in again] == [f.deltas for f in frames]
        assert again[-1].result == answered
        assert b.instances[0].engine.generated == before


async def test_a_service_elsewhere_finds_the_copies_too() -> None:
    async with bench(has_peer=True) as b:
        operation = b.generate(seed=5)
        await b.execute(b.generate())
        await copied(b, operation)
        answered = await b.execute(operation)
        await b.kill_node()
        await b.replace_service()
        b.manager = b.peer or b.manager
        async with asyncio.timeout(120):
            assert await b.execute(operation) == answered


async def test_a_deployment_that_ends_leaves_no_copy() -> None:
    async with bench(has_peer=True) as b:
        operation = b.generate()
        await b.execute(operation)
        await copied(b, operation)
        assert b.peer is not None
        place = vars(b.peer)["_config"].records_dir
        assert len([path for path in place.rglob("*") if path.is_file()]) == 1
        await b.managers.forget("rollout")
        async with asyncio.timeout(120):
            while [path for path in place.rglob("*") if path.is_file()]:  # noqa: ASYNC110
                await asyncio.sleep(0.005)
