"""A real vLLM instance: the contract, the reference's logprobs, weights replaced in place."""

from __future__ import annotations

import json
import mmap
import re
import subprocess
import sys
import warnings
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import grpc.aio
import numpy as np
import numpy.typing as npt
import pytest
from safetensors.numpy import load_file

from plexclient.errors import ErrorCode
from plexclient.wire.v1 import operations_pb2, rollout_pb2, rollout_pb2_grpc
from plexsvc.rollout.instance import EXIT_BROKEN
from plexsvc.rpc.channels import open_channel
from tests.rigs.engine_contract import TIMEOUT_S, EngineContract, Stub, answers, refusal
from tests.rigs.keys import KEYS
from tests.rigs.model_families import BOTH, make_model
from tests.rigs.rollout_requests import FENCE, Answer, call, collect, request
from tests.rigs.tiny_models import ALPHABET, SPECIALS, make_qwen3
from tests.rigs.vllm_process import instances, lying_in, publish_arrays, vllm_instance

pytestmark = [pytest.mark.process, pytest.mark.slow]

PROMPTS = [[3 + i, 4, 12 + i, 5, 16, 7][: 3 + i % 4] for i in range(8)]


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Return two models of one shape and different weights."""
    root = tmp_path_factory.mktemp("rollout-models")
    return make_qwen3(root / "a", seed=3), make_qwen3(root / "b", seed=4)


@pytest.fixture(scope="module")
def address(models: tuple[Path, Path]) -> Iterator[str]:
    with vllm_instance(models[0]) as found:
        yield found


@pytest.fixture
async def stub(address: str) -> AsyncIterator[Stub]:
    async with open_channel(address, KEYS) as channel:
        yield rollout_pb2_grpc.RolloutInstanceStub(channel)


class TestVllmEngine(EngineContract):
    """The contract that the fake keeps too."""


async def test_the_chat_template_writes_the_prompt(stub: Stub) -> None:
    chat = json.dumps({"messages": [{"role": "user", "content": "hi"}]})
    asked = rollout_pb2.EncodeRequest(prompts=[operations_pb2.Prompt(chat=chat)])
    (prompt,) = (await stub.Encode(asked, timeout=TIMEOUT_S)).prompts
    written = "".join((*SPECIALS, *ALPHABET)[token] for token in prompt.token_ids)
    assert written == "user: hi. assistant: "


async def test_a_prefix_is_cached_for_requests_of_its_salt_alone(stub: Stub) -> None:
    prompt = [(5 * i) % 48 + 2 for i in range(100)]

    async def cached_tokens(name: str, salt: str) -> int:
        asked = request(prompt, name=name, max_tokens=1)
        asked.cache_salt = salt
        frames = [frame async for frame in stub.Generate(call(asked), timeout=TIMEOUT_S)]
        return sum(delta.cached_tokens for frame in frames for delta in frame.deltas)

    assert await cached_tokens("first", "acme") == 0
    assert await cached_tokens("again", "acme") == 96, "whole blocks"
    assert await cached_tokens("other", "rival") == 0
    assert await cached_tokens("nobody", "") == 0
    assert await cached_tokens("rival", "rival") == 96


async def test_logprobs_are_the_references_at_any_temperature(
    stub: Stub, models: tuple[Path, Path]
) -> None:
    for temperature in (1.0, 0.7):
        found = await answers(stub, *batch(temperature=temperature))
        for index, prompt in enumerate(PROMPTS):
            answer = found[index, 0]
            expected = reference(models[0], prompt, answer.tokens, temperature=temperature)
            assert np.abs(np.array(answer.logprobs) - expected).max() <= 1e-3


@pytest.mark.parametrize(
    "shaped",
    [
        {"repetition_penalty": 1.8},
        {"presence_penalty": 1.5, "frequency_penalty": 1.0},
        {"min_p": 0.7},
        {"logit_bias": {5: 4.0, 9: -100.0}},
        {"frequency_penalty": 2.0, "temperature": 0.0},
        {"min_tokens": 20, "stop_token_ids": [4, 5, 6, 7, 8]},
    ],
    ids=lambda shaped: next(iter(shaped)),
)
async def test_what_shapes_the_distribution_does_and_goes_on_exactly_elsewhere(
    stub: Stub, shaped: dict[str, Any]
) -> None:
    temperature = shaped.get("temperature", 1.0)

    def asked(
        name: str,
        generated: list[int],
        **sampling: Any,
    ) -> rollout_pb2.InstanceRequest:
        given: dict[str, Any] = {"max_tokens": 40, "temperature": temperature, "ignore_eos": True}
        return request(PROMPTS[3], name=name, generated=generated, **given | sampling)

    plain = (await answers(stub, asked("p", [])))[0, 0]
    whole = (await answers(stub, asked("w", [], **shaped)))[0, 0]
    assert whole.logprobs != plain.logprobs[: len(whole.logprobs)]
    for cut in (1, 13, len(whole.tokens) - 1):
        moved = (await answers(stub, asked(f"m{cut}", whole.tokens[:cut], **shaped)))[0, 0]
        assert moved.tokens == whole.tokens[cut:]
        assert moved.logprobs == pytest.approx(whole.logprobs[cut:], abs=1e-4)


async def test_the_likeliest_tokens_come_with_each_and_a_special_one_has_its_text(
    stub: Stub,
) -> None:
    asked = request(
        PROMPTS[1],
        max_tokens=6,
        temperature=0.0,
        top_logprobs=3,
        texts=True,
        special_texts=True,
        logit_bias={0: 100.0},
        ignore_eos=True,
    )
    deltas = [
        delta
        async for frame in stub.Generate(call(asked), timeout=TIMEOUT_S)
        for delta in frame.deltas
    ]
    likely = [one for delta in deltas for one in delta.likely]
    assert len(likely) == 6
    for one, chosen in zip(likely, [lp for d in deltas for lp in d.logprobs], strict=True):
        assert one.token_ids[0] == 0
        assert one.texts[0] == "<pad>"
        assert len(one.logprobs) == len(one.texts) == 3
        assert one.logprobs[0] == chosen
        assert list(one.logprobs) == sorted(one.logprobs, reverse=True)
    assert "".join(text for delta in deltas for text in delta.texts) == "<pad>" * 6


@pytest.mark.parametrize(
    ("structured", "matches"),
    [
        ({"regex": "[a-f]{3}=[0-9]{4}(z|xy)+[.]"}, r"[a-f]{3}=[0-9]{4}(z|xy)+[.]"),
        ({"choice": ["yes", "no, never", "may be"]}, "yes|no, never|may be"),
        ({"grammar": 'start: "a" start "b" | "c"'}, "a*cb*"),
        ({"json": {"type": "integer", "minimum": 100, "maximum": 99999}}, "[0-9]{3,5}"),
    ],
    ids=lambda one: next(iter(one)) if isinstance(one, dict) else "",
)
async def test_a_text_matches_its_grammar_and_goes_on_exactly_elsewhere(
    stub: Stub, structured: dict[str, Any], matches: str
) -> None:
    text = [*SPECIALS, *ALPHABET]
    shaped = {"structured": json.dumps(structured), "logit_bias": {2 + ALPHABET.index("z"): 1.0}}

    def asked(name: str, generated: list[int]) -> rollout_pb2.InstanceRequest:
        return request(PROMPTS[0], name=name, generated=generated, max_tokens=110, **shaped)  # type: ignore[arg-type]

    whole = (await answers(stub, asked("w", [])))[0, 0]
    assert whole.finish == operations_pb2.FINISH_REASON_STOP
    assert whole.tokens[-1] == 1
    assert re.fullmatch(matches, "".join(text[token] for token in whole.tokens[:-1]))
    for cut in sorted({1, len(whole.tokens) // 2, len(whole.tokens) - 1}):
        moved = (await answers(stub, asked(f"m{cut}", whole.tokens[:cut])))[0, 0]
        assert moved.tokens == whole.tokens[cut:]
        assert moved.logprobs == pytest.approx(whole.logprobs[cut:], abs=1e-4)


@pytest.mark.parametrize(
    "structured",
    [
        {"regex": "("},
        {"regex": "(" * 3000 + "a" + ")" * 3000},
        {
            "json": {
                "allOf": [
                    {"type": "string", "pattern": f"(a|b)*a(a|b){{{i}}}"} for i in range(20, 40)
                ]
            }
        },
        {"json": {"$ref": "http://127.0.0.1/x"}},
        {"json": {"type": "number", "multipleOf": 1e-300}},
        {"json": {}, "regex": "a"},
        {"json": "[" * 100_000},
        {"choice": []},
        {"xml": "a"},
    ],
)
async def test_a_grammar_that_cannot_be_used_is_refused_and_others_go_on(
    stub: Stub, structured: dict[str, Any]
) -> None:
    asked = request(PROMPTS[0], structured=json.dumps(structured))
    assert await refusal(stub.Generate(call(asked), timeout=TIMEOUT_S)) is ErrorCode.BAD_REQUEST
    assert (await answers(stub, request(PROMPTS[0], max_tokens=2)))[0, 0].tokens


async def test_prompt_logprobs_are_the_references(stub: Stub, models: tuple[Path, Path]) -> None:
    prompt = PROMPTS[3]
    answer = (await answers(stub, request(prompt, prompt_logprobs=True)))[0, 0]
    expected = reference(models[0], prompt[:1], prompt[1:])
    assert np.abs(np.array(answer.prompt_logprobs) - expected).max() <= 1e-3
    asked = request(prompt, name="top", prompt_logprobs=True, top_prompt_logprobs=2, texts=True)
    frames = [frame async for frame in stub.Generate(call(asked), timeout=TIMEOUT_S)]
    likely = [one for frame in frames for delta in frame.deltas for one in delta.prompt_likely]
    assert [len(one.texts) for one in likely] == [2] * (len(prompt) - 1)
    for own, one in zip(expected, likely, strict=True):
        assert one.logprobs[0] >= max(own - 1e-3, one.logprobs[1])


async def test_greedy_tokens_are_the_likeliest(stub: Stub, models: tuple[Path, Path]) -> None:
    answer = (await answers(stub, request(PROMPTS[1], temperature=0.0, ignore_eos=True)))[0, 0]
    expected = reference(models[0], PROMPTS[1], answer.tokens)
    assert np.abs(np.array(answer.logprobs) - expected).max() <= 1e-3
    assert min(answer.logprobs) > np.log(1 / 50)


async def test_the_models_end_token_ends_a_sample_unless_ignored(stub: Stub) -> None:
    many = [request([3, i], index=i, seed=i, max_tokens=60) for i in range(2, 12)]
    ended = [a for a in (await answers(stub, *many)).values() if a.finish == 1]
    assert ended
    assert all(a.tokens[-1] == 1 and 1 not in a.tokens[:-1] for a in ended)


async def test_long_prompts_with_seeds_are_prefilled_in_parts_and_stay_reproducible(
    stub: Stub,
) -> None:
    """More prompt tokens than one step takes: a seeded request then sees a partial prefill."""
    prompts = [[(7 * i + j) % 48 + 2 for j in range(100)] for i in range(30)]

    async def run(name: str) -> list[list[int]]:
        requests = [
            request(p, name=name, index=i, seed=i, max_tokens=8, ignore_eos=True)
            for i, p in enumerate(prompts)
        ]
        found = await answers(stub, *requests)
        return [found[i, 0].tokens for i in range(len(prompts))]

    together = await run("t")
    for i in (0, 17, 29):
        alone = request(prompts[i], index=0, name="o", seed=i, max_tokens=8, ignore_eos=True)
        assert (await answers(stub, alone))[0, 0].tokens == together[i]


async def test_a_stop_string_ends_a_sample_also_across_a_migration(stub: Stub) -> None:
    text = [*SPECIALS, *ALPHABET]
    whole = (await answers(stub, request(PROMPTS[2], max_tokens=40, ignore_eos=True)))[0, 0]
    stop = "".join(text[t] for t in whole.tokens[9:12])
    stopped = request(PROMPTS[2], name="s", max_tokens=40, stop=[stop], ignore_eos=True)
    answer = (await answers(stub, stopped))[0, 0]
    assert answer.tokens == whole.tokens[:12]
    assert (answer.finish, answer.stop_reason) == (operations_pb2.FINISH_REASON_STOP, stop)
    moved = request(
        PROMPTS[2],
        name="m",
        max_tokens=40,
        stop=[stop],
        ignore_eos=True,
        generated=whole.tokens[:11],
    )
    assert (await answers(stub, moved))[0, 0].tokens == whole.tokens[11:12]


async def test_weights_are_replaced_in_place_and_equal_a_fresh_engines(
    stub: Stub, models: tuple[Path, Path], tmp_path: Path
) -> None:
    publish_arrays(tmp_path / "v5", load_file(models[1] / "model.safetensors"), version=5, shards=2)
    reply = await load(stub, tmp_path / "v5", version=5)
    assert (reply.error.code, reply.version.version, len(reply.checksum)) == ("", 5, 32)
    assert (await load(stub, tmp_path / "v5", version=5)).nbytes == 0
    serving = await stub.Stats(rollout_pb2.InstanceStatsRequest(), timeout=TIMEOUT_S)
    assert (serving.version, serving.checksum) == (reply.version, reply.checksum)
    found = await answers(stub, *batch())
    for index, prompt in enumerate(PROMPTS):
        answer = found[index, 0]
        assert set(answer.versions) == {5}
        expected = reference(models[1], prompt, answer.tokens)
        assert np.abs(np.array(answer.logprobs) - expected).max() <= 1e-3
    publish_arrays(tmp_path / "v6", load_file(models[0] / "model.safetensors"), version=6)
    await load(stub, tmp_path / "v6", version=6)


async def test_weights_of_experts_are_replaced_in_place_too(tmp_path: Path) -> None:
    """vLLM's own kernel packs them when it loads them: what came later would land elsewhere."""
    case = {
        **BOTH["qwen3_moe"],
        "architectures": ["Qwen3MoeForCausalLM"],
        "head_dim": 32,
        "vocab_size": 50,
        "hidden_size": 64,
        "moe_intermediate_size": 64,
    }
    first, second = (make_model(tmp_path / str(seed), case, seed=seed) for seed in (0, 1))
    publish_arrays(tmp_path / "v1", load_file(second / "model.safetensors"), version=1)
    with vllm_instance(first) as address:
        async with open_channel(address, KEYS) as channel:
            stub: Stub = rollout_pb2_grpc.RolloutInstanceStub(channel)
            for model in (first, second):
                answer = (await answers(stub, request(PROMPTS[0], ignore_eos=True)))[0, 0]
                expected = reference(model, PROMPTS[0], answer.tokens)
                assert np.abs(np.array(answer.logprobs) - expected).max() <= 1e-4
                assert (await load(stub, tmp_path / "v1", version=1)).error.code == ""


