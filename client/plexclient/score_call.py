"""Scoring of samples: the call `job.score` in its forms."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Coroutine, Iterator, Mapping, Sequence
from concurrent.futures import Future
from typing import Any

from plexclient.calls import Cancellable, unowned
from plexclient.errors import bad_request
from plexclient.judging import open_batch
from plexclient.scores import Score, Scores
from plexclient.scoring import Scorable, ScoreBatch, score_sample
from plexclient.session import Session
from plexclient.wire.v1 import reward_pb2


class Scoring:
    """Scores of samples by a program: `job.score("math", samples, references=[...])`.

    `samples` are what `generate` returned with texts, or texts. `references` are one for each
    sample, as JSON can hold; what they mean is the program's (`plexctl reward list`), as are
    further settings, given as keywords. The program `judge` is a model of the job's own:
    `plexclient.judging.JudgeSettings`. A sample that takes too long gets the program's timeout
    score, and one that the program fails on is an error of that sample alone.
    """

    def __init__(self, session: Session) -> None:
        self._session = session

    def __call__(
        self,
        program: str,
        samples: Sequence[Scorable],
        *,
        references: Sequence[Any] | None = None,
        **settings: Any,
    ) -> Scores:
        """Return the scores, in the order of the samples, when all are there."""
        self._session.background.check_may_block()
        return self.submit(program, samples, references=references, **settings).result()

    def submit(
        self,
        program: str,
        samples: Sequence[Scorable],
        *,
        references: Sequence[Any] | None = None,
        **settings: Any,
    ) -> Future[Scores]:
        """Return a future of the scores at once; its `cancel` ends the scoring.

        Raises:
            PlexError: `bad_request` for samples without text or references that do not match them.
        """
        batch = self._begin(program, samples, references, settings)
        return self._session.background.start(batch.collect, future=Cancellable(batch.cancel))

    def aio(
        self,
        program: str,
        samples: Sequence[Scorable],
        *,
        references: Sequence[Any] | None = None,
        **settings: Any,
    ) -> Coroutine[Any, Any, Scores]:
        """Return a coroutine of the scores."""
        return unowned(self.submit(program, samples, references=references, **settings))

    def stream(
        self,
        program: str,
        samples: Sequence[Scorable],
        *,
        references: Sequence[Any] | None = None,
        **settings: Any,
    ) -> Iterator[Score]:
        """Return an iterator of the scores as they are done. Left early, scoring ends."""
        self._session.background.check_may_block()
        batch = self._begin(program, samples, references, settings)
        return self._session.background.pull(batch.scores())

    def stream_aio(
        self,
        program: str,
        samples: Sequence[Scorable],
        *,
        references: Sequence[Any] | None = None,
        **settings: Any,
    ) -> AsyncGenerator[Score]:
        """Return an asynchronous iterator of the scores as they are done."""
        batch = self._begin(program, samples, references, settings)
        return self._session.background.pull_aio(batch.scores())

    def _begin(
        self,
        program: str,
        samples: Sequence[Scorable],
        references: Sequence[Any] | None,
        settings: Mapping[str, Any],
    ) -> ScoreBatch:
        made = _to_wire(samples, references)
        batch = open_batch(self._session, program, settings, size=len(made))
        batch.ask(made)
        return batch


def _to_wire(
    samples: Sequence[Scorable], references: Sequence[Any] | None
) -> list[reward_pb2.ScoreSample]:
    if isinstance(samples, str) or not isinstance(samples, Sequence):
        raise bad_request(f"samples is {samples!r:.40}; score takes a list of them")
    if references is not None and len(references) != len(samples):
        raise bad_request(
            f"score got {len(references)} references for {len(samples)} samples; give one for each"
        )
    found = [None] * len(samples) if references is None else references
    return [
        score_sample(index, sample, reference)
        for index, (sample, reference) in enumerate(zip(samples, found, strict=True))
    ]
