"""Steps of a vLLM core, and what their outputs say. It may have batches in flight: not yet read.

vLLM keeps such batches where it schedules asynchronously, or over pipeline stages. A step then
schedules one batch and reads another, or reads none. Weights and memory that a batch in flight
computes with may not be changed: it is read first.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

import vllm.v1.engine.core as vllm_core
from vllm.v1.core.sched.interface import PauseState
from vllm.v1.engine import EngineCoreOutput, EngineCoreOutputs

from plexclient.wire.v1 import operations_pb2
from plexsvc.ids import VersionId
from plexsvc.rollout.engines.texts import Pieces

Outputs = Mapping[int, EngineCoreOutputs]


def has_work(core: vllm_core.EngineCore) -> bool:
    """Return whether the core has requests, or a batch that was not read."""
    return core.scheduler.has_requests() or bool(core.batch_queue)


def step(core: vllm_core.EngineCore) -> Outputs:
    """Run one step; return the outputs of the batch that was read, if any was."""
    outputs, ran = core.step_fn()
    core.post_step(ran)
    return outputs or {}


def drain(core: vllm_core.EngineCore) -> Iterator[Outputs]:
    """Read the batches in flight and schedule none; yield their outputs."""
    scheduler, before = core.scheduler, core.scheduler.pause_state
    scheduler.set_pause_state(PauseState.PAUSED_ALL)
    try:
        while any(batch.total_num_scheduled_tokens for _, batch, _ in core.batch_queue or ()):
            yield step(core)
    finally:
        scheduler.set_pause_state(before)


def news_of(
    output: EngineCoreOutput,
    kept: int,
    *,
    asked: operations_pb2.SamplingParams,
    pieces: Pieces | None,
) -> operations_pb2.SampleDelta:
    """Return what a step made of one sample, of which so many tokens are `kept`."""
    tokens, logprobs = output.new_token_ids, output.new_logprobs
    prompt, prefill = output.new_prompt_logprobs_tensors, output.prefill_stats
    return operations_pb2.SampleDelta(
        token_ids=tokens[:kept],
        logprobs=() if logprobs is None else logprobs.logprobs[:kept, 0].tolist(),
        prompt_logprobs=() if prompt is None else prompt.logprobs[:, 0].tolist(),
        texts=() if pieces is None else pieces.of(tokens[:kept]),
        likely=_likely_of(logprobs, pieces, top=asked.top_logprobs)[:kept],
        prompt_likely=_likely_of(prompt, pieces, top=asked.top_prompt_logprobs),
        cached_tokens=0 if prefill is None else prefill.num_cached_tokens,
    )


def _likely_of(found: Any, pieces: Pieces | None, *, top: int) -> list[operations_pb2.LikelyTokens]:
    """Return the likeliest tokens of each position: those that can be drawn at all."""
    if found is None or not top:
        return []
    likely = []
    for row, given in zip(found.logprob_token_ids.tolist(), found.logprobs.tolist(), strict=True):
        pairs = zip(row[1:], given[1:], strict=True)  # the position's own token comes first
        drawn = [(token, logprob) for token, logprob in pairs if logprob > -math.inf][:top]
        tokens, logprobs = [token for token, _ in drawn], [logprob for _, logprob in drawn]
        texts = [] if pieces is None else pieces.alone(tokens)
        likely.append(operations_pb2.LikelyTokens(token_ids=tokens, logprobs=logprobs, texts=texts))
    return likely


def label_of(version: VersionId) -> str:
    """Return what vLLM puts on every step made with a version."""
    return f"{version.version}/{version.incarnation}/{version.deployment_id}"


def version_of(label: str) -> VersionId:
    """Return the version that a label is of."""
    number, incarnation, deployment_id = label.split("/", 2)
    return VersionId(deployment_id, int(incarnation), int(number))
