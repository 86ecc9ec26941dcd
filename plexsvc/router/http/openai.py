"""Routes that OpenAI's clients know, and some of vLLM's server: token ids in and out, and others.

A model is a rollout deployment of the tenant, by its id: `JOB/NAME`. A request is a sample beside
the order of its operations, and ends when its client leaves. Requests with the same
`X-Session-Id` go where the prefix of that session is cached.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Awaitable, Callable, Collection, Sequence
from contextlib import AbstractContextManager, aclosing, asynccontextmanager
from dataclasses import dataclass
from importlib import metadata
from typing import Any, Final, Protocol

from aiohttp import web

from plexclient.wire.v1 import operations_pb2, service_pb2
from plexsvc.clock import Clock
from plexsvc.errors import ErrorCode, PlexError, bad_request, not_found
from plexsvc.ids import TenantId
from plexsvc.router.auth import Caller
from plexsvc.router.http import asking, shapes
from plexsvc.router.http.choices import Choice, Form, usage
from plexsvc.router.http.server import CALLER, TENANT, error_of, read_json
from plexsvc.rpc.errors import checked

MAX_NAMED: Final = 8
"""Models that an answer names to whoever asks for one that is not there."""
SESSION: Final = "X-Session-Id"
WRITE_S: Final = 60.0
"""How long a client may take to read a chunk."""

Frame = operations_pb2.GenerateFrame


class TenantSampler(Protocol):
    """What samples for a tenant."""

    def sample(
        self, operation: operations_pb2.Operation, *, tenant: TenantId
    ) -> AsyncGenerator[bytes]:
        """Yield the frames of a sample, serialised."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """What the routes call."""

    samples: TenantSampler
    status: Callable[[TenantId], Awaitable[service_pb2.ClusterStatus]]
    hold: Callable[[str], AbstractContextManager[None]]
    """Holds one of the calls that a tenant may have under way."""
    clock: Clock


def routes(endpoint: Endpoint) -> list[web.RouteDef]:
    """Return the routes."""

    async def models(request: web.Request) -> web.Response:
        found = await _models(endpoint, request[TENANT])
        return web.json_response({"object": "list", "data": list(found.values())})

    async def model(request: web.Request) -> web.Response:
        return web.json_response(await _model(endpoint, request, request.match_info["model"]))

    async def completions(request: web.Request) -> web.StreamResponse:
        return await _complete(endpoint, request, is_chat=False)

    async def chat(request: web.Request) -> web.StreamResponse:
        return await _complete(endpoint, request, is_chat=True)

    async def generate(request: web.Request) -> web.Response:
        return await _generate(endpoint, request)

    async def tokenize(request: web.Request) -> web.Response:
        asked = await read_json(request)
        prompt = await _encoded(endpoint, request, operation := asking.encoding_of(asked))
        found = await _model(endpoint, request, operation.deployment_id)
        told = {
            "count": len(prompt.token_ids),
            "max_model_len": found["max_model_len"],
            "tokens": list(prompt.token_ids),
            "token_strs": list(prompt.texts) if asking.wants(asked, "return_token_strs") else None,
        }
        return web.json_response(told)

    async def detokenize(request: web.Request) -> web.Response:
        prompt = await _encoded(endpoint, request, asking.decoding_of(await read_json(request)))
        return web.json_response({"prompt": "".join(prompt.texts)})

    async def health(request: web.Request) -> web.Response:
        await _models(endpoint, request[TENANT])  # the service answers
        return web.Response()

    async def version(request: web.Request) -> web.Response:
        del request
        return web.json_response({"version": metadata.version("plexsvc")})

    return [
        web.get("/health", health),
        web.get("/version", version),
        web.post("/inference/v1/generate", generate),
        web.post("/tokenize", tokenize),
        web.post("/detokenize", detokenize),
        web.get("/v1/models", models),
        web.get("/v1/models/{model:.+}", model),
        web.post("/v1/completions", completions),
        web.post("/v1/chat/completions", chat),
    ]


async def _models(endpoint: Endpoint, tenant: TenantId) -> dict[str, dict[str, Any]]:
    with endpoint.hold(tenant):
        status = await endpoint.status(tenant)
    created_s = {job.job_id: job.created_us // 1_000_000 for job in status.jobs}
    return {
        one.deployment_id: {
            "id": one.deployment_id,
            "object": "model",
            "created": created_s.get(one.job_id, 0),
            "owned_by": tenant,
            "max_model_len": one.max_sequence_length,
        }
        for one in status.deployments
        if one.tenant == tenant and one.spec.role == "rollout" and one.state == "ready"
    }


async def _model(endpoint: Endpoint, request: web.Request, name: str) -> dict[str, Any]:
    found = await _models(endpoint, request[TENANT])
    if name not in found:
        raise _no_model(name, found)
    return found[name]


def _no_model(name: str, found: Collection[str]) -> PlexError:
    those = ", ".join(sorted(found)[:MAX_NAMED]) or "none now"
    problem = (
        f"the model {name!r:.80} does not exist: a model is a rollout deployment of the tenant, "
        f"JOB/NAME; ready ones, which /v1/models lists: {those}"
    )
    return not_found(problem, field="model")


@asynccontextmanager
async def _sampled(
    endpoint: Endpoint, request: web.Request, operation: operations_pb2.Operation
) -> AsyncGenerator[AsyncGenerator[Frame]]:
    """Yield the frames of a sample, which is one of the tenant's calls while it lasts.

    Raises:
        PlexError: why it was refused or failed; where there is no such model, which there are.
    """
    name, caller = operation.deployment_id, request[CALLER]
    try:
        with endpoint.hold(caller.tenant):
            async with aclosing(_frames(endpoint.samples, operation, caller=caller)) as frames:
                yield frames
    except PlexError as error:
        if error.code is not ErrorCode.NOT_FOUND:
            raise
        found = await _models(endpoint, caller.tenant)
        if name in found:
            raise
        raise _no_model(name, found) from error


async def _encoded(
    endpoint: Endpoint, request: web.Request, operation: operations_pb2.Operation
) -> operations_pb2.Prompt:
    """Return the one prompt of an operation that only encodes."""
    async with _sampled(endpoint, request, operation) as frames:
        return (await anext(frames)).prompts[0]


async def _complete(
    endpoint: Endpoint, request: web.Request, *, is_chat: bool
) -> web.StreamResponse:
    asked = await read_json(request)
    operation = asking.operation_of(asked, is_chat=is_chat, session=_session_of(request))
    form = Form(
        is_chat=is_chat,
        stops=list(operation.generate.sampling.stop),
        has_logprobs=asking.wants_logprobs(asked, is_chat=is_chat),
        has_token_ids=asking.wants(asked, "return_token_ids"),
        tools=list(shapes.tools_of(shapes.given(asked))) if is_chat else (),
        is_forced=is_chat and asked.get("tool_choice") not in (None, "auto", "none"),
        named=shapes.forced_tool(asked),
        echoes=asking.wants(asked, "echo"),
        has_prompt_logprobs=asked.get("prompt_logprobs") is not None,
        has_answer=bool(asked.get("max_completion_tokens") or asked.get("max_tokens") != 0),
    )
    is_streamed = asking.wants(asked, "stream")
    has_usage = asking.wants_usage(asked)
    async with _sampled(endpoint, request, operation) as frames:
        prompts = list((await anext(frames)).prompts)
        first = await anext(frames)  # a refusal comes before anything is told
        answer = _PendingResponse(
            operation, form, prompts, created_s=endpoint.clock.wall_us() // 10**6
        )
        if not is_streamed:
            answer.add(first)
            async for frame in frames:
                answer.add(frame)
            return web.json_response(answer.whole())
        return await answer.stream(request, first, frames, has_usage=has_usage)


async def _generate(endpoint: Endpoint, request: web.Request) -> web.Response:
    asked = await read_json(request)
    operation = asking.tokens_of(asked, session=_session_of(request))
    sampling = shapes.given(asked.get("sampling_params") or {})
    form = Form(
        is_chat=False,
        has_logprobs="logprobs" in sampling,
        has_prompt_logprobs="prompt_logprobs" in sampling,
    )
    async with _sampled(endpoint, request, operation) as frames:
        prompts = list((await anext(frames)).prompts)
        answer = _PendingResponse(operation, form, prompts, created_s=0)
        async for frame in frames:
            answer.add(frame)
    told = answer.of_tokens()
    if asked.get("request_id") is not None:
        told["request_id"] = asked["request_id"]
    if asking.wants(asked, "return_token_ids"):
        told["prompt_token_ids"] = list(prompts[0].token_ids)
    return web.json_response(told)


def _session_of(request: web.Request) -> str:
    session = request.headers.get(SESSION, "")
    if not session.isprintable():  # bytes that are no text are surrogates here
        problem = f"{SESSION}: it must be text that can be printed, not {session!r:.80}"
        raise bad_request(problem, field=SESSION)
    return session


async def _frames(
    samples: TenantSampler, operation: operations_pb2.Operation, *, caller: Caller
) -> AsyncGenerator[Frame]:
    """Yield the frames of a sample.

    Raises:
        PlexError: why it was refused or failed.
    """
    sampled = caller.through(samples.sample(operation, tenant=caller.tenant))
    async with aclosing(sampled) as messages:
        async for message in messages:
            frame = Frame.FromString(message)
            checked(frame.result)
            yield frame


class _PendingResponse:
    """The answer to one request, while it comes."""

    def __init__(
        self,
        operation: operations_pb2.Operation,
        form: Form,
        prompts: Sequence[operations_pb2.Prompt],
        *,
        created_s: int,
    ) -> None:
        self._form, self._prompts = form, prompts
        self._n = operation.generate.sampling.n
        self._choices = [
            Choice(form, index, prompts[index // self._n])
            for index in range(len(prompts) * self._n)
        ]
        kind = "cmpl" if not form.is_chat else "chatcmpl"
        self._head = {
            "id": f"{kind}-{operation.operation_id.hex()}",
            "model": operation.deployment_id,
            "created": created_s,
        }

    def add(self, frame: Frame) -> list[Choice]:
        """Take in a frame; return the choices that it has news of."""
        changed = []
        for delta in frame.deltas:
            choice = self._choices[delta.prompt_index * self._n + delta.sample_index]
            choice.add(delta)
            changed.append(choice)
        return changed

    def whole(self) -> dict[str, Any]:
        """Return the answer."""
        kind = "chat.completion" if self._form.is_chat else "text_completion"
        choices = [choice.whole() for choice in self._choices]
        told: dict[str, Any] = {"object": kind, "choices": choices, "usage": self._usage()}
        if self._form.is_chat and self._form.has_prompt_logprobs:  # where vLLM's server has them
            told["prompt_logprobs"] = self._choices[0].of_prompt()
        return self._head | told

    def of_tokens(self) -> dict[str, Any]:
        """Return the answer in the form of vLLM's `/inference/v1/generate`."""
        return {
            "request_id": self._head["id"],
            "choices": [choice.of_tokens() for choice in self._choices],
            "prompt_logprobs": self._choices[0].of_prompt()
            if self._form.has_prompt_logprobs
            else None,
            "usage": self._usage(),
        }

    async def stream(
        self,
        request: web.Request,
        first: Frame,
        frames: AsyncGenerator[Frame],
        *,
        has_usage: bool,
    ) -> web.StreamResponse:
        """Write the answer as server-sent events while it comes, to its end or an error."""
        response = web.StreamResponse(headers={"Cache-Control": "no-cache"})
        response.content_type = "text/event-stream"
        await response.prepare(request)
        try:
            await self._tell(response, first)
            async for frame in frames:
                await self._tell(response, frame)
            if has_usage:
                await _write(response, self._chunk([]) | {"usage": self._usage()})
            await _write(response, None)
        except PlexError as error:
            await _write(response, error_of(error))
        except (ConnectionError, TimeoutError):  # it left, or does not read
            request.protocol.force_close()
        return response

    async def _tell(self, response: web.StreamResponse, frame: Frame) -> None:
        for choice in self.add(frame):
            await _write(response, self._chunk([choice.news()]))

    def _chunk(self, choices: list[dict[str, Any]]) -> dict[str, Any]:
        kind = "chat.completion.chunk" if self._form.is_chat else "text_completion"
        return self._head | {"object": kind, "choices": choices}

    def _usage(self) -> dict[str, Any]:
        return usage(self._choices, self._prompts)


async def _write(response: web.StreamResponse, event: dict[str, Any] | None) -> None:
    data = "[DONE]" if event is None else json.dumps(event)
    async with asyncio.timeout(WRITE_S):
        await response.write(f"data: {data}\n\n".encode())
