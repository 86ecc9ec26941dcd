"""A simulated engine that steps only when it is told to, for engines that share a device.

A step computes the next token of samples whose prompts are computed and, with what is left of its
tokens, prompts in the order in which they came. It takes `fixed + each * samples + context *
(their tokens of context) + prefill * (tokens of prompts)`. What is computed of a session's prompt
is kept until it is forgotten or its room is needed.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

from benchmarks.rlboost.engine import EngineProfile
from plexsvc.rollout.core.step_times import StepWork

MAX_STEP_TOKENS: Final = 2048
"""Of a step that nobody bounds: vLLM's default."""


@dataclass(slots=True, kw_only=True, eq=False)
class Job:
    """A request, or a turn of a trajectory, in an engine. Times are in microseconds."""

    number: int
    prompt_tokens: int
    answer_tokens: int
    session: int | None = None
    """Whose prefix it goes on from, and leaves."""
    arrived_us: int = 0
    known: int = 0
    """Tokens of the prompt that others have computed."""
    sent: int = 0
    """Tokens that whoever asked has got, with `base`."""
    base: int = 0
    """Tokens that it had before it came here."""
    left: int = 0
    """Tokens of the prompt that are not computed."""
    made: int = 0
    is_gone: bool = False
    """Whether it left the engine; a step that was begun with it does nothing for it."""
    first_us: int = 0
    newest_us: int = 0

    @property
    def context(self) -> int:
        """Return its tokens in the cache."""
        return self.prompt_tokens - self.left + self.made

    @property
    def room(self) -> int:
        """Return how many tokens it will have at most."""
        return self.prompt_tokens + self.answer_tokens


@dataclass(slots=True, kw_only=True)
class Planned:
    """A step that was begun."""

    step: StepWork
    took_us: int
    began_us: int
    decoded: list[Job]
    computed: list[tuple[Job, int]]


@dataclass(slots=True)
class SteppedEngine:
    """One engine."""

    profile: EngineProfile
    room: int = 0
    """Tokens of context that it may hold now."""
    generated: int = 0
    prefilled: int = 0
    cached: int = 0
    """Tokens of prompts that were not computed again."""
    waiting: deque[Job] = field(default_factory=deque)
    prefilling: list[Job] = field(default_factory=list)
    decoding: deque[Job] = field(default_factory=deque)
    prefixes: OrderedDict[int, int] = field(default_factory=OrderedDict)
    """Tokens kept of each session that has no job here, longest unused first."""
    held: int = 0
    """Tokens that its jobs may come to."""
    kept: int = 0
    """Tokens of `prefixes`."""

    def __post_init__(self) -> None:
        self.room = self.room or self.profile.kv_tokens

    @property
    def has_work(self) -> bool:
        """Whether a step would do anything."""
        self._admit()
        return bool(self.decoding or self.prefilling)

    @property
    def queued(self) -> int:
        """Return how many have no token yet."""
        return len(self.waiting) + len(self.prefilling)

    @property
    def used(self) -> int:
        """Return how many tokens of context its jobs have."""
        return sum(job.context for job in (*self.decoding, *self.prefilling))

    def add(self, job: Job) -> None:
        """Take a job on."""
        self.waiting.append(job)

    def limit(self, room: int) -> list[Job]:
        """Bound the cache; return the jobs that find no room any more, the newest first."""
        self.room = room
        self._evict()
        dropped: list[Job] = []
        while self.held > room:
            dropped.append(self._drop((self.prefilling or self.decoding)[-1]))
        self._evict()
        if not room:
            dropped += self.waiting
            self.waiting.clear()
        return dropped

    def drop_all(self) -> list[Job]:
        """Give all jobs up."""
        dropped = [self._drop(job) for job in [*self.prefilling, *self.decoding]] + [*self.waiting]
        self.waiting.clear()
        return dropped

    def give_up(self, job: Job) -> None:
        """Drop one job, if it is here."""
        if job in self.waiting:
            self.waiting.remove(job)
        elif job in self.prefilling or job in self.decoding:
            self._drop(job)

    def forget(self, sessions: Iterable[int]) -> None:
        """Drop what is kept of sessions."""
        for session in list(sessions):
            self.kept -= self.prefixes.pop(session, 0)

    def begin(self, now_us: int, *, tokens: int = MAX_STEP_TOKENS) -> Planned:
        """Begin a step of at most so many tokens; there is work."""
        decoded = [self.decoding[i] for i in range(min(tokens, len(self.decoding)))]
        self.decoding.rotate(-len(decoded) if len(decoded) < len(self.decoding) else 0)
        left, computed = tokens - len(decoded), []
        for job in self.prefilling:
            if left <= 0:
                break
            part = min(left, job.left)
            computed.append((job, part))
            left -= part
        prompt_tokens = sum(part for _, part in computed)
        took_us = (
            self.profile.step_us(len(decoded), sum(job.context for job in decoded))
            + self.profile.prefill_us * prompt_tokens
        )
        step = StepWork(prompt_tokens=prompt_tokens, samples=len(decoded))
        return Planned(
            step=step, took_us=round(took_us), began_us=now_us, decoded=decoded, computed=computed
        )

    def end(self, planned: Planned, now_us: int) -> list[Job]:
        """End a step; return the jobs that got a token by it and are complete, or got the first."""
        self.generated += len(planned.decoded)
        self.prefilled += planned.step.prompt_tokens
        for job, part in planned.computed:
            job.left -= part
        begun = [job for job, _ in planned.computed if not job.left and not job.is_gone]
        if begun:  # the end of a prompt gives the first token
            self.prefilling = [job for job in self.prefilling if job.left]
            self.decoding.extend(begun)
        told: list[Job] = []
        for job in (*planned.decoded, *begun):
            if job.is_gone:
                continue
            job.made += 1
            job.newest_us = now_us
            if job.made == 1:
                job.first_us = now_us
            if job.made >= job.answer_tokens:
                self._leave(job)
                told.append(job)
            elif job.made == 1:
                told.append(job)
        return told

    # ---- room

    def _admit(self) -> None:
        while self.waiting and len(self.decoding) + len(self.prefilling) < self.profile.batch:
            job = self.waiting[0]
            if self.held + job.room > self.room:
                return
            self.prefilling.append(self.waiting.popleft())
            self.held += job.room
            kept = self._take_prefix(job)
            self.cached += kept
            job.left = job.prompt_tokens - kept
            self._evict()

    def _take_prefix(self, job: Job) -> int:
        """Return how many tokens of a job's prompt need no computing; the last always does."""
        if job.session is None:
            return min(job.known, job.prompt_tokens - 1)
        kept = self.prefixes.pop(job.session, 0)
        self.kept -= kept
        return min(kept, job.prompt_tokens - 1)

    def _evict(self) -> None:
        while self.prefixes and self.held + self.kept > self.room:
            _, tokens = self.prefixes.popitem(last=False)
            self.kept -= tokens

    def _leave(self, job: Job) -> None:
        self.decoding.remove(job)
        self.held -= job.room
        if job.session is not None:
            self.prefixes[job.session] = job.context
            self.kept += job.context
            self._evict()

    def _drop(self, job: Job) -> Job:
        (self.prefilling if job in self.prefilling else self.decoding).remove(job)
        self.held -= job.room
        job.is_gone = True
        return job
