"""Scores by a model that judges: the program `judge`, over a rollout deployment of the job.

The judge's answers are generates of its deployment, in the order of its job, so they need no way of
their own: they are retried, resumed and answered once like all others.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from contextlib import aclosing
from functools import partial
from typing import Any, Final, NoReturn, Protocol, TypedDict, Unpack

from plexclient.checks import real
from plexclient.errors import ErrorCode, PlexError
from plexclient.generation import Generation
from plexclient.samples import Sample
from plexclient.sampling import SamplingOptions
from plexclient.scores import Score
from plexclient.scoring import ScoreBatch
from plexclient.session import Session
from plexclient.wire.v1 import reward_pb2

NAME: Final = "judge"
TEMPLATE: Final = (
    "Rate the answer from 0 to 10.\n\nAnswer:\n{text}\n\nExpected:\n{reference}\n\nRating (0-10): "
)
PATTERN: Final = r"(-?\d+(?:\.\d+)?)"


class Judge(Protocol):
    """A rollout deployment, as judging needs it."""

    @property
    def tokenizer(self) -> object:
        """Its tokenizer, fetched at the first use."""
        ...

    def begin(
        self, prompts: Sequence[str], *, text: bool | None, options: SamplingOptions
    ) -> Generation:
        """Enter a generate into the order and start it."""
        ...


class JudgeSettings(TypedDict, total=False):
    """Settings of the program `judge`; what is left out takes the default named here."""

    deployment: Judge
    """The rollout deployment that judges. Required."""
    template: str
    """Its prompt, with `{text}` and, if there are references, `{reference}`: `TEMPLATE`."""
    pattern: str
    """Where its answer holds the number: group 1 of the last match; `PATTERN`."""
    scale: float
    """What the number is divided by; 10."""
    sampling: SamplingOptions
    """How it generates; 16 tokens at temperature 1 with seed 0, so that a judgement repeats."""


class JudgeBatch(ScoreBatch):
    """One batch that a model judges.

    Raises:
        PlexError: `bad_request` for a setting that is none.
    """

    def __init__(self, session: Session, settings: Mapping[str, Any], *, size: int) -> None:
        super().__init__(session, NAME, {}, size=size)
        unknown = sorted(set(settings) - JudgeSettings.__annotations__.keys())
        if unknown:
            known = ", ".join(JudgeSettings.__annotations__)
            _refuse(unknown[0], f"the judge takes no such setting; it takes {known}")
        self._take(**settings)
        self._generations: list[Generation] = []

    def _take(self, **settings: Unpack[JudgeSettings]) -> None:
        judge = settings.get("deployment")
        if judge is None or not hasattr(judge, "begin"):
            _refuse("deployment", f"it is {judge!r}; give the rollout deployment that judges")
        judge.tokenizer  # noqa: B018 - fetched here, where waiting for it blocks nobody else
        self._judge = judge
        self._template = settings.get("template", TEMPLATE)
        if "{text}" not in self._template:
            _refuse("template", f"{self._template[:80]!r} has no {{text}} to put an answer in")
        try:
            self._pattern = re.compile(settings.get("pattern", PATTERN))
        except (re.error, TypeError) as error:
            _refuse("pattern", f"{settings.get('pattern')!r} is none: {error}")
        if not self._pattern.groups:
            _refuse("pattern", f"{self._pattern.pattern!r} has no group 1 around the number")
        self._scale = real("scale", settings.get("scale", 10.0))
        if not self._scale:
            _refuse("scale", "it is 0, and numbers are divided by it")
        chosen: SamplingOptions = {"max_tokens": 16, "seed": 0}
        self._options: SamplingOptions = {**chosen, **settings.get("sampling", {})}
        if self._options.get("n", 1) != 1:
            _refuse("sampling", "n is not 1; a sample is judged once")

    def ask(self, samples: Sequence[reward_pb2.ScoreSample]) -> None:
        """Have samples judged, all in one generate."""
        if not samples:
            return
        prompts = [self._prompt(sample) for sample in samples]
        generation = self._judge.begin(prompts, text=True, options=self._options)
        self._generations.append(generation)
        self._session.background.start(partial(self._read, generation, samples))

    def announce(self) -> None:
        """Say nothing: the judge's instances are ready."""

    def leave(self) -> None:
        """End what is being generated."""
        super().leave()
        for generation in self._generations:
            generation.cancel()

    async def _read(
        self, generation: Generation, samples: Sequence[reward_pb2.ScoreSample]
    ) -> None:
        begun_s, left = self._session.clock.monotonic_s(), len(samples)
        try:
            async with aclosing(generation.deltas()) as deltas:
                async for delta in deltas:
                    if delta.sample is None:
                        continue
                    left -= 1
                    if not left:
                        self._generations.remove(generation)  # nothing is left to end
                    index = samples[delta.sample.prompt_index].index
                    took_s = self._session.clock.monotonic_s() - begun_s
                    self._done.put_nowait(self._judged(index, delta.sample, took_s=took_s))
        except PlexError as error:
            self._done.put_nowait(error)

    def _prompt(self, sample: reward_pb2.ScoreSample) -> str:
        reference = json.loads(sample.reference or '""')
        shown = reference if isinstance(reference, str) else sample.reference
        parts = {"{text}": sample.text, "{reference}": shown}
        return re.sub(r"\{(?:text|reference)\}", lambda found: parts[found[0]], self._template)

    def _judged(self, index: int, sample: Sample, *, took_s: float) -> Score:
        said = sample.text or ""
        found = [one[1] for one in self._pattern.finditer(said)]
        value, detail = math.nan, f"the judge gave no number by {self._pattern.pattern!r}"
        if found:
            try:
                value = float(found[-1]) / self._scale
                detail = "" if math.isfinite(value) else f"score: the judge gave {found[-1]}"
            except (ValueError, TypeError):
                detail = f"score: {found[-1]!r} is no number"
        is_scored = math.isfinite(value)
        return Score(
            index=index,
            value=value if is_scored else math.nan,
            verdict="scored" if is_scored else "error",
            time_s=took_s,
            queue_s=0.0,
            output=said,
            detail=detail,
        )


def open_batch(
    session: Session, program: str, settings: Mapping[str, Any], *, size: int
) -> ScoreBatch:
    """Return a new batch of a program, whoever runs it.

    Raises:
        PlexError: `bad_request`.
    """
    if program == NAME:
        return JudgeBatch(session, settings, size=size)
    return ScoreBatch(session, program, settings, size=size)


def _refuse(field: str, why: str) -> NoReturn:
    raise PlexError(ErrorCode.BAD_REQUEST, f"{field}: {why}", field=field)
