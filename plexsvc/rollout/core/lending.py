"""The core of lending: who steps next on a device where a serving engine has guests.

Theory of operation. One engine steps at a time, and a step cannot be broken off. The serving
engine goes first; a guest, which samples for RL jobs, is stepped when that cannot cost a serving
request its objective:

- *TTFT* slack of a request is `objective - (now - arrival) - T_prefill(its prompt)`. While one
  waits for its first token the serving engine steps: a prefill takes its time sooner or later, so
  putting it off would gain nothing. What bounds the guest is the request that arrives as its step
  begins.
- *TPOT*: of a request that has tokens, it is `objective - (now - newest token) - T_decode(batch)`.
  Here waiting gains the device's time: tokens need not come faster than promised.

The least slack of all of them, less a part of the objectives that is kept for what nobody foresees,
is what a step of the guest may take; its tokens are bounded so that it takes no longer. Where
requests would pile up (seats or memory run short), the serving engine steps without a pause.
The owner's terms bound the guests further: lent or not, hours of the day, a share of the time.

Of several guests with work the one that had the least time goes first, and the next where its step
does not fit. A guest that comes back to work counts as having had what the others had at least, so
that nobody saves time up (start-time fair queueing).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from plexsvc.errors import PlexError, bad_request
from plexsvc.rollout.core.step_times import StepForecast, StepWork

RESERVE: Final = 0.3
"""Part of each objective that is never planned with."""

LONGEST_STEP: Final = 0.2
"""Part of the objective for first tokens that a step of the guest takes at most.

While nothing is served the guest steps all the time, and a new request waits for its step to end.
"""

LONG_PROMPT: Final = 0.95
"""Quantile of recent prompts that a request to come is taken to have."""

RECENT_PROMPTS: Final = 128

SEATS_KEPT: Final = 0.5
"""Part of the serving engine's seats beyond which it is not slowed down."""

TRIAL_TOKENS: Final = 16
"""Of the guest's steps while their times are not known: only when nothing is served."""

STALE_US: Final = 2_000_000
"""A guest that fits in nowhere for so long is tried again: its times may be better by now."""

CREDIT_US: Final = 1_000_000
"""The owner's share of time is kept over about so long."""

DAY_MIN: Final = 24 * 60


def refuse(field_name: str, problem: str) -> PlexError:
    """Return the refusal of one field of what the owner asked."""
    return bad_request(f"{field_name} {problem}", field=field_name)


@dataclass(frozen=True, slots=True, kw_only=True)
class Objectives:
    """What the serving owner promised."""

    ttft_us: int
    """Time to first token."""
    tpot_us: int
    """Time per output token after the first."""

    def __post_init__(self) -> None:
        for name in ("ttft_us", "tpot_us"):
            if getattr(self, name) <= 0:
                raise refuse(name, f"is {getattr(self, name)}; an objective is above 0")


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """On what terms the owner lends."""

    share: float = 1.0
    """Of the device's time and KV memory, at most."""
    from_min: int = 0
    to_min: int = DAY_MIN
    """Minutes of the day (UTC); a span that ends before it begins goes over midnight."""

    def __post_init__(self) -> None:
        if not 0 < self.share <= 1:
            raise refuse("share", f"is {self.share}; it is above 0 and at most 1")
        for name in ("from_min", "to_min"):
            if not 0 <= getattr(self, name) <= DAY_MIN:
                raise refuse(name, f"is {getattr(self, name)}; a day has {DAY_MIN} minutes")
        if self.from_min == self.to_min:
            raise refuse("to_min", f"equals from_min ({self.from_min}); lend for a while or not")

    def is_open(self, minute: int) -> bool:
        """Whether the guest may run at this minute of the day."""
        if self.from_min < self.to_min:
            return self.from_min <= minute < self.to_min
        return minute >= self.from_min or minute < self.to_min


@dataclass(frozen=True, slots=True, kw_only=True)
class Serving:
    """The serving engine before a step."""

    queued: int = 0
    """Requests without a token."""
    newest_token_us: Sequence[int] = ()
    """Of each request that has tokens: when its newest came."""
    seats: int = 64
    """Requests that it takes at once."""
    is_short_of_memory: bool = False

    @property
    def has_work(self) -> bool:
        """Whether a step would do anything."""
        return bool(self.queued or self.newest_token_us)


@dataclass(frozen=True, slots=True, kw_only=True)
class Guest:
    """A guest's engine before a step."""

    has_work: bool
    samples: int = 0
    """That have their prompts computed."""


class Stepper(StrEnum):
    """Who steps."""

    SERVING = "serving"
    GUEST = "guest"
    NOBODY = "nobody"


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """Who steps next; of a guest, at most how many tokens."""

    turn: Stepper
    guest: int = 0
    """Which guest, by its place among them."""
    tokens: int = 0


SERVE: Final = Decision(turn=Stepper.SERVING)
WAIT: Final = Decision(turn=Stepper.NOBODY)


