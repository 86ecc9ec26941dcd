"""Sampling parameters and prompts, checked before anything is sent."""

from __future__ import annotations

import json
import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypedDict, Unpack

from plexclient.checks import of_type, real, text, whole
from plexclient.errors import bad_request
from plexclient.wire.v1 import operations_pb2


class SamplingOptions(TypedDict, total=False):
    """Keywords of `generate`; what is left out takes the default named here.

    Logprobs of samples are of the distribution they were drawn from: at `temperature`, and under
    `top_p` or `top_k` renormalised over the kept tokens. A trainer knows the first and not the
    second, so `Batch.from_samples` refuses samples of a truncated distribution.
    """

    n: int
    """Samples a prompt; 1."""
    max_tokens: int
    """Most tokens a sample generates; 256."""
    min_tokens: int
    """Fewest before a stop may end it; 0."""
    temperature: float
    """Logits are divided by it; 1.0. From 0.01 to 2, or 0, which takes the likeliest token."""
    top_p: float
    """Smallest set of likeliest tokens whose probabilities reach it; 1.0."""
    top_k: int
    """Number of likeliest tokens to draw from; 0, off."""
    min_p: float
    """Least probability of a token, as a share of the likeliest one's; 0, off."""
    repetition_penalty: float
    """Divides the logits of tokens that prompt or answer have; 1, off. From 0.01 to 100."""
    presence_penalty: float
    """Taken from the logits of tokens that the answer has; 0. From -2 to 2."""
    frequency_penalty: float
    """Taken from the logits of tokens of the answer for each time that it has them; 0."""
    logit_bias: Mapping[int, float]
    """Added to the logits of these tokens; none. From -100 to 100."""
    structured_outputs: Mapping[str, Any] | None
    """What a text matches, as in vLLM: one of `json`, `json_object`, `regex`, `choice` and
    `grammar`; none. Needs the model's tokenizer."""
    stop: str | Sequence[str]
    """Texts that end a sample; none. They stay in the returned tokens."""
    stop_token_ids: Sequence[int]
    """Tokens that end a sample, beside the model's own; none. They stay in the returned tokens."""
    seed: int | None
    """Sample i of prompt p draws from hash(seed, p, i); None lets the service choose."""
    ignore_eos: bool
    """Whether the model's end token does not end a sample; False."""
    prompt_logprobs: bool
    """Whether samples carry the logprobs of their prompt's tokens; False."""


class GenerateOptions(SamplingOptions, total=False):
    """Keywords of a `generate` that returns whole samples."""

    score: str | None
    """Program of the reward service that scores each sample as soon as it is finished; none."""
    references: Sequence[Any] | None
    """What the program compares with: one for each prompt, as JSON can hold."""
    settings: Mapping[str, Any] | None
    """Settings of the program."""


def to_wire(**options: Unpack[SamplingOptions]) -> operations_pb2.SamplingParams:
    """Return the wire form of the sampling options.

    Raises:
        PlexError: `bad_request`, naming the option that is out of range or unknown.
    """
    unknown = sorted(set(options) - set(SamplingOptions.__annotations__))
    if unknown:
        raise bad_request(
            f"generate has no option {unknown[0]!r}; it has "
            f"{', '.join(SamplingOptions.__annotations__)}"
        )
    stop, seed = options.get("stop", ()), options.get("seed")
    biases, stop_ids = options.get("logit_bias", {}), options.get("stop_token_ids", ())
    of_type("stop", stop, Iterable, takes="a text, or a list of them")
    of_type("stop_token_ids", stop_ids, Iterable, takes="a list of token ids")
    of_type("logit_bias", biases, Mapping, takes="a dict of token ids and biases")
    params = operations_pb2.SamplingParams(
        n=whole("n", options.get("n", 1), least=1),
        max_tokens=whole("max_tokens", options.get("max_tokens", 256), least=1),
        min_tokens=whole("min_tokens", options.get("min_tokens", 0), least=0),
        temperature=real("temperature", options.get("temperature", 1.0), least=0),
        top_p=real("top_p", options.get("top_p", 1.0), least=0, most=1),
        top_k=whole("top_k", _off(options.get("top_k", 0))),
        min_p=real("min_p", options.get("min_p", 0.0), least=0, most=1),
        repetition_penalty=real(
            "repetition_penalty", options.get("repetition_penalty", 1.0), least=0.01, most=100
        ),
        presence_penalty=real(
            "presence_penalty", options.get("presence_penalty", 0.0), least=-2, most=2
        ),
        frequency_penalty=real(
            "frequency_penalty", options.get("frequency_penalty", 0.0), least=-2, most=2
        ),
        logit_bias={
            whole("logit_bias", token, least=0): real("logit_bias", bias, least=-100, most=100)
            for token, bias in biases.items()
        },
        structured=_structured(options.get("structured_outputs")),
        stop_token_ids=[whole("stop_token_ids", token, least=0) for token in stop_ids],
        stop=[text("stop", one) for one in ([stop] if isinstance(stop, str) else stop)],
        ignore_eos=_switch("ignore_eos", options.get("ignore_eos", False)),
        prompt_logprobs=_switch("prompt_logprobs", options.get("prompt_logprobs", False)),
    )
    if params.min_tokens > params.max_tokens:
        raise bad_request(
            f"min_tokens={params.min_tokens} is more than max_tokens={params.max_tokens}"
        )
    if params.top_p == 0:
        raise bad_request("top_p=0: it must be in (0, 1]")
    if not all(params.stop):
        raise bad_request("stop has an empty text, which would end every sample at once")
    if seed is not None:
        params.seed = whole("seed", seed, least=0, most=2**64 - 1)
    return params


