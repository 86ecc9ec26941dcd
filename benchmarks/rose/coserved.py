"""A simulated device on which a serving engine has a guest, and who steps by which policy.

Theory of operation. One engine steps at a time, and no step is broken off. Under `lending` the
cores that run live decide: `Lender` who steps and how long, `MemoryBudget` what the guest may hold,
`IdlePieces` what it keeps. This driver does with two `SteppedEngine`s what `Coserving` does with
real ones. The others stay for comparison: `ttft-only` and `tpot-only` are `lending` that knows one
of the two objectives; under `alternate` both step by turns, under `priority` the guest steps
whenever serving has nothing to do, and both bound neither its steps nor its memory below half.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Final

import numpy as np

from benchmarks.rlboost.timeline import Timeline
from benchmarks.rose.stepped import MAX_STEP_TOKENS, Job, Planned, SteppedEngine
from benchmarks.rose.traffic import Request
from plexsvc.rollout.core.lending import Guest, Lender, Objectives, Serving, Stepper
from plexsvc.rollout.core.lent_memory import IdlePieces, MemoryBudget

POLL_US: Final = 2_000
"""Between two looks whether a guest that has to wait may step."""
LOOK_US: Final = 1_000_000
"""Between two looks for what was cached and not used for its lease."""
STALL_US: Final = 2_000_000
"""A guest that got no step for so long hands its samples back."""
LEAST_TOKENS: Final = 64
"""A budget of fewer tokens is of no use to a guest."""


class Sharing(StrEnum):
    """Who steps."""

    ALONE = "alone"
    LENDING = "lending"
    TTFT_ONLY = "ttft-only"
    TPOT_ONLY = "tpot-only"
    ALTERNATE = "alternate"
    PRIORITY = "priority"


BY_OBJECTIVE: Final = frozenset({Sharing.LENDING, Sharing.TTFT_ONLY, Sharing.TPOT_ONLY})
"""Those by the cores that run live; two of them told of one objective only (ROSE, figure 9)."""

UNBOUNDED_US: Final = 3_600_000_000
"""An objective that nobody has to keep."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Latency:
    """What requests had; in ms."""

    requests: int
    ttft_p50: float
    ttft_p99: float
    tpot_p50: float
    tpot_p99: float
    late: int
    """Requests whose first token or mean time per token missed its objective."""