@dataclass(slots=True)
class GuestRecord:
    """What is known of a guest from its steps."""

    times: StepForecast = field(default_factory=StepForecast)
    tried_us: int = 0
    """When it was last given a step."""
    had_us: float = 0.0
    """The time of its steps, raised to that of the others where it had no work."""
    had_work: bool = False


@dataclass(slots=True, kw_only=True)
class Lender:
    """Decides step by step; knows all engines' step times and the owner's terms."""

    objectives: Objectives
    terms: Terms = field(default_factory=Terms)
    max_tokens: int = 512
    """Of a step of a guest, whatever the slack."""
    is_lent: bool = True
    serving_times: StepForecast = field(default_factory=StepForecast)
    guests: Sequence[GuestRecord] = field(default_factory=lambda: (GuestRecord(),))
    """By place; one record for each guest of the device."""
    _prompts: deque[int] = field(default_factory=lambda: deque(maxlen=RECENT_PROMPTS))
    _long_prompt: int = 0
    _credit_us: float = CREDIT_US
    _credited_us: int | None = None

    def prompt_arrived(self, tokens: int) -> None:
        """Take note of a serving request."""
        self._prompts.append(tokens)
        ordered = sorted(self._prompts)
        self._long_prompt = ordered[int(LONG_PROMPT * (len(ordered) - 1))]

    def stepped(self, turn: Stepper, step: StepWork, *, took_us: int, guest: int = 0) -> None:
        """Take note of a step that ended; of guests, of which."""
        if turn is not Stepper.GUEST:
            self.serving_times.observe(step, took_us=took_us)
            return
        self._credit_us -= took_us
        self.guests[guest].had_us += took_us
        self.guests[guest].times.observe(step, took_us=took_us)

    def decide(
        self, serving: Serving, guests: Sequence[Guest], *, now_us: int, minute: int
    ) -> Decision:
        """Return who steps next; `guests` by place."""
        elapsed_us = 0 if self._credited_us is None else now_us - self._credited_us
        self._credited_us = now_us
        gained = self._credit_us + self.terms.share * elapsed_us
        self._credit_us = min(float(CREDIT_US), gained)
        waiting = self._with_work(guests)
        has_credit = self.terms.share >= 1 or self._credit_us > 0
        may_run = self.is_lent and has_credit and self.terms.is_open(minute)
        is_crowded = len(serving.newest_token_us) > SEATS_KEPT * serving.seats
        must_serve = bool(serving.queued) or is_crowded or serving.is_short_of_memory
        otherwise = SERVE if serving.has_work else WAIT
        if not waiting or not may_run or must_serve:
            return otherwise
        slack_us = self.slack_us(serving, now_us=now_us)
        if slack_us is None:
            return otherwise
        allowed_us = min(slack_us, round(LONGEST_STEP * self.objectives.ttft_us))
        may_try = not serving.has_work and allowed_us > 0
        by_time = [
            (self.guests[place].had_us, self.guests[place].tried_us, place) for place in waiting
        ]
        for _, _, place in sorted(by_time):
            record = self.guests[place]
            tokens = record.times.tokens_within(
                allowed_us, samples=guests[place].samples, most=self.max_tokens
            )
            is_unknown = record.times.foretell_us(StepWork()) is None
            is_stale = now_us - record.tried_us >= STALE_US
            if not tokens and may_try and (is_unknown or is_stale):
                tokens = TRIAL_TOKENS
            if tokens:
                record.tried_us = now_us
                return Decision(turn=Stepper.GUEST, guest=place, tokens=tokens)
        return otherwise

    def _with_work(self, guests: Sequence[Guest]) -> Mapping[int, Guest]:
        """Return the guests with work by place; those that come back have saved no time up."""
        waiting = {place: one for place, one in enumerate(guests) if one.has_work}
        stayed = [self.guests[place].had_us for place in waiting if self.guests[place].had_work]
        for place, record in enumerate(self.guests):
            if place in waiting and not record.had_work and stayed:
                record.had_us = max(record.had_us, min(stayed))
            record.had_work = place in waiting
        return waiting

    def slack_us(self, serving: Serving, *, now_us: int) -> int | None:
        """Return how long the next serving step can wait; None if its time is not known.

        The least over the requests that have tokens and one that may arrive right now.
        """
        count, ttft_us = len(serving.newest_token_us), _planned(self.objectives.ttft_us)
        arriving_us = ttft_us // 2
        if self._prompts:  # a long request that arrives now is computed with the batch there is
            step = StepWork(prompt_tokens=self._long_prompt, samples=count)
            prefill_us = self.serving_times.foretell_us(step)
            if prefill_us is None:
                return None
            arriving_us = ttft_us - prefill_us
        if not count:
            return arriving_us
        decode_us = self.serving_times.foretell_us(StepWork(samples=count))
        if decode_us is None:
            return None
        waited_us = now_us - min(serving.newest_token_us)
        return min(arriving_us, _planned(self.objectives.tpot_us) - waited_us - decode_us)


def _planned(objective_us: int) -> int:
    return round((1 - RESERVE) * objective_us)
