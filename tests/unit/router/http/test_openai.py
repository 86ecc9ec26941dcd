"""OpenAI's own client against the routes: what is sampled, and what it is told."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from hashlib import sha256
from typing import Any

import aiohttp
import httpx
import openai
import pytest

from plexclient.wire.errors import to_wire
from plexclient.wire.v1 import operations_pb2 as ops
from plexclient.wire.v1 import service_pb2 as pb
from plexsvc.clock import SystemClock
from plexsvc.errors import ErrorCode, PlexError
from plexsvc.ids import TenantId
from plexsvc.router.auth import Tenants
from plexsvc.router.config import RouterConfig
from plexsvc.router.http import asking
from plexsvc.router.http.openai import Endpoint, routes
from plexsvc.router.http.server import serving
from plexsvc.slots import Limit, Slots

MODEL = "job-1/rollout"
MESSAGES: Any = [{"role": "user", "content": "hi"}]
TEXTS = ["Hel", "lo", " wor", "ld", "."]
TOOL: Any = {
    "type": "function",
    "function": {
        "name": "add",
        "parameters": {
            "type": "object",
            "properties": {"a": {"$ref": "#/$defs/number"}},
            "$defs": {"number": {"type": "integer"}},
        },
    },
}
NAMED: Any = {"type": "function", "function": {"name": "add"}}
QWEN = '<tool_call>\n{"name": "add", "arguments": {"a": 1}}\n</tool_call>'
LLAMA = '{"name": "add", "parameters": {"a": 2}}'
SCHEMA: Any = {"type": "json_schema", "json_schema": {"name": "n", "schema": {"type": "number"}}}
LIKELY = ops.LikelyTokens(token_ids=[5, 6], logprobs=[-0.25, -0.5], texts=["x", "y"])


class FakeSamples:
    """Says "Hello world." to whatever it is asked, a token a frame; or fails."""

    def __init__(self) -> None:
        self.asked: list[tuple[ops.Operation, TenantId]] = []
        self.refusal: PlexError | None = None
        self.failure: PlexError | None = None
        self.hold: asyncio.Event | None = None
        self.texts, self.finish = TEXTS, ops.FINISH_REASON_LENGTH
        self.cached = [2]
        """Of the samples of a prompt."""
        self.begun = asyncio.Event()
        self.left = asyncio.Event()

    async def sample(self, operation: ops.Operation, *, tenant: TenantId) -> AsyncGenerator[bytes]:
        self.asked.append((operation, tenant))
        self.begun.set()
        try:
            async for frame in self._frames(operation.generate):
                yield frame.SerializeToString()
        finally:
            self.left.set()

    async def _frames(self, generate: ops.Generate) -> AsyncIterator[ops.GenerateFrame]:
        if self.refusal is not None:
            raise self.refusal
        texts = ["a", "b", "c"] if generate.prompt_texts else []
        prompts = [
            ops.Prompt(token_ids=one.token_ids or [7, 8, 9], texts=texts)
            for one in generate.prompts
        ]
        yield ops.GenerateFrame(prompts=prompts)
        if generate.encodes_only:
            return
        keys = [(p, i) for p in range(len(prompts)) for i in range(generate.sampling.n)]
        for at in range(len(self.texts)):
            if self.hold is not None and at:
                await self.hold.wait()
            if self.failure is not None and at:
                yield ops.GenerateFrame(result=ops.OperationResult(error=to_wire(self.failure)))
                return
            yield ops.GenerateFrame(
                deltas=[self._delta(key, at, sampling=generate.sampling) for key in keys]
            )
        yield ops.GenerateFrame(result=ops.OperationResult())

    def _delta(
        self, key: tuple[int, int], at: int, *, sampling: ops.SamplingParams
    ) -> ops.SampleDelta:
        delta = ops.SampleDelta(
            prompt_index=key[0],
            sample_index=key[1],
            position=at,
            token_ids=[100 + at],
            logprobs=[-at / 8],
            texts=[self.texts[at]] if sampling.texts else [],
            likely=[LIKELY] if sampling.top_logprobs else [],
            prompt_logprobs=[-1, -2] if sampling.prompt_logprobs and not at else [],
            prompt_likely=[LIKELY] * 2 if sampling.top_prompt_logprobs and not at else [],
            cached_tokens=0 if at else self.cached[key[1] % len(self.cached)],
        )
        if at == len(self.texts) - 1:
            stop = next((one for one in sampling.stop if one in "".join(self.texts)), "")
            delta.finish_reason = ops.FINISH_REASON_STOP if stop else self.finish
            delta.stop_reason = stop
            delta.versions.add(version=4, start=0, end=3, deployment_id="job-1/actor")
            delta.versions.add(version=5, start=3, end=len(self.texts))
        return delta


def deployment(name: str, **changes: Any) -> pb.Deployment:
    made = pb.Deployment(
        deployment_id=name,
        job_id="job-1",
        tenant="acme",
        state="ready",
        spec=pb.DeploymentSpec(role="rollout", max_model_len=64),
        max_sequence_length=48,
    )
    made.MergeFrom(pb.Deployment(**changes))
    return made


async def status(tenant: TenantId) -> pb.ClusterStatus:
    assert tenant == "acme"
    jobs = [pb.Job(job_id="job-1", created_us=5_000_000)]
    deployments = [
        deployment(MODEL),
        deployment("job-1/actor", spec=pb.DeploymentSpec(role="actor")),
        deployment("job-2/rollout", tenant="rival"),
        deployment("job-3/rollout", state="starting"),
    ]
    return pb.ClusterStatus(jobs=jobs, deployments=deployments)


TENANTS = Tenants({"secret": "acme"})


@asynccontextmanager
async def served(
    samples: FakeSamples, *, calls: int = 8, tenants: Tenants = TENANTS
) -> AsyncIterator[str]:
    slots = Slots(Limit(total=calls, what="calls", key="router.max_calls"))
    backend = Endpoint(samples=samples, status=status, hold=slots.hold, clock=SystemClock())
    config = RouterConfig(http_listen="127.0.0.1:0")
    async with serving(routes(backend), tenants=tenants, config=config) as address:
        yield f"http://{address}/v1"
        assert not slots.taken


def openai_client(url: str, key: str = "secret") -> openai.AsyncOpenAI:
    """Return a client that reads no list of authorities, which takes longer than most tests."""
    connection = openai.DefaultAsyncHttpxClient(verify=False)
    return openai.AsyncOpenAI(base_url=url, api_key=key, max_retries=0, http_client=connection)


@asynccontextmanager
async def client(samples: FakeSamples, *, calls: int = 8) -> AsyncIterator[openai.AsyncOpenAI]:
    async with (
        served(samples, calls=calls) as url,
        openai_client(url) as made,
    ):
        yield made


@pytest.fixture
def samples() -> FakeSamples:
    return FakeSamples()


async def test_models_are_the_tenants_rollout_deployments_that_are_ready(
    samples: FakeSamples,
) -> None:
    async with client(samples) as api:
        assert [model.id async for model in api.models.list()] == [MODEL]
        found = await api.models.retrieve(MODEL)
        assert (found.owned_by, found.created) == ("acme", 5)
        assert found.model_extra == {"max_model_len": 48}, (
            "what its engines take, not what was asked"
        )
        with pytest.raises(openai.NotFoundError, match=f"'job-2/rollout' does not exist.*{MODEL}"):
            await api.models.retrieve("job-2/rollout")


@pytest.mark.parametrize("is_streamed", [False, True])
async def test_who_asks_for_a_model_that_is_not_there_is_told_which_are(
    samples: FakeSamples, is_streamed: bool
) -> None:
    samples.refusal = PlexError(ErrorCode.NOT_FOUND, "job 'gpt-4' has no deployment 'gpt-4'")
    async with client(samples, calls=1) as api:
        with pytest.raises(openai.NotFoundError, match=f"'gpt-4' does not exist.*: {MODEL}") as no:
            await api.chat.completions.create(model="gpt-4", messages=MESSAGES, stream=is_streamed)
    assert (no.value.code, no.value.type) == ("model_not_found", "invalid_request_error")
    assert no.value.param == "model"


async def test_a_chat_is_sampled_for_its_tenant_by_the_models_template(
    samples: FakeSamples,
) -> None:
    tools: Any = [{"type": "function", "function": {"name": "add", "parameters": {}}}]
    async with client(samples) as api:
        told = await api.chat.completions.create(
            model=MODEL,
            messages=MESSAGES,
            tools=tools,
            temperature=0.5,
            seed=-1,
            extra_headers={"X-Session-Id": "s1"},
        )
    ((operation, tenant),) = samples.asked
    assert (tenant, operation.job_id, operation.deployment_id) == ("acme", "job-1", MODEL)
    assert operation.seq == 0
    generate = operation.generate
    assert json.loads(generate.prompts[0].chat) == {"messages": MESSAGES, "tools": tools}
    assert (generate.session, generate.sampling.max_tokens) == ("s1", 0)
    assert generate.sampling.temperature == 0.5
    assert generate.sampling.seed == 2**64 - 1
    (choice,) = told.choices
    assert (choice.message.role, choice.message.content) == ("assistant", "".join(TEXTS))
    assert (choice.finish_reason, choice.logprobs, told.model) == ("length", None, MODEL)
    assert told.usage is not None
    assert (told.usage.prompt_tokens, told.usage.completion_tokens) == (3, 5)
    assert told.usage.prompt_tokens_details is not None
    assert told.usage.prompt_tokens_details.cached_tokens == 2


async def test_a_chat_streams_what_the_whole_answer_says(samples: FakeSamples) -> None:
    async with client(samples) as api:
        stream = await api.chat.completions.create(
            model=MODEL,
            messages=MESSAGES,
            n=2,
            logprobs=True,
            stream=True,
            stream_options={"include_usage": True},
        )
        chunks = [chunk async for chunk in stream]
    *news, last = chunks
    assert last.usage is not None
    assert last.usage.total_tokens == 3 + 10
    for index in (0, 1):
        mine = [c.choices[0] for c in news if c.choices[0].index == index]
        assert [one.delta.role for one in mine] == ["assistant", None, None, None, None]
        assert [one.delta.content for one in mine] == TEXTS
        assert [one.finish_reason for one in mine] == [None, None, None, None, "length"]
        logprobs = [t for one in mine for t in (one.logprobs and one.logprobs.content) or []]
        assert [t.token for t in logprobs] == TEXTS
        assert [t.logprob for t in logprobs] == [-at / 8 for at in range(5)]


async def test_token_ids_go_in_and_out_with_the_version_of_each(samples: FakeSamples) -> None:
    async with client(samples) as api:
        told = await api.completions.create(
            model=MODEL,
            prompt=[[3, 4], [5]],
            n=2,
            logprobs=1,
            extra_body={"return_token_ids": True, "top_k": -1, "detokenize": False},
        )
    ((operation, _),) = samples.asked
    assert [list(one.token_ids) for one in operation.generate.prompts] == [[3, 4], [5]]
    assert not operation.generate.sampling.texts
    assert operation.generate.sampling.max_tokens == 16
    assert [choice.index for choice in told.choices] == [0, 1, 2, 3]
    for choice, prompt in zip(told.choices, [[3, 4], [3, 4], [5], [5]], strict=True):
        more: Any = choice.model_extra
        assert (more["prompt_token_ids"], more["token_ids"]) == (prompt, [*range(100, 105)])
        assert more["weight_versions"] == [4, 4, 4, 5, 5]
        assert choice.logprobs is not None
        assert choice.logprobs.token_logprobs == [-at / 8 for at in range(5)]


async def generate(url: str, body: Any) -> Any:
    """Post what no method of OpenAI's client has, as renderers of prompts do."""
    async with openai_client(url) as api:
        path = url.removesuffix("/v1") + "/inference/v1/generate"
        response = await api.post(path, body=body, cast_to=httpx.Response)
        return response.json()


