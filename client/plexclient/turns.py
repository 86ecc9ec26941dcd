"""Sessions of several turns: each goes on from all before it, where their prefix is cached."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import aclosing
from typing import Unpack

from plexclient import sampling
from plexclient.background import Background
from plexclient.calls import Cancellable, call
from plexclient.checks import of_type
from plexclient.deployment import Deployment
from plexclient.errors import ErrorCode, PlexError, bad_request, unavailable
from plexclient.ids import new_operation_id
from plexclient.link import messages
from plexclient.results import check
from plexclient.retry import Retry
from plexclient.samples import Sample, TokenRecord
from plexclient.sampling import SamplingOptions
from plexclient.wire.v1 import operations_pb2


class TurnSession:
    """A trajectory in turns, made by `rollout.session()`: prompt, answer, what a tool said, answer.

    Turns go beside the order of the deployment's operations, any number of sessions at once, and
    are sampled with the weights of its last `sync` that was answered. `tokens` are all so far,
    `turns` the samples: the prompt of each is all that came before it, so they train as they are.
    """

    def __init__(self, rollout: Deployment) -> None:
        self._rollout = rollout
        self._name = secrets.token_hex(16)
        self._is_busy = False
        self.tokens: list[int] = []
        self.turns: list[Sample] = []

    @property
    def background(self) -> Background:
        """The loop its calls run on."""
        return self._rollout.background

    @call
    def generate(
        self,
        prompt: str | Sequence[int],
        *,
        text: bool | None = None,
        **options: Unpack[SamplingOptions],
    ) -> Future[Sample]:
        """Return the answer to all so far with `prompt` behind it, and keep both.

        `prompt` is a text or token ids, of which there may be none. Options are those of
        `rollout.generate`, without `n`. A turn that fails leaves the session as it was, and so does
        one that the `cancel` of its future ends.

        Raises:
            PlexError: `bad_request`, also while another turn runs; `not_found` before the first
                sync; what the service refuses.
        """
        params = sampling.to_wire(**options)
        if params.n != 1:
            raise bad_request(f"n={params.n}: a turn has one answer")
        if self._is_busy:
            raise bad_request("a turn of this session runs; await it, or open another session")
        rollout = self._rollout
        of_type("prompt", prompt, Sequence, takes="a text or a list of token ids")
        new = self._encode(prompt) if isinstance(prompt, str) else sampling.token_ids(prompt)
        (tokens,) = sampling.encode_prompts(
            [[*self.tokens, *new]], encode=self._encode, vocab_size=rollout.info.vocab_size
        )
        is_text = isinstance(prompt, str) if text is None else text
        decode = rollout.tokenizer.decode if is_text else None
        self._is_busy = True
        patience = asyncio.Timeout(None)

        async def turn() -> Sample:
            try:
                async with patience:
                    sample = await self._answer(tokens, params, decode=decode)
            except TimeoutError:
                raise PlexError(ErrorCode.CANCELLED, "the turn was cancelled") from None
            else:
                self.tokens = [*tokens, *sample.tokens]
                self.turns.append(sample)
                return sample
            finally:
                self._is_busy = False

        async def end() -> None:
            # A time that is past on every clock: the turn ends now.
            patience.reschedule(0)

        def cancel() -> None:
            self.background.start(end)

        return self.background.start(turn, future=Cancellable(cancel))

    async def _answer(
        self,
        tokens: list[int],
        params: operations_pb2.SamplingParams,
        *,
        decode: Callable[[list[int]], str] | None,
    ) -> Sample:
        session = self._rollout.job_session
        retry = session.retry(f"a turn on {self._rollout.deployment_id}")
        while True:
            record = TokenRecord([tokens], sampling=params, decode=decode)
            try:
                await self._sample(record, tokens, params, retry=retry)
            except PlexError as error:
                await retry.pause(error)
                continue
            (sample,) = record.samples()
            return sample

    def _encode(self, text: str) -> list[int]:
        return self._rollout.tokenizer.encode(text)

    async def _sample(
        self,
        record: TokenRecord,
        tokens: list[int],
        params: operations_pb2.SamplingParams,
        *,
        retry: Retry,
    ) -> None:
        """Read one attempt to its end; another begins anew, since nobody has seen its tokens."""
        rollout, session = self._rollout, self._rollout.job_session
        operation = operations_pb2.Operation(
            operation_id=new_operation_id(),
            job_id=session.job_id,
            deployment_id=rollout.deployment_id,
            generate=operations_pb2.Generate(
                prompts=[operations_pb2.Prompt(token_ids=tokens)],
                sampling=params,
                session=self._name,
            ),
        )
        timeout_s = session.options.operation_timeout_s
        stream = session.link.open_stream("Sample", operation, timeout_s=timeout_s)
        async with aclosing(messages(stream)) as frames:
            async for frame in frames:
                retry.progress()
                record.add(frame)
        if record.result is None:
            raise unavailable("the stream of a turn ended before its end")
        check(record.result)
