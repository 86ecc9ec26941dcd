"""Rollout deployments: `generate` in its forms, whole or streamed, from token ids or texts."""

from __future__ import annotations

import logging
from collections.abc import Coroutine, Iterable, Mapping, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any, Final, Unpack

from plexclient import sampling
from plexclient.calls import Cancellable, call, unowned
from plexclient.checks import of_type, whole
from plexclient.checks import text as check_text
from plexclient.deployment import Deployment
from plexclient.errors import ErrorCode, PlexError, bad_request
from plexclient.generation import AsyncStream, Generation, Stream
from plexclient.judging import open_batch
from plexclient.lane import Ticket
from plexclient.samples import Delta, Sample, Samples, TokenRecord
from plexclient.sampling import GenerateOptions, SamplingOptions
from plexclient.scoring import score_sample
from plexclient.session import Session
from plexclient.syncing import Synced
from plexclient.turns import TurnSession
from plexclient.wire.v1 import operations_pb2, service_pb2

Prompts = Iterable[str | Sequence[int]]

log = logging.getLogger("plexclient")

TURNS: Final = ("continue", "finish")
"""What turns under way do when a version comes."""


class Rollout(Synced):
    """A deployment that samples, in its order, under the weights of its last `sync`."""

    def __init__(self, info: service_pb2.Deployment, *, session: Session, cache_dir: Path) -> None:
        super().__init__(info, session=session, cache_dir=cache_dir)
        self.generate = GenerateCall(self)
        self.seeding: Deployment | None = None
        """Its engines on training devices, which serve the first part of each generate."""

    def begin(self, prompts: Prompts, *, text: bool | None, options: SamplingOptions) -> Generation:
        """Enter a generate into the order and start it.

        Raises:
            PlexError: `bad_request`, before anything is sent.
        """
        given = sampling.listed(prompts)
        params = sampling.to_wire(**options)
        tokens = sampling.encode_prompts(
            given,
            encode=self._encode,
            vocab_size=self.info.vocab_size,
        )
        is_text = any(isinstance(prompt, str) for prompt in given) if text is None else text
        record = TokenRecord(
            tokens, sampling=params, decode=self.tokenizer.decode if is_text else None
        )
        body = operations_pb2.Operation(
            generate=operations_pb2.Generate(
                prompts=[operations_pb2.Prompt(token_ids=ids) for ids in tokens],
                sampling=params,
            )
        )
        with self.job_session.order:
            ticket = self.lane.enter(body)
            if self.seeding is not None:
                self._seed(self.seeding, ticket)
            return Generation(self.lane, ticket, record=record)

    @call
    def sync(self, source: Deployment, *, turns: str = "continue") -> Future[int]:
        """Take the weights that `source` has after the operations called on it so far.

        What is called on this deployment afterwards sees them; what is called on `source` after
        that does not change them. Returns the weight version, which is the one before if nothing
        has changed the parameters of `source` since.

        Turns of sessions that are under way go on with the new weights from their next token
        (`turns="continue"`; each sample's `versions` say which token came from which), or end on
        the old ones first, while those that come wait for the new (`turns="finish"`).

        Raises:
            PlexError: `bad_request` when `source` belongs to another job or is this deployment, or
                `turns` is something else.
        """
        if turns not in TURNS:
            raise bad_request(f"{self.name}.sync(turns={turns!r}): it is one of {', '.join(TURNS)}")
        return self._take_weights(source, finishes_turns=turns == "finish")

    def session(self) -> TurnSession:
        """Return a new session of several turns."""
        return TurnSession(self)

    def _seed(self, seeding: Deployment, generate: Ticket) -> None:
        """Have training devices serve a generate for a window; without one it is only slower."""
        lane = seeding.lane
        body = operations_pb2.Operation(seed=operations_pb2.Seed())
        ticket = lane.enter(body, after=[generate.operation_id])

        async def follow() -> None:
            try:
                await generate.sent.wait()
                await lane.answer(ticket)
            except PlexError as error:
                if (
                    error.code is not ErrorCode.DEPENDENCY_FAILED
                ):  # it was over before they were free
                    log.warning("no seeding window for a generate of %s: %s", self.name, error)
            finally:
                lane.release(ticket)

        self.background.start(follow)

    def _encode(self, prompt: str) -> list[int]:
        return self.tokenizer.encode(prompt)


