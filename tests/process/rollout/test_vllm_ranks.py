"""A real vLLM instance of two tensor ranks: what one rank makes, boxes, deaths, nothing left."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import grpc.aio
import numpy as np
import pytest
from safetensors.numpy import load_file

from plexclient.errors import ErrorCode
from plexclient.wire.v1 import rollout_pb2, rollout_pb2_grpc
from plexsvc.rollout.instance import EXIT_BROKEN
from plexsvc.rpc.channels import open_channel
from tests.process.rollout.test_vllm_instance import PROMPTS, batch, load, reference
from tests.rigs.adapter_seats import adapters
from tests.rigs.adapter_seats import load as load_adapters
from tests.rigs.engine_contract import TIMEOUT_S, EngineContract, Stub, answers
from tests.rigs.keys import KEYS
from tests.rigs.processes import command_of, is_alive
from tests.rigs.rollout_requests import FENCE, call, request
from tests.rigs.tiny_models import make_qwen3
from tests.rigs.vllm_process import instances, publish_arrays, vllm_instance

pytestmark = [pytest.mark.process, pytest.mark.slow]


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Return two models of one shape and different weights."""
    root = tmp_path_factory.mktemp("rank-models")
    return make_qwen3(root / "a", seed=3), make_qwen3(root / "b", seed=4)


@pytest.fixture(scope="module")
def address(models: tuple[Path, Path]) -> Iterator[str]:
    before, others = shared_names(), instances()
    with vllm_instance(models[0], tp=2) as found:
        assert shared_names() == before, "what ranks share has no name"
        yield found
    assert shared_names() == before
    assert instances() == others


@pytest.fixture
async def stub(address: str) -> AsyncIterator[Stub]:
    async with open_channel(address, KEYS) as channel:
        yield rollout_pb2_grpc.RolloutInstanceStub(channel)


def shared_names() -> set[str]:
    return {name for name in os.listdir("/dev/shm") if name.startswith(("psm_", "vllm_dist_"))}


class TestVllmRanks(EngineContract):
    """The contract that an engine of one rank keeps, but for sleep."""

    async def test_an_engine_asleep_makes_no_token_and_goes_on_exactly(self, stub: Stub) -> None:
        reply = await stub.Sleep(rollout_pb2.SleepRequest(fence=FENCE), timeout=TIMEOUT_S)
        assert reply.error.code == ErrorCode.BAD_REQUEST
        assert "several tensor ranks does not sleep" in reply.error.message
        assert (await answers(stub, request(PROMPTS[0], max_tokens=2)))[0, 0].tokens


async def test_tokens_are_those_of_one_rank_likeliest_or_drawn(
    stub: Stub, models: tuple[Path, Path]
) -> None:
    both = [*batch(temperature=0.0), *batch(temperature=1.0)]
    for number, one in enumerate(both):
        one.request_id, one.prompt_index = f"r{number}", number
    found = await answers(stub, *both)
    with vllm_instance(models[0]) as alone:
        async with open_channel(alone, KEYS) as channel:
            expected = await answers(rollout_pb2_grpc.RolloutInstanceStub(channel), *both)
    assert {key: one.tokens for key, one in found.items()} == {
        key: one.tokens for key, one in expected.items()
    }


async def test_each_rank_reads_its_own_boxes_of_a_version(
    stub: Stub, models: tuple[Path, Path], tmp_path: Path
) -> None:
    arrays = load_file(models[1] / "model.safetensors")
    publish_arrays(tmp_path / "v5", arrays, version=5, shards=3)
    reply = await load(stub, tmp_path / "v5", version=5)
    whole = sum(array.nbytes for array in arrays.values())
    on_each = sum(array.nbytes for name, array in arrays.items() if "norm" in name)
    assert (reply.error.code, reply.nbytes) == ("", whole + on_each), "norms are on both ranks"
    await agrees(stub, models[1], version=5)
    missing = {name: array for name, array in arrays.items() if "layers.1.mlp.up" not in name}
    publish_arrays(tmp_path / "v6", missing, version=6)
    refused = await load(stub, tmp_path / "v6", version=6)
    assert refused.error.code == ErrorCode.BAD_REQUEST
    assert "lacks" in refused.error.message
    await agrees(stub, models[1], version=5)
    publish_arrays(tmp_path / "v7", load_file(models[0] / "model.safetensors"), version=7)
    assert (await load(stub, tmp_path / "v7", version=7)).error.code == ""
    await agrees(stub, models[0], version=7)


