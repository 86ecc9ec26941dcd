"""Validation of a generate before any instance sees it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from plexclient.wire.v1 import operations_pb2
from plexsvc.errors import bad_request, payload_too_large

MIN_TEMPERATURE: Final = 0.01
"""Engines raise lower ones in silence; the trainer's logprobs would then not agree."""

MAX_BIASED: Final = 1024
"""Tokens with a bias: each is looked at in every step."""

MAX_TEMPERATURE: Final = 2.0
"""Engines refuse higher ones."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerateLimits:
    """What a deployment can do; 0 reads as unknown and is left to the instance."""

    vocab_size: int
    max_model_len: int
    max_samples: int


def check_generate(generate: operations_pb2.Generate, limits: GenerateLimits) -> None:
    """Refuse a generate that no instance of the deployment could run.

    Raises:
        PlexError: `bad_request` or `payload_too_large`.
    """
    check_sampling(generate.sampling, limits)
    count = len(generate.prompts)
    if not count:
        raise bad_request("generate has no prompts; give at least one")
    samples = count * max(1, generate.sampling.n)
    if samples > limits.max_samples:
        raise payload_too_large(
            f"{count} prompts with n={generate.sampling.n} are {samples} samples; the limit is "
            f"{limits.max_samples}; split the batch"
        )
    for index, prompt in enumerate(generate.prompts):
        _check_prompt(prompt, index=index, generate=generate, limits=limits)


def check_sampling(sampling: operations_pb2.SamplingParams, limits: GenerateLimits) -> None:
    """Refuse sampling parameters out of range.

    Raises:
        PlexError: `bad_request`, naming the parameter.
    """
    temperature, top_p = sampling.temperature, sampling.top_p
    if not sampling.max_tokens:
        raise bad_request("max_tokens is 0; ask for at least one token")
    if sampling.min_tokens > sampling.max_tokens:
        raise bad_request(
            f"min_tokens {sampling.min_tokens} exceeds max_tokens {sampling.max_tokens}"
        )
    if temperature and not MIN_TEMPERATURE <= temperature <= MAX_TEMPERATURE:
        raise bad_request(
            f"temperature is {temperature}; it is 0 (the likeliest token), or from "
            f"{MIN_TEMPERATURE} to {MAX_TEMPERATURE}"
        )
    if not 0 <= top_p <= 1:
        raise bad_request(f"top_p is {top_p}; it lies in (0, 1], and 0 reads as 1")
    if sampling.top_k < -1:
        raise bad_request(f"top_k is {sampling.top_k}; it is positive, or 0 for off")
    if any(not stop for stop in sampling.stop):
        raise bad_request("a stop string is empty; it would end every sample at once")
    check_ids(sampling.stop_token_ids, what="stop_token_ids", limits=limits)
    if len(sampling.logit_bias) > MAX_BIASED:
        raise bad_request(
            f"logit_bias has {len(sampling.logit_bias)} tokens; it may have {MAX_BIASED}"
        )
    check_ids(sampling.logit_bias, what="logit_bias", limits=limits)


def _check_prompt(
    prompt: operations_pb2.Prompt,
    *,
    index: int,
    generate: operations_pb2.Generate,
    limits: GenerateLimits,
) -> None:
    if prompt.text or prompt.chat:
        raise bad_request(
            f"prompt {index} is text; encode it with the deployment's tokenizer first"
        )
    if not prompt.token_ids:
        raise bad_request(f"prompt {index} is empty; give at least one token id")
    sampling = generate.sampling
    length = len(prompt.token_ids)
    if limits.max_model_len and length + sampling.max_tokens > limits.max_model_len:
        raise bad_request(
            f"prompt {index} has {length} tokens and max_tokens is {sampling.max_tokens}: together "
            f"{length + sampling.max_tokens}, and the deployment's max_model_len is "
            f"{limits.max_model_len}; shorten one of them"
        )
    if len(prompt.generated) >= sampling.max_tokens:
        raise bad_request(
            f"prompt {index} comes with {len(prompt.generated)} generated tokens and max_tokens is "
            f"{sampling.max_tokens}, which counts them; nothing is left to generate"
        )
    check_ids(prompt.token_ids, what=f"prompt {index}", limits=limits)
    check_ids(prompt.generated, what=f"generated tokens of prompt {index}", limits=limits)


def check_ids(ids: object, *, what: str, limits: GenerateLimits) -> None:
    """Refuse token ids outside the vocabulary.

    Raises:
        PlexError: `bad_request`.
    """
    tokens = list(ids)  # type: ignore[call-overload]  # a repeated field
    if not limits.vocab_size or not tokens or max(tokens) < limits.vocab_size:
        return
    position = next(i for i, token in enumerate(tokens) if token >= limits.vocab_size)
    raise bad_request(
        f"{what}: token id {tokens[position]} at position {position} is not below the "
        f"vocabulary's {limits.vocab_size}"
    )
