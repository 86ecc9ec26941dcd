"""Sampling clients: a sampler is weights of a base model, a request one sample beside the order."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

import numpy as np
import xxhash

from plexclient.ids import new_operation_id
from plexclient.wire.errors import from_wire
from plexclient.wire.v1 import operations_pb2 as ops
from plexclient.wire.v1 import tinker_pb2 as pb
from plexsvc.errors import bad_request, not_found, queue_full
from plexsvc.ids import TenantId
from plexsvc.router import bounds
from plexsvc.router.downloads import Downloads
from plexsvc.router.http.fields import Asked, is_whole, real, text, whole
from plexsvc.router.http.tinker import adapters
from plexsvc.router.http.tinker.engines import SessionEngine, Weights
from plexsvc.router.http.tinker.lanes import persist
from plexsvc.router.http.tinker.names import Names
from plexsvc.router.http.tinker.polling import ended_of
from plexsvc.router.http.tinker.sessions import (
    Future,
    FutureResult,
    Runner,
    TinkerSession,
    TinkerSessions,
)
from plexsvc.router.http.tinker.training import Training

MAX_TOP: Final = 20
"""Likeliest tokens that come with one."""
MAX_STOPS: Final = 16
MAX_SAMPLERS: Final = 16_384
"""Samplers of a session that are created; a loop that saves for each step makes more by that."""
MASK_LOGPROB: Final = -99999.0
"""What the SDK reads as no token."""
_FIELDS: Final = frozenset({"max_tokens", "seed", "stop", "temperature", "top_k", "top_p"})
_UNOFFERED: Final[Mapping[str, Any]] = {
    "target_prompt_logprobs": None,
    "prompt_alt_tokens_k": 0,
    "record_stability_info": False,
}
"""Fields of a sample that are refused, unless they ask for nothing."""


@dataclass(slots=True)
class _Sequence:
    """One sample, while it comes."""

    tokens: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    likely: list[ops.LikelyTokens] = field(default_factory=list)
    is_cut: bool = False


class Sampling:
    """Samplers and their requests."""

    def __init__(
        self,
        sessions: TinkerSessions,
        training: Training,
        names: Names,
        downloads: Downloads,
    ) -> None:
        self._sessions = sessions
        self._training = training
        self._names = names
        self._downloads = downloads
        self.runners: dict[str, Runner] = {"sample": self._sampled}

    async def create(self, asked: Asked, *, tenant: TenantId) -> str:
        """Return the id of a new sampler.

        Raises:
            PlexError: `not_found`; `unknown_model`; `bad_request`.
        """
        session = await self._sessions.get(text(asked, "session_id"), tenant=tenant)
        number = whole(asked, "sampling_session_seq_id")
        sampler: dict[str, Any] = {}
        if asked.get("model_path") is not None:
            saved = await self._names.find(text(asked, "model_path"), tenant=tenant)
            sampler = {"model_path": saved.tinker_path, "path": saved.path}
            sampler |= {"base_model": saved.base_model, "lora": saved.lora}
        else:
            base_model = text(asked, "base_model")
            path = self._training.known(base_model).model
            await self._names.check_model(path, tenant=tenant)
            sampler = {"base_model": base_model, "path": path}
        sampler_id = f"{session.session_id}:sample:{number}"
        if len(session.samplers) >= MAX_SAMPLERS and sampler_id not in session.samplers:
            raise queue_full(
                f"session {session.session_id} has {MAX_SAMPLERS} samplers; create another session"
            )
        if session.samplers.setdefault(sampler_id, sampler) != sampler:
            raise bad_request(f"{sampler_id} is of other weights; number samplers anew")
        await self._sessions.keep(session, {f"sampler/{sampler_id}": sampler})
        return sampler_id

    async def find(self, sampler_id: str, *, tenant: TenantId) -> dict[str, Any]:
        """Return what a sampler is.

        Raises:
            PlexError: `not_found`.
        """
        session = await self._sessions.get(sampler_id, tenant=tenant)
        sampler = _sampler(session, sampler_id)
        return {
            "sampler_id": sampler_id,
            "base_model": sampler["base_model"],
            "model_path": sampler.get("model_path"),
        }

    async def submit(self, asked: Asked, *, tenant: TenantId) -> Future:
        """Take a sample, once for all that come with its number.

        Raises:
            PlexError: `not_found`; `bad_request`.
        """
        sampler_id = asked.get("sampling_session_id")
        if sampler_id is None:
            raise bad_request(
                "a sample by base_model or model_path alone is not offered; create a sampling "
                "client",
                field="sampling_session_id",
            )
        session = await self._sessions.get(text(asked, "sampling_session_id"), tenant=tenant)
        _sampler(session, sampler_id)
        seq = whole(asked, "seq_id", most=2**62)
        request_id = f"{sampler_id}:{seq}"
        count = operation_of(asked, seed=0).generate.sampling.n
        facts = {"sampler_id": sampler_id, "samples": [f"{request_id}:{i}" for i in range(count)]}
        body = json.dumps(asked, sort_keys=True).encode()
        future = Future(request_id=request_id, kind="sample", facts=facts, body=body)
        return await self._sessions.start(session, future)

    async def ended(self, asked: Asked, *, tenant: TenantId, hold_s: float) -> dict[str, Any]:
        """Return the requests of a sampler's client that ended after a cursor.

        Raises:
            PlexError: `not_found`; `bad_request`.
        """
        target = asked.get("target") or {}
        sampler_id = text(target, "sampling_session_id")
        clone = whole(target, "cloned_sampler_id", default=0, most=2**62)
        session = await self._sessions.get(sampler_id, tenant=tenant)
        _sampler(session, sampler_id)
        for request_id in asked.get("retrieved_request_ids") or ():
            if request_id in session.futures:
                session.read.add(session.futures[request_id])
        found = ended_of(session, sampler_id, clone, now_us=self._sessions.clock.wall_us())
        cursor = whole(asked, "prev_cursor", default=0, most=2**62)
        wait_s = real(asked, "timeout", default=hold_s, most=3600)
        return await found.after(cursor, hold_s=min(wait_s, hold_s))

    async def _sampled(self, session: TinkerSession, future: Future) -> FutureResult:
        failed = True
        try:
            outcome = await self._answered(session, future)
            failed = False
        finally:
            sampler_id, now_us = future.facts["sampler_id"], self._sessions.clock.wall_us()
            ended = ended_of(session, sampler_id, future.clone, now_us=now_us)
            ended.add(future.request_id, failed=failed)
        return outcome

    async def _answered(self, session: TinkerSession, future: Future) -> FutureResult:
        asked = json.loads(future.body)
        sampler = _sampler(session, future.facts["sampler_id"])
        engine = self._engine(session, sampler["base_model"])
        seed = xxhash.xxh3_64_intdigest(future.request_id.encode())
        operation = operation_of(asked, seed=seed)

        async def once() -> pb.SampleResponse:
            async with engine.having(_weights(session, sampler)):
                return await self._sample(session, engine, operation, asked)

        response = await persist(once, clock=self._sessions.clock, what=future.request_id)
        return FutureResult(told=partial(as_json, response), message=response)

    def _engine(self, session: TinkerSession, base_model: str) -> SessionEngine:
        if base_model not in session.engines:
            session.engines[base_model] = SessionEngine(
                self._sessions, session, self._training, base_model=base_model
            )
        found: SessionEngine = session.engines[base_model]
        return found

    async def _sample(
        self, session: TinkerSession, engine: SessionEngine, operation: ops.Operation, asked: Asked
    ) -> pb.SampleResponse:
        sent = ops.Operation()
        sent.CopyFrom(operation)
        sent.operation_id = new_operation_id()
        sent.job_id, sent.deployment_id = session.session_id, engine.deployment_id
        count = sent.generate.sampling.n
        sequences = [_Sequence() for _ in range(count)]
        response, of_prompt = pb.SampleResponse(), ops.SampleDelta()
        stream = self._downloads.sample(sent, tenant=session.tenant)
        async with aclosing(stream) as messages:
            async for message in messages:
                frame = ops.GenerateFrame.FromString(message)
                if frame.result.HasField("error"):
                    raise from_wire(frame.result.error)
                for delta in frame.deltas:
                    _take(sequences[delta.sample_index], delta)
                    if delta.prompt_logprobs:
                        of_prompt = delta
                    hit = max(response.prompt_cache_hit_tokens, delta.cached_tokens)
                    response.prompt_cache_hit_tokens = hit
        for one in sequences:
            response.sequences.append(_sequence(one, top=sent.generate.sampling.top_logprobs))
        _add_prompt(response, of_prompt, asked, tokens=len(sent.generate.prompts[0].token_ids))
        return response


def operation_of(asked: Asked, *, seed: int) -> ops.Operation:
    """Return the generate that a request asks for; `seed` is for one that names none.

    Raises:
        PlexError: `bad_request`, naming the field.
    """
    for name, nothing in _UNOFFERED.items():
        if asked.get(name) not in (None, nothing):
            raise bad_request(f"{name} is not offered; leave it out", field=name)
    given = asked.get("sampling_params")
    if not isinstance(given, dict) or given.keys() - _FIELDS:
        odd = ", ".join(sorted(set(given or {}) - _FIELDS))
        raise bad_request(
            f"sampling_params: {odd or given!r}: it has {', '.join(sorted(_FIELDS))}",
            field="sampling_params",
        )
    stops = given.get("stop")
    if isinstance(stops, str):
        stops = [stops]
    is_list = stops is None or (isinstance(stops, list) and len(stops) <= MAX_STOPS)
    if not is_list or (stops and len({type(one) for one in stops}) > 1):
        raise bad_request(f"stop: it has up to {MAX_STOPS} texts or token ids", field="stop")
    top = whole(asked, "topk_sample_logprobs", default=0, most=MAX_TOP)
    top_prompt = whole(asked, "topk_prompt_logprobs", default=0, most=MAX_TOP)
    sampling = ops.SamplingParams(
        n=whole(asked, "num_samples", default=1, least=1, most=1024),
        max_tokens=0 if given.get("max_tokens") is None else whole(given, "max_tokens", least=1),
        temperature=real(given, "temperature", default=1.0, most=1e6),
        top_p=real(given, "top_p", default=1.0, most=1.0),
        top_k=max(0, whole(given, "top_k", default=-1, least=-1)),
        stop=[one for one in stops or () if isinstance(one, str)],
        stop_token_ids=[one for one in stops or () if is_whole(one)],
        ignore_eos=stops == [],
        seed=seed if given.get("seed") is None else whole(given, "seed", most=2**64 - 1),
        prompt_logprobs=bool(asked.get("prompt_logprobs")) or top_prompt > 0,
        top_logprobs=top,
        top_prompt_logprobs=top_prompt,
    )
    if len(sampling.stop) + len(sampling.stop_token_ids) < len(stops or ()):
        raise bad_request(f"stop: it has texts, or token ids from 0, not {stops!r:.80}")
    tokens: list[int] = []
    for chunk in (asked.get("prompt") or {}).get("chunks") or ():
        kind = chunk.get("type", "encoded_text")
        if kind != "encoded_text":
            raise bad_request(f"prompt has a chunk of type {kind!r}; only encoded_text is offered")
        tokens += chunk["tokens"]
    if not tokens or not all(is_whole(one) for one in tokens):
        raise bad_request("prompt has no tokens, or some that are no token ids", field="prompt")
    if asked.get("prompt_logprobs_last_n") is not None:
        whole(asked, "prompt_logprobs_last_n", least=1, most=len(tokens) - 1)
    prompt = ops.Prompt(token_ids=tokens)
    generate = ops.Generate(prompts=[prompt], sampling=sampling)
    operation = ops.Operation(generate=generate)
    bounds.check(operation)
    return operation


def as_json(response: pb.SampleResponse) -> dict[str, Any]:
    """Return a response as older SDKs read it."""
    told: dict[str, Any] = {"type": "sample", "sequences": []}
    for one in response.sequences:
        stopped = one.stop_reason == pb.STOP_REASON_STOP
        sequence: dict[str, Any] = {
            "stop_reason": "stop" if stopped else "length",
            "tokens": np.frombuffer(one.tokens, "<i4").tolist(),
            "logprobs": np.frombuffer(one.logprobs, "<f4").tolist(),
        }
        told["sequences"].append(sequence)
    if response.HasField("prompt_logprobs"):
        values = np.frombuffer(response.prompt_logprobs, "<f4").tolist()
        told["prompt_logprobs"] = [None if math.isnan(one) else one for one in values]
    if response.HasField("topk_prompt_logprobs"):
        top = response.topk_prompt_logprobs
        ids = np.frombuffer(top.token_ids, "<i4").reshape(top.length, top.k).tolist()
        logprobs = np.frombuffer(top.logprobs, "<f4").reshape(top.length, top.k).tolist()
        told["topk_prompt_logprobs"] = [
            [pair for pair in zip(*row, strict=True) if pair[1] != MASK_LOGPROB] or None
            for row in zip(ids, logprobs, strict=True)
        ]
    return told


def _weights(session: TinkerSession, sampler: Mapping[str, Any]) -> Weights:
    if "path" in sampler:
        return Weights(path=sampler["path"], adapter=adapters.of(sampler.get("lora")))
    model = session.model(sampler["model_id"])
    version = sampler["version"] or model["newest"]
    return Weights(deployment_id=model["deployment_id"], version=version)


def _sampler(session: TinkerSession, sampler_id: str) -> dict[str, Any]:
    if sampler_id not in session.samplers:
        raise not_found(f"session {session.session_id!r} has no sampler {sampler_id!r}")
    return session.samplers[sampler_id]


def _take(sequence: _Sequence, delta: ops.SampleDelta) -> None:
    sequence.tokens += delta.token_ids
    sequence.logprobs += delta.logprobs
    sequence.likely += delta.likely
    if delta.finish_reason:
        sequence.is_cut = delta.finish_reason != ops.FINISH_REASON_STOP


def _sequence(one: _Sequence, *, top: int) -> pb.SampledSequence:
    found = pb.SampledSequence(
        stop_reason=pb.STOP_REASON_LENGTH if one.is_cut else pb.STOP_REASON_STOP,
        tokens=np.array(one.tokens, "<i4").tobytes(),
        logprobs=np.array(one.logprobs, "<f4").tobytes(),
    )
    if top:
        found.topk_sampled_logprobs.CopyFrom(_top(one.likely, top=top))
    return found


def _add_prompt(
    response: pb.SampleResponse, delta: ops.SampleDelta, asked: Asked, *, tokens: int
) -> None:
    """Add what is told of the prompt's tokens, of which the first has no logprob."""
    first = tokens - whole(asked, "prompt_logprobs_last_n", default=tokens - 1)
    if asked.get("prompt_logprobs"):
        values = np.array([math.nan, *delta.prompt_logprobs], "<f4")
        values[:first] = math.nan
        response.prompt_logprobs = values.tobytes()
    if top := whole(asked, "topk_prompt_logprobs", default=0):
        likely = [ops.LikelyTokens()] * first + list(delta.prompt_likely)[first - 1 :]
        response.topk_prompt_logprobs.CopyFrom(_top(likely, top=top))


def _top(likely: Sequence[ops.LikelyTokens], *, top: int) -> pb.TopkLogprobs:
    ids = np.zeros((len(likely), top), "<i4")
    logprobs = np.full((len(likely), top), MASK_LOGPROB, "<f4")
    for at, one in enumerate(likely):
        count = min(top, len(one.token_ids))
        ids[at, :count] = one.token_ids[:count]
        logprobs[at, :count] = one.logprobs[:count]
    return pb.TopkLogprobs(
        token_ids=ids.tobytes(), logprobs=logprobs.tobytes(), k=top, length=len(likely)
    )
