"""Scores of samples from the reward service: `job.score("math", samples, references=[...])`."""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import (
    AsyncGenerator,
    Awaitable,
    Callable,
    Collection,
    Iterator,
    Mapping,
    Sequence,
)
from concurrent.futures import Future
from contextlib import aclosing, suppress
from functools import partial
from typing import Any, Final

from plexclient import checks
from plexclient.errors import ErrorCode, PlexError, bad_request, payload_too_large, unavailable
from plexclient.ids import new_operation_id
from plexclient.link import messages
from plexclient.samples import Sample
from plexclient.scores import Score, Scores
from plexclient.session import Session
from plexclient.wire.channels import MAX_MESSAGE_BYTES
from plexclient.wire.v1 import reward_pb2

MAX_REQUEST_SAMPLES: Final = 1024
MAX_REQUEST_BYTES: Final = 1 << 20
"""Of one request, unless a single sample is larger; a batch travels in several."""
ROOM_BYTES: Final = 64 << 10
"""Of a message, for what goes with a sample."""

Scorable = Sample | str


class ScoreBatch:
    """One batch that is being scored. A sample is asked for again until its answer is read."""

    def __init__(
        self, session: Session, program: str, settings: Mapping[str, Any], *, size: int
    ) -> None:
        session.check_open()
        self._session = session
        self._program = program
        self._settings = _json("settings", dict(settings))
        self._batch_id = new_operation_id()
        self._size = size
        self._done: asyncio.Queue[Score | BaseException] = asyncio.Queue()
        self._calls: set[Any] = set()
        self._is_left = False
        self._version = ""

    def ask(self, samples: Sequence[reward_pb2.ScoreSample]) -> None:
        """Have samples scored; the batch is whole once `size` were given.

        Raises:
            PlexError: `payload_too_large` for a sample that no message can carry.
        """
        for sample in samples:
            self._check_size(sample)
        for part in _parts(samples):
            self._begin(partial(self._ask, part))

    def _begin(self, work: Callable[[], Awaitable[None]]) -> None:
        """Have samples answered by `work`; whoever reads the scores raises what it raises."""

        def ended(done: Future[None]) -> None:
            error = done.exception()
            if error is not None:
                self._done.put_nowait(error)

        self._session.background.start(work).add_done_callback(ended)

    def announce(self) -> None:
        """Say that samples will come, so that workers are warm when the first does."""
        self._session.background.start(self._announce)

    def leave(self) -> None:
        """Ask for nothing more."""
        self._is_left = True
        for call in self._calls:
            call.cancel()

    def cancel(self) -> None:
        """Have whoever reads the scores see `cancelled`; whatever they have not read is left."""
        text = f"scoring by {self._program} was cancelled"
        self._session.background.start(partial(self._put, PlexError(ErrorCode.CANCELLED, text)))

    async def _put(self, found: PlexError) -> None:
        self._done.put_nowait(found)

    async def collect(self) -> Scores:
        """Return all scores, in order.

        Raises:
            PlexError: what the service refuses, or why it could not be reached for too long.
        """
        async with aclosing(self.scores()) as scores:
            found = [score async for score in scores]
        return Scores(sorted(found, key=lambda score: score.index))

    async def scores(self) -> AsyncGenerator[Score]:
        """Yield each score as it is done. Left early, scoring ends.

        Raises:
            PlexError: as `collect`.
        """
        try:
            for _ in range(self._size):
                found = await self._done.get()
                if isinstance(found, BaseException):
                    raise found
                yield found
        finally:
            self.leave()

    def _check_size(self, sample: reward_pb2.ScoreSample) -> None:
        nbytes, most = sample.ByteSize() + len(self._settings), MAX_MESSAGE_BYTES - ROOM_BYTES
        if nbytes > most:
            raise payload_too_large(
                f"sample {sample.index} has {nbytes} bytes with its reference and the settings; "
                f"one message carries at most {most}: shorten them"
            )

    async def _announce(self) -> None:
        with suppress(PlexError):  # a hint: what is wrong with it, the first sample is told
            async with aclosing(self._replies(())) as replies:
                async for _ in replies:
                    pass

    async def _ask(self, part: Sequence[reward_pb2.ScoreSample]) -> None:
        """Ask for the samples of one request until all are answered."""
        retry = self._session.retry(f"scoring by {self._program}")
        left = {sample.index: sample for sample in part}
        while left and not self._is_left:
            try:
                async with aclosing(self._replies(left.values())) as replies:
                    async for reply in replies:
                        retry.progress()
                        self._check_version(reply)
                        del left[reply.index]
                        self._done.put_nowait(_score(reply))
                        if not left:
                            return
            except PlexError as error:
                await retry.pause(error)

    def _check_version(self, reply: reward_pb2.ScoreReply) -> None:
        """Take the version of a tenant's own program from the first reply, and no other."""
        self._version = self._version or reply.version
        if reply.version != self._version:  # a new proxy was asked before it could be told
            raise unavailable(
                f"a score is by version {reply.version} of {self._program}, others of the batch by "
                f"{self._version}"
            )

    async def _replies(
        self, samples: Collection[reward_pb2.ScoreSample]
    ) -> AsyncGenerator[reward_pb2.ScoreReply]:
        request = reward_pb2.ScoreRequest(
            job_id=self._session.job_id,
            batch_id=self._batch_id,
            program=self._program,
            settings=self._settings,
            batch_size=self._size,
            samples=samples,
            version=self._version,
        )
        timeout_s = self._session.options.attempt_timeout_s
        call = self._session.link.open_stream("Score", request, timeout_s=timeout_s)
        self._calls.add(call)
        try:
            async with aclosing(messages(call)) as replies:
                async for reply in replies:
                    yield reply
            raise unavailable("the scores ended before the last one")
        except asyncio.CancelledError:
            # Leaving cancels the call, which looks here as if this task had been cancelled.
            if not self._is_left:
                raise
        finally:
            self._calls.discard(call)


