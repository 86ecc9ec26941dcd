"""Grammars in vLLM's core: its guidance backend, whose compiler bounds every step by itself.

A sample that comes with tokens of its answer has its grammar advanced by them. One whose grammar
cannot go on ends with an error, where vLLM would let its text end in the middle.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import vllm.v1.engine.core as vllm_core
from vllm.v1.structured_output.backend_guidance import GuidanceBackend, GuidanceGrammar

from plexclient.wire.v1 import rollout_pb2
from plexsvc.rollout.engines import grammars
from plexsvc.rollout.engines.drawing import GENERATED
from plexsvc.rollout.engines.texts import Texts
from plexsvc.rollout.engines.vllm.admission import refused


class _Grammar(GuidanceGrammar):
    """A grammar that says when it cannot go on."""

    def accept_tokens(self, request_id: str, tokens: list[int]) -> bool:
        """Return whether it has advanced by tokens."""
        return not self.ll_matcher.is_error() and super().accept_tokens(request_id, tokens)


class _GrammarBackend(GuidanceBackend):
    """Compiles grammars."""

    def compile_grammar(self, *args: Any, **named: Any) -> _Grammar:
        """Return a grammar."""
        made = super().compile_grammar(*args, **named)
        if made.ll_matcher.is_error():
            raise ValueError(made.ll_matcher.get_error())
        return _Grammar(made.ll_matcher, made.ll_tokenizer, made.vocab_size)


class Guide:
    """Grammars of one core."""

    def __init__(self, core: vllm_core.EngineCore, texts: Texts) -> None:
        self._manager, self._texts = core.structured_output_manager, texts
        self._ready = asyncio.Lock()

    async def check(self, requests: Sequence[rollout_pb2.InstanceRequest]) -> None:
        """Check the grammars of requests, and get ready for them.

        Raises:
            PlexError: `bad_request`, with what a grammar lacks.
        """
        for structured, request in {one.sampling.structured: one for one in requests}.items():
            if structured:
                async with self._ready:
                    await self._check(request)

    async def _check(self, request: rollout_pb2.InstanceRequest) -> None:
        sampling = request.sampling
        if sampling.ignore_eos or sampling.min_tokens:
            problem = "structured_outputs end by themselves: without ignore_eos and min_tokens"
            raise refused(request, problem)
        if problem := await asyncio.to_thread(grammars.problem, sampling.structured):
            raise refused(request, f"structured_outputs: {problem}")
        if self._manager.backend is not None:
            return
        self._manager.backend = await asyncio.to_thread(self._backend, request)
        self._create = self._manager._create_grammar
        self._manager._create_grammar = self._advanced
        # What was checked compiles in no time, and there is no thread for it.
        self._manager._use_async_grammar_compilation = False

    def _backend(self, request: rollout_pb2.InstanceRequest) -> _GrammarBackend:
        tokenizer = self._texts.template
        if tokenizer.eos_token_id not in self._texts.model.eos_token_ids:
            problem = f"{tokenizer.eos_token_id}, its tokenizer's end token, ends no answer"
            raise refused(request, f"structured_outputs do not work with this model: {problem}")
        config = self._manager.vllm_config
        size = config.model_config.get_vocab_size()
        try:
            return _GrammarBackend(config, tokenizer=tokenizer, vocab_size=size)
        except ValueError as error:
            problem = f"structured_outputs do not work with this model's tokenizer: {error}"
            raise refused(request, problem) from error

    def _advanced(self, request: Any) -> Any:
        grammar = self._create(request)
        had = request.sampling_params.extra_args[GENERATED]
        if had and not grammar.accept_tokens(request.request_id, had):
            raise ValueError("the tokens that the sample came with do not match its grammar")
        return grammar
