"""Requests in OpenAI's form, as operations that sample.

A field that is not among those honoured is refused by its name, unless it holds what is done
anyway; one that is null is not given. Beside OpenAI's fields are those of vLLM's server that its
users need most.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final

from plexclient.ids import new_operation_id
from plexclient.wire.v1 import operations_pb2
from plexsvc.errors import bad_request
from plexsvc.router import bounds
from plexsvc.router.http import shapes
from plexsvc.router.http.fields import MAX_INT, Asked, bad, is_whole, real, text, whole

MAX_STOPS: Final = 16
MAX_STOP_CHARS: Final = 256
MAX_CHOICES: Final = 128
MAX_BIASED: Final = 300
MAX_LOGPROBS: Final = 20
MAX_TEMPLATE_KWARGS: Final = 32
DEFAULT_TOKENS: Final = 16
"""Of a completion that does not say; a chat may fill the model."""

SHARED: Final = frozenset(
    {"detokenize", "frequency_penalty", "ignore_eos", "logit_bias", "logprobs"}
    | {"max_completion_tokens", "max_tokens", "min_p", "min_tokens", "model", "n"}
    | {"presence_penalty", "prompt_logprobs", "repetition_penalty", "response_format"}
    | {"return_token_ids", "seed"}
    | {"skip_special_tokens", "stop", "stop_token_ids", "stream", "stream_options"}
    | {"structured_outputs", "temperature", "top_k", "top_p"}
    | {"metadata", "prompt_cache_key", "safety_identifier", "user"}
)
HONOURED: Final[Mapping[bool, frozenset[str]]] = {
    False: SHARED | {"echo", "prompt"},
    True: SHARED | {"chat_template_kwargs", "messages", "tool_choice", "tools", "top_logprobs"},
}
"""Fields of a completion, and of a chat, that may hold more than one value."""

ROLES: Final = ("system", "user", "assistant", "tool")
"""Of messages; templates drop a message of another role."""
MESSAGE: Final[Mapping[str, tuple[type, ...]]] = {
    "content": (str, list),
    "name": (str,),
    "reasoning": (str,),
    "reasoning_content": (str,),
    "role": (str,),
    "tool_call_id": (str,),
    "tool_calls": (list,),
}
CALL: Final[Mapping[str, tuple[type, ...]]] = {
    "function": (dict,),
    "id": (str,),
    "index": (int,),
    "type": (str,),
}
UNREAD: Final[Mapping[str, type]] = {
    "metadata": dict,
    "prompt_cache_key": str,
    "safety_identifier": str,
    "user": str,
}
"""Fields that change no answer."""

NEUTRAL: Final[Mapping[str, Sequence[object]]] = {
    "add_generation_prompt": (True,),
    "allowed_token_ids": ([],),
    "bad_words": ([],),
    "best_of": (1,),
    "continue_final_message": (False,),
    "echo": (False,),
    "function_call": ("none",),
    "functions": ([],),
    "include_stop_str_in_output": (False,),
    "spaces_between_special_tokens": (True,),
    "length_penalty": (1,),
    "modalities": (["text"],),
    "parallel_tool_calls": (True,),
    "priority": (0,),
    "return_tokens_as_token_ids": (False,),
    "service_tier": ("auto", "default"),
    "store": (False,),
    "suffix": ("",),
    "top_logprobs": (0,),
    "use_beam_search": (False,),
}
"""Fields that ask for what is not done here, and what they may hold."""


def operation_of(asked: Asked, *, is_chat: bool, session: str) -> operations_pb2.Operation:
    """Return the operation that a request asks for.

    Raises:
        PlexError: `bad_request`, naming the field.
    """
    asked = shapes.given(asked)
    check_fields(asked, HONOURED[is_chat], neutral=NEUTRAL)
    for name, kind in UNREAD.items():
        if not isinstance(asked.get(name, kind()), kind):
            raise bad(name, asked[name], "an object" if kind is dict else "a text")
    generate = operations_pb2.Generate(
        prompts=[_chat(asked)] if is_chat else _prompts(asked.get("prompt")),
        sampling=_sampling(asked, is_chat=is_chat),
        session=session,
    )
    tells_prompt = wants(asked, "echo") or "prompt_logprobs" in asked
    generate.prompt_texts = tells_prompt and generate.sampling.texts
    return _operation(asked, generate)


_NOT_SAMPLING: Final = {
    *("echo", "max_completion_tokens", "model", "prompt", "response_format"),
    *("return_token_ids", "stream", "stream_options", *UNREAD),
}
"""Fields of a completion that vLLM's sampling parameters do not have."""


