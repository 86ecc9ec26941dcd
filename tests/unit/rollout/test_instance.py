"""An instance: which weights it serves, and under which name."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import cast

import grpc.aio
import pytest
import xxhash

from plexclient.wire.v1 import common_pb2, rollout_pb2, rollout_pb2_grpc, statemanager_pb2
from plexsvc.clock import SystemClock
from plexsvc.errors import ErrorCode
from plexsvc.ids import VersionId
from plexsvc.rollout.instance import EXIT_BROKEN, Context, serve_engine
from plexsvc.rpc.channels import open_channel
from tests.fakes.fake_engine import FakeEngine
from tests.fakes.fake_instances import FakeInstance, open_version, publish, serving
from tests.rigs.keys import KEYS, keys_file
from tests.rigs.rollout_requests import call, request

HERE = cast("Context", None)
FENCE = common_pb2.Fence(scheduler_epoch=1, lease_no=1, incarnation=1)


@pytest.fixture
async def instance() -> AsyncIterator[FakeInstance]:
    async with serving() as instance:
        yield instance


async def load(
    instance: FakeInstance, published: statemanager_pb2.PublishedVersion
) -> rollout_pb2.LoadVersionReply:
    request = rollout_pb2.LoadVersionRequest(fence=FENCE, published=published)
    return await instance.servicer.LoadVersion(request, HERE)


async def wake(
    instance: FakeInstance,
    published: statemanager_pb2.PublishedVersion,
    *,
    fence: common_pb2.Fence = FENCE,
) -> rollout_pb2.LoadVersionReply:
    request = rollout_pb2.LoadVersionRequest(fence=fence, published=published)
    return await instance.servicer.Wake(request, HERE)


def checksum(data: bytes) -> str:
    return xxhash.xxh3_128_hexdigest(xxhash.xxh3_128_digest(data))


async def test_the_same_number_of_another_deployment_is_loaded_and_named(
    instance: FakeInstance,
) -> None:
    await load(instance, publish(1, source="job/a", data=b"weights of a"))
    reply = await load(instance, publish(1, source="job/b", data=b"weights of b"))
    stats = await instance.servicer.Stats(rollout_pb2.InstanceStatsRequest(), HERE)
    assert reply.nbytes > 0
    assert VersionId.of(reply.version) == VersionId("job/b", 1, 1)
    assert VersionId.of(stats.version) == VersionId("job/b", 1, 1)
    assert reply.checksum == stats.checksum == checksum(b"weights of b")


async def test_the_same_number_of_another_incarnation_is_loaded(
    instance: FakeInstance,
) -> None:
    first = publish(1, data=b"first")
    await load(instance, first)
    again = publish(1, data=b"again", incarnation=2)
    reply = await load(instance, again)
    assert reply.checksum == checksum(b"again")


async def test_the_version_in_use_is_answered_at_once_with_its_checksum(
    instance: FakeInstance,
) -> None:
    published = publish(1)
    loaded = await load(instance, published)
    again = await load(instance, published)
    assert (again.nbytes, again.checksum) == (0, loaded.checksum)


async def test_a_load_whose_caller_leaves_is_made_to_its_end_and_named(
    instance: FakeInstance,
) -> None:
    begun, goes_on = asyncio.Event(), asyncio.Event()
    await load(instance, publish(1))

    async def wait(version: VersionId) -> None:
        del version
        begun.set()
        await goes_on.wait()

    instance.engine.loads = wait
    published = publish(2, data=b"second")
    async with asyncio.TaskGroup() as group:
        loading = group.create_task(load(instance, published))
        await begun.wait()
        loading.cancel()
        await asyncio.wait([loading])
        again = group.create_task(load(instance, published))
        goes_on.set()
    reply = again.result()
    stats = await instance.servicer.Stats(rollout_pb2.InstanceStatsRequest(), HERE)
    assert reply.nbytes == 0, "the one that was left has loaded it"
    assert VersionId.of(stats.version) == VersionId.of(published)
    assert stats.checksum == reply.checksum == checksum(b"second")


async def test_one_asleep_loads_nothing_and_wakes_with_verified_weights_alone(
    instance: FakeInstance,
) -> None:
    await load(instance, publish(1))
    assert not (
        await instance.servicer.Sleep(rollout_pb2.SleepRequest(fence=FENCE), HERE)
    ).error.code
    refused = await load(instance, publish(2))
    nowhere = publish(2)
    del nowhere.holders[:]
    none = await wake(instance, nowhere)
    damaged = await wake(instance, publish(2, is_damaged=True))
    assert [reply.error.code for reply in (refused, none, damaged)] == [
        ErrorCode.UNAVAILABLE,
        ErrorCode.BAD_REQUEST,
        ErrorCode.CHECKSUM_MISMATCH,
    ]
    assert instance.engine.is_asleep
    woken = await wake(instance, publish(2))
    assert (woken.error.code, woken.version.version) == ("", 2)
    assert not instance.engine.is_asleep


async def test_the_models_own_weights_come_back_from_its_directory(
    instance: FakeInstance,
) -> None:
    await load(instance, publish(1))
    back = await instance.servicer.LoadVersion(rollout_pb2.LoadVersionRequest(fence=FENCE), HERE)
    assert (back.error.code, back.version.version, back.checksum) == ("", 0, "")


async def test_one_asleep_wakes_with_the_version_it_had_and_one_awake_is_left_alone(
    instance: FakeInstance,
) -> None:
    published = publish(1)
    await load(instance, published)
    await instance.servicer.Sleep(rollout_pb2.SleepRequest(fence=FENCE), HERE)
    woken, again = [await wake(instance, published) for _ in range(2)]
    assert woken.nbytes > 0
    assert (again.error.code, again.nbytes) == ("", 0)


async def test_whoever_was_replaced_neither_wakes_an_instance_nor_has_it_sleep(
    instance: FakeInstance,
) -> None:
    older = common_pb2.Fence(scheduler_epoch=1, lease_no=0, incarnation=1)
    await load(instance, publish(1))
    slept = await instance.servicer.Sleep(rollout_pb2.SleepRequest(fence=older), HERE)
    assert (slept.error.code, instance.engine.is_asleep) == (ErrorCode.STALE_FENCE, False)
    await instance.servicer.Sleep(rollout_pb2.SleepRequest(fence=FENCE), HERE)
    woken = await wake(instance, publish(1), fence=older)
    assert (woken.error.code, instance.engine.is_asleep) == (ErrorCode.STALE_FENCE, True)


async def test_an_instance_whose_engine_breaks_answers_and_ends(tmp_path: Path) -> None:
    engine, address = FakeEngine(held=True), asyncio.get_running_loop().create_future()

    async def break_it_under_a_call() -> str:
        async with open_channel(await address, KEYS) as channel:
            stub = rollout_pb2_grpc.RolloutInstanceStub(channel)
            running = stub.Generate(call(request([3, 4])))
            engine.allow(1)
            await running.read()
            engine.break_down("illegal memory access")
            with pytest.raises(grpc.aio.AioRpcError) as told:
                await running.read()
            return str(told.value.details())

    async with asyncio.TaskGroup() as group:
        called = group.create_task(break_it_under_a_call())
        with pytest.raises(SystemExit) as caught:
            await serve_engine(
                engine,
                replace(
                    FakeInstance(engine).config, keys_file=keys_file(tmp_path), listen="127.0.0.1:0"
                ),
                clock=SystemClock(),
                open_version=open_version,
                ready=address.set_result,
            )
    assert caught.value.code == EXIT_BROKEN
    assert "illegal memory access" in called.result()
