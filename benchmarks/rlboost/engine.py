"""A simulated rollout engine: continuous batching, its time by a profile.

Theory of operation. All samples of a batch advance by one token a step, and a step takes
`fixed + each * batch + context * (tokens of context)`. Between two changes of the batch nothing
happens but steps, so the engine keeps the moment of its last change and computes from it how many
steps there were, and when the next sample ends. A sample is admitted while the batch and the KV
cache have room; its prefill stops the others, and costs nothing for a prompt that is cached. When
the cache overflows the latest admitted goes back and is prefilled anew later. Tokens leave the
engine when a sample begins or ends, and every `REPORT_US`: what was not sent is lost with it.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from math import ceil, sqrt
from typing import Annotated, Final, TypeAlias

from msgspec import Meta

from plexsvc.rollout.core.events import SampleKey, SampleTokens

Cost: TypeAlias = Annotated[float, Meta(ge=0, le=1e9)]

REPORT_US: Final = 2_000_000
"""Between two reports of all samples. Live engines send every 20 ms; a kill loses more here."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineProfile:
    """What an engine's steps take, and how much it holds."""

    fixed_us: Annotated[float, Meta(gt=0, le=1e9)]
    """Of a decoding step: the weights are read once."""
    each_us: Cost
    """Of a decoding step, for each sample in it."""
    context_us: Cost
    """Of a decoding step, for each token of context of its samples."""
    prefill_us: Cost
    """For each token that is prefilled."""
    kv_tokens: Annotated[int, Meta(ge=1, le=10**12)]
    """Tokens of context that the KV cache holds."""
    batch: Annotated[int, Meta(ge=1, le=1_000_000)]
    """Samples in a step."""

    def step_us(self, batch: int, context: float) -> float:
        """Return what one decoding step takes."""
        return self.fixed_us + self.each_us * batch + self.context_us * context


@dataclass(slots=True, kw_only=True)
class Task:
    """A sample in an engine."""

    call: int
    key: SampleKey
    prompt_tokens: int
    sent: int
    """Tokens that were sent, of this call or earlier ones."""
    made: int
    """Tokens that were generated."""
    length: int
    """Tokens that it will have."""
    since: int = 0
    """The engine's step at which it had `made` tokens."""


@dataclass(slots=True, kw_only=True)
class Spent:
    """What an engine did."""

    busy_us: float = 0.0
    tokens: int = 0
    prefilled: int = 0
    cached: int = 0
    """Tokens of prompts that were not prefilled, because another sample of the prompt had been."""