def tokens_of(asked: Asked, *, session: str) -> operations_pb2.Operation:
    """Return the operation of a request in the form of vLLM's `/inference/v1/generate`.

    Raises:
        PlexError: `bad_request`, naming the field.
    """
    asked = shapes.given(asked)
    neutral = {"priority": (0,), "stream": (False,), "output_mode": ("tokens",)}
    honoured = {"model", "request_id", "return_token_ids", "sampling_params", "token_ids"}
    check_fields(asked, honoured, neutral=neutral)
    sampling = asked.get("sampling_params", {})
    if not isinstance(sampling, dict):
        raise bad("sampling_params", sampling, "an object")
    tokens = _token_ids("token_ids", asked.get("token_ids"))
    if not tokens:
        raise bad("token_ids", tokens, "at least one token id")
    if not isinstance(asked.get("request_id", ""), str):
        raise bad("request_id", asked["request_id"], "a text")
    read = {"detokenize": bool(sampling.get("stop")), **shapes.given(sampling)}
    for name in _NOT_SAMPLING & read.keys():
        raise bad("sampling_params", name, "an object of sampling parameters")
    asked = {"model": asked.get("model"), "prompt": tokens, **read}
    return operation_of(asked, is_chat=False, session=session)


def encoding_of(asked: Asked) -> operations_pb2.Operation:
    """Return the operation that only tells the token ids of a text or a chat, and their texts.

    Raises:
        PlexError: `bad_request`, naming the field.
    """
    asked = shapes.given(asked)
    is_chat = "messages" in asked
    fields = {"messages", "tools", "tool_choice", "chat_template_kwargs"} if is_chat else {"prompt"}
    neutral = {
        "add_generation_prompt": (True,),
        "add_special_tokens": (not is_chat,),
        "continue_final_message": (False,),
    }
    check_fields(asked, fields | {"model", "return_token_strs"}, neutral=neutral)
    if is_chat:
        return _operation(asked, _encoding(_chat(asked)))
    prompt = operations_pb2.Prompt(text=text(asked, "prompt", least=0, most=None))
    return _operation(asked, _encoding(prompt))


def decoding_of(asked: Asked) -> operations_pb2.Operation:
    """Return the operation that only tells the texts of token ids.

    Raises:
        PlexError: `bad_request`, naming the field.
    """
    asked = shapes.given(asked)
    check_fields(asked, {"model", "tokens"}, neutral={})
    tokens = _token_ids("tokens", asked.get("tokens"))
    if not tokens:
        raise bad("tokens", tokens, "at least one token id")
    prompt = operations_pb2.Prompt(token_ids=tokens)
    return _operation(asked, _encoding(prompt))


def _encoding(prompt: operations_pb2.Prompt) -> operations_pb2.Generate:
    return operations_pb2.Generate(prompts=[prompt], prompt_texts=True, encodes_only=True)


def _operation(asked: Asked, generate: operations_pb2.Generate) -> operations_pb2.Operation:
    model = text(asked, "model")
    operation = operations_pb2.Operation(
        operation_id=new_operation_id(),
        job_id=model.partition("/")[0],
        deployment_id=model,
        generate=generate,
    )
    bounds.check(operation)
    return operation


def check_fields(
    asked: Asked,
    honoured: Collection[str],
    *,
    neutral: Mapping[str, Sequence[object]],
    within: str = "",
) -> None:
    """Refuse what would be ignored.

    Raises:
        PlexError: `bad_request`, naming the field.
    """
    for name in asked.keys() - honoured:
        found, values = asked[name], neutral.get(name, ())
        if not any(
            found == one and isinstance(found, bool) == isinstance(one, bool) for one in values
        ):
            wanted = f"one of {json.dumps(values)}" if values else "left out: it is not known here"
            raise bad(within + name, found, wanted)


def wants(asked: Asked, name: str, *, default: bool = False) -> bool:
    """Return a switch.

    Raises:
        PlexError: `bad_request`.
    """
    found = asked.get(name)
    if found is None:
        return default
    if not isinstance(found, bool):
        raise bad(name, found, "true or false")
    return found


