"""Requests in OpenAI's form, as operations that sample.

What would change an answer and cannot be done is refused by its name; what changes nothing is let
pass. Beside OpenAI's fields are some of vLLM's: token ids as prompts, `top_k`, `min_tokens`,
`stop_token_ids`, `ignore_eos`, `detokenize`, `return_token_ids`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final

from plexclient.ids import new_operation_id
from plexclient.wire.v1 import operations_pb2
from plexsvc.router import bounds
from plexsvc.router.validation import bad_request

MAX_STOPS: Final = 16
MAX_STOP_CHARS: Final = 256
MAX_CHOICES: Final = 128
DEFAULT_TOKENS: Final = 16
"""Of a completion that does not say; a chat may fill the model."""

NEUTRAL: Final[Mapping[str, Sequence[object]]] = {
    "audio": (),
    "best_of": (1,),
    "echo": (False,),
    "frequency_penalty": (0,),
    "function_call": ("none",),
    "functions": (),
    "logit_bias": ({},),
    "modalities": (["text"],),
    "presence_penalty": (0,),
    "response_format": ({"type": "text"},),
    "suffix": ("",),
    "tool_choice": ("auto", "none"),
    "top_logprobs": (0,),
}
"""Fields that ask for what is not done here, and what they may hold, beside nothing."""

Asked = Mapping[str, Any]


def operation_of(asked: Asked, *, is_chat: bool, session: str) -> operations_pb2.Operation:
    """Return the operation that a request asks for.

    Raises:
        PlexError: `bad_request`, naming the field.
    """
    for name, values in NEUTRAL.items():
        if asked.get(name) not in (None, *values):
            raise _bad(name, asked[name], f"{json.dumps(list(values))} or nothing")
    model = _text(asked, "model")
    operation = operations_pb2.Operation(
        operation_id=new_operation_id(),
        job_id=model.partition("/")[0],
        deployment_id=model,
        generate=operations_pb2.Generate(
            prompts=[_chat(asked)] if is_chat else _prompts(asked.get("prompt")),
            sampling=_sampling(asked, is_chat=is_chat),
            session=session,
        ),
    )
    bounds.check(operation)
    return operation


def wants(asked: Asked, name: str, *, default: bool = False) -> bool:
    """Return a switch.

    Raises:
        PlexError: `bad_request`.
    """
    found = asked.get(name)
    if found is None:
        return default
    if not isinstance(found, bool):
        raise _bad(name, found, "true or false")
    return found


def wants_logprobs(asked: Asked, *, is_chat: bool) -> bool:
    """Return whether logprobs are asked for: there are those of the chosen tokens alone.

    Raises:
        PlexError: `bad_request`.
    """
    if is_chat:
        return wants(asked, "logprobs")
    found = asked.get("logprobs")
    if found not in (None, 0, 1):
        raise _bad("logprobs", found, "0 or 1: logprobs are those of the chosen tokens")
    return found is not None


def _sampling(asked: Asked, *, is_chat: bool) -> operations_pb2.SamplingParams:
    limit = asked.get("max_completion_tokens", asked.get("max_tokens"))
    least = DEFAULT_TOKENS if not is_chat else 0
    sampling = operations_pb2.SamplingParams(
        n=_whole("n", asked.get("n"), default=1, low=1, high=MAX_CHOICES),
        max_tokens=least if limit is None else _whole("max_tokens", limit, low=1),
        min_tokens=_whole("min_tokens", asked.get("min_tokens")),
        temperature=_real("temperature", asked.get("temperature"), default=1.0),
        top_p=_real("top_p", asked.get("top_p"), default=1.0),
        top_k=max(0, _whole("top_k", asked.get("top_k"), low=-1)),
        stop=_stops(asked.get("stop")),
        stop_token_ids=_token_ids("stop_token_ids", asked.get("stop_token_ids") or []),
        ignore_eos=wants(asked, "ignore_eos"),
        texts=wants(asked, "detokenize", default=True),
    )
    if asked.get("seed") is not None:
        sampling.seed = _whole("seed", asked["seed"], low=-(2**63), high=2**64 - 1) % 2**64
    return sampling


def _chat(asked: Asked) -> operations_pb2.Prompt:
    messages, tools = asked.get("messages"), asked.get("tools")
    if not isinstance(messages, list) or not all(isinstance(one, dict) for one in messages):
        raise _bad("messages", messages, "a list of objects with role and content")
    if not messages:
        raise _bad("messages", messages, "at least one message")
    if tools is not None and not isinstance(tools, list):
        raise _bad("tools", tools, "a list of objects")
    offered = None if asked.get("tool_choice") == "none" else tools
    said = [
        one | {"content": _text_of(one["content"])} if "content" in one else one for one in messages
    ]
    return operations_pb2.Prompt(chat=json.dumps({"messages": said, "tools": offered}))


def _text_of(content: Any) -> str | None:  # noqa: ANN401 - what came
    """Return a message's text; parts become lines: a template may print a list as Python."""
    if content is None or isinstance(content, str):
        return content
    parts = content if isinstance(content, list) else [None]
    texts = [
        one["text"]
        for one in parts
        if isinstance(one, dict) and one.get("type") == "text" and isinstance(one.get("text"), str)
    ]
    if len(texts) < len(parts):
        raise _bad("messages", content, "one of texts: a content is a text, or parts of type text")
    return "\n".join(texts)


def _prompts(given: Any) -> list[operations_pb2.Prompt]:  # noqa: ANN401 - what came
    """Return prompts from a text, token ids, or a list of either."""
    is_one = isinstance(given, list) and given and not isinstance(given[0], str | list)
    if isinstance(given, str) or is_one:
        given = [given]
    if not isinstance(given, list) or not given:
        raise _bad("prompt", given, "a text, a list of token ids, or a list of either")
    return [
        operations_pb2.Prompt(text=one)
        if isinstance(one, str)
        else operations_pb2.Prompt(token_ids=_token_ids("prompt", one))
        for one in given
    ]


def _token_ids(name: str, given: Any) -> list[int]:  # noqa: ANN401 - what came
    if not isinstance(given, list):
        raise _bad(name, given, "a list of token ids")
    return [_whole(name, one) for one in given]


def _stops(given: Any) -> list[str]:  # noqa: ANN401 - what came
    stops = [given] if isinstance(given, str) else given or []
    is_list = isinstance(stops, list) and len(stops) <= MAX_STOPS
    if not is_list or not all(isinstance(x, str) and 0 < len(x) <= MAX_STOP_CHARS for x in stops):
        raise _bad("stop", given, f"up to {MAX_STOPS} texts of up to {MAX_STOP_CHARS} characters")
    return stops


def _whole(
    name: str,
    found: Any,  # noqa: ANN401 - what came
    *,
    default: int = 0,
    low: int = 0,
    high: int = 2**31 - 1,
) -> int:
    if found is None:
        return default
    if not isinstance(found, int) or isinstance(found, bool) or not low <= found <= high:
        raise _bad(name, found, f"a whole number from {low} to {high}")
    return found


def _real(name: str, found: Any, *, default: float) -> float:  # noqa: ANN401 - what came
    if found is None:
        return default
    if not isinstance(found, int | float) or isinstance(found, bool) or not 0 <= found <= 1e6:
        raise _bad(name, found, "a number from 0")
    return float(found)


def _text(asked: Asked, name: str) -> str:
    found = asked.get(name)
    if not isinstance(found, str) or not found:
        raise _bad(name, found, "a text")
    return found


def _bad(name: str, found: object, wanted: str) -> Exception:
    return bad_request(f"{name}: it must be {wanted}, not {found!r:.80}", field=name)