class GenerateCall:
    """Samples from a rollout deployment: `generate(prompts, n=8, max_tokens=512, temperature=1.0)`.

    `prompts` are lists of token ids, or texts when the model has a tokenizer. Texts in give texts
    out; `text=True` asks for them beside token ids. Options: `plexclient.sampling.SamplingOptions`.
    The first text prompt of a deployment fetches its tokenizer, which blocks in every form.
    """

    def __init__(self, rollout: Rollout) -> None:
        self._rollout = rollout

    def __call__(
        self, prompts: Prompts, *, text: bool | None = None, **options: Unpack[GenerateOptions]
    ) -> Samples:
        """Return the samples, prompt by prompt, when all have finished, and their scores are there.

        With `score="math"` each is scored when it has finished, while others are being generated.
        """
        self._rollout.background.check_may_block()
        return self.submit(prompts, text=text, **options).result()

    def submit(
        self,
        prompts: Prompts,
        *,
        text: bool | None = None,
        score: str | None = None,
        references: Sequence[Any] | None = None,
        settings: Mapping[str, Any] | None = None,
        **options: Unpack[SamplingOptions],
    ) -> Future[Samples]:
        """Return a future of the samples at once; its `cancel` ends the generate.

        Raises:
            PlexError: `bad_request`, before anything is sent.
        """
        if score is not None:
            return self._scored(prompts, score, references, settings, options)
        if references is not None or settings is not None:
            raise bad_request(
                "generate got references or settings without `score`, the program that reads them"
            )
        generation = self._rollout.begin(prompts, text=text, options=options)
        return self._rollout.background.start(
            generation.collect, future=Cancellable(generation.cancel)
        )

    def _scored(
        self,
        prompts: Prompts,
        program: str,
        references: Sequence[Any] | None,
        settings: Mapping[str, Any] | None,
        options: SamplingOptions,
    ) -> Future[Samples]:
        given = sampling.listed(prompts)
        check_text("score", program)
        of_type("settings", settings or {}, Mapping, takes="a dict of the program's settings")
        of_type("references", references or (), Sequence, takes="a list, one for each prompt")
        expected = [None] * len(given) if references is None else list(references)
        if len(expected) != len(given):
            raise bad_request(
                f"{len(expected)} references for {len(given)} prompts; give one for each"
            )
        session, n = self._rollout.job_session, whole("n", options.get("n", 1), least=1)
        batch = open_batch(session, program, settings or {}, size=n * len(given))
        generation = self._rollout.begin(given, text=True, options=options)
        batch.announce()

        def finished(sample: Sample) -> None:
            index = n * sample.prompt_index + sample.sample_index
            batch.ask([score_sample(index, sample, expected[sample.prompt_index])])

        async def both() -> Samples:
            try:
                samples = await generation.collect(finished)
                samples.scores = await batch.collect()
                return samples
            finally:
                batch.leave()

        def cancel() -> None:
            generation.cancel()
            batch.cancel()

        return session.background.start(both, future=Cancellable(cancel))

    def aio(
        self, prompts: Prompts, *, text: bool | None = None, **options: Unpack[GenerateOptions]
    ) -> Coroutine[Any, Any, Samples]:
        """Return a coroutine of the samples."""
        return unowned(self.submit(prompts, text=text, **options))

    def stream(
        self, prompts: Prompts, *, text: bool | None = None, **options: Unpack[SamplingOptions]
    ) -> Stream[Sample]:
        """Return an iterator of samples as they finish. The operation starts now."""
        self._rollout.background.check_may_block()
        generation = self._rollout.begin(prompts, text=text, options=options)
        deltas = self._rollout.background.pull(generation.deltas())
        return Stream((d.sample for d in deltas if d.sample is not None), generation)

    def stream_aio(
        self, prompts: Prompts, *, text: bool | None = None, **options: Unpack[SamplingOptions]
    ) -> AsyncStream[Sample]:
        """Return an asynchronous iterator of samples as they finish. The operation starts now."""
        generation = self._rollout.begin(prompts, text=text, options=options)
        deltas = self._rollout.background.pull_aio(generation.deltas())
        finished = (delta.sample async for delta in deltas if delta.sample is not None)
        return AsyncStream(finished, generation)

    def micro_batches(
        self,
        prompts: Prompts,
        *,
        min_samples: int,
        text: bool | None = None,
        **options: Unpack[SamplingOptions],
    ) -> Stream[Samples]:
        """Return an iterator of batches of finished samples. The operation starts now.

        A batch comes once `min_samples` have finished since the last, with whatever else has; the
        last one has what is left. Train on each while the others are generated: losses are sums
        and gradients add up until `step`, so the batches give the gradient of the whole.
        """
        self._rollout.background.check_may_block()
        least = whole("min_samples", min_samples, least=1)
        generation = self._rollout.begin(prompts, text=text, options=options)
        return Stream(
            self._rollout.background.pull(generation.batches(min_samples=least)), generation
        )

    def micro_batches_aio(
        self,
        prompts: Prompts,
        *,
        min_samples: int,
        text: bool | None = None,
        **options: Unpack[SamplingOptions],
    ) -> AsyncStream[Samples]:
        """Return an asynchronous iterator of batches of finished samples, as `micro_batches`."""
        least = whole("min_samples", min_samples, least=1)
        generation = self._rollout.begin(prompts, text=text, options=options)
        return AsyncStream(
            self._rollout.background.pull_aio(generation.batches(min_samples=least)), generation
        )

    def deltas(
        self, prompts: Prompts, *, text: bool | None = None, **options: Unpack[SamplingOptions]
    ) -> Stream[Delta]:
        """Return an iterator of new tokens as they are made. The operation starts now.

        Leaving it early does not stop the operation; `cancel` does.
        """
        self._rollout.background.check_may_block()
        generation = self._rollout.begin(prompts, text=text, options=options)
        return Stream(self._rollout.background.pull(generation.deltas()), generation)

    def deltas_aio(
        self, prompts: Prompts, *, text: bool | None = None, **options: Unpack[SamplingOptions]
    ) -> AsyncStream[Delta]:
        """Return an asynchronous iterator of new tokens. The operation starts now."""
        generation = self._rollout.begin(prompts, text=text, options=options)
        return AsyncStream(self._rollout.background.pull_aio(generation.deltas()), generation)
