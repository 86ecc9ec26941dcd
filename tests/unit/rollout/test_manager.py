"""The rollout manager over real gRPC to fake engines."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Coroutine
from dataclasses import replace

import pytest

from plexclient.errors import ErrorCode, PlexError
from plexclient.wire.v1 import operations_pb2, rollout_pb2, worker_pb2
from plexsvc import progress
from plexsvc.ids import VersionId, new_operation_id
from plexsvc.rollout import manager, operations
from plexsvc.rollout.core.events import SampleKey
from plexsvc.rollout.store import TOKEN_BYTES
from tests.fakes.fake_engine import fake_text
from tests.fakes.fake_instances import FakeInstance, publish
from tests.rigs.rollout_bench import APPLIED, FAST, PROMPTS, Bench, bench, recorded
from tests.rigs.rollout_requests import collect

SLEEP, WAKE = rollout_pb2.INSTANCES_MOVE_SLEEP, rollout_pb2.INSTANCES_MOVE_WAKE
AWAIT_PULL = rollout_pb2.INSTANCES_MOVE_AWAIT_PULL


async def next_frame(
    frames: AsyncIterator[operations_pb2.GenerateFrame],
) -> operations_pb2.GenerateFrame:
    return await anext(frames)


async def test_a_generate_streams_every_sample_once_and_ends_with_its_result() -> None:
    async with bench(instances=2) as b:
        operation = b.generate(seed=5)
        result = await b.execute(operation)
        frames = await b.frames(operation.operation_id)
        answers = collect(delta for frame in frames for delta in frame.deltas)
    assert result.state == APPLIED
    assert result.metrics["generated_tokens"] == 4 * 12
    assert (result.metrics["prompts"], result.metrics["samples"]) == (2, 4)
    assert sorted(answers) == [(0, 0), (0, 1), (1, 0), (1, 1)]
    assert all(len(a.tokens) == 12 and a.versions == [0] * 12 for a in answers.values())
    first = frames[0].cursor
    assert [frame.cursor for frame in frames] == list(range(first, first + len(frames)))
    assert [frame.HasField("result") for frame in frames] == [False] * (len(frames) - 1) + [True]
    assert frames[-1].result == result


async def test_samples_differ_and_depend_on_the_seed_not_on_the_instances() -> None:
    async with bench(instances=1) as one:
        first = one.generate(seed=5)
        await one.execute(first)
        alone = await one.answers(first)
    async with bench(instances=3) as three:
        second, other = three.generate(seed=5), three.generate(seed=6)
        await three.execute(second)
        await three.execute(other)
        shared, reseeded = await three.answers(second), await three.answers(other)
    assert {k: a.tokens for k, a in alone.items()} == {k: a.tokens for k, a in shared.items()}
    assert len({tuple(a.tokens) for a in alone.values()}) == 4
    assert reseeded[0, 0].tokens != shared[0, 0].tokens


async def test_without_a_seed_two_operations_draw_differently() -> None:
    async with bench() as b:
        first, second = b.generate(), b.generate()
        await b.execute(first)
        await b.execute(second)
        assert (await b.answers(first))[0, 0].tokens != (await b.answers(second))[0, 0].tokens


async def test_a_repeated_operation_is_answered_from_the_record() -> None:
    async with bench() as b:
        operation = b.generate()
        async with asyncio.TaskGroup() as group:
            twins = [group.create_task(b.execute(operation)) for _ in range(3)]
        assert {twin.result().SerializeToString() for twin in twins} == {
            (await b.execute(operation)).SerializeToString()
        }
        assert b.instances[0].engine.generated == 4 * 12


async def test_a_reader_resumes_after_any_cursor_and_sees_the_same_frames() -> None:
    async with bench() as b:
        operation = b.generate()
        await b.execute(operation)
        frames = await b.frames(operation.operation_id)
        for number, cursor in enumerate([0, *(frame.cursor for frame in frames)]):
            assert await b.frames(operation.operation_id, after=cursor) == frames[number:]


async def test_a_stream_opened_before_its_operation_starts_follows_it_live() -> None:
    async with bench(held=True) as b:
        operation = b.generate()
        request = worker_pb2.StreamFramesRequest(operation_id=operation.operation_id)
        stream = b.stream(request)
        async with asyncio.TaskGroup() as group:
            first = group.create_task(next_frame(stream))
            running = group.create_task(b.execute(operation))
            b.instances[0].engine.allow(1)
            assert len((await first).deltas) == 4
            assert not running.done()
            b.instances[0].engine.release()
            rest = [frame async for frame in stream]
        assert rest[-1].result == running.result()


async def test_the_first_tokens_make_a_frame_at_once_and_those_soon_after_wait_together() -> None:
    an_hour = replace(FAST, frame_us=3_600_000_000)
    async with bench(held=True, config=an_hour) as b:
        operation = b.generate()
        stream = b.stream(worker_pb2.StreamFramesRequest(operation_id=operation.operation_id))
        async with asyncio.TaskGroup() as group:
            running = group.create_task(b.execute(operation))
            b.instances[0].engine.allow(1)
            assert len((await next_frame(stream)).deltas) == 4
            b.instances[0].engine.release()
            rest = [frame async for frame in stream]
        assert running.result().state == APPLIED
    assert len([frame for frame in rest if frame.deltas]) == 1


async def test_samples_of_a_lost_instance_go_on_elsewhere_exactly() -> None:
    async with bench() as quiet:
        undisturbed = quiet.generate(seed=3)
        await quiet.execute(undisturbed)
        expected = await quiet.answers(undisturbed)
    async with bench(instances=2, held=True) as b:
        operation = b.generate(seed=3)
        async with asyncio.TaskGroup() as group:
            running = group.create_task(b.execute(operation))
            for instance in b.instances:
                instance.engine.allow(4)
            await recorded(b, operation, tokens=4 * 4)
            await b.instances[0].kill()
            b.instances[1].engine.release()
        result, answers = running.result(), await b.answers(operation)
    assert result.state == APPLIED
    assert result.metrics["instances_lost"] == 1
    assert {k: a.tokens for k, a in answers.items()} == {k: a.tokens for k, a in expected.items()}
    assert all(a.versions == [0] * 12 for a in answers.values())


async def test_an_instance_that_is_cut_is_not_paid_and_its_samples_end_elsewhere() -> None:
    config = replace(FAST, cuts_at=0.7, balance_us=10_000)
    prompts = [[number + 1] for number in range(12)]
    options = {"seed": 2, "n": 1, "max_tokens": 60, "stop_token_ids": range(5)}
    async with bench(instances=2) as b:
        whole = b.generate(prompts, **options)
        await b.execute(whole)
        alone = await b.answers(whole)
    async with bench(instances=2, config=config, held=True) as b:
        cut = b.generate(prompts, **options)
        async with asyncio.TaskGroup() as group:
            running = group.create_task(b.execute(cut))
            while not running.done():
                for instance in b.instances:
                    instance.engine.allow(1)
                await asyncio.sleep(0.01)
        answers = await b.answers(cut)
        asked = sum(len(instance.engine.salts) for instance in b.instances)
    metrics = running.result().metrics
    assert running.result().state == APPLIED
    assert {k: a.tokens for k, a in answers.items()} == {k: a.tokens for k, a in alone.items()}
    assert asked > len(prompts), "some went on elsewhere"
    assert metrics["instance_s"] < 2 * metrics["generated_tokens"] / metrics["tokens_per_s"]
    assert metrics["instances_lost"] == 0


async def test_samples_wait_for_the_only_instance_to_come_back_with_its_version() -> None:
    config = replace(FAST, probe_us=100_000)
    async with bench(held=True, config=config) as b:
        await b.pull(4)
        operation = b.generate(seed=3)
        async with asyncio.TaskGroup() as group:
            running = group.create_task(b.execute(operation))
            b.instances[0].engine.allow(4)
            await recorded(b, operation, tokens=4 * 4)
            await b.instances[0].kill()
            b.instances[0].engine.version = VersionId()  # as of a restarted process
            b.instances[0].engine.release()
            await b.instances[0].start()
        answers = await b.answers(operation)
    assert running.result().state == APPLIED
    assert b.instances[0].engine.version == VersionId("actor", 1, 4)
    assert all(a.versions == [4] * 12 for a in answers.values())


async def test_a_generate_goes_on_with_the_successor_of_its_only_instance() -> None:
    async with bench(held=True) as b:
        given_up: asyncio.Queue[tuple[str, ...]] = asyncio.Queue()
        b.managers.report_to(lambda *told: given_up.put_nowait(told))
        await b.pull(4)
        before, operation = b.instances[0], b.generate(seed=3)
        async with asyncio.TaskGroup() as group:
            running = group.create_task(b.execute(operation))
            before.engine.allow(4)
            await recorded(b, operation, tokens=4 * 4)
            await before.kill()
            assert (await given_up.get())[:2] == ("wpg", before.address)
            b.instances = [await b.start_instance()]
            await b.managers.replace("rollout", index=0, address=b.instances[0].address)
        answers = await b.answers(operation)
    assert running.result().state == APPLIED
    assert all(a.versions == [4] * 12 for a in answers.values())
    assert b.instances[0].engine.generated == 4 * 8, "from where the lost one was"


async def test_a_pull_that_loses_its_only_instance_is_done_by_the_successor() -> None:
    async with bench() as b:
        await b.instances[0].kill()
        async with asyncio.TaskGroup() as group:
            pulling = group.create_task(b.pull(4))
            successor = await b.start_instance()
            await b.managers.replace("rollout", index=0, address=successor.address)
        b.instances = [successor]
        assert pulling.result().state == APPLIED
        assert len(pulling.result().texts["checksum"]) == 32
        assert (await b.execute(b.generate())).weight_version == 4


async def test_an_instance_whose_engine_broke_is_not_taken_back() -> None:
    async with bench(instances=2) as b:
        lost: asyncio.Queue[tuple[str, ...]] = asyncio.Queue()
        b.managers.report_to(lambda *told: lost.put_nowait(told))
        b.instances[0].engine.break_down("out of blocks")
        assert (await b.execute(b.generate())).state == APPLIED
        assert "out of blocks" in (await lost.get())[2]
        assert (await b.execute(b.generate())).metrics["instances_lost"] == 0


async def test_a_sample_that_keeps_losing_instances_is_given_up() -> None:
    config = replace(FAST, max_tries_per_sample=2)
    async with bench(instances=2, held=True, config=config) as b:
        operation = b.generate(PROMPTS[:1], n=1)
        async with asyncio.TaskGroup() as group:
            running = group.create_task(b.execute(operation))
            for _ in range(2):
                tokens = await next_holder(b)
                await tokens.kill()
        assert running.result().error.code == ErrorCode.WORKER_DIED
        assert "lost 2 instances" in running.result().error.message


async def test_a_pull_loads_a_verified_version_that_later_tokens_carry() -> None:
    async with bench(instances=2) as b:
        result = await b.pull(7)
        operation = b.generate()
        generated = await b.execute(operation)
        answers = await b.answers(operation)
    assert result.state == APPLIED
    assert (result.weight_version, result.metrics["instances"]) == (7, 2)
    assert len(result.texts["checksum"]) == 32
    assert generated.weight_version == 7
    assert all(set(a.versions) == {7} for a in answers.values())


async def test_a_damaged_version_is_refused_and_the_old_one_serves_on() -> None:
    async with bench() as b:
        await b.pull(1)
        damaged = publish(2, is_damaged=True)
        pull = operations_pb2.Pull(source_deployment_id="actor", version=2)
        result = await b.execute(b.operation(pull=pull), published=damaged)
        assert result.error.code == ErrorCode.CHECKSUM_MISMATCH
        operation = b.generate()
        assert (await b.execute(operation)).weight_version == 1


async def test_cancelling_ends_a_generate_and_the_instance_drops_it() -> None:
    async with bench(held=True) as b:
        operation = b.generate()
        async with asyncio.TaskGroup() as group:
            running = group.create_task(b.execute(operation))
            b.instances[0].engine.allow(1)
            await recorded(b, operation, tokens=4)
            await b.manager.cancel(
                worker_pb2.CancelRequest(
                    operation_id=operation.operation_id, wpg_id="wpg", fence=b.fence
                )
            )
        assert running.result().error.code == ErrorCode.CANCELLED
        assert (await b.frames(operation.operation_id))[-1].result == running.result()
        async with asyncio.timeout(120):
            await b.instances[0].engine.idle.wait()


async def test_cancelling_ends_a_generate_that_has_not_taken_its_first_step() -> None:
    async with bench() as b:
        operation = b.generate()
        order = worker_pb2.ExecuteRequest(fence=b.fence, wpg_id="wpg", operation=operation)
        end = worker_pb2.CancelRequest(
            operation_id=operation.operation_id, wpg_id="wpg", fence=b.fence
        )
        both = await asyncio.gather(b.manager.execute(order), b.manager.cancel(end))
        assert both[0].result.error.code == ErrorCode.CANCELLED
        assert (await b.frames(operation.operation_id))[-1].result == both[0].result


async def test_samples_that_wait_for_others_of_their_instance_are_not_stalled() -> None:
    async with bench(config=replace(FAST, stall_us=800_000)) as b:
        b.instances[0].engine.serve_in_turn(step_s=0.02)
        first, second = b.generate(max_tokens=60), b.generate(max_tokens=2)
        async with asyncio.TaskGroup() as group:
            running = [group.create_task(b.execute(one)) for one in (first, second)]
    assert [one.result().state for one in running] == [APPLIED] * 2
    assert [one.result().metrics["instances_lost"] for one in running] == [0, 0]


async def test_an_instance_that_sends_nothing_counts_as_lost() -> None:
    config = replace(FAST, stall_us=50_000, max_tries_per_sample=1)
    async with bench(held=True, config=config) as b:
        result = await b.execute(b.generate())
        b.instances[0].engine.release()
    assert result.error.code == ErrorCode.WORKER_DIED
    assert "rollout.stall_us" in result.error.message


@pytest.mark.parametrize("garbage", ["position", "token", "logprob", "sample"])
async def test_an_instance_that_sends_garbage_is_given_up_and_its_samples_go_on_elsewhere(
    garbage: str,
) -> None:
    def spoil(delta: operations_pb2.SampleDelta) -> None:
        if garbage == "position":
            delta.position += 1
        elif garbage == "sample":
            delta.sample_index += 7
        elif garbage == "token" and delta.token_ids:
            delta.token_ids[0] = 50
        elif garbage == "logprob" and delta.logprobs:
            delta.logprobs[0] = float("nan")

    async with bench() as b:
        expected = b.generate(seed=3)
        await b.execute(expected)
        wanted = await b.answers(expected)
    given_up: list[str] = []

    def note(wpg_id: str, address: str, because: str) -> None:
        del wpg_id, address
        given_up.append(because)

    async with bench(instances=2) as b:
        b.managers.report_to(note)
        b.instances[1].engine.spoils = spoil
        operation = b.generate(seed=3)
        assert (await b.execute(operation)).state == APPLIED
        found = await b.answers(operation)
    assert {key: one.tokens for key, one in found.items()} == {
        key: one.tokens for key, one in wanted.items()
    }
    assert given_up
    assert given_up[0].startswith("it sent garbage: ")


async def test_the_tokens_that_a_generate_has_recorded_are_told() -> None:
    async with bench(held=True) as b:
        operation = b.generate()
        assert b.manager.progress(operation.operation_id) == 0
        async with asyncio.TaskGroup() as group:
            group.create_task(b.execute(operation))
            b.instances[0].engine.allow(2)
            await recorded(b, operation, tokens=8)
            assert b.manager.progress(operation.operation_id) == 8
            b.instances[0].engine.release()
        assert b.manager.progress(operation.operation_id) == 48


async def test_a_released_record_is_gone_and_an_unknown_one_not_found() -> None:
    async with bench() as b:
        operation = b.generate()
        await b.execute(operation)
        await b.managers.release("rollout", operation.operation_id)
        for operation_id, code in (
            (operation.operation_id, ErrorCode.RESULT_GONE),
            (new_operation_id(), ErrorCode.NOT_FOUND),
        ):
            with pytest.raises(PlexError) as caught:
                await b.frames(operation_id)
            assert caught.value.code == code


async def test_old_records_make_room_for_new_ones() -> None:
    config = replace(FAST, record_bytes=2 * (4 * 12 * TOKEN_BYTES + 84))
    async with bench(config=config) as b:
        operations = [b.generate() for _ in range(4)]
        for operation in operations:
            assert (await b.execute(operation)).state == APPLIED
        with pytest.raises(PlexError) as caught:
            await b.frames(operations[0].operation_id)
        assert caught.value.code == ErrorCode.RESULT_GONE
        assert await b.frames(operations[3].operation_id)
        big = await b.execute(b.generate(n=20))
        assert big.error.code == ErrorCode.PAYLOAD_TOO_LARGE
        assert "rollout.record_bytes" in big.error.message


async def test_a_failure_that_may_pass_is_tried_anew_under_the_same_id() -> None:
    async with bench() as b:
        await b.instances[0].kill()
        again = b.operation(operation_id=bytes(16), initialize=operations_pb2.Initialize())
        addresses = [b.instances[0].address]
        refused = await b.execute(again, instance_addresses=addresses)
        assert refused.error.code == ErrorCode.UNAVAILABLE
        assert refused.error.retryable
        await b.instances[0].start()
        async with asyncio.timeout(120):
            while (await b.execute(again, instance_addresses=addresses)).state != APPLIED:  # noqa: ASYNC110 - gRPC dials again in its own time
                await asyncio.sleep(0.01)


async def test_successors_take_over_with_the_version_in_use_or_not_at_all() -> None:
    async with bench(instances=2) as b:
        assert (await b.pull(3)).state == APPLIED
        before, fresh, gone = b.instances, await b.start_instance(), await b.start_instance()
        await gone.kill()
        b.instances, b.wpg_id, b.fence.incarnation = [fresh, gone], "next", 2
        assert (await b.initialize()).error.code == ErrorCode.UNAVAILABLE
        b.wpg_id, b.fence.incarnation = "wpg", 1
        generated = await b.execute(b.generate())
        assert (generated.state, generated.weight_version) == (APPLIED, 3)
        b.instances, b.wpg_id, b.fence.incarnation = [fresh], "next", 2
        assert (await b.initialize()).state == APPLIED
        for instance in before:
            await instance.kill()
        generated = await b.execute(b.generate())
        assert (generated.state, generated.weight_version) == (APPLIED, 3)
        assert (await b.pull(4)).state == APPLIED


async def test_samples_under_way_go_on_with_the_successors_of_their_instances() -> None:
    async with bench(held=True) as b:
        before, operation = b.instances[0], b.generate(seed=3)
        async with asyncio.TaskGroup() as group:
            running = group.create_task(b.execute(operation))
            before.engine.allow(4)
            await recorded(b, operation, tokens=4 * 4)
            b.instances, b.wpg_id, b.fence.incarnation = [await b.start_instance()], "next", 2
            assert (await b.initialize()).state == APPLIED
            await before.kill()
        answers = await b.answers(operation)
    assert running.result().state == APPLIED
    assert running.result().metrics["instances_lost"] == 1
    assert all(len(answer.tokens) == 12 for answer in answers.values())


async def test_orders_of_a_replaced_scheduler_are_refused() -> None:
    async with bench() as b:
        b.fence.scheduler_epoch = 0
        assert (await b.execute(b.generate())).error.code == ErrorCode.STALE_FENCE


async def test_a_repeat_or_cancellation_under_an_older_lease_is_still_heard() -> None:
    async with bench(held=True) as b:
        first, second = b.generate(), b.generate()
        async with asyncio.TaskGroup() as group:
            running = group.create_task(b.execute(first))
            b.fence.lease_no = 2
            other = group.create_task(b.execute(second))
            b.instances[0].engine.allow(2)
            await recorded(b, first, tokens=4)
            b.fence.lease_no = 1
            again = group.create_task(b.execute(first))
            await b.manager.cancel(
                worker_pb2.CancelRequest(
                    operation_id=first.operation_id, wpg_id="wpg", fence=b.fence
                )
            )
            b.instances[0].engine.release()
        assert running.result().error.code == ErrorCode.CANCELLED
        assert again.result() == running.result()
        assert other.result().state == APPLIED


async def test_an_operation_from_before_a_pull_comes_too_late() -> None:
    async with bench() as b:
        late = b.generate()
        await b.pull(1)
        assert (await b.execute(late)).error.code == ErrorCode.STALE_SEQUENCE


async def test_forgetting_a_wpg_ends_its_work_and_its_records() -> None:
    async with bench(held=True) as b:
        operation = b.generate()
        async with asyncio.TaskGroup() as group:
            running = group.create_task(b.execute(operation))
            b.instances[0].engine.allow(1)
            await recorded(b, operation, tokens=4)
            await b.managers.forget("rollout")
        assert running.result().error.code == ErrorCode.CANCELLED
        with pytest.raises(PlexError) as caught:
            await b.execute(b.generate())
        assert caught.value.code == ErrorCode.NOT_FOUND
        described = await b.manager.describe(worker_pb2.DescribeRequest(wpg_id="wpg"))
        assert not described.initialized


@pytest.mark.parametrize(
    ("prompts", "sampling", "says"),
    [
        ([], {}, "no prompts"),
        ([[]], {}, "prompt 0 is empty"),
        ([[3], [4, 50]], {}, "prompt 1: token id 50 at position 1"),
        ([[3]], {"max_tokens": 0}, "max_tokens is 0"),
        ([[3]], {"max_tokens": 128}, "max_model_len is 128"),
        ([[3]], {"temperature": -1.0}, "temperature is -1.0"),
        ([[3]], {"temperature": 0.001}, "from 0.01 to 2.0"),
        ([[3]], {"temperature": 2.5}, "from 0.01 to 2.0"),
        ([[3]], {"temperature": float("nan")}, "temperature is nan"),
        ([[3]], {"top_p": 1.5}, "top_p is 1.5"),
        ([[3]], {"top_k": -2}, "top_k is -2"),
        ([[3]], {"min_tokens": 13}, "min_tokens 13 exceeds max_tokens 12"),
        ([[3]], {"stop": [""]}, "stop string is empty"),
        ([[3]], {"stop_token_ids": [77]}, "stop_token_ids: token id 77"),
        ([[3]], {"stop": ["x"]}, "refused by the fake"),
    ],
)
async def test_bad_requests_are_refused_with_the_cause(
    prompts: list[list[int]], sampling: dict[str, object], says: str
) -> None:
    async with bench() as b:
        operation = b.generate(prompts, **sampling)
        result = await b.execute(operation)
        assert result.state == operations_pb2.OPERATION_STATE_REFUSED
        assert result.error.code == ErrorCode.BAD_REQUEST
        assert says in result.error.message
        assert (await b.execute(b.generate())).state == APPLIED


async def test_streams_of_one_tenant_leave_room_for_others() -> None:
    async with bench(config=replace(FAST, max_streams=3)) as b, asyncio.TaskGroup() as group:

        def frame(name: bytes, tenant: str) -> Coroutine[None, None, operations_pb2.GenerateFrame]:
            request = worker_pb2.StreamFramesRequest(
                operation_id=name * 16, deployment_id=f"{tenant}/{name!r}", tenant=tenant
            )
            return next_frame(b.stream(request))

        waiting = [group.create_task(frame(name, "greedy")) for name in (b"1", b"2")]
        await asyncio.sleep(0)
        with pytest.raises(PlexError, match=r"2 of 3 streams .*max_streams\), 2 of them .*greedy"):
            await frame(b"3", "greedy")
        waiting.append(group.create_task(frame(b"4", "other")))
        await asyncio.sleep(0)
        assert not waiting[-1].done()
        for task in waiting:
            task.cancel()
        await asyncio.wait(waiting)
        operation = b.generate()
        assert (await b.execute(operation)).state == APPLIED
        assert await b.frames(operation.operation_id), "they gave their slots back"


async def test_operations_of_one_tenant_leave_room_for_others() -> None:
    config = replace(FAST, max_operations=3)
    async with bench(held=True, config=config) as b, asyncio.TaskGroup() as group:
        mine = [b.generate() for _ in range(3)]
        theirs = b.generate()
        theirs.tenant = "other"
        running = [group.create_task(b.execute(operation)) for operation in mine[:2]]
        await asyncio.sleep(0)
        refused = await b.execute(mine[2])
        assert refused.error.code == ErrorCode.QUEUE_FULL
        assert "rollout.max_operations" in refused.error.message
        running.append(group.create_task(b.execute(theirs)))
        await asyncio.sleep(0)
        assert not running[-1].done()
        b.instances[0].engine.release()
        assert [(await task).state for task in running] == [APPLIED] * 3


async def next_holder(b: Bench) -> FakeInstance:
    """Return the instance that has work now."""
    async with asyncio.timeout(120):
        while True:
            for instance in b.instances:
                if instance.server is not None and instance.engine.stats().running:
                    return instance
            await asyncio.sleep(0.001)


IMPATIENT = replace(FAST, load_stall_us=800_000)


async def test_a_load_takes_the_time_it_takes_while_weights_are_read() -> None:
    async def slowly(version: VersionId) -> None:
        del version
        for _ in range(200):
            progress.advance()
            await asyncio.sleep(0.01)

    async with bench(config=IMPATIENT) as b:
        b.instances[0].engine.loads = slowly
        async with asyncio.TaskGroup() as group:
            pull = b.operation(pull=operations_pb2.Pull(source_deployment_id="actor", version=4))
            pulling = group.create_task(b.execute(pull, published=publish(4)))
            counts = {0}
            while not pulling.done():
                counts.add(b.manager.progress(pull.operation_id))
                await asyncio.sleep(0.01)
        assert pulling.result().state == APPLIED
    assert len(counts) > 3, "whoever watches over the pull sees it get on"


async def test_a_load_that_reads_nothing_costs_its_instance_and_the_next_try_loads() -> None:
    tries = []

    async def hang_once(version: VersionId) -> None:
        tries.append(version)
        if len(tries) == 1:
            await asyncio.Event().wait()

    async with asyncio.timeout(120), bench(config=IMPATIENT) as b:
        b.instances[0].engine.loads = hang_once
        assert (await b.pull(4)).state == APPLIED
    assert len(tries) == 2


async def test_an_instance_that_is_replaced_while_it_loads_ends_nothing_else() -> None:
    begun = asyncio.Event()

    async def for_ever(version: VersionId) -> None:
        del version
        begun.set()
        await asyncio.Event().wait()

    config = replace(FAST, load_stall_us=80_000)  # it is looked at all the time
    async with asyncio.timeout(120), bench(config=config) as b:
        b.instances[0].engine.loads = for_ever
        async with asyncio.TaskGroup() as group:
            pulling = group.create_task(b.pull(4))
            await begun.wait()
            b.instances.append(await b.start_instance())
            await b.managers.replace("rollout", index=0, address=b.instances[1].address)
        assert pulling.result().state == APPLIED


async def sampled(
    b: Bench,
    operation: operations_pb2.Operation,
) -> list[operations_pb2.GenerateFrame]:
    async with asyncio.timeout(120):
        return [frame async for frame in b.sample(operation)]


def turn(
    b: Bench, *, tenant: str = "acme", session: str = "", text: str = "", chat: str = ""
) -> operations_pb2.Operation:
    operation = b.generate([[3, 4, 5]], n=1)
    operation.seq, operation.tenant, operation.generate.session = 0, tenant, session
    if text or chat:
        operation.generate.prompts[0].CopyFrom(operations_pb2.Prompt(text=text, chat=chat))
    return operation


async def test_samples_go_beside_the_order_of_operations_and_leave_no_record() -> None:
    async with bench(instances=2, held=True) as b:
        async with asyncio.TaskGroup() as group:
            ordered = b.generate()
            held = group.create_task(b.execute(ordered))
            turns = [turn(b, session=str(number)) for number in range(3)]
            asked = [group.create_task(sampled(b, operation)) for operation in turns]
            for instance in b.instances:
                instance.engine.release()
            assert (await held).state == APPLIED
        assert len((await b.answers(ordered))[0, 0].tokens) == 12
        for operation, task in zip(turns, asked, strict=True):
            first, *frames = task.result()
            assert (first.cursor, list(first.prompts[0].token_ids)) == (0, [3, 4, 5])
            (answer,) = collect(d for f in frames for d in f.deltas).values()
            assert len(answer.tokens) == 12
            assert frames[-1].result.state == APPLIED
            with pytest.raises(PlexError) as gone:
                await b.frames(operation.operation_id)
            assert gone.value.code == ErrorCode.RESULT_GONE


@pytest.mark.parametrize("beside", [False, True])
async def test_what_turns_alone_took_of_instances_is_told(
    monkeypatch: pytest.MonkeyPatch, *, beside: bool
) -> None:
    """Where samples of a generate run too, its operation has their devices."""
    monkeypatch.setattr(manager, "BEAT_S", 0.01)
    told: list[tuple[str, int]] = []
    is_told = asyncio.Event()

    def turned(wpg_id: str, device_us: int) -> None:
        told.append((wpg_id, device_us))
        is_told.set()

    async with bench(instances=2, held=True) as b, asyncio.TaskGroup() as group:
        b.managers.report_turns_to(turned)
        if beside:
            group.create_task(b.execute(b.generate()))
            await next_holder(b)
        frames = b.sample(turn(b))
        assert (await anext(frames)).prompts
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(is_told.wait(), 0.3 if beside else 60)
        before = list(told)
        for instance in b.instances:
            instance.engine.release()
        assert [frame async for frame in frames][-1].result.state == APPLIED
    assert {wpg_id for wpg_id, _ in before} == (set() if beside else {"wpg"})
    assert all(device_us > 0 for _, device_us in told)


def versions(frames: list[operations_pb2.GenerateFrame]) -> list[int]:
    (answer,) = collect(delta for frame in frames for delta in frame.deltas).values()
    return answer.versions


@pytest.mark.parametrize("finishes", [False, True])
async def test_a_turn_ends_on_its_version_or_goes_on_with_the_next_as_the_job_says(
    *, finishes: bool
) -> None:
    async with bench(held=True) as b:
        (instance,) = b.instances
        early = b.sample(turn(b))
        assert (await anext(early)).prompts
        instance.engine.allow(1)
        head = await anext(early)
        body = operations_pb2.Pull(source_deployment_id="actor", version=4, finishes_turns=finishes)
        async with asyncio.TaskGroup() as group:
            pulling = group.create_task(b.execute(b.operation(pull=body), published=publish(4)))
            if finishes:
                await asyncio.sleep(0.05)
                assert not pulling.done(), "a turn is under way"
            else:
                await pulling
            late = group.create_task(sampled(b, turn(b)))
            await asyncio.sleep(0.02)
            instance.engine.release()
            tail = [frame async for frame in early]
        assert pulling.result().state == APPLIED
        assert versions([head, *tail]) == ([0] * 12 if finishes else [0] + [4] * 11)
        assert versions(late.result()) == [4] * 12


async def test_turns_go_on_when_the_pull_that_waited_for_others_is_broken_off() -> None:
    async with bench(held=True) as b:
        early = b.sample(turn(b))
        assert (await anext(early)).prompts
        (deployment,) = b.manager._deployments.values()
        async with asyncio.TaskGroup() as group:
            waiting = group.create_task(operations.finish_turns(deployment))
            await asyncio.sleep(0)
            late = group.create_task(sampled(b, turn(b)))
            await asyncio.sleep(0.02)
            waiting.cancel()
            b.instances[0].engine.release()
        assert versions(late.result()) == [0] * 12
        assert versions([frame async for frame in early]) == [0] * 12


async def test_a_sample_ends_when_its_reader_leaves() -> None:
    async with bench(held=True) as b:
        (instance,) = b.instances
        frames = b.sample(turn(b))
        assert (await anext(frames)).prompts
        instance.engine.allow(1)
        assert (await anext(frames)).deltas
        await frames.aclose()
        async with asyncio.timeout(120):
            await instance.engine.idle.wait()
        assert instance.engine.generated < 12
        assert (await b.execute(b.operation(noop=operations_pb2.Noop()))).state == APPLIED


async def test_texts_and_chats_are_encoded_by_an_instance_and_tokens_come_with_their_texts() -> (
    None
):
    async with bench() as b:
        operation = turn(b, text="ab")
        operation.generate.sampling.texts = True
        first, *frames = await sampled(b, operation)
        assert list(first.prompts[0].token_ids) == [ord("a") % 50, ord("b") % 50]
        deltas = [delta for frame in frames for delta in frame.deltas]
        tokens = [token for delta in deltas for token in delta.token_ids]
        assert [text for delta in deltas for text in delta.texts] == [fake_text(t) for t in tokens]
        assert sum(delta.cached_tokens for delta in deltas) == 1
        with pytest.raises(PlexError) as refused:
            await sampled(b, turn(b, chat="refused"))
        assert refused.value.code == ErrorCode.BAD_REQUEST


async def test_a_sample_that_only_encodes_is_its_first_frame_with_the_text_of_each_token() -> None:
    async with bench() as b:
        for prompt in ({"text": "ab"}, {"token_ids": [47, 48]}):
            operation = turn(b)
            operation.generate.prompts[0].Clear()
            operation.generate.prompts[0].MergeFrom(operations_pb2.Prompt(**prompt))
            operation.generate.prompt_texts = operation.generate.encodes_only = True
            (frame,) = await sampled(b, operation)
            assert list(frame.prompts[0].token_ids) == [47, 48]
            assert list(frame.prompts[0].texts) == [fake_text(47), fake_text(48)]
        unknown = turn(b)
        unknown.generate.prompts[0].token_ids[0] = 50
        with pytest.raises(PlexError, match="vocabulary"):
            await sampled(b, unknown)
        assert not b.instances[0].engine.generated


async def test_a_sample_without_a_length_may_fill_the_model() -> None:
    async with bench() as b:
        operation = turn(b)
        operation.generate.sampling.max_tokens = 0
        _, *frames = await sampled(b, operation)
        (answer,) = collect(d for f in frames for d in f.deltas).values()
        assert len(answer.tokens) == 128 - 3


async def test_a_generate_before_the_first_sync_samples_the_models_own_weights() -> None:
    async with bench(source="job/actor") as b:
        operation = b.generate(n=1, max_tokens=3)
        assert (await b.execute(operation)).state == APPLIED
        frames = await b.frames(operation.operation_id)
        answers = collect(delta for frame in frames for delta in frame.deltas)
    assert [one.versions for one in answers.values()] == [[0] * 3] * 2


async def test_weights_of_another_deployment_are_sampled_once_they_are_synced() -> None:
    async with bench(source="job/actor") as b:
        with pytest.raises(PlexError) as refused:
            await sampled(b, turn(b))
        assert refused.value.code == ErrorCode.NOT_FOUND
        assert "sync" in refused.value.message
        await b.pull(4)
        _, *frames = await sampled(b, turn(b))
        (answer,) = collect(d for f in frames for d in f.deltas).values()
        assert set(answer.versions) == {4}


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"max_tokens": 4000}, ErrorCode.BAD_REQUEST),
        ({"max_tokens": 100, "n": 60_000}, ErrorCode.PAYLOAD_TOO_LARGE),
    ],
)
async def test_a_sample_that_cannot_be_is_refused_in_its_result(
    changes: dict[str, int], code: ErrorCode
) -> None:
    async with bench(config=replace(FAST, record_bytes=1 << 20)) as b:
        operation = turn(b)
        for name, value in changes.items():
            setattr(operation.generate.sampling, name, value)
        *_, last = await sampled(b, operation)
        assert last.result.error.code == code


async def test_a_sample_for_which_there_is_no_room_now_is_refused_and_may_be_tried_again() -> None:
    async with bench(held=True, config=replace(FAST, record_bytes=10_500)) as b:
        (instance,) = b.instances
        async with asyncio.TaskGroup() as group:
            first = b.generate(n=6)
            held = group.create_task(b.execute(first))
            await b.manager._records.wait_for(first.operation_id)
            operation = turn(b, tenant="")
            operation.generate.sampling.max_tokens = 120
            *_, last = await sampled(b, operation)
            assert last.result.error.code == ErrorCode.QUEUE_FULL
            instance.engine.release()
            await held
        await b.managers.release("rollout", first.operation_id)
        again = turn(b, tenant="")
        again.generate.sampling.max_tokens = 120
        *_, last = await sampled(b, again)
        assert last.result.state == APPLIED


async def test_a_sample_that_gets_no_token_is_ended() -> None:
    async with bench(held=True, config=replace(FAST, stall_us=100_000)) as b:
        with pytest.raises(PlexError) as ended:
            await sampled(b, turn(b))
        assert ended.value.code == ErrorCode.OPERATION_TIMEOUT


async def test_each_tenants_prefixes_are_cached_apart() -> None:
    async with bench() as b:
        (instance,) = b.instances
        for tenant in ("acme", "rival"):
            await sampled(b, turn(b, tenant=tenant))
        assert instance.engine.salts == ["acme", "rival"]


async def test_a_tenants_samples_leave_room_for_others() -> None:
    async with bench(held=True, config=replace(FAST, max_operations=4)) as b:
        (instance,) = b.instances
        mine = [b.sample(turn(b, tenant="mine")) for _ in range(3)]
        for frames in mine[:2]:
            await anext(frames)
        with pytest.raises(PlexError) as refused:
            await anext(mine[2])
        assert refused.value.code == ErrorCode.QUEUE_FULL
        instance.engine.release()
        assert await sampled(b, turn(b, tenant="other"))
        for frames in mine:
            await frames.aclose()


async def test_instances_sleep_between_generates_and_wake_with_what_they_served() -> None:
    async with bench(instances=2, shared=True) as b:
        await b.pull(4)
        first, second = b.generate(seed=3), b.generate(seed=3)
        await b.execute(first)
        assert (await b.move(SLEEP)).unreached == []
        assert [one.engine.is_asleep for one in b.instances] == [True, True]
        await b.move(WAKE)
        assert (await b.execute(second)).weight_version == 4
        assert [one.engine.is_asleep for one in b.instances] == [False, False]
        found, expected = await b.answers(second), await b.answers(first)
        assert {k: one.tokens for k, one in found.items()} == {
            k: one.tokens for k, one in expected.items()
        }


async def test_a_pull_wakes_instances_with_its_version() -> None:
    async with bench(shared=True) as b:
        await b.pull(4)
        await b.move(SLEEP)
        await b.move(AWAIT_PULL)
        assert b.instances[0].engine.is_asleep, "the old version is not filled first"
        await b.pull(5)
        assert (await b.execute(b.generate())).weight_version == 5


async def test_a_successor_finds_instances_asleep_and_wakes_them() -> None:
    async with bench(shared=True) as b:
        await b.pull(4)
        await b.move(SLEEP)
        await b.kill_manager()
        async with asyncio.timeout(120):
            while [one.phase for one in await b.managers.instances()] != ["asleep"]:  # noqa: ASYNC110 - the successor is told in its own time
                await asyncio.sleep(0.005)
        assert b.instances[0].engine.is_asleep, "nobody gave it its device"
        await b.move(WAKE)
        assert [one.phase for one in await b.managers.instances()] == ["serving"]
        assert (await b.execute(b.generate())).weight_version == 4


async def cut_until_one_left(
    b: Bench, group: asyncio.TaskGroup, left: list[tuple[str, str, bytes]]
) -> tuple[operations_pb2.Operation, asyncio.Task[worker_pb2.ExecuteReply]]:
    """Return a generate that goes on without one of two instances, which has told so."""
    b.managers.report_left_to(lambda *told: left.append(told))
    await b.pull(4)
    options = {"seed": 2, "n": 1, "max_tokens": 60, "stop_token_ids": range(5)}
    cut = b.generate([[number + 1] for number in range(12)], **options)
    request = worker_pb2.ExecuteRequest(fence=b.fence, wpg_id=b.wpg_id, operation=cut)
    running = group.create_task(b.managers.execute(request))
    async with asyncio.timeout(120):
        while not left:
            assert not running.done()
            for instance in b.instances:
                instance.engine.allow(1)
            await asyncio.sleep(0.01)
    return cut, running


CUTS = replace(FAST, cuts_at=0.7, balance_us=10_000)


async def test_a_shared_instance_that_is_cut_sleeps_and_says_so_before_the_generate_ends() -> None:
    async with bench(instances=2, config=CUTS, held=True, shared=True) as b:
        left: list[tuple[str, str, bytes]] = []
        async with asyncio.TaskGroup() as group:
            cut, running = await cut_until_one_left(b, group, left)
            (asleep,) = [one for one in b.instances if one.engine.is_asleep]
            assert left == [("wpg", asleep.address, cut.operation_id)]
            for instance in b.instances:
                instance.engine.release()
        reply = running.result()
        assert (reply.result.state, list(reply.asleep)) == (APPLIED, [asleep.address])
        assert asleep.engine.is_asleep, "until it has its device again"
        await b.move(SLEEP)
        await b.move(WAKE)
        phases = [one.phase for one in await b.managers.instances()]
        assert phases == ["serving", "serving"]


async def test_a_successor_goes_on_without_the_instance_that_left() -> None:
    async with bench(instances=2, config=CUTS, held=True, shared=True) as b:
        async with asyncio.timeout(120), asyncio.TaskGroup() as group:
            _, running = await cut_until_one_left(b, group, [])
            (asleep,) = [one for one in b.instances if one.engine.is_asleep]
            await b.kill_manager()
            for instance in b.instances:
                instance.engine.release()
        reply = running.result()
        assert (reply.result.state, list(reply.asleep)) == (APPLIED, [asleep.address])
        assert asleep.engine.is_asleep


async def test_one_that_does_not_wake_is_lost_with_its_cause_and_replaced() -> None:
    async with bench(instances=1, shared=True) as b:
        lost: asyncio.Queue[str] = asyncio.Queue()
        b.managers.report_to(lambda *told: lost.put_nowait(told[2]))
        await b.pull(4)
        await b.move(SLEEP)
        publish(4, is_damaged=True)  # what it is to wake with
        await b.move(WAKE)
        fresh = await b.start_instance()
        async with asyncio.TaskGroup() as group:
            generating = group.create_task(b.execute(b.generate()))
            assert "did not wake" in await asyncio.wait_for(lost.get(), 120)
            publish(4)
            await b.managers.replace("rollout", index=0, address=fresh.address)
        assert generating.result().weight_version == 4


async def test_one_that_is_killed_asleep_is_named_or_lost() -> None:
    async with bench(instances=2, shared=True) as b:
        await b.pull(4)
        await b.instances[0].kill()
        assert (await b.move(SLEEP)).unreached == [b.instances[0].address]
        await b.instances[1].kill()
        await b.move(WAKE)  # whoever takes their places generates
        fresh = await b.start_instance()
        async with asyncio.TaskGroup() as group:
            generating = group.create_task(b.execute(b.generate()))
            await b.managers.replace("rollout", index=0, address=fresh.address)
        assert generating.result().weight_version == 4


async def test_a_shared_deployment_refuses_samples_beside_the_order() -> None:
    async with bench(shared=True) as b:
        operation = b.generate()
        operation.seq = 0
        with pytest.raises(PlexError, match="shares its devices in time"):
            await anext(b.sample(operation))


FEW = replace(FAST, max_pending=2)
"""Samples wait for the engines that come later."""


async def undisturbed() -> dict[SampleKey, list[int]]:
    async with bench() as b:
        await b.pull(4)
        operation = b.generate(seed=3)
        await b.execute(operation)
        return {key: one.tokens for key, one in (await b.answers(operation)).items()}


async def test_engines_on_training_devices_serve_a_generate_while_its_window_is_open() -> None:
    async with bench(held=True, config=FEW) as b:
        engine = await b.start_instance()
        await b.add_reserved(engine)
        await b.pull(4)
        operation = b.generate(seed=3)
        async with asyncio.timeout(120), asyncio.TaskGroup() as group:
            generating = group.create_task(b.execute(operation))
            seeding = group.create_task(b.seed(operation))
            await recorded(b, operation, tokens=1)  # of the engine: the other one is held
            views = {one.kind: one.phase for one in await b.managers.instances()}
            assert views == {"dedicated": "serving", "reserved": "serving"}
            b.instances[0].engine.release()
        assert generating.result().weight_version == 4
        assert seeding.result().state == APPLIED
        assert seeding.result().metrics["seeded_s"] > 0
        answers = await b.answers(operation)
        views = {one.kind: one.phase for one in await b.managers.instances()}
        assert views == {"dedicated": "serving", "reserved": "awake"}
    assert {key: one.tokens for key, one in answers.items()} == await undisturbed()
    assert engine.engine.generated > 0


async def test_an_engine_that_dies_in_the_window_costs_no_token_and_frees_its_device() -> None:
    async with bench(held=True, config=FEW) as b:
        engine = await b.start_instance(held=True)
        await b.add_reserved(engine)
        await b.pull(4)
        operation = b.generate(seed=3)
        async with asyncio.timeout(120), asyncio.TaskGroup() as group:
            group.create_task(b.execute(operation))
            seeding = group.create_task(b.seed(operation))
            while {one.phase for one in await b.managers.instances()} != {"serving"}:  # noqa: ASYNC110 - it comes in its own time
                await asyncio.sleep(0.005)
            await engine.kill()
            b.instances[0].engine.release()
        assert seeding.result().state == APPLIED
        answers = await b.answers(operation)
    assert {key: one.tokens for key, one in answers.items()} == await undisturbed()


async def test_a_window_ends_when_none_of_its_engines_wakes() -> None:
    async with bench(held=True, config=FEW) as b:
        engine = await b.start_instance()
        await b.add_reserved(engine)
        await b.pull(4)
        publish(4, is_damaged=True)  # what the engine is to wake with
        operation = b.generate()
        async with asyncio.timeout(120), asyncio.TaskGroup() as group:
            generating = group.create_task(b.execute(operation))
            assert (await b.seed(operation)).state == APPLIED
            assert not generating.done()
            b.instances[0].engine.release()
    assert engine.engine.generated == 0


async def test_a_seed_of_a_generate_that_is_over_does_nothing() -> None:
    async with bench(instances=1) as b:
        engine = await b.start_instance()
        await b.add_reserved(engine)
        operation = b.generate()
        await b.execute(operation)
        assert (await b.seed(operation)).state == APPLIED
    assert engine.engine.generated == 0


async def test_an_engine_that_is_being_woken_when_its_window_closes_is_not_cut_off() -> None:
    begun, go = asyncio.Event(), asyncio.Event()

    async def held(_: VersionId) -> None:
        begun.set()
        await go.wait()

    async with bench(held=True, config=FEW) as b:
        engine = await b.start_instance()
        await b.add_reserved(engine)
        await b.pull(4)
        engine.engine.loads = held
        operation = b.generate()
        async with asyncio.timeout(120), asyncio.TaskGroup() as group:
            generating = group.create_task(b.execute(operation))
            seeding = group.create_task(b.seed(operation))
            await begun.wait()
            b.instances[0].engine.release()
            await asyncio.wait([generating])
            assert not seeding.done(), "else it would be told to sleep while its weights are filled"
            go.set()
        assert seeding.result().state == APPLIED
        assert engine.engine.version.version == 4
        assert [one.phase for one in await b.managers.instances()] == ["serving", "awake"]
    assert engine.engine.generated == 0
