"""A real vLLM engine that adapters share: each gets what it gets alone, in one batch."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import numpy as np
import pytest

from plexclient.errors import ErrorCode
from plexclient.wire.errors import from_wire
from plexclient.wire.v1 import rollout_pb2, rollout_pb2_grpc
from plexsvc import families, lora
from plexsvc.rpc.channels import open_channel
from tests.rigs.adapter_seats import adapters, load, seat
from tests.rigs.engine_contract import TIMEOUT_S, EngineContract, Stub, answers
from tests.rigs.keys import KEYS
from tests.rigs.rollout_requests import FENCE, Answer, call, collect, request
from tests.rigs.tiny_models import make_qwen3
from tests.rigs.vllm_process import vllm_instance

pytestmark = [pytest.mark.process, pytest.mark.slow]

HIGHEST, SEATS = 8, 3
PROMPTS = [[3 + i, 4, 12 + i, 5, 16, 7][: 3 + i % 4] for i in range(4)]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_qwen3(tmp_path_factory.mktemp("seats") / "model", seed=3)


@pytest.fixture(scope="module")
def engine(model: Path) -> Iterator[str]:
    each = lora.Lora(rank=HIGHEST, alpha=1.0).elements(families.read(model)) * 4
    with vllm_instance(model, lora_rank=HIGHEST, adapter_bytes=SEATS * each) as found:
        yield found


@pytest.fixture(scope="module")
def plain(model: Path) -> Iterator[str]:
    with vllm_instance(model) as found:
        yield found


@pytest.fixture
async def stub(engine: str, tmp_path: Path) -> AsyncIterator[Stub]:
    async with seat(engine, "contract", tmp_path) as taken:
        yield taken


class TestSeat(EngineContract):
    """What every engine does, but for sleep."""

    async def test_an_engine_asleep_makes_no_token_and_goes_on_exactly(self, stub: Stub) -> None:
        slept = await stub.Sleep(rollout_pb2.SleepRequest(fence=FENCE), timeout=TIMEOUT_S)
        assert from_wire(slept.error).code == ErrorCode.BAD_REQUEST, "others have seats there, too"


def batch(name: str) -> list[rollout_pb2.InstanceRequest]:
    return [
        request(prompt, name=name, index=i, seed=i, max_tokens=24, ignore_eos=True)
        for i, prompt in enumerate(PROMPTS)
    ]


def check_close(
    found: dict[tuple[int, int], Answer], expected: dict[tuple[int, int], Answer]
) -> None:
    for key, answer in expected.items():
        assert found[key].tokens == answer.tokens
        assert found[key].logprobs == pytest.approx(answer.logprobs, abs=1e-3)


async def test_each_gets_what_an_engine_of_its_own_gives_and_the_base_its_own_bits(
    engine: str, plain: str, model: Path, tmp_path: Path
) -> None:
    alone = []
    async with open_channel(plain, KEYS) as channel:
        merged = rollout_pb2_grpc.RolloutInstanceStub(channel)
        base = await answers(merged, *batch("base"))
        for seed in (1, 2):
            reply = await load(
                merged, tmp_path / f"m{seed}", adapters(model, seed=seed), version=seed
            )
            assert not reply.HasField("error"), reply.error
            alone.append(await answers(merged, *batch(f"alone{seed}")))
    assert alone[0][0, 0].tokens != base[0, 0].tokens != alone[1][0, 0].tokens
    async with (
        seat(engine, "acme", tmp_path) as acme,
        seat(engine, "rival", tmp_path) as rival,
        seat(engine, "nobody", tmp_path) as nobody,
    ):
        stubs = {"acme": acme, "rival": rival, "nobody": nobody}
        for number, one in enumerate((acme, rival), start=1):
            arrays = adapters(model, seed=number)
            reply = await load(one, tmp_path / f"s{number}", arrays, version=number)
            assert not reply.HasField("error"), reply.error
        streams = {name: one.Generate(call(*batch(name))) for name, one in stubs.items()}
        found: dict[str, dict[tuple[int, int], Answer]] = {name: {} for name in streams}
        running = set(streams)
        while running:  # frame by frame in turn: all are in the engine at once
            for name in sorted(running):
                frame = await streams[name].read()
                if isinstance(frame, rollout_pb2.InstanceFrame):
                    collect(frame.deltas, found[name])
                else:
                    running.remove(name)
        # Beside others its last bits may be others: of how many rows a matrix is decides.
        by_itself = await answers(nobody, *batch("by itself"))
    for (name, expected), version in zip(
        {"acme": alone[0], "rival": alone[1], "nobody": base}.items(), (1, 2, 0), strict=True
    ):
        check_close(found[name], expected)
        assert all(set(answer.versions) == {version} for answer in found[name].values())
    assert {k: a.logprobs for k, a in by_itself.items()} == {k: a.logprobs for k, a in base.items()}


async def test_new_weights_go_on_with_what_is_under_way_and_no_prefix_outlives_its_version(
    engine: str, model: Path, tmp_path: Path
) -> None:
    prompt = [(5 * i) % 48 + 2 for i in range(70)]

    async def cached_tokens(stub: Stub, name: str) -> int:
        asked = call(request(prompt, name=name, max_tokens=1))
        frames = [frame async for frame in stub.Generate(asked, timeout=TIMEOUT_S)]
        return sum(delta.cached_tokens for frame in frames for delta in frame.deltas)

    async with seat(engine, "acme", tmp_path) as acme, seat(engine, "rival", tmp_path) as rival:
        arrays = adapters(model, seed=1)
        await load(acme, tmp_path / "a1", arrays, version=1)
        assert await cached_tokens(acme, "first") == 0
        assert await cached_tokens(acme, "again") == 64
        assert await cached_tokens(rival, "other") == 0, "the base's, of another seat"
        asked = request(PROMPTS[0], name="long", max_tokens=110, ignore_eos=True)
        stream = aiter(acme.Generate(call(asked)))
        first = await anext(stream)
        begun: dict[tuple[int, int], Answer] = {}
        collect(first.deltas, begun)
        await load(acme, tmp_path / "a2", adapters(model, seed=2), version=2)
        async for frame in stream:
            collect(frame.deltas, begun)
        answer = begun[0, 0]
        assert len(answer.tokens) == 110
        cut = answer.versions.index(2)
        assert answer.versions == [1] * cut + [2] * (110 - cut)
        assert await cached_tokens(acme, "new") == 0, "a prefix of the version before"
        rest = request(
            PROMPTS[0],
            name="rest",
            max_tokens=110,
            ignore_eos=True,
            generated=answer.tokens[:cut],
        )
        again = (await answers(acme, rest))[0, 0]
        assert again.tokens == answer.tokens[cut:]
        assert again.logprobs == pytest.approx(answer.logprobs[cut:], abs=1e-3)
        await load(acme, tmp_path / "a1", arrays, version=1)
        assert await cached_tokens(acme, "back") == 64, "the first version is in use again"


async def test_a_seat_that_was_left_is_free_and_has_no_adapter(
    engine: str, plain: str, model: Path, tmp_path: Path
) -> None:
    async with seat(engine, "first", tmp_path) as one:
        await load(one, tmp_path / "v", adapters(model, seed=1), version=1)
        changed = await answers(one, *batch("changed"))
    async with open_channel(plain, KEYS) as channel:
        stub = rollout_pb2_grpc.RolloutInstanceStub(channel)
        fresh = rollout_pb2.LoadVersionRequest(fence=FENCE)
        await stub.LoadVersion(fresh, timeout=TIMEOUT_S)
        base = await answers(stub, *batch("base"))
    async with (
        seat(engine, "a", tmp_path) as a,
        seat(engine, "b", tmp_path) as b,
        seat(engine, "c", tmp_path) as c,
    ):
        for name, one in (("a", a), ("b", b), ("c", c)):
            found = await answers(one, *batch(name))
            assert found[0, 0].tokens == base[0, 0].tokens != changed[0, 0].tokens
        with pytest.raises(Exception, match="adapter_bytes") as refused:
            async with seat(engine, "d", tmp_path):
                pass
        assert getattr(refused.value, "code", None) == ErrorCode.QUEUE_FULL


async def test_what_is_no_adapter_of_the_model_is_refused_and_changes_nothing(
    engine: str, model: Path, tmp_path: Path
) -> None:
    high = adapters(model, seed=1, rank=HIGHEST + 1)
    other = make_qwen3(tmp_path / "other", seed=4, hidden=32)
    async with seat(engine, "acme", tmp_path) as acme:
        await load(acme, tmp_path / "good", adapters(model, seed=1), version=1)
        before = await answers(acme, *batch("before"))
        whole = {"model.norm.weight": np.ones(64, np.float32)}
        for number, (arrays, said) in enumerate(
            ((high, "rank 9"), (adapters(other, seed=1), "same model"), (whole, "whole model"))
        ):
            reply = await load(acme, tmp_path / f"bad{number}", arrays, version=2 + number)
            assert from_wire(reply.error).code == ErrorCode.BAD_REQUEST
            assert said in reply.error.message
            assert reply.version.version == 1
        check_close(await answers(acme, *batch("after")), before)
