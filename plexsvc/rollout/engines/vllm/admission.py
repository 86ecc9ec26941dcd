"""Admission of requests to vLLM's core: checked, with their sampling and stop strings."""

from __future__ import annotations

from collections.abc import Sequence

from vllm import SamplingParams
from vllm.exceptions import VLLMClientError
from vllm.sampling_params import RequestOutputKind, StructuredOutputsParams
from vllm.v1.engine import EngineCoreRequest

from plexclient.wire.v1 import rollout_pb2
from plexsvc.errors import PlexError, bad_request
from plexsvc.rollout.engines import grammars
from plexsvc.rollout.engines.drawing import DRAW_ORIGIN, GENERATED
from plexsvc.rollout.engines.model_dir import ModelDir
from plexsvc.rollout.engines.stopping import StopWatcher, TokenizerDecoder
from plexsvc.rollout.engines.texts import Texts


def refused(request: rollout_pb2.InstanceRequest, problem: str) -> PlexError:
    """Return the refusal of one request."""
    return bad_request(f"request {request.request_id} refused: {problem}")


def check(request: rollout_pb2.InstanceRequest, *, model: ModelDir, max_model_len: int) -> None:
    """Check what vLLM would take and fail by.

    Raises:
        PlexError: `bad_request` for tokens that the model or its context cannot have.
    """
    prompt, sampling = request.prompt, request.sampling
    length = len(prompt.token_ids) + len(prompt.generated)
    if not prompt.token_ids:
        raise refused(request, "its prompt has no token ids")
    if length >= max_model_len:
        problem = f"prompt and generated tokens are {length}, max_model_len is {max_model_len}"
        raise refused(request, problem)
    if max((*prompt.token_ids, *prompt.generated)) >= model.vocab_size:
        raise refused(request, f"a token id is not below the vocabulary's {model.vocab_size}")
    if max((*sampling.stop_token_ids, *sampling.logit_bias), default=0) >= model.vocab_size:
        problem = f"a token of stop_token_ids or logit_bias is not below {model.vocab_size}"
        raise refused(request, problem)
    if (sampling.stop or sampling.texts) and model.tokenizer is None:
        raise refused(request, f"texts need {model.path}/tokenizer.json, which is not there")


def build(
    request: rollout_pb2.InstanceRequest, *, model: ModelDir, at_us: int
) -> EngineCoreRequest:
    """Return a checked request as vLLM has it, which came at `at_us` by the wall clock.

    Raises:
        PlexError: `bad_request` with vLLM's words.
    """
    prompt, sampling = request.prompt, request.sampling
    try:
        params = _sampling_params(
            request,
            eos=() if sampling.ignore_eos else model.eos_token_ids,
            draw_origin=len(prompt.token_ids) + len(prompt.generated) - prompt.draws_used,
        )
    except (ValueError, VLLMClientError) as error:
        raise bad_request(f"request {request.request_id} refused by vLLM: {error}") from error
    return EngineCoreRequest(
        request_id=request.request_id,
        prompt_token_ids=list(prompt.token_ids),
        mm_features=None,
        sampling_params=params,
        pooling_params=None,
        arrival_time=at_us / 1e6,
        lora_request=None,
        cache_salt=request.cache_salt or None,
        data_parallel_rank=None,
    )


def watcher(request: rollout_pb2.InstanceRequest, *, texts: Texts) -> StopWatcher:
    """Return what looks for the request's stop strings, with the tokens that it had before."""
    found = StopWatcher(
        list(request.sampling.stop),
        TokenizerDecoder(texts.tokenizer, texts.special),
        min_tokens=request.sampling.min_tokens,
    )
    found.feed(request.prompt.generated)
    return found


def _sampling_params(
    request: rollout_pb2.InstanceRequest, *, eos: Sequence[int], draw_origin: int
) -> SamplingParams:
    sampling, generated = request.sampling, list(request.prompt.generated)
    return SamplingParams(
        max_tokens=sampling.max_tokens,
        min_tokens=sampling.min_tokens,
        temperature=sampling.temperature,
        top_p=sampling.top_p or 1.0,
        top_k=max(0, sampling.top_k),
        min_p=sampling.min_p,
        repetition_penalty=sampling.repetition_penalty or 1.0,
        presence_penalty=sampling.presence_penalty,
        frequency_penalty=sampling.frequency_penalty,
        logit_bias=dict(sampling.logit_bias) or None,
        stop_token_ids=sorted({*sampling.stop_token_ids, *eos}),
        ignore_eos=True,  # end-of-sequence ids are among the stop ids, or not at all
        seed=sampling.seed,
        logprobs=sampling.top_logprobs,
        prompt_logprobs=(
            sampling.top_prompt_logprobs if sampling.prompt_logprobs and not generated else None
        ),
        structured_outputs=_structured(sampling.structured),
        detokenize=False,
        output_kind=RequestOutputKind.DELTA,
        extra_args={DRAW_ORIGIN: draw_origin, GENERATED: generated},
    )


def _structured(structured: str) -> StructuredOutputsParams | None:
    if not structured:
        return None
    kind, value = grammars.parse(structured)
    return StructuredOutputsParams(**{kind: value})