async def test_tokens_go_in_and_out_in_the_form_of_vllms_generate(samples: FakeSamples) -> None:
    sampling = {"max_tokens": 5, "seed": 3, "logprobs": 1, "stop_token_ids": [1], "min_p": None}
    body = {"model": MODEL, "token_ids": [7, 8, 9], "sampling_params": sampling}
    async with served(samples) as url:
        told = await generate(url, {**body, "request_id": "mine"})
        bare = {"token_ids": [7], "sampling_params": {}, "return_token_ids": True}
        plain = await generate(url, {"model": MODEL, **bare})
        prompted = await generate(url, {**body, "sampling_params": {"prompt_logprobs": 2}})
    asked = samples.asked[0][0].generate
    assert list(asked.prompts[0].token_ids) == [7, 8, 9]
    assert (asked.sampling.seed, list(asked.sampling.stop_token_ids)) == (3, [1])
    assert not asked.sampling.texts
    (choice,) = told["choices"]
    assert told["request_id"] == "mine"
    assert choice["token_ids"] == [100, 101, 102, 103, 104]
    content = choice["logprobs"]["content"]
    assert [one["token"] for one in content] == [f"token_id:{100 + at}" for at in range(5)]
    assert [one["logprob"] for one in content] == [-at / 8 for at in range(5)]
    assert [one["token_id"] for one in content[0]["top_logprobs"]] == [5, 6]
    assert choice["weight_versions"] == [
        {"version": "4", "start": 0, "end": 3},
        {"version": "5", "start": 3, "end": 5},
    ]
    assert choice["finish_reason"] == "length"
    assert (plain["choices"][0]["logprobs"], plain["prompt_token_ids"]) == (None, [7])
    assert plain["prompt_logprobs"] is None
    first, *others = prompted["prompt_logprobs"]
    assert first is None
    assert [one[str(token)]["logprob"] for one, token in zip(others, (8, 9), strict=True)] == [
        -1,
        -2,
    ]


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"token_ids": []}, "token_ids"),
        ({"token_ids": [-1]}, "token_ids"),
        ({"features": {"mm_hashes": {}}}, "features"),
        ({"cache_salt": "x"}, "cache_salt"),
        ({"stream": True}, "stream"),
        ({"request_id": 5}, "request_id"),
        ({"sampling_params": [1]}, "sampling_params"),
        ({"sampling_params": {"prompt": [1]}}, "sampling_params"),
        ({"sampling_params": {"model": "other"}}, "sampling_params"),
        ({"sampling_params": {"stream": True}}, "sampling_params"),
        ({"sampling_params": {"echo": True}}, "sampling_params"),
        ({"sampling_params": {"return_token_ids": True}}, "sampling_params"),
        ({"sampling_params": {"temperature": -1}}, "temperature"),
        ({"sampling_params": {"routed_experts_prompt_start": 3}}, "routed_experts_prompt_start"),
    ],
)
async def test_what_generate_does_not_do_is_refused_by_name(
    samples: FakeSamples, change: Any, field: str
) -> None:
    body = {"model": MODEL, "token_ids": [7], "sampling_params": {}} | change
    async with served(samples) as url:
        with pytest.raises(openai.BadRequestError, match=field):
            await generate(url, body)
    assert not samples.asked