async def test_a_swap_under_way_says_which_tokens_each_version_made(
    stub: Stub, models: tuple[Path, Path], tmp_path: Path
) -> None:
    arrays = load_file(models[1] / "model.safetensors")
    publish_arrays(tmp_path / "v7", arrays, version=7)
    found: dict[tuple[int, int], Answer] = {}
    asked = request(PROMPTS[0], max_tokens=100, ignore_eos=True)
    async for frame in stub.Generate(call(asked), timeout=TIMEOUT_S):
        if not found:
            await load(stub, tmp_path / "v7", version=7)
        collect(frame.deltas, found)
    answer = found[0, 0]
    cut = answer.versions.index(7)
    assert 0 < cut < 100
    assert set(answer.versions[cut:]) == {7}
    expected = reference(models[1], PROMPTS[0], answer.tokens)
    assert np.abs(np.array(answer.logprobs) - expected)[cut:].max() <= 1e-3
    publish_arrays(tmp_path / "v8", load_file(models[0] / "model.safetensors"), version=8)
    await load(stub, tmp_path / "v8", version=8)


async def test_damaged_or_foreign_weights_are_refused_and_the_old_ones_serve_on(
    stub: Stub, models: tuple[Path, Path], tmp_path: Path
) -> None:
    before = (await answers(stub, request(PROMPTS[0], ignore_eos=True)))[0, 0]
    arrays = load_file(models[1] / "model.safetensors")
    publish_arrays(tmp_path / "damaged", arrays, version=20)
    data = bytearray((tmp_path / "damaged").read_bytes())
    data[1000] ^= 1
    (tmp_path / "damaged").write_bytes(data)
    missing = {k: v for k, v in arrays.items() if "layers.1.mlp.up" not in k}
    wider = arrays | {"model.norm.weight": np.ones(65, np.float32)}
    publish_arrays(tmp_path / "missing", missing, version=20)
    publish_arrays(tmp_path / "wider", wider, version=20)
    for name, code in (
        ("damaged", ErrorCode.CHECKSUM_MISMATCH),
        ("missing", ErrorCode.BAD_REQUEST),
        ("wider", ErrorCode.BAD_REQUEST),
    ):
        reply = await load(stub, tmp_path / name, version=20)
        assert reply.error.code == code
        assert reply.version.version != 20
    after = (await answers(stub, request(PROMPTS[0], ignore_eos=True)))[0, 0]
    assert after.tokens == before.tokens