def score_sample(index: int, sample: Scorable, reference: Any) -> reward_pb2.ScoreSample:
    """Return a sample as it is sent.

    Raises:
        PlexError: `bad_request` for one without text, or a reference that JSON cannot hold.
    """
    return reward_pb2.ScoreSample(
        index=index,
        text=_text(sample, index),
        reference="" if reference is None else _json(f"reference {index}", reference),
    )


def _text(sample: Scorable, index: int) -> str:
    text = sample.text if isinstance(sample, Sample) else sample
    if text is None:
        raise bad_request(
            f"sample {index} has no text: generate with `text=True`, or from text prompts"
        )
    return checks.text(f"sample {index}", text)


def _json(what: str, value: Any) -> str:
    try:
        return json.dumps(value, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise bad_request(f"{what} cannot be sent as JSON: {error}") from error


def _parts(samples: Sequence[reward_pb2.ScoreSample]) -> Iterator[list[reward_pb2.ScoreSample]]:
    """Cut a batch into requests that a message can hold."""
    part: list[reward_pb2.ScoreSample] = []
    nbytes = 0
    for sample in samples:
        size = sample.ByteSize()
        if part and (nbytes + size > MAX_REQUEST_BYTES or len(part) == MAX_REQUEST_SAMPLES):
            yield part
            part, nbytes = [], 0
        part.append(sample)
        nbytes += size
    if part:
        yield part


def _score(reply: reward_pb2.ScoreReply) -> Score:
    return Score(
        index=reply.index,
        value=math.nan if reply.verdict == "error" else reply.score,
        verdict=reply.verdict,
        time_s=reply.time_us / 1e6,
        queue_s=reply.queue_us / 1e6,
        output=reply.output,
        detail=reply.detail,
    )