@pytest.mark.parametrize("is_streamed", [False, True])
async def test_a_stop_string_ends_the_text_and_nothing_of_it_is_told(
    samples: FakeSamples, is_streamed: bool
) -> None:
    async with client(samples) as api:
        if is_streamed:
            stream = await api.completions.create(
                model=MODEL, prompt="a", stop=["world."], stream=True, logprobs=1
            )
            parts = [chunk.choices[0].text async for chunk in stream]
            assert parts == ["Hel", "lo", " ", "", ""], "what may become a stop is held back"
            return
        told = await api.completions.create(model=MODEL, prompt="a", stop="world.", logprobs=1)
    (choice,) = told.choices
    assert (choice.text, choice.finish_reason) == ("Hello ", "stop")
    assert choice.logprobs is not None
    assert choice.logprobs.text_offset == [0, 3, 5, 9, 11]


@pytest.mark.parametrize(
    ("asked", "field"),
    [
        ({"presence_penalty": 2.5}, "presence_penalty"),
        ({"repetition_penalty": 0}, "repetition_penalty"),
        ({"min_p": "1"}, "min_p"),
        ({"min_p": 1.5}, "min_p"),
        ({"logit_bias": {"05": 1}}, "logit_bias"),
        ({"logit_bias": {"-1": 1}}, "logit_bias"),
        ({"logit_bias": {"²": 1}}, "logit_bias"),
        ({"logit_bias": {"9" * 5000: 1}}, "logit_bias"),
        ({"logit_bias": {"99999999999": 1}}, "logit_bias"),
        ({"logit_bias": {"5": 101}}, "logit_bias"),
        ({"logit_bias": {"5": "1"}}, "logit_bias"),
        ({"logit_bias": [5]}, "logit_bias"),
        ({"logit_bias": {str(i): 1 for i in range(301)}}, "logit_bias"),
        ({"chat_template_kwargs": [1]}, "chat_template_kwargs"),
        ({"chat_template_kwargs": {"a-b": 1}}, "chat_template_kwargs"),
        ({"chat_template_kwargs": {f"a{i}": 1 for i in range(33)}}, "chat_template_kwargs"),
        ({"top_logprobs": 3}, "top_logprobs"),
        ({"echo": True}, "echo"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"prompt_logprobs": -1}, "prompt_logprobs"),
        ({"prompt_logprobs": 21}, "prompt_logprobs"),
        ({"prompt_logprobs": 1, "stream": True}, "prompt_logprobs"),
        ({"top_logprobs": 21, "logprobs": True}, "top_logprobs"),
        ({"top_logprobs": True, "logprobs": True}, "top_logprobs"),
        ({"response_format": {"type": "xml"}}, "response_format"),
        ({"response_format": "json_object"}, "response_format"),
        ({"response_format": {"type": "json_schema", "json_schema": {}}}, "response_format"),
        ({"response_format": SCHEMA, "structured_outputs": {"regex": "a"}}, "response_format"),
        ({"response_format": SCHEMA | {"x": 1}}, "response_format"),
        ({"structured_outputs": {"json": {}, "regex": "a"}}, "structured_outputs"),
        ({"structured_outputs": {}}, "structured_outputs"),
        ({"structured_outputs": []}, "structured_outputs"),
        ({"structured_outputs": {"regex": "a" * 20_000}}, "structured_outputs"),
        ({"structured_outputs": {"json": "{"}}, "structured_outputs"),
        ({"structured_outputs": {"json": "[" * 100_000}}, "structured_outputs"),
        ({"structured_outputs": {"structural_tag": "{}"}}, "structured_outputs"),
        ({"tools": [TOOL, TOOL]}, "tools"),
        ({"tools": [{"type": "function", "function": {"name": "a b"}}]}, "tools"),
        ({"tools": [{"type": "function", "function": {"name": "a" * 65}}]}, "tools"),
        ({"tools": [{"type": "function", "function": {"name": ["a"]}}]}, "tools"),
        ({"tools": [{"type": "function", "function": {"name": "a", "parameters": 3}}]}, "tools"),
        ({"tools": [{"type": "function", "function": "add"}]}, "tools"),
        ({"tools": [{"type": "x", "function": {"name": "a"}}]}, "tools"),
        ({"tools": [TOOL] * 129}, "tools"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tools": [TOOL], "tool_choice": ["auto"]}, "tool_choice"),
        ({"tools": [TOOL], "tool_choice": {"type": "function", "function": {}}}, "tool_choice"),
        (
            {"tools": [TOOL], "tool_choice": "required", "response_format": SCHEMA},
            "response_format",
        ),
        ({"messages": [{"role": "assistant", "tool_calls": "x"}]}, "messages"),
        (
            {"messages": [{"role": "assistant", "tool_calls": [{"function": {"arguments": "{"}}]}]},
            "messages",
        ),
        ({"n": 0}, "n"),
        ({"n": 1000}, "n"),
        ({"max_tokens": -1}, "max_tokens"),
        ({"temperature": "hot"}, "temperature"),
        ({"stop": [""]}, "stop"),
        ({"stop": ["x" * 300]}, "stop"),
        ({"stream": "yes"}, "stream"),
        ({"messages": []}, "messages"),
        ({"messages": "hi"}, "messages"),
        ({"messages": [{"role": "user", "content": 3}]}, "messages"),
        ({"messages": [{"role": "user", "content": {"type": "text", "text": "a"}}]}, "messages"),
        ({"messages": [{"role": "user", "content": [{"type": "text", "text": 1}]}]}, "messages"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "messages"),
        ({"tools": {}}, "tools"),
        ({"model": 3}, "model"),
        ({"seed": 2**64}, "seed"),
        ({"stop_token_ids": [-1]}, "stop_token_ids"),
        ({"tool_choice": {"type": "function"}}, "tool_choice"),
        ({"temprature": 0.0}, "temprature"),
        ({"prompt": "a"}, "prompt"),
        ({"frequency_penalty": True}, "frequency_penalty"),
        ({"guided_json": {"type": "object"}}, "guided_json"),
        ({"skip_special_tokens": 0}, "skip_special_tokens"),
        ({"top_p": 0}, "top_p"),
        ({"top_p": 1.5}, "top_p"),
        ({"stop": False}, "stop"),
        ({"stop_token_ids": {}}, "stop_token_ids"),
        ({"tools": [1]}, "tools"),
        ({"max_completion_tokens": 5, "max_tokens": "x"}, "max_tokens"),
        ({"stream_options": {"include_usage": True}}, "stream_options"),
        ({"stream": True, "stream_options": {"usage": True}}, "stream_options"),
        ({"stream": True, "stream_options": []}, "stream_options"),
    ],
)
async def test_what_is_not_done_is_refused_by_its_name(
    samples: FakeSamples, asked: dict[str, Any], field: str
) -> None:
    body = {"model": MODEL, "messages": MESSAGES} | asked
    async with client(samples) as api:
        with pytest.raises(openai.BadRequestError) as refused:
            await api.post("/chat/completions", body=body, cast_to=dict)
    assert (refused.value.code, refused.value.param) == ("bad_request", field)
    assert not samples.asked


