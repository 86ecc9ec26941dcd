"""Choices of an answer in OpenAI's form, put together from the deltas of a sample.

Calls of tools are found in the text while it comes. Models write them in two ways: Qwen's and
Hermes' between tags, Llama's as an answer that is nothing but JSON. What reads like neither, or
calls what was not offered, is text.
"""

from __future__ import annotations

import itertools
import json
import secrets
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from plexclient.samples import FINISH_REASONS, spans_of_tokens
from plexclient.wire.v1 import operations_pb2

OPEN: Final = "<tool_call>"
CLOSE: Final = "</tool_call>"
PYTHON: Final = "<|python_tag|>"


@dataclass(slots=True)
class Calls:
    """Reads one answer: its content and its calls so far, both of which only grow."""

    names: Collection[str]
    """Tools that were offered."""
    is_forced: bool = False
    """Whether the answer is nothing but calls."""
    named: str = ""
    """The one whose arguments are the answer."""
    content: str = ""
    made: list[dict[str, Any]] = field(default_factory=list)
    _at: int = 0
    _is_after_call: bool = False

    def read(self, text: str, *, is_last: bool) -> None:
        """Read the text so far."""
        # How it begins tells what it is, and is looked at with every frame.
        start = text[: len(PYTHON) + 80].lstrip()
        is_json = self.is_forced or start.startswith(("{", PYTHON))
        if is_json or (not is_last and PYTHON.startswith(start)):
            if is_last:
                self._read_whole(text)
            return
        while self._at < len(text):
            start_at = text.find(OPEN, self._at)
            if start_at < 0:
                held = 0 if is_last else _held(text)
                self._say(text, len(text) - held)
                return
            self._say(text, start_at)
            close_at = text.find(CLOSE, start_at)
            if close_at < 0 and not is_last:
                return
            end = len(text) if close_at < 0 else close_at + len(CLOSE)
            body = text[start_at + len(OPEN) : end].removesuffix(CLOSE)
            call = self._call(_json(body))
            if call is None:
                self._say(text, end)
            else:
                self.made.append(call)
                self._is_after_call = True
            self._at = end

    def _say(self, text: str, end: int) -> None:
        new = text[self._at : end]
        if self._is_after_call:  # what parts two calls is no content
            new = new.lstrip()
        self._is_after_call &= not new
        self.content += new
        self._at = max(self._at, end)

    def _read_whole(self, text: str) -> None:
        found: list[Any]
        if self.named:
            found = [{"name": self.named, "arguments": _json(text)}]
        elif self.is_forced:
            listed = _json(text)
            found = listed if isinstance(listed, list) else [None]
        else:
            found = list(_objects(text.strip().removeprefix(PYTHON)))
        calls = [self._call(one) for one in found]
        made = [call for call in calls if call is not None]
        if made and len(made) == len(calls):
            self.made = made
        else:
            self.content = text

    def _call(self, found: Any) -> dict[str, Any] | None:
        """Return a call in OpenAI's form, None if it is none of a tool that was offered."""
        if not isinstance(found, dict):
            return None
        name, given = found.get("name"), found.get("arguments", found.get("parameters"))
        if not isinstance(name, str) or name not in self.names or not isinstance(given, dict):
            return None
        function = {"name": name, "arguments": json.dumps(given, ensure_ascii=False)}
        return {"id": f"call_{secrets.token_hex(12)}", "type": "function", "function": function}


def _held(text: str) -> int:
    """Return how much of a text's end may become a tag."""
    longest = min(len(OPEN) - 1, len(text))
    return next((n for n in range(longest, 0, -1) if OPEN.startswith(text[-n:])), 0)


def _objects(text: str) -> Iterator[Any]:
    """Yield the JSON values of a text, which semicolons may part; None for anything else."""
    decoder, at = json.JSONDecoder(parse_constant=_refuse), 0
    while at < len(text):
        try:
            found, at = decoder.raw_decode(text, at)
        except (ValueError, RecursionError):
            yield None
            return
        yield found
        while at < len(text) and text[at] in "; \n\r\t":
            at += 1