@dataclass(slots=True)
class CoservedDevice:
    """One device. `told` hears of the guest's jobs that began or ended, `lost` of those it lost."""

    line: Timeline
    serving: SteppedEngine
    guest: SteppedEngine
    objectives: Objectives
    kv_bytes: tuple[int, int]
    """Of a token of the serving engine's, and of the guest's."""
    sharing: Sharing = Sharing.LENDING
    told: Callable[[Sequence[Job]], None] = lambda _: None
    lost: Callable[[Sequence[Job]], None] = lambda _: None
    serving_us: int = 0
    guest_us: int = 0
    wanted_us: int = 0
    """How long the guest had something to do."""
    idle_us: int = 0
    """Of that, serving did not step."""
    stalls: int = 0
    lender: Lender = field(init=False)
    budget: MemoryBudget = field(init=False)
    _done: list[Job] = field(default_factory=list)
    _leases: IdlePieces[int] = field(default_factory=IdlePieces)
    _is_stepping: bool = False
    _alarm: int = 0
    _last: Stepper = Stepper.NOBODY
    _looked_us: int = 0
    _progress_us: int = 0
    _noted_us: int = 0
    _had_work: bool = False

    def __post_init__(self) -> None:
        known = self.objectives
        if self.sharing is Sharing.TTFT_ONLY:
            known = replace(known, tpot_us=UNBOUNDED_US)
        elif self.sharing is Sharing.TPOT_ONLY:
            known = replace(known, ttft_us=UNBOUNDED_US)
        self.lender = Lender(objectives=known)
        total = self.serving.profile.kv_tokens * self.kv_bytes[0]
        self.budget = MemoryBudget(total_bytes=total)
        if self.sharing in {Sharing.ALTERNATE, Sharing.PRIORITY}:
            self.serving.limit(self.serving.profile.kv_tokens // 2)
            self.guest.limit(total // 2 // self.kv_bytes[1])
        self.step_began()

    # ---- what comes

    def request(self, one: Request, number: int) -> None:
        """Take a serving request that arrives now."""
        job = Job(
            number=number,
            prompt_tokens=one.prompt_tokens,
            answer_tokens=one.answer_tokens,
            arrived_us=self.line.now_us,
            known=one.prompt_tokens - one.fresh_tokens,
        )
        self.lender.prompt_arrived(one.fresh_tokens)
        self.serving.add(job)
        self.look()

    def take(self, job: Job) -> None:
        """Take a guest's job."""
        self.guest.add(job)
        self.look()

    def step_began(self) -> None:
        """Set the guest's memory anew: it has new weights."""
        self.guest.forget(list(self.guest.prefixes))
        if self.sharing in BY_OBJECTIVE:
            self.budget.step_began()
            self._apply()

    # ---- steps

    def look(self) -> None:
        """Begin a step, if the device is free and somebody may."""
        if self._is_stepping:
            return
        self._count()
        if self.sharing in BY_OBJECTIVE:
            self._share_memory()
        turn, tokens = self._decide()
        self._last = turn
        if turn is Stepper.NOBODY:
            if self._had_work:
                self._look_again()
            return
        engine = self.guest if turn is Stepper.GUEST else self.serving
        planned = engine.begin(self.line.now_us, tokens=tokens)
        self._is_stepping = True
        self.line.after(planned.took_us, lambda: self._stepped(turn, planned))

    def _look_again(self) -> None:
        self._alarm += 1
        alarm = self._alarm
        self.line.after(POLL_US, lambda: self.look() if alarm == self._alarm else None)

    def _decide(self) -> tuple[Stepper, int]:
        serves, guests = self.serving.has_work, self._had_work
        if self.sharing in BY_OBJECTIVE:
            return self._ask(guests=guests)
        by_turns = self.sharing is Sharing.ALTERNATE and self._last is Stepper.SERVING
        if guests and (not serves or by_turns):
            return Stepper.GUEST, MAX_STEP_TOKENS
        return (Stepper.SERVING, MAX_STEP_TOKENS) if serves else (Stepper.NOBODY, 0)

    def _ask(self, *, guests: bool) -> tuple[Stepper, int]:
        now_us = self.line.now_us
        serving = Serving(
            queued=self.serving.queued,
            newest_token_us=[job.newest_us for job in self.serving.decoding],
            seats=self.serving.profile.batch,
            is_short_of_memory=self.budget.is_short,
        )
        guest = Guest(has_work=guests, samples=len(self.guest.decoding))
        decision = self.lender.decide(serving, (guest,), now_us=now_us, minute=0)
        if decision.turn is Stepper.GUEST or not guests:
            self._progress_us = now_us
        elif now_us - self._progress_us >= STALL_US:
            self.stalls += 1
            self._progress_us = now_us
            self._lose(self.guest.drop_all())
        tokens = decision.tokens if decision.turn is Stepper.GUEST else MAX_STEP_TOKENS
        can_step = decision.turn is not Stepper.SERVING or self.serving.has_work
        return (decision.turn, tokens) if can_step else (Stepper.NOBODY, 0)

    def _stepped(self, turn: Stepper, planned: Planned) -> None:
        self._is_stepping = False
        now_us, took_us = self.line.now_us, planned.took_us
        self.lender.stepped(turn, planned.step, took_us=took_us)
        if turn is Stepper.GUEST:
            self.guest_us += took_us
            if done := self.guest.end(planned, now_us):
                self.told(done)
        else:
            self.serving_us += took_us
            if self._had_work:
                self.idle_us -= took_us
            done = self.serving.end(planned, now_us)
            self._done += [job for job in done if job.made >= job.answer_tokens]
        self.look()

    def _count(self) -> None:
        passed_us, self._noted_us = self.line.now_us - self._noted_us, self.line.now_us
        if self._had_work:
            self.wanted_us += passed_us
            self.idle_us += passed_us
        self._had_work = self.guest.has_work or bool(self.guest.waiting)

    # ---- memory

    def _share_memory(self) -> None:
        now_us = self.line.now_us
        used = self.serving.used * self.kv_bytes[0]
        least = LEAST_TOKENS * self.kv_bytes[1]
        self.budget.serving_uses(used, now_us=now_us, least_bytes=least)
        self._apply()
        if now_us - self._looked_us >= LOOK_US:
            self._looked_us = now_us
            self.guest.forget(self._leases.expired(self.guest.prefixes, now_us=now_us))

    def _apply(self) -> None:
        room = self.budget.guest_bytes // self.kv_bytes[1]
        if room != self.guest.room:
            dropped = self.guest.limit(room)
            self.serving.limit(self.budget.serving_bytes // self.kv_bytes[0])
            self._lose(dropped)

    def _lose(self, jobs: Sequence[Job]) -> None:
        if jobs:
            self.lost(jobs)
            self._had_work = self.guest.has_work or bool(self.guest.waiting)

    # ---- what came of it

    def latency(self) -> Latency:
        """Return what the requests had that are complete."""
        return latency([self])


def latency(devices: Sequence[CoservedDevice]) -> Latency:
    """Return what the complete requests of all devices had."""
    jobs = [job for device in devices for job in device._done]
    objectives = devices[0].objectives
    ttfts = [job.first_us - job.arrived_us for job in jobs]
    tpots = [(job.newest_us - job.first_us) / max(1, job.made - 1) for job in jobs]
    late = sum(
        ttft > objectives.ttft_us or tpot > objectives.tpot_us
        for ttft, tpot in zip(ttfts, tpots, strict=True)
    )
    return Latency(
        requests=len(jobs),
        ttft_p50=_quantile(ttfts, 0.5),
        ttft_p99=_quantile(ttfts, 0.99),
        tpot_p50=_quantile(tpots, 0.5),
        tpot_p99=_quantile(tpots, 0.99),
        late=late,
    )


def _quantile(times_us: Sequence[float], share: float) -> float:
    return round(float(np.quantile(times_us, share)) / 1000, 1) if times_us else 0.0
