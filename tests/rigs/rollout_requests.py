"""Short ways to say what rollout tests ask for, and to put answers together."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from plexclient.wire.v1 import common_pb2, operations_pb2, rollout_pb2
from plexsvc.ids import VersionId

FENCE = common_pb2.Fence(scheduler_epoch=1, lease_no=1, incarnation=1)


@dataclass(slots=True)
class Answer:
    """One sample, put together from its deltas; positions are checked on the way."""

    tokens: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    versions: list[int] = field(default_factory=list)
    prompt_logprobs: list[float] = field(default_factory=list)
    finish: int = 0
    stop_reason: str = ""
    start: int | None = None


def collect(
    deltas: Iterable[operations_pb2.SampleDelta], into: dict[tuple[int, int], Answer] | None = None
) -> dict[tuple[int, int], Answer]:
    """Return answers by (prompt, sample)."""
    answers = {} if into is None else into
    for delta in deltas:
        answer = answers.setdefault((delta.prompt_index, delta.sample_index), Answer())
        if answer.start is None:
            answer.start = delta.position
        assert not answer.finish, "tokens after the end"
        assert delta.position == answer.start + len(answer.tokens)
        assert len(delta.logprobs) == len(delta.token_ids)
        answer.tokens += delta.token_ids
        answer.logprobs += delta.logprobs
        answer.prompt_logprobs += delta.prompt_logprobs
        answer.finish, answer.stop_reason = delta.finish_reason, delta.stop_reason
        for span in delta.versions:
            assert span.start == answer.start + len(answer.versions)
            answer.versions += [span.version] * (span.end - span.start)
    return answers


def request(
    prompt: Sequence[int],
    *,
    name: str = "r",
    index: int = 0,
    seed: int = 7,
    max_tokens: int = 16,
    temperature: float = 1.0,
    generated: Sequence[int] = (),
    draws_used: int | None = None,
    **sampling: Any,
) -> rollout_pb2.InstanceRequest:
    """Return one request as the manager would send it."""
    return rollout_pb2.InstanceRequest(
        request_id=f"{name}{index}",
        prompt=operations_pb2.Prompt(
            token_ids=prompt,
            generated=generated,
            draws_used=len(generated) if draws_used is None else draws_used,
        ),
        sampling=operations_pb2.SamplingParams(
            n=1, max_tokens=max_tokens, temperature=temperature, seed=seed, **sampling
        ),
        prompt_index=index,
    )


def call(
    *requests: rollout_pb2.InstanceRequest, version: VersionId | None = None
) -> rollout_pb2.InstanceGenerateRequest:
    """Return one call of an instance."""
    return rollout_pb2.InstanceGenerateRequest(
        fence=FENCE, requests=requests, version=version and version._asdict()
    )