def listed(prompts: object) -> list[Any]:
    """Return prompts as a list.

    Raises:
        PlexError: `bad_request` for what is no list of them.

    >>> listed([[1, 2]])
    [[1, 2]]
    """
    if isinstance(prompts, str | bytes) or not isinstance(prompts, Iterable):
        raise bad_request(
            f"prompts is {prompts!r:.40}; generate takes a list: [prompt]", field="prompts"
        )
    return list(prompts)


def encode_prompts(
    prompts: Iterable[str | Sequence[int]],
    *,
    encode: Callable[[str], list[int]],
    vocab_size: int = 0,
) -> list[list[int]]:
    """Return every prompt as token ids; `encode` is called for texts only.

    Raises:
        PlexError: `bad_request` for no prompts, an empty one, or a token outside the vocabulary.
    """
    tokens = [
        encode(p) if isinstance(p, str) else token_ids(p, index=i)
        for i, p in enumerate(listed(prompts))
    ]
    if not tokens:
        raise bad_request("generate got no prompts; give at least one")
    for i, prompt in enumerate(tokens):
        _check_prompt(prompt, index=i, vocab_size=vocab_size)
    return tokens


def token_ids(prompt: Sequence[int], *, index: int = 0) -> list[int]:
    """Return a prompt's ids as plain integers; what is none is refused, never rounded.

    Raises:
        PlexError: `bad_request`, also for bytes, which are a text that was not decoded.
    """
    if isinstance(prompt, bytes | bytearray):
        raise bad_request(
            f"prompt {index} is {prompt!r:.40}, which are bytes; give a text (`.decode()`) or a "
            "list of token ids",
            prompt=index,
        )
    try:
        return [operator.index(token) for token in prompt]
    except TypeError as error:
        raise bad_request(
            f"prompt {index} is neither a text nor a list of token ids ({error}); give one of them",
            prompt=index,
        ) from error


def _check_prompt(prompt: Sequence[int], *, index: int, vocab_size: int) -> None:
    if not prompt:
        raise bad_request(f"prompt {index} has no tokens; every prompt needs at least one")
    most = (vocab_size or 2**31) - 1
    low, high = min(prompt), max(prompt)
    if low < 0 or high > most:
        raise bad_request(
            f"prompt {index} has token id {low if low < 0 else high}; ids of this model are in "
            f"[0, {most}]",
            prompt=index,
        )


def _switch(name: str, value: bool) -> bool:
    of_type(name, value, bool, takes="True or False")
    return value


def _off(top_k: int) -> int:
    """Return 0 for the -1 by which other libraries say that `top_k` is off."""
    return 0 if top_k == -1 else top_k


def _structured(found: Mapping[str, Any] | None) -> str:
    try:
        return "" if found is None else json.dumps(dict(found))
    except (TypeError, ValueError, RecursionError) as error:
        raise bad_request(f"structured_outputs={found!r:.80} is no JSON: {error}") from error


def is_plain(params: operations_pb2.SamplingParams) -> bool:
    """Return whether only temperature, `top_p` and `top_k` shape the distribution."""
    return not (
        params.min_p
        or params.repetition_penalty not in {0, 1}
        or params.presence_penalty
        or params.frequency_penalty
        or params.logit_bias
        or params.structured
    )