async def test_what_shapes_the_distribution_goes_where_it_is_drawn(samples: FakeSamples) -> None:
    async with client(samples) as api:
        await api.chat.completions.create(
            model=MODEL,
            messages=MESSAGES,
            presence_penalty=0.5,
            frequency_penalty=-1,
            logit_bias={"5": 1, "0": -100},
            extra_body={
                "min_p": 0.25,
                "repetition_penalty": 1.5,
                "skip_special_tokens": False,
                "chat_template_kwargs": {"enable_thinking": False},
            },
        )
    ((operation, _),) = samples.asked
    sampling = operation.generate.sampling
    assert (sampling.presence_penalty, sampling.frequency_penalty) == (0.5, -1)
    assert (sampling.min_p, sampling.repetition_penalty) == (0.25, 1.5)
    assert dict(sampling.logit_bias) == {5: 1, 0: -100}
    assert sampling.special_texts
    asked = json.loads(operation.generate.prompts[0].chat)
    assert asked["kwargs"] == {"enable_thinking": False}


@pytest.mark.parametrize(
    ("asked", "structured"),
    [
        ({"response_format": {"type": "text"}}, None),
        ({"response_format": {"type": "json_object"}}, {"json_object": True}),
        ({"response_format": SCHEMA}, {"json": {"type": "number"}}),
        ({"structured_outputs": {"regex": "a+", "json": None}}, {"regex": "a+"}),
        ({"structured_outputs": {"json": '{"type": "null"}'}}, {"json": {"type": "null"}}),
        ({"structured_outputs": {"choice": ["a", "b"]}}, {"choice": ["a", "b"]}),
        (
            {"tools": [TOOL], "tool_choice": {"type": "function", "function": {"name": "add"}}},
            {"json": TOOL["function"]["parameters"]},
        ),
        ({"tools": [TOOL], "tool_choice": "auto"}, None),
        (
            {"tools": [TOOL], "tool_choice": "required"},
            {
                "json": {
                    "$defs": {"number": {"type": "integer"}},
                    "type": "array",
                    "minItems": 1,
                    "items": {
                        "anyOf": [
                            {
                                "type": "object",
                                "properties": {
                                    "name": {"const": "add"},
                                    "parameters": {
                                        "type": "object",
                                        "properties": {"a": {"$ref": "#/$defs/number"}},
                                    },
                                },
                                "required": ["name", "parameters"],
                                "additionalProperties": False,
                            }
                        ]
                    },
                }
            },
        ),
    ],
)
async def test_what_an_answer_must_match_goes_to_its_engine(
    samples: FakeSamples, asked: dict[str, Any], structured: dict[str, Any] | None
) -> None:
    async with client(samples) as api:
        await api.chat.completions.create(model=MODEL, messages=MESSAGES, extra_body=asked)
    ((operation, _),) = samples.asked
    found = operation.generate.sampling.structured
    assert (json.loads(found) if found else None) == structured