def wants_logprobs(asked: Asked, *, is_chat: bool) -> bool:
    """Return whether logprobs are asked for.

    Raises:
        PlexError: `bad_request`.
    """
    return wants(asked, "logprobs") if is_chat else asked.get("logprobs") is not None


def wants_usage(asked: Asked) -> bool:
    """Return whether a stream ends with its usage.

    Raises:
        PlexError: `bad_request`.
    """
    options = asked.get("stream_options")
    if options is None:
        return False
    if not isinstance(options, dict) or not wants(asked, "stream"):
        raise bad("stream_options", options, 'an object beside "stream": true')
    neutral = {"continuous_usage_stats": (False,), "include_obfuscation": (False,)}
    check_fields(
        shapes.given(options), {"include_usage"}, neutral=neutral, within="stream_options."
    )
    return wants(options, "include_usage")


def _sampling(asked: Asked, *, is_chat: bool) -> operations_pb2.SamplingParams:
    default, echoes = DEFAULT_TOKENS if not is_chat else 0, wants(asked, "echo")
    most = whole(asked, "max_tokens", default=default, least=0 if echoes else 1)
    of_prompt = whole(asked, "prompt_logprobs", default=0, most=MAX_LOGPROBS)
    if "prompt_logprobs" in asked and wants(asked, "stream"):
        raise bad("prompt_logprobs", of_prompt, "null in a stream")
    top = _top_logprobs(asked, is_chat=is_chat)
    sampling = operations_pb2.SamplingParams(
        n=whole(asked, "n", default=1, least=1, most=MAX_CHOICES),
        max_tokens=whole(
            asked,
            "max_completion_tokens",
            default=max(most, int(echoes)),  # there is no sample without a token: it is not told
            least=1,
        ),
        min_tokens=whole(asked, "min_tokens", default=0),
        temperature=real(asked, "temperature", default=1.0),
        top_p=real(asked, "top_p", default=1.0, least=1e-6, most=1),
        top_k=max(0, whole(asked, "top_k", default=0, least=-1)),
        stop=_stops(asked.get("stop")),
        stop_token_ids=_token_ids("stop_token_ids", asked.get("stop_token_ids", [])),
        ignore_eos=wants(asked, "ignore_eos"),
        texts=wants(asked, "detokenize", default=True),
        min_p=real(asked, "min_p", default=0, most=1),
        repetition_penalty=real(asked, "repetition_penalty", default=1, least=0.01, most=100),
        presence_penalty=_penalty(asked, "presence_penalty"),
        frequency_penalty=_penalty(asked, "frequency_penalty"),
        logit_bias=_biases(asked.get("logit_bias", {})),
        top_logprobs=top,
        prompt_logprobs="prompt_logprobs" in asked or (echoes and "logprobs" in asked),
        top_prompt_logprobs=max(of_prompt, top if echoes else 0),
        special_texts=not wants(asked, "skip_special_tokens", default=True),
        structured=shapes.structured_of(asked),
    )
    if asked.get("seed") is not None:
        sampling.seed = whole(asked, "seed", least=-(2**63), most=2**64 - 1) % 2**64
    return sampling


def _penalty(asked: Asked, name: str) -> float:
    return real(asked, name, default=0, least=-2, most=2)


def _biases(found: Any) -> dict[int, float]:
    if not isinstance(found, dict) or len(found) > MAX_BIASED:
        raise bad("logit_bias", found, f"an object of up to {MAX_BIASED} token ids and biases")
    biases = {}
    for key, bias in found.items():
        if not re.fullmatch(r"0|[1-9][0-9]{0,9}", key) or not is_whole(int(key)):
            raise bad("logit_bias", key, "an object whose names are token ids")
        biases[int(key)] = real({"logit_bias": bias}, "logit_bias", least=-100, most=100)
    return biases


def _top_logprobs(asked: Asked, *, is_chat: bool) -> int:
    name = "top_logprobs" if is_chat else "logprobs"
    top = whole(asked, name, default=0, most=MAX_LOGPROBS)
    if is_chat and top and not wants(asked, "logprobs"):
        raise bad(name, top, '0 unless "logprobs" is true')
    return top


