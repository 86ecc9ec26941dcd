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
from plexclient.errors import bad_request
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
PATTERN: Final = r"((?:(?<!\d)[-\u2212])?(?:\d+(?:\.\d+)?|\.\d+))"
_OUT_OF: Final = (
    r"(?:\s*(?:points?|stars?|marks?))?[*\s(]*"
    r"(?:/|out\s+of|of|on\s+a\s+scale\s+(?:of|from)(?:\s*\d+\s*(?:to|-|\u2013))?)[*\s]*"
)
_BEFORE: Final = re.compile(rf"([-\u2212]?\d+(?:\.\d+)?){_OUT_OF}\Z", re.IGNORECASE)
_AFTER: Final = re.compile(rf"{_OUT_OF}(\d+(?:\.\d+)?)|\s*(%)", re.IGNORECASE)
_UNSURE: Final = re.compile(
    r"(?:\d\s*(?:[-\u2013,.]|\bto\b|\bor\b|\band\b)|[-\u2212]|(?:\bnot|n't)(?:\s+an?)?|"
    r"\b(?:almost|half\s+of|nearly|out\s+of|up\s+to|at\s+(?:least|most)|"
    r"(?:less|more|lower|higher)\s+than|below|above|under|over))\s*\Z|"
    r"[A-Za-z_]\Z",
    re.IGNORECASE,
)
"""What stands before a number that is one of several, denied, or a bound."""
_OPEN: Final = re.compile(
    r"[*\s]*(?:[+?]|(?:or\s+(?:fewer|higher|less|lower|more|so)|at\s+(?:least|most)|[snrt][tdh]|x"
    r"|(?:is|was|would\s+be)(?:n't|\s+(?:not|too|wrong)))\b)",
    re.IGNORECASE,
)
"""What stands after a number that is not all that is meant."""
_NAMED_FIRST: Final = re.compile(
    r"\b(?:out\s+of|on\s+a\s+scale\s+(?:of|from)(?:\s*\d+\s*(?:to|-|\u2013))?)\s*(\d+)\s*[,:]",
    re.IGNORECASE,
)
"""A scale that is said before the mark."""
_AROUND: Final = 64
"""Characters beside a number that are looked at."""


class Judge(Protocol):
    """A rollout deployment, as judging needs it."""

    @property
    def tokenizer(self) -> object:
        """Its tokenizer, fetched at the first use."""

    def begin(
        self, prompts: Sequence[str], *, text: bool | None, options: SamplingOptions
    ) -> Generation:
        """Enter a generate into the order and start it."""


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
        if self._scale <= 0:
            _refuse("scale", f"it is {self._scale}; marks go from 0 to a scale above 0")
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
        self._begin(partial(self._read, generation, samples))

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

    def _prompt(self, sample: reward_pb2.ScoreSample) -> str:
        reference = json.loads(sample.reference or '""')
        shown = reference if isinstance(reference, str) else sample.reference
        parts = {"{text}": sample.text, "{reference}": shown}
        return re.sub(r"\{(?:text|reference)\}", lambda found: parts[found[0]], self._template)

    def _judged(self, index: int, sample: Sample, *, took_s: float) -> Score:
        said = sample.text or ""
        value, detail = rating(said, self._pattern, scale=self._scale)
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
    raise bad_request(f"{field}: {why}", field=field)


def rating(said: str, pattern: re.Pattern[str], *, scale: float) -> tuple[float, str]:
    """Return which share of the most a judge gave, or NaN and why there is none.

    The most is what it names itself (`8/10`, `95 out of 100`, `80 %`), else the scale.

    >>> rating("Score: 8 out of 10", re.compile(PATTERN), scale=10)
    (0.8, '')
    """
    if pattern.pattern == PATTERN:
        said = _NAMED_FIRST.sub(lambda one: "" if float(one[1]) == scale else one[0], said)
    marks = list(pattern.finditer(said))
    if not marks:
        return math.nan, f"the judge gave no number by {pattern.pattern!r}"
    if pattern.pattern != PATTERN:
        return _share(said, marks[-1], scale=scale, is_chosen=True)
    # A number out of the scale, or of 100, is the mark, whatever else is counted beside it. A
    # percentage may be one of something else.
    whole = [
        one
        for one in marks
        if (most := _AFTER.match(said, one.end(), one.end() + _AROUND)) is not None
        and float(most[1] or 0) in {scale, 100}
    ]
    shares = {_share(said, one, scale=scale) for one in whole or marks}
    return shares.pop() if len(shares) == 1 else (math.nan, "score: the judge gave several numbers")


def _share(
    said: str, found: re.Match[str], *, scale: float, is_chosen: bool = False
) -> tuple[float, str]:
    """Return the share of one mark; `is_chosen`: whoever wrote the pattern knows what it finds."""
    mark, most = found[1] or "", ""
    before = said[max(0, found.start(1) - _AROUND) : found.start(1)]
    after = said[found.end(1) : found.end(1) + _AROUND] if found[1] else ""
    if (over := _BEFORE.search(before)) is not None:
        mark, most, before = over[1], mark, before[: over.start()]
    elif (under := _AFTER.match(after)) is not None:
        most = under[1] or "100"
    try:
        value, limit = float(mark.replace("\u2212", "-")), float(most) if most else scale
    except ValueError:
        return math.nan, f"score: {mark!r} is no number"
    if not is_chosen and (_UNSURE.search(before) or _OPEN.match(after)):
        return math.nan, f"score: the judge gave several numbers, or denied one, before {mark}"
    if not 0 <= value <= limit or not 0 < limit < math.inf:
        return math.nan, f"score: the judge gave {mark}, which is not from 0 to {limit:g}"
    return value / limit, ""