def _json(text: str) -> Any:
    found = list(_objects(text.strip()))
    return found[0] if len(found) == 1 else None


def _refuse(name: str) -> object:
    raise ValueError(f"{name} is no number")


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
    echoes: bool = False
    """Whether the text and the logprobs of the prompt come before those of the answer."""
    has_prompt_logprobs: bool = False
    has_answer: bool = True
    """Whether anything but the prompt is told."""


@dataclass(slots=True)
class Choice:
    """One sample: the whole of it, and what a stream has told of it."""

    form: Form
    index: int
    prompt: operations_pb2.Prompt
    tokens: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    likely: list[operations_pb2.LikelyTokens] = field(default_factory=list)
    """The likeliest tokens at each position, where they are asked for."""
    texts: list[str] = field(default_factory=list)
    offsets: list[int] = field(default_factory=list)
    """Where each of them begins in the text."""
    text: str = ""
    prompt_logprobs: list[float] = field(default_factory=list)
    """Of all its tokens but the first."""
    prompt_likely: list[operations_pb2.LikelyTokens] = field(default_factory=list)
    versions: list[int] = field(default_factory=list)
    """Of the weights, for each token; there when the sample is finished."""
    finish_reason: str = ""
    stop_reason: str = ""
    cached_tokens: int = 0
    _told_tokens: int = 0
    _told_chars: int = 0
    _told_calls: int = 0
    _has_told: bool = False
    _calls: Calls | None = None

    def __post_init__(self) -> None:
        form = self.form
        if form.tools:
            self._calls = Calls(form.tools, is_forced=form.is_forced, named=form.named)

    def add(self, delta: operations_pb2.SampleDelta) -> None:
        """Take in what is new of the sample."""
        if not delta.position:  # elsewhere, what it made itself may be cached
            self.cached_tokens = min(delta.cached_tokens, len(self.prompt.token_ids))
        self.prompt_logprobs += delta.prompt_logprobs
        self.prompt_likely += delta.prompt_likely
        if delta.finish_reason:
            self.finish_reason = FINISH_REASONS[delta.finish_reason]
        if not self.form.has_answer:
            return
        self.tokens += delta.token_ids
        self.logprobs += delta.logprobs
        self.likely += delta.likely
        for text in delta.texts:
            self.texts.append(text)
            self.offsets.append(len(self.text))
            self.text += text
        if delta.finish_reason:
            self.stop_reason = delta.stop_reason
            spans = spans_of_tokens(delta.versions, num_tokens=len(self.tokens))
            self.versions = [span.version for span in spans]

    def whole(self) -> dict[str, Any]:
        """Return the choice of an answer that is not streamed."""
        text, calls = self._read()
        if not self.form.is_chat:
            told = {"text": self._echo() + text} | self._about(0)
            of_prompt = self.of_prompt() if self.form.has_prompt_logprobs else None
            return told | ({} if of_prompt is None else {"prompt_logprobs": of_prompt})
        message = {"role": "assistant", "content": text or None if calls else text, "refusal": None}
        return {"message": message | ({"tool_calls": calls} if calls else {})} | self._about(0)

    def of_tokens(self) -> dict[str, Any]:
        """Return the choice in the form of vLLM's `/inference/v1/generate`."""
        likely = self.likely or [operations_pb2.LikelyTokens()] * len(self.tokens)
        made = zip(self.tokens, self.logprobs, likely, strict=True)
        content = [
            _of_id(token, logprob)
            | {"top_logprobs": list(map(_of_id, others.token_ids, others.logprobs))}
            for token, logprob, others in made
        ]
        spans, start = [], 0
        for version, run in itertools.groupby(self.versions):
            end = start + len(list(run))
            spans.append({"version": str(version), "start": start, "end": end})
            start = end
        return {
            "index": self.index,
            "token_ids": self.tokens,
            "weight_versions": spans,
            "logprobs": {"content": content} if self.form.has_logprobs else None,
            "finish_reason": self.finish_reason or None,
            "stop_reason": self.stop_reason or None,
        }

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
            content = {"text": ("" if self._has_told else self._echo()) + new}
        about = self._about(told)
        self._told_chars, self._told_tokens = len(text), len(self.tokens)
        self._told_calls, self._has_told = len(calls), True
        return content | about

    def _read(self) -> tuple[str, list[dict[str, Any]]]:
        """Return the content and the calls so far."""
        text = self._shown()
        if self._calls is None:
            return text, []
        self._calls.read(text, is_last=bool(self.finish_reason))
        return self._calls.content, self._calls.made

    def of_prompt(self) -> list[dict[str, Any] | None]:
        """Return the logprobs of the prompt's tokens, of which the first has none."""
        texts = _texts_of(self.prompt)
        told: list[dict[str, Any] | None] = [None]
        for at, logprob in enumerate(self.prompt_logprobs):
            own = {str(self.prompt.token_ids[at + 1]): _of_one(texts[at + 1], logprob, rank=None)}
            likely = self.prompt_likely[at] if self.prompt_likely else operations_pb2.LikelyTokens()
            ranked = enumerate(_named(likely), start=1)
            others = [_of_one(text, one, rank=rank) for rank, (text, one) in ranked]
            told.append(own | dict(zip(map(str, likely.token_ids), others, strict=True)))
        return told

    def _echo(self) -> str:
        return "".join(self.prompt.texts) if self.form.echoes else ""

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
                about["prompt_token_ids"] = list(self.prompt.token_ids)
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
        top: list[Any] = [dict([*others, (text, logprob)]) for text, logprob, others in made]
        shift, before = len(self._echo()), [] if self._has_told else self._echoed()
        return {
            "tokens": [text for text, *_ in before] + texts[start:],
            "token_logprobs": [logprob for _, logprob, _, _ in before] + self.logprobs[start:],
            "top_logprobs": [one for *_, one, _ in before] + top
            if self.likely or self.prompt_likely
            else None,
            "text_offset": [at for *_, at in before] + [shift + at for at in self.offsets[start:]],
        }

    def _echoed(self) -> list[tuple[str, float | None, dict[str, float] | None, int]]:
        """Return text, logprob, likeliest tokens and offset of each token of an echoed prompt."""
        if not self.form.echoes:
            return []
        texts = _texts_of(self.prompt)
        offsets = itertools.accumulate(map(len, self.prompt.texts or [""] * len(texts)), initial=0)
        likely = [_named(one) for one in self.prompt_likely] or [[]] * len(self.prompt_logprobs)
        top = [
            dict([*others, (text, logprob)])
            for text, logprob, others in zip(texts[1:], self.prompt_logprobs, likely, strict=True)
        ]
        return list(zip(texts, [None, *self.prompt_logprobs], [None, *top], offsets, strict=False))


def _texts_of(prompt: operations_pb2.Prompt) -> Sequence[str]:
    return prompt.texts or [f"token_id:{token}" for token in prompt.token_ids]


def _of_one(text: str, logprob: float, *, rank: int | None) -> dict[str, Any]:
    return {"logprob": logprob, "rank": rank, "decoded_token": text}


def _named(likely: operations_pb2.LikelyTokens) -> list[tuple[str, float]]:
    texts = likely.texts or [f"token_id:{token}" for token in likely.token_ids]
    return list(zip(texts, likely.logprobs, strict=True))


def _of_id(token: int, logprob: float) -> dict[str, Any]:
    return {"token": f"token_id:{token}", "token_id": token, "logprob": logprob}


def _entry(text: str, logprob: float) -> dict[str, Any]:
    return {"token": text, "logprob": logprob, "bytes": list(text.encode())}


def usage(choices: Sequence[Choice], prompts: Sequence[operations_pb2.Prompt]) -> dict[str, Any]:
    """Return how many tokens a request took: a prompt counts once, by its least cached choice."""
    asked, made = (
        sum(len(one.token_ids) for one in prompts),
        sum(len(one.tokens) for one in choices),
    )
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