async def test_the_same_number_of_another_source_brings_that_sources_weights(
    stub: Stub, models: tuple[Path, Path], tmp_path: Path
) -> None:
    found = []
    for source, model in zip(("a", "b"), models, strict=True):
        arrays = load_file(model / "model.safetensors")
        publish_arrays(tmp_path / source, arrays, version=30, source=source)
        reply = await load(stub, tmp_path / source, version=30, source=source)
        assert reply.error.code == ""
        greedy = request(PROMPTS[0], temperature=0.0, ignore_eos=True, max_tokens=8)
        answer = (await answers(stub, greedy))[0, 0]
        expected = reference(model, PROMPTS[0], answer.tokens)
        assert np.abs(np.array(answer.logprobs) - expected).max() < 1e-4
        found.append(answer.tokens)
    assert found[0] != found[1]


async def test_an_engine_asleep_has_given_its_memory_back_and_wakes_as_it_was(
    tmp_path: Path,
) -> None:
    wide = make_qwen3(
        tmp_path / "wide", seed=5, hidden=512, layers=4, heads=8, kv_heads=4, ffn=1536
    )
    arrays = load_file(wide / "model.safetensors")
    publish_arrays(tmp_path / "v1", arrays, version=1)
    kv_bytes = 64 << 20
    held = sum(array.nbytes for array in arrays.values()) + kv_bytes
    others = instances()
    with vllm_instance(wide, kv_cache_bytes=kv_bytes) as address:
        (pid,) = instances() - others
        async with open_channel(address, KEYS) as channel:
            stub: Stub = rollout_pb2_grpc.RolloutInstanceStub(channel)
            await load(stub, tmp_path / "v1", version=1)
            awake = await answers(stub, *batch())
            full = resident_bytes(pid)
            slept = await stub.Sleep(rollout_pb2.SleepRequest(fence=FENCE), timeout=TIMEOUT_S)
            assert slept.nbytes > 0.9 * held, "vLLM writes its whole KV cache when it starts"
            assert full - resident_bytes(pid) > 0.9 * held
            await stub.Wake(
                rollout_pb2.LoadVersionRequest(
                    fence=FENCE, published=lying_in(tmp_path / "v1", version=1)
                ),
                timeout=TIMEOUT_S,
            )
            woken = await answers(stub, *batch())
    for key, answer in awake.items():
        assert woken[key].tokens == answer.tokens
        assert woken[key].logprobs == answer.logprobs, "the same bits"
        assert set(woken[key].versions) == {1}