def _chat(asked: Asked) -> operations_pb2.Prompt:
    messages = asked.get("messages")
    if not isinstance(messages, list) or not all(isinstance(one, dict) for one in messages):
        raise bad("messages", messages, "a list of objects with role and content")
    if not messages:
        raise bad("messages", messages, "at least one message")
    offered = asked["tools"] if shapes.tools_of(asked) else None
    said = [_message(f"messages[{at}]", shapes.given(one)) for at, one in enumerate(messages)]
    found = asked.get("chat_template_kwargs", {})
    is_named = isinstance(found, dict) and all(map(str.isidentifier, found))
    if not is_named or len(found) > MAX_TEMPLATE_KWARGS:
        wanted = f"an object of up to {MAX_TEMPLATE_KWARGS} variables of the chat template"
        raise bad("chat_template_kwargs", found, wanted)
    kwargs = {"kwargs": found} if found else {}
    chat = {"messages": said, "tools": offered} | kwargs
    try:
        return operations_pb2.Prompt(chat=json.dumps(chat))
    except RecursionError:
        raise bad_request("messages: they are nested too deeply", field="messages") from None


def _message(name: str, message: Asked) -> dict[str, Any]:
    """Return a message as templates read it: texts, and calls with their arguments as objects."""
    shapes.check_object(name, message, MESSAGE)
    role, calls = message.get("role"), message.get("tool_calls", [])
    if role not in ROLES:
        raise bad(f"{name}.role", role, f"one of {', '.join(ROLES)}")
    if "content" not in message and not (role == "assistant" and calls):
        raise bad(f"{name}.content", None, "a text, or parts of type text")
    if calls and role != "assistant":
        raise bad(f"{name}.tool_calls", calls, "left out: only an assistant calls tools")
    read = [_call(f"{name}.tool_calls[{at}]", call) for at, call in enumerate(calls)]
    texts = {"content": _text_of(name, message["content"])} if "content" in message else {}
    return {**message, **texts} | ({"tool_calls": read} if read else {})


def _call(name: str, call: Any) -> dict[str, Any]:
    shapes.check_object(name, call, CALL)
    function = call.get("function", {})
    kinds = {"name": (str,), "arguments": (str, dict)}
    shapes.check_object(f"{name}.function", function, kinds)
    if call.get("type", "function") != "function" or function.keys() != kinds.keys():
        raise bad(name, call, "of type function, with the function's name and arguments")
    arguments = function["arguments"]
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments)
        except (ValueError, RecursionError) as error:
            raise bad(f"{name}.function.arguments", arguments, "JSON") from error
    if not isinstance(arguments, dict):
        raise bad(f"{name}.function.arguments", arguments, "an object, as JSON")
    return call | {"function": function | {"arguments": arguments}}  # type: ignore[no-any-return]


def _text_of(name: str, content: str | list[Any]) -> str:
    """Return a message's text; parts become lines: a template may print a list as Python."""
    if isinstance(content, str):
        return content
    texts = [
        one["text"]
        for one in content
        if isinstance(one, dict) and one == {"type": "text", "text": one.get("text")}
        if isinstance(one["text"], str)
    ]
    if len(texts) < len(content) or not content:
        wanted = "one of texts: a content is a text, or parts of type text"
        raise bad(f"{name}.content", content, wanted)
    return "\n".join(texts)


def _prompts(given: Any) -> list[operations_pb2.Prompt]:
    """Return prompts from a text, token ids, or a list of either."""
    is_one = isinstance(given, list) and given and not isinstance(given[0], str | list)
    if isinstance(given, str) or is_one:
        given = [given]
    if not isinstance(given, list) or not given:
        raise bad("prompt", given, "a text, a list of token ids, or a list of either")
    return [
        operations_pb2.Prompt(text=one)
        if isinstance(one, str)
        else operations_pb2.Prompt(token_ids=_token_ids("prompt", one))
        for one in given
    ]


def _token_ids(name: str, given: Any) -> list[int]:
    if not isinstance(given, list) or None in given:
        raise bad(name, given, "a list of token ids")
    for one in given:
        if not is_whole(one):
            raise bad(name, one, f"a whole number from 0 to {MAX_INT}")
    return given


def _stops(given: Any) -> list[str]:
    stops = [given] if isinstance(given, str) else [] if given is None else given
    is_list = isinstance(stops, list) and len(stops) <= MAX_STOPS
    if not is_list or not all(isinstance(x, str) and 0 < len(x) <= MAX_STOP_CHARS for x in stops):
        raise bad("stop", given, f"up to {MAX_STOPS} texts of up to {MAX_STOP_CHARS} characters")
    return stops