@pytest.mark.parametrize("is_streamed", [False, True])
@pytest.mark.parametrize("pieces", [1, 3, 1000])
@pytest.mark.parametrize(
    ("text", "choice", "content", "calls"),
    [
        ("Hello.", "auto", "Hello.", []),
        ("So <tool_call", "auto", "So <tool_call", []),
        (f"So {QWEN}", "auto", "So ", [{"a": 1}]),
        (f"{QWEN}\n{QWEN} then", "auto", "then", [{"a": 1}, {"a": 1}]),
        (QWEN.removesuffix("</tool_call>"), "auto", "", [{"a": 1}]),
        (QWEN.replace("add", "rm"), "auto", QWEN.replace("add", "rm"), []),
        (QWEN.replace("1", "NaN"), "auto", QWEN.replace("1", "NaN"), []),
        (QWEN.replace("{", "{{"), "auto", QWEN.replace("{", "{{"), []),
        (QWEN, "none", QWEN, []),
        (LLAMA, "auto", "", [{"a": 2}]),
        (f"<|python_tag|>{LLAMA}; {LLAMA}", "auto", "", [{"a": 2}, {"a": 2}]),
        ('{"a": 1}', "auto", '{"a": 1}', []),
        (f"{LLAMA} or so", "auto", f"{LLAMA} or so", []),
        ("[" * 100_000, "required", "[" * 100_000, []),
        (f"[{LLAMA}, {LLAMA}]", "required", "", [{"a": 2}, {"a": 2}]),
        ('[{"name": "add"', "required", '[{"name": "add"', []),
        ('{"a": 3}', "add", "", [{"a": 3}]),
    ],
    ids=lambda one: repr(one)[:20],
)
async def test_calls_in_an_answer_are_told_as_calls(
    samples: FakeSamples,
    text: str,
    choice: str,
    content: str,
    calls: list[dict[str, int]],
    pieces: int,
    is_streamed: bool,
) -> None:
    size = max(1, -(-len(text) // pieces))
    samples.texts = [text[at : at + size] for at in range(0, len(text), size)]
    samples.texts += [""] * (3 - len(samples.texts))
    samples.finish = ops.FINISH_REASON_STOP
    asked: Any = {"tools": [TOOL], "tool_choice": NAMED if choice == "add" else choice}
    found: list[Any] = []
    async with client(samples) as api:
        if is_streamed:
            said, reason = "", None
            stream = await api.chat.completions.create(
                model=MODEL, messages=MESSAGES, stream=True, **asked
            )
            async for chunk in stream:
                delta = chunk.choices[0].delta
                said += delta.content or ""
                for call in delta.tool_calls or ():
                    assert call.index == len(found)
                    found.append(call)
                reason = chunk.choices[0].finish_reason
        else:
            told = await api.chat.completions.create(model=MODEL, messages=MESSAGES, **asked)
            (one,) = told.choices
            said, found = one.message.content or "", list(one.message.tool_calls or ())
            reason = one.finish_reason
    assert said == content
    assert [(one.function.name, json.loads(one.function.arguments)) for one in found] == [
        ("add", arguments) for arguments in calls
    ]
    assert len({one.id for one in found}) == len(calls)
    assert reason == ("tool_calls" if calls else "stop")


async def test_calls_of_earlier_answers_are_told_to_the_template_as_objects(
    samples: FakeSamples,
) -> None:
    function = {"name": "add", "arguments": '{"a": 1}'}
    call = {"id": "c", "type": "function", "function": function}
    messages: Any = [*MESSAGES, {"role": "assistant", "content": None, "tool_calls": [call]}]
    async with client(samples) as api:
        await api.chat.completions.create(model=MODEL, messages=messages, tools=[TOOL])
    ((operation, _),) = samples.asked
    said = json.loads(operation.generate.prompts[0].chat)["messages"][-1]
    assert said["tool_calls"][0]["function"]["arguments"] == {"a": 1}


async def test_the_likeliest_tokens_are_told_beside_the_chosen_ones(samples: FakeSamples) -> None:
    async with client(samples) as api:
        chat = await api.chat.completions.create(
            model=MODEL, messages=MESSAGES, logprobs=True, top_logprobs=2
        )
        plain = await api.completions.create(model=MODEL, prompt="a", logprobs=2)
    assert [op.generate.sampling.top_logprobs for op, _ in samples.asked] == [2, 2]
    assert chat.choices[0].logprobs is not None
    content = chat.choices[0].logprobs.content or []
    assert [one.token for one in content] == TEXTS
    for one in content:
        assert [(t.token, t.logprob) for t in one.top_logprobs] == [("x", -0.25), ("y", -0.5)]
    assert plain.choices[0].logprobs is not None
    assert plain.choices[0].logprobs.top_logprobs == [
        {"x": -0.25, "y": -0.5, text: -at / 8} for at, text in enumerate(TEXTS)
    ]


@pytest.mark.parametrize("is_streamed", [False, True])
@pytest.mark.parametrize("max_tokens", [0, 5])
async def test_an_echo_is_the_prompt_and_its_logprobs_before_the_answer(
    samples: FakeSamples, is_streamed: bool, max_tokens: int
) -> None:
    asked: Any = {"prompt": [1, 2, 3], "echo": True, "logprobs": 2, "max_tokens": max_tokens}
    async with client(samples) as api:
        if is_streamed:
            stream = await api.completions.create(model=MODEL, stream=True, **asked)
            choices = [chunk.choices[0] async for chunk in stream]
        else:
            choices = (await api.completions.create(model=MODEL, **asked)).choices
    ((operation, _),) = samples.asked
    assert operation.generate.sampling.max_tokens == max(1, max_tokens)
    assert operation.generate.sampling.prompt_logprobs
    made = TEXTS if max_tokens else []
    assert "".join(one.text for one in choices) == "abc" + "".join(made)
    told = [one.logprobs for one in choices if one.logprobs is not None]
    assert [text for one in told for text in one.tokens or ()] == ["a", "b", "c", *made]
    logprobs = [lp for one in told for lp in one.token_logprobs or ()]
    assert logprobs == [None, -1, -2, *(-at / 8 for at in range(len(made)))]
    top = [t for one in told for t in one.top_logprobs or ()]
    assert top[:3] == [None, {"x": -0.25, "y": -0.5, "b": -1}, {"x": -0.25, "y": -0.5, "c": -2}]
    assert len(top) == 3 + len(made)
    offsets = [at for one in told for at in one.text_offset or ()]
    assert offsets == [0, 1, 2, 3, 6, 8, 12, 14][: 3 + len(made)]


@pytest.mark.parametrize("is_chat", [False, True])
async def test_logprobs_of_the_prompt_are_told_as_vllms_server_does(
    samples: FakeSamples, is_chat: bool
) -> None:
    async with client(samples) as api:
        asked: Any = {"model": MODEL, "extra_body": {"prompt_logprobs": 2}}
        if is_chat:
            whole = await api.chat.completions.create(messages=MESSAGES, **asked)
            found = (whole.model_extra or {})["prompt_logprobs"]
        else:
            (choice,) = (await api.completions.create(prompt=[7, 8, 5], **asked)).choices
            assert choice.text == "".join(TEXTS), "without echo"
            found = (choice.model_extra or {})["prompt_logprobs"]
    likely = {
        "5": {"logprob": -0.25, "rank": 1, "decoded_token": "x"},
        "6": {"logprob": -0.5, "rank": 2, "decoded_token": "y"},
    }
    own = {"8": {"logprob": -1, "rank": None, "decoded_token": "b"}}
    last = {} if not is_chat else {"9": {"logprob": -2, "rank": None, "decoded_token": "c"}}
    assert found == [None, own | likely, last | likely]


async def test_prompts_are_encoded_and_tokens_decoded_as_vllms_server_does(
    samples: FakeSamples,
) -> None:
    async with served(samples) as url, aiohttp.ClientSession(url.removesuffix("v1")) as session:
        session.headers["Authorization"] = "Bearer secret"

        async def post(path: str, **body: Any) -> Any:
            async with session.post(path, json={"model": MODEL} | body) as answer:
                return await answer.json()

        found = await post("tokenize", prompt="abc", return_token_strs=True)
        assert found == {
            "count": 3,
            "max_model_len": 48,
            "tokens": [7, 8, 9],
            "token_strs": ["a", "b", "c"],
        }
        assert (await post("tokenize", messages=MESSAGES))["tokens"] == [7, 8, 9]
        assert await post("detokenize", tokens=[1, 2, 3]) == {"prompt": "abc"}
        assert all(operation.generate.encodes_only for operation, _ in samples.asked)
        for path, field, body in (
            ("tokenize", "add_special_tokens", {"prompt": "a", "add_special_tokens": False}),
            ("tokenize", "prompt", {"prompt": [1]}),
            ("detokenize", "tokens", {"tokens": []}),
            ("detokenize", "tokens", {"tokens": ["a"]}),
        ):
            assert (await post(path, **body))["error"]["param"] == field
        assert (await session.get("health")).status == 200
        assert (await (await session.get("version")).json()).keys() == {"version"}
        assert (await session.get("health", headers={"Authorization": "Bearer x"})).status == 401


@pytest.mark.parametrize(
    "body", ['{"n": 1, "n": 2}', '{"temperature": NaN}', '{"logit_bias": {"5": 1, "5": -Infinity}}']
)
async def test_what_json_leaves_open_is_refused(samples: FakeSamples, body: str) -> None:
    async with served(samples) as url, aiohttp.ClientSession() as session:
        headers = {"Authorization": "Bearer secret"}
        answer = await session.post(f"{url}/completions", data=body, headers=headers)
        assert answer.status == 400
    assert not samples.asked


async def test_a_session_that_is_no_text_is_refused(samples: FakeSamples) -> None:
    head = b"POST /v1/completions HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer secret\r\n"
    body = json.dumps({"model": MODEL, "prompt": "a"}).encode()
    async with served(samples) as url:
        host, _, port = url.removeprefix("http://").removesuffix("/v1").partition(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        size = b"Connection: close\r\nContent-Length: %d\r\n\r\n" % len(body)
        writer.write(head + b"X-Session-Id: \xff\xfe\r\n" + size + body)
        answer = await reader.read()
        writer.close()
    assert b"400 Bad Request" in answer
    assert b"X-Session-Id" in answer
    assert not samples.asked


@pytest.mark.parametrize("is_chat", [False, True])
async def test_a_field_that_is_null_is_not_given(samples: FakeSamples, is_chat: bool) -> None:
    fields = asking.HONOURED[is_chat] | asking.NEUTRAL.keys() | {"nobody_knows_this"}
    given = {"messages": MESSAGES} if is_chat else {"prompt": "a"}
    given |= {"model": MODEL, "max_tokens": 7}
    path = "/chat/completions" if is_chat else "/completions"
    async with client(samples) as api:
        await api.post(path, body=dict.fromkeys(fields) | given, cast_to=dict)
        await api.post(path, body=given, cast_to=dict)
    (nulls, _), (none, _) = samples.asked
    assert nulls.generate == none.generate
    assert none.generate.sampling.max_tokens == 7


async def test_a_number_of_tokens_that_is_null_hides_no_other(samples: FakeSamples) -> None:
    body = {"max_completion_tokens": None, "max_tokens": 7}
    async with client(samples) as api:
        await api.chat.completions.create(model=MODEL, messages=MESSAGES, extra_body=body)
    ((operation, _),) = samples.asked
    assert operation.generate.sampling.max_tokens == 7


async def test_a_prompt_counts_once_in_usage_by_its_least_cached_choice(
    samples: FakeSamples,
) -> None:
    samples.cached = [0, 2, 64]
    async with client(samples) as api:
        for prompts, cached in ([[1, 2, 3]], 0), ([[1, 2, 3], [4, 5, 6]], 0):
            told = await api.completions.create(model=MODEL, prompt=prompts, n=3)
            assert told.usage is not None
            assert told.usage.prompt_tokens == 3 * len(prompts)
            assert told.usage.prompt_tokens_details is not None
            assert told.usage.prompt_tokens_details.cached_tokens == cached
        samples.cached = [2, 64, 3]
        told = await api.completions.create(model=MODEL, prompt=[[1, 2, 3], [4]], n=3)
    assert told.usage is not None
    assert told.usage.prompt_tokens_details is not None
    assert told.usage.prompt_tokens_details.cached_tokens == 2 + 1, "no more than the prompt has"


async def test_a_template_gets_the_text_of_parts_and_what_has_no_content_as_it_is(
    samples: FakeSamples,
) -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    function = {"name": "add", "arguments": {"a": 1}}
    call = {"role": "assistant", "tool_calls": [{"type": "function", "function": function}]}
    nulls = {"content": None, "refusal": None, "audio": None}
    messages: Any = [{"role": "user", "content": parts}, call | nulls, *MESSAGES]
    async with client(samples) as api:
        await api.chat.completions.create(model=MODEL, messages=messages)
    ((operation, _),) = samples.asked
    said = json.loads(operation.generate.prompts[0].chat)["messages"]
    assert said == [{"role": "user", "content": "a\nb"}, call, *MESSAGES]


TURN: Any = {"role": "assistant", "tool_calls": [{"type": "function", "id": "c"}]}


@pytest.mark.parametrize(
    ("message", "named"),
    [
        ({}, "messages[0].role"),
        ({"role": "developer", "content": "a"}, "messages[0].role"),
        ({"role": ["user"], "content": "a"}, "messages[0].role"),
        ({"role": "user"}, "messages[0].content"),
        ({"role": "user", "content": 5}, "messages[0].content"),
        ({"role": "user", "content": []}, "messages[0].content"),
        ({"role": "user", "content": [{"type": "text", "text": 5}]}, "messages[0].content"),
        ({"role": "user", "content": [{"type": "text", "text": "a", "b": 1}]}, "messages[0]"),
        ({"role": "user", "content": [{"type": "image_url", "image_url": {}}]}, "messages[0]"),
        ({"role": "user", "content": "a", "contnet": "b"}, "messages[0].contnet"),
        ({"role": "user", "content": "a", "name": 5}, "messages[0].name"),
        ({"role": "user", "content": "a", "tool_calls": [5]}, "messages[0].tool_calls"),
        ({"role": "tool", "content": "a", "tool_call_id": 5}, "messages[0].tool_call_id"),
        ({"role": "assistant", "content": "a", "audio": {"id": "x"}}, "messages[0].audio"),
        ({"role": "assistant", "tool_calls": [5]}, "messages[0].tool_calls[0]"),
        (TURN, "messages[0].tool_calls[0]"),
        *(
            ({"role": "assistant", "tool_calls": [call]}, "messages[0].tool_calls[0]")
            for call in (
                {"function": {"name": "f"}},
                {"function": {"name": 5, "arguments": "{}"}},
                {"function": {"name": "f", "arguments": "{"}},
                {"function": {"name": "f", "arguments": "[]"}},
                {"function": {"name": "f", "arguments": "{}", "x": 1}},
                {"function": {"name": "f", "arguments": "{}"}, "type": "other"},
                {"function": {"name": "f", "arguments": "{}"}, "x": 1},
            )
        ),
    ],
)
async def test_what_a_template_would_drop_of_a_message_is_refused_by_name(
    samples: FakeSamples, message: Any, named: str
) -> None:
    async with client(samples) as api:
        with pytest.raises(openai.BadRequestError) as refused:
            await api.chat.completions.create(model=MODEL, messages=[message])
    assert named in refused.value.message
    assert refused.value.param == "messages"


@pytest.mark.parametrize(
    ("asked", "named"),
    [
        ({"tools": [TOOL | {"x": 1}]}, "tools"),
        ({"tools": [{"type": "function", "function": {"name": "f", "x": 1}}]}, "tools.x"),
        ({"tools": [{"type": "function", "function": {"name": "f", "strict": 1}}]}, "tools.strict"),
        (
            {"tools": [{"type": "function", "function": {"name": "f", "strict": True}}]},
            "tools.strict",
        ),
        (
            {"tools": [{"type": "function", "function": {"name": "f", "description": 5}}]},
            "tools.description",
        ),
        (
            {
                "tools": [TOOL],
                "tool_choice": {"type": "function", "function": {"name": "add"}, "x": 1},
            },
            "tool_choice",
        ),
        ({"tool_choice": []}, "tool_choice"),
        (
            {
                "response_format": {
                    "type": "json_schema",
                    "json_schema": {"name": "n", "schema": {}, "strict": "yes"},
                }
            },
            "response_format.strict",
        ),
        ({"user": 5}, "user"),
        ({"metadata": []}, "metadata"),
        ({"logit_bias": {"1": None}}, "logit_bias"),
        ({"stop_token_ids": [None]}, "stop_token_ids"),
    ],
)
async def test_fields_inside_of_fields_are_refused_by_name(
    samples: FakeSamples, asked: dict[str, Any], named: str
) -> None:
    async with client(samples) as api:
        body = {"model": MODEL, "messages": MESSAGES} | asked
        with pytest.raises(openai.BadRequestError) as refused:
            await api.post("/chat/completions", body=body, cast_to=dict)
    assert named in refused.value.message
    assert refused.value.param == named.partition(".")[0]


async def test_a_strict_tool_is_honoured_where_a_grammar_holds_it(samples: FakeSamples) -> None:
    strict: Any = TOOL | {"function": TOOL["function"] | {"strict": True}}
    async with client(samples) as api:
        await api.chat.completions.create(
            model=MODEL, messages=MESSAGES, tools=[strict], tool_choice="required"
        )
    ((operation, _),) = samples.asked
    assert operation.generate.sampling.structured


@pytest.mark.parametrize(
    "prompt", [None, "", [], [[]], [1.5], [[1, "a"]], {"a": 1}, ["a", 3], [None]]
)
async def test_a_prompt_that_is_none_is_refused(samples: FakeSamples, prompt: object) -> None:
    async with client(samples) as api:
        if prompt in ("", [[]]):  # only the tokenizer knows what these are
            samples.refusal = PlexError(ErrorCode.BAD_REQUEST, "prompt 0 is empty")
        with pytest.raises(openai.BadRequestError):
            await api.post("/completions", body={"model": MODEL, "prompt": prompt}, cast_to=dict)


@pytest.mark.parametrize("is_streamed", [False, True])
@pytest.mark.parametrize(
    ("code", "raised"),
    [
        (ErrorCode.NOT_FOUND, openai.NotFoundError),
        (ErrorCode.QUEUE_FULL, openai.RateLimitError),
        (ErrorCode.WORKER_DIED, openai.InternalServerError),
    ],
)
async def test_a_refusal_is_an_error_of_openais_client(
    samples: FakeSamples, code: ErrorCode, raised: type[openai.APIError], is_streamed: bool
) -> None:
    samples.refusal = PlexError(code, "why", limit=3)
    async with client(samples) as api:
        with pytest.raises(raised, match="why"):
            await api.chat.completions.create(model=MODEL, messages=MESSAGES, stream=is_streamed)


async def test_a_failure_amid_a_stream_is_told_in_it(samples: FakeSamples) -> None:
    samples.failure = PlexError(ErrorCode.WORKER_DIED, "all instances are lost")
    async with client(samples) as api:
        stream = await api.chat.completions.create(model=MODEL, messages=MESSAGES, stream=True)
        with pytest.raises(openai.APIError, match="all instances are lost"):
            async for _ in stream:
                pass
        with pytest.raises(openai.InternalServerError, match="all instances are lost"):
            await api.chat.completions.create(model=MODEL, messages=MESSAGES)


@pytest.mark.parametrize("is_streamed", [False, True])
async def test_a_sample_ends_when_its_client_leaves(
    samples: FakeSamples, is_streamed: bool
) -> None:
    samples.hold = asyncio.Event()
    body = {"model": MODEL, "messages": MESSAGES, "stream": is_streamed}
    async with served(samples) as url:
        headers = {"Authorization": "Bearer secret"}
        async with aiohttp.ClientSession(headers=headers) as http:

            async def read() -> None:
                async with http.post(f"{url}/chat/completions", json=body) as reply:
                    await reply.read()

            async with asyncio.timeout(120), asyncio.TaskGroup() as group:
                asked = group.create_task(read())
                await samples.begun.wait()
                asked.cancel()
                await samples.left.wait()


async def test_a_tenant_has_as_many_requests_as_calls(samples: FakeSamples) -> None:
    samples.hold = asyncio.Event()
    async with client(samples, calls=2) as api, asyncio.TaskGroup() as group:
        first = group.create_task(api.chat.completions.create(model=MODEL, messages=MESSAGES))
        await samples.begun.wait()
        with pytest.raises(openai.RateLimitError, match=r"router\.max_calls"):
            await api.chat.completions.create(model=MODEL, messages=MESSAGES)
        samples.hold.set()
        assert (await first).choices


async def test_without_a_key_nothing_is_read(samples: FakeSamples) -> None:
    async with served(samples) as url:
        for key in ("", "wrong"):
            async with openai_client(url, key or "x") as api:
                with pytest.raises(openai.AuthenticationError):
                    await api.models.list()
                with pytest.raises(openai.AuthenticationError):
                    await api.chat.completions.create(model=MODEL, messages=MESSAGES)
    assert not samples.asked


async def test_a_stream_ends_by_name_when_its_token_is_revoked(samples: FakeSamples) -> None:
    secret, tenants = "tok-1.secret", Tenants({})
    view = pb.TokenView(token_id="tok-1", owner="acme", scope="submit")
    view.hash = sha256(secret.encode()).digest()
    tenants.learn(pb.WatchTokensReply(revision=1, tokens=[view]))
    samples.hold = asyncio.Event()
    async with (
        served(samples, tenants=tenants) as url,
        openai_client(url, secret) as api,
    ):
        stream = await api.completions.create(model=MODEL, prompt="a", stream=True)
        chunks = aiter(stream)
        assert (await anext(chunks)).choices[0].text == TEXTS[0]
        view.revoked_us = 5
        tenants.learn(pb.WatchTokensReply(revision=2, tokens=[view]))
        with pytest.raises(openai.APIError, match="tok-1 of tenant 'acme' was revoked"):
            await anext(chunks)
        await samples.left.wait()