def resident_bytes(pid: int) -> int:
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * mmap.PAGESIZE


async def test_an_engine_that_fails_in_a_step_answers_and_its_process_ends(
    models: tuple[Path, Path], tmp_path: Path
) -> None:
    sabotage = tmp_path / "step"
    with vllm_instance(models[0], sabotage=sabotage, exit_code=EXIT_BROKEN) as address:
        async with open_channel(address, KEYS) as channel:
            stub: Stub = rollout_pb2_grpc.RolloutInstanceStub(channel)
            long = call(request(PROMPTS[0], max_tokens=120, ignore_eos=True))
            running = stub.Generate(long, timeout=TIMEOUT_S)
            with pytest.raises(grpc.aio.AioRpcError) as told:  # noqa: PT012 - it breaks under way
                async for _ in running:
                    sabotage.touch()
            assert "vLLM failed in a step: RuntimeError('sabotaged')" in str(told.value.details())


def test_an_engine_that_cannot_make_a_token_serves_nothing_and_says_why(
    models: tuple[Path, Path], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    sabotage = tmp_path / "step"
    sabotage.touch()
    starting = vllm_instance(models[0], sabotage=sabotage, exit_code=1)
    with pytest.raises(AssertionError, match="the instance ended with 1"), starting:
        pytest.fail("it serves")
    assert (
        "as configured: vLLM failed in a step: RuntimeError('sabotaged')" in capfd.readouterr().err
    )


async def test_an_engine_that_fails_with_new_weights_serves_nothing_more(
    models: tuple[Path, Path], tmp_path: Path
) -> None:
    sabotage = tmp_path / "load"
    sabotage.touch()
    publish_arrays(tmp_path / "v1", load_file(models[1] / "model.safetensors"), version=1)
    with vllm_instance(models[0], sabotage=sabotage, exit_code=EXIT_BROKEN) as address:
        async with open_channel(address, KEYS) as channel:
            stub: Stub = rollout_pb2_grpc.RolloutInstanceStub(channel)
            reply = await load(stub, tmp_path / "v1", version=1)
    assert reply.error.code == ErrorCode.INTERNAL
    assert "vLLM failed to load version 1 of actor" in reply.error.message


def batch(*, temperature: float = 1.0) -> list[rollout_pb2.InstanceRequest]:
    return [
        request(p, index=i, seed=i, max_tokens=24, temperature=temperature, ignore_eos=True)
        for i, p in enumerate(PROMPTS)
    ]


async def load(
    stub: Stub, file: Path, *, version: int, source: str = "actor"
) -> rollout_pb2.LoadVersionReply:
    published = lying_in(file, version=version, source=source)
    return await stub.LoadVersion(
        rollout_pb2.LoadVersionRequest(fence=FENCE, published=published), timeout=TIMEOUT_S
    )


def reference(
    model: Path, prompt: list[int], tokens: list[int], *, temperature: float = 1.0
) -> npt.NDArray[np.float32]:
    """Return transformers' log-softmax of `tokens` after `prompt`, in fp32."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import torch
        from transformers import AutoModelForCausalLM

        network = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
        with torch.no_grad():
            logits = network(torch.tensor([prompt + tokens])).logits[0, len(prompt) - 1 : -1]
        logprobs = torch.log_softmax(logits / temperature, dim=-1)
        return logprobs[torch.arange(len(tokens)), torch.tensor(tokens)].numpy()


ASK_SCHEDULING = """
import sys
from pathlib import Path
from plexsvc.rollout.engines.vllm.core import VllmConfig, arguments_of
from vllm import AsyncEngineArgs
config = VllmConfig(
    model=Path(sys.argv[1]), dtype="", max_model_len=64, kv_cache_bytes=1 << 26, max_num_seqs=4
)
assert arguments_of(config)["async_scheduling"] is False  # else vLLM decides by the platform
made = AsyncEngineArgs(skip_tokenizer_init=True, **arguments_of(config)).create_engine_config()
print("async_scheduling is", made.scheduler_config.async_scheduling)
"""


def test_no_batch_is_scheduled_while_another_runs(models: tuple[Path, Path]) -> None:
    asked = [sys.executable, "-c", ASK_SCHEDULING, str(models[0])]
    done = subprocess.run(asked, capture_output=True, text=True, check=True, timeout=120)
    assert "async_scheduling is False" in done.stdout