@dataclass(slots=True)
class Engine:
    """One engine. Times are virtual, in microseconds."""

    profile: EngineProfile
    spent: Spent = field(default_factory=Spent)
    _waiting: deque[Task] = field(default_factory=deque)
    _running: dict[SampleKey, Task] = field(default_factory=dict)
    _ends: list[tuple[int, SampleKey]] = field(default_factory=list)
    """The step at which each running sample ends; some have left meanwhile."""
    _prompts: set[int] = field(default_factory=set)
    """Prompts in the cache."""
    _steps: int = 0
    _context: int = 0
    """Tokens of context of the running samples at `_steps`."""
    _at_us: float = 0.0
    """When `_steps` were done and prefills are over."""
    _report_us: float = 0.0

    @property
    def load(self) -> int:
        """Return how many samples it has."""
        return len(self._running) + len(self._waiting)

    def start(self, tasks: Iterable[Task], *, now_us: int) -> list[SampleTokens]:
        """Take samples on; return what ended meanwhile."""
        arrived = self.advance(now_us)
        self._waiting.extend(tasks)
        self._admit(now_us)
        return arrived

    def stop(self, keys: Iterable[SampleKey], *, now_us: int) -> list[SampleTokens]:
        """Give samples up; return what ended meanwhile, and the last tokens of those."""
        arrived = self.advance(now_us)
        wanted = set(keys)
        for key in [key for key in self._running if key in wanted]:
            task = self._leave(key)
            arrived.append(_arrival(task, is_aborted=True))
        for task in [task for task in self._waiting if task.key in wanted]:
            self._waiting.remove(task)
            arrived.append(_arrival(task, is_aborted=True))
        self._admit(now_us)
        return arrived

    def kill(self) -> dict[int, list[SampleKey]]:
        """End at once; return the samples of each call that it had."""
        lost: dict[int, list[SampleKey]] = {}
        for task in [*self._running.values(), *self._waiting]:
            lost.setdefault(task.call, []).append(task.key)
        self._running.clear()
        self._waiting.clear()
        return lost

    def forget_prompts(self) -> None:
        """Drop cached prompts: the weights are others."""
        self._prompts.clear()

    def next_us(self) -> int | None:
        """Return when it has something to send, None if it has nothing to do."""
        if not self._running:
            return None
        changes_us = self._at_us + self._time_of(self._steps_left())
        return ceil(min(changes_us, max(self._report_us, self._at_us)))

    def advance(self, now_us: int) -> list[SampleTokens]:
        """Generate until now; return the tokens of what ended, or of all if a report is due."""
        self._step_until(now_us)
        arrived: list[SampleTokens] = []
        while self._running:
            self._drop_stale_ends()
            if not self._ends or self._ends[0][0] > self._steps:
                break
            arrived.append(_arrival(self._leave(self._ends[0][1]), is_last=True))
        if now_us >= self._report_us:
            arrived += self._report(now_us)
        self._admit(now_us)
        return arrived

    def report(self, now_us: int) -> list[SampleTokens]:
        """Generate until now; return the tokens of all."""
        arrived = self.advance(now_us)
        return arrived + self._report(now_us)

    def _report(self, now_us: int) -> list[SampleTokens]:
        self._report_us = now_us + REPORT_US
        grown = [self._count(task) for task in self._running.values()]
        return [_arrival(task) for task in grown if task.made > task.sent]

    # ---- steps

    def _time_of(self, steps: int) -> float:
        """Return what so many steps of the present batch take; its context grows with each."""
        batch = len(self._running)
        first_us = self.profile.step_us(batch, self._context)
        return steps * first_us + self.profile.context_us * batch * steps * (steps - 1) / 2

    def _step_until(self, now_us: int) -> None:
        passed_us = now_us - self._at_us
        if not self._running or passed_us <= 0:
            return
        batch = len(self._running)
        half = self.profile.context_us * batch / 2
        linear = self.profile.step_us(batch, self._context) - half
        root = sqrt(linear * linear + 4 * half * passed_us)
        steps = int(2 * passed_us / (linear + root) + 1e-6)  # stable where `half` is 0
        steps = min(steps, self._steps_left())
        took_us = self._time_of(steps)
        self._at_us += took_us
        self._steps += steps
        self._context += steps * batch
        self.spent.busy_us += took_us
        self.spent.tokens += steps * batch

    def _steps_left(self) -> int:
        """Return how many steps there are until a sample ends or the cache overflows."""
        self._drop_stale_ends()
        left, batch = self._ends[0][0] - self._steps, len(self._running)
        if batch == 1:
            return left
        return max(0, min(left, (self.profile.kv_tokens - self._context) // batch + 1))

    def _drop_stale_ends(self) -> None:
        while self._ends and not self._is_running(*self._ends[0]):
            heapq.heappop(self._ends)

    def _is_running(self, end: int, key: SampleKey) -> bool:
        task = self._running.get(key)
        return task is not None and task.since + task.length - task.made == end

    # ---- samples

    def _admit(self, now_us: int) -> None:
        """Move samples into the batch while there is room, the latest out while there is none."""
        self._step_until(now_us)
        while self._context > self.profile.kv_tokens and len(self._running) > 1:
            self._waiting.appendleft(self._leave(next(reversed(self._running))))
        if not self._running and self._at_us < now_us:
            self._at_us, self._report_us = float(now_us), now_us + REPORT_US
        while self._waiting and len(self._running) < self.profile.batch:
            task = self._waiting[0]
            context = task.prompt_tokens + task.made
            room = self.profile.kv_tokens * (1 - HEADROOM) - self._context
            if self._running and context > room:
                return
            self._prefill(self._waiting.popleft())

    def _prefill(self, task: Task) -> None:
        is_cached = task.key[0] in self._prompts  # another sample of it was prefilled
        fresh = task.made + (0 if is_cached else task.prompt_tokens)
        self.spent.cached += task.prompt_tokens if is_cached else 0
        self.spent.prefilled += fresh
        took_us = fresh * self.profile.prefill_us
        self.spent.busy_us += took_us
        self._at_us += took_us
        self._prompts.add(task.key[0])
        task.since = self._steps
        self._running[task.key] = task
        self._context += task.prompt_tokens + task.made
        heapq.heappush(self._ends, (self._steps + task.length - task.made, task.key))
        first_us = self.profile.step_us(len(self._running), self._context)
        self._report_us = min(self._report_us, self._at_us + first_us)

    def _leave(self, key: SampleKey) -> Task:
        """Take a sample out of the batch."""
        task = self._count(self._running.pop(key))
        self._context -= task.prompt_tokens + task.made
        return task

    def _count(self, task: Task) -> Task:
        task.made += self._steps - task.since
        task.since = self._steps
        return task


HEADROOM: Final = 0.03
"""Share of the KV cache that is kept for the samples that run when another is admitted."""


def _arrival(task: Task, *, is_last: bool = False, is_aborted: bool = False) -> SampleTokens:
    arrival = SampleTokens(task.key, task.sent, task.made - task.sent, is_last, is_aborted)
    task.sent = task.made
    return arrival