async def test_each_rank_merges_its_part_of_adapters(
    stub: Stub, models: tuple[Path, Path], tmp_path: Path
) -> None:
    made = adapters(models[0], seed=1)
    with vllm_instance(models[0]) as alone:
        async with open_channel(alone, KEYS) as channel:
            other: Stub = rollout_pb2_grpc.RolloutInstanceStub(channel)
            for one in (stub, other):
                reply = await load_adapters(one, tmp_path / "v9", made, version=9)
                assert reply.error.code == ""
            expected = await answers(other, *batch())
    found = await answers(stub, *batch())
    for key, answer in found.items():
        assert answer.tokens == expected[key].tokens
        assert answer.logprobs == pytest.approx(expected[key].logprobs, abs=1e-4)


async def agrees(stub: Stub, model: Path, *, version: int) -> None:
    """Check that tokens come of a version, with the reference's logprobs of its model."""
    found = await answers(stub, *batch())
    for index, prompt in enumerate(PROMPTS):
        answer = found[index, 0]
        assert set(answer.versions) == {version}
        expected = reference(model, prompt, answer.tokens)
        assert np.abs(np.array(answer.logprobs) - expected).max() <= 1e-3


async def test_four_ranks_agree_with_the_reference(tmp_path: Path) -> None:
    model, other = (make_qwen3(tmp_path / f"m{seed}", seed=seed, kv_heads=4) for seed in (6, 7))
    publish_arrays(tmp_path / "v1", load_file(other / "model.safetensors"), version=1)
    with vllm_instance(model, tp=4) as address:
        async with open_channel(address, KEYS) as channel:
            stub: Stub = rollout_pb2_grpc.RolloutInstanceStub(channel)
            await agrees(stub, model, version=0)
            assert (await load(stub, tmp_path / "v1", version=1)).error.code == ""
            await agrees(stub, other, version=1)


async def test_a_rank_that_is_killed_ends_its_instance_and_nothing_is_left(
    models: tuple[Path, Path],
) -> None:
    before, others = shared_names(), instances()
    with vllm_instance(models[0], tp=2, exit_code=EXIT_BROKEN) as address:
        async with open_channel(address, KEYS) as channel:
            stub: Stub = rollout_pb2_grpc.RolloutInstanceStub(channel)
            started = instances() - others
            long = call(request(PROMPTS[0], max_tokens=120, ignore_eos=True))
            with pytest.raises(grpc.aio.AioRpcError) as told:  # noqa: PT012 - it breaks under way
                async for _ in stub.Generate(long, timeout=TIMEOUT_S):
                    os.kill(ranks(started)[0], signal.SIGKILL)
    assert "vLLM" in str(told.value.details())
    assert (shared_names(), await left_of(started)) == (before, set())


async def test_ranks_end_with_an_instance_that_is_killed(models: tuple[Path, Path]) -> None:
    before, others = shared_names(), instances()
    with vllm_instance(models[0], tp=2, exit_code=-signal.SIGKILL):
        started = instances() - others
        (engine,) = {parent(rank) for rank in ranks(started)}
        os.kill(engine, signal.SIGKILL)
    assert (shared_names(), await left_of(started)) == (before, set())


def parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def ranks(started: set[int]) -> list[int]:
    """Return the ranks among processes of an instance: forks of it, like itself."""
    return sorted(
        pid for pid in started if parent(pid) in started and "tracker" not in str(command_of(pid))
    )


async def left_of(started: set[int]) -> set[int]:
    """Return which of these processes are still there after a while."""
    for _ in range(100):
        if not any(map(is_alive, started)):
            break
        await asyncio.sleep(0.1)
    return set(filter(is_alive, started))
