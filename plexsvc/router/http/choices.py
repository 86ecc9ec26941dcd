"""Choices of an answer in OpenAI's form, put together from the deltas of a sample."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from plexclient.samples import FINISH_REASONS, spans_of_tokens
from plexclient.wire.v1 import operations_pb2
from plexsvc.router.http.calls import Calls

STOPPED: Final = "stop"


@dataclass(frozen=True, slots=True, kw_only=True)
class Form:
    """What the choices of an answer hold."""

    is_chat: bool
    stops: Sequence[str] = ()
    has_logprobs: bool = False
    has_token_ids: bool = False
    tools: Sequence[str] = ()
    """Names of those offered."""
    is_forced: bool = False
    """Whether an answer is nothing but calls of them."""
    named: str = ""
    """The one that is called."""


@dataclass(slots=True)
class Choice:
    """One sample: the whole of it, and what a stream has told of it."""

    form: Form
    index: int
    prompt: Sequence[int]
    tokens: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    likely: list[operations_pb2.LikelyTokens] = field(default_factory=list)
    """The likeliest tokens at each position, where they are asked for."""
    texts: list[str] = field(default_factory=list)
    offsets: list[int] = field(default_factory=list)
    """Where each of them begins in the text."""
    text: str = ""
    versions: list[int] = field(default_factory=list)
    """Of the weights, for each token; there when the sample is finished."""
    finish_reason: str = ""
    stop_reason: str = ""
    cached_tokens: int = 0
    _told_tokens: int = 0
    _told_chars: int = 0
    _told_calls: int = 0
    _calls: Calls | None = None

    def __post_init__(self) -> None:
        form = self.form
        if form.tools:
            self._calls = Calls(form.tools, is_forced=form.is_forced, named=form.named)

    def add(self, delta: operations_pb2.SampleDelta) -> None:
        """Take in what is new of the sample."""
        if not delta.position:  # elsewhere, what it made itself may be cached
            self.cached_tokens = min(delta.cached_tokens, len(self.prompt))
        self.tokens += delta.token_ids
        self.logprobs += delta.logprobs
        self.likely += delta.likely
        for text in delta.texts:
            self.texts.append(text)
            self.offsets.append(len(self.text))
            self.text += text
        if delta.finish_reason:
            self.finish_reason = FINISH_REASONS[delta.finish_reason]
            self.stop_reason = delta.stop_reason
            spans = spans_of_tokens(delta.versions, num_tokens=len(self.tokens))
            self.versions = [span.version for span in spans]

    def whole(self) -> dict[str, Any]:
        """Return the choice of an answer that is not streamed."""
        text, calls = self._read()
        if not self.form.is_chat:
            return {"text": text} | self._about(0)
        message = {"role": "assistant", "content": text or None if calls else text, "refusal": None}
        return {"message": message | ({"tool_calls": calls} if calls else {})} | self._about(0)

    def news(self) -> dict[str, Any]:
        """Return the choice of a chunk: what no chunk before it had."""
        (text, calls), told = self._read(), self._told_tokens
        new, first = text[self._told_chars :], self._told_calls
        if self.form.is_chat:
            delta: dict[str, Any] = {"content": new} | ({} if told else {"role": "assistant"})
            if calls[first:]:
                fresh = enumerate(calls[first:], start=first)
                delta["tool_calls"] = [{"index": index} | call for index, call in fresh]
            content: dict[str, Any] = {"delta": delta}
        else:
            content = {"text": new}
        self._told_chars, self._told_tokens = len(text), len(self.tokens)
        self._told_calls = len(calls)
        return content | self._about(told)

    def _read(self) -> tuple[str, list[dict[str, Any]]]:
        """Return the content and the calls so far."""
        text = self._shown()
        if self._calls is None:
            return text, []
        self._calls.read(text, is_last=bool(self.finish_reason))
        return self._calls.content, self._calls.made

    def _shown(self) -> str:
        """Return the text up to a stop string, without what may become one."""
        text, stops = self.text, self.form.stops
        if self.finish_reason:
            is_stop = self.finish_reason == STOPPED and self.stop_reason in stops
            end = text.rfind(self.stop_reason) if is_stop else -1
            return text if end < 0 else text[:end]
        longest = max(map(len, stops), default=1)
        for length in range(min(longest - 1, len(text)), 0, -1):
            if any(stop.startswith(text[-length:]) for stop in stops):
                return text[:-length]
        return text

    def _about(self, start: int) -> dict[str, Any]:
        """Return what is said of the tokens from `start` on."""
        reason = self.finish_reason
        if reason == STOPPED and self._calls is not None and self._calls.made:
            reason = "tool_calls"
        about: dict[str, Any] = {
            "index": self.index,
            "finish_reason": reason or None,
            "logprobs": self._logprobs(start) if self.form.has_logprobs else None,
        }
        if self.finish_reason:
            about["stop_reason"] = self.stop_reason or None
        if self.form.has_token_ids:
            about["token_ids"] = self.tokens[start:]
            if not start:
                about["prompt_token_ids"] = list(self.prompt)
            if self.finish_reason:
                about["weight_versions"] = self.versions
        return about

    def _logprobs(self, start: int) -> dict[str, Any]:
        texts = self.texts or [f"token_id:{token}" for token in self.tokens]
        likely = [_named(one) for one in self.likely[start:]] or [[]] * len(texts[start:])
        made = list(zip(texts[start:], self.logprobs[start:], likely, strict=True))
        if self.form.is_chat:
            content = [
                _entry(text, logprob) | {"top_logprobs": [_entry(*one) for one in others]}
                for text, logprob, others in made
            ]
            return {"content": content, "refusal": None}
        top = [dict([*others, (text, logprob)]) for text, logprob, others in made]
        return {
            "tokens": texts[start:],
            "token_logprobs": self.logprobs[start:],
            "top_logprobs": top if self.likely else None,
            "text_offset": self.offsets[start:],
        }


def _named(likely: operations_pb2.LikelyTokens) -> list[tuple[str, float]]:
    texts = likely.texts or [f"token_id:{token}" for token in likely.token_ids]
    return list(zip(texts, likely.logprobs, strict=True))


def _entry(text: str, logprob: float) -> dict[str, Any]:
    return {"token": text, "logprob": logprob, "bytes": list(text.encode())}


def usage(choices: Sequence[Choice], prompts: Sequence[Sequence[int]]) -> dict[str, Any]:
    """Return how many tokens a request took: a prompt counts once, by its least cached choice."""
    asked, made = sum(map(len, prompts)), sum(len(one.tokens) for one in choices)
    n = len(choices) // len(prompts)
    cached = sum(
        min(one.cached_tokens for one in choices[start : start + n])
        for start in range(0, len(choices), n)
    )
    return {
        "prompt_tokens": asked,
        "completion_tokens": made,
        "total_tokens": asked + made,
        "prompt_tokens_details": {"cached_tokens": cached},
    }
