"""The driver of lending: the executor's policy while a serving engine has a guest.

It runs on the executor's thread before each step: it tells the cores what the engines did and have
to do, and carries out what they decide. The owner's switches come as calls between two steps.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from plexsvc.clock import Clock
from plexsvc.log import Log
from plexsvc.rollout.core.lending import Decision, Guest, Lender, Serving, Turn
from plexsvc.rollout.core.lent_memory import Leases, MemoryBudget
from plexsvc.rollout.core.step_times import Stepped
from plexsvc.rollout.engines.executor import Steppable

log = Log(__name__)

LEAST_BLOCKS: Final = 4
"""A budget of fewer blocks is of no use to a guest."""

LOOK_US: Final = 1_000_000
"""Between two looks for what was cached and not used for its lease."""

STALL_US: Final = 2_000_000
"""A guest that got no step for so long hands its samples back."""

MINUTE_US: Final = 60_000_000


class Kv(Protocol):
    """KV memory of an engine."""

    block_bytes: int

    @property
    def used_bytes(self) -> int:
        """Return what requests hold."""
        ...

    def cached(self) -> Iterable[tuple[int, object]]:
        """Return unused blocks that hold something computed."""
        ...

    def forget(self, blocks: Iterable[tuple[int, object]]) -> None:
        """Drop what is in these blocks."""
        ...

    def resident_bytes(self) -> int:
        """Return what is in memory."""
        ...


class Shared(Protocol):
    """An engine that shares its device."""

    @property
    def steppable(self) -> Steppable:
        """Return what the executor steps."""
        ...

    @property
    def kv(self) -> Kv:
        """Return its memory."""
        ...

    @property
    def version(self) -> str:
        """Return which weights it has."""
        ...

    def take_step(self) -> Stepped | None:
        """Return the step that ended since the last call."""
        ...

    def new_prompts(self) -> Sequence[int]:
        """Return lengths of new prompts."""
        ...

    def as_serving(self, *, is_short_of_memory: bool) -> Serving:
        """Return what it has to do, as one that serves."""
        ...

    def as_guest(self) -> Guest:
        """Return what it has to do, as a guest."""
        ...

    def allow(self, tokens: int) -> None:
        """Bound the tokens of its next step."""
        ...

    def limit(self, nbytes: int) -> None:
        """Bound its memory."""
        ...

    def hand_back_all(self) -> None:
        """End all its requests; their callers take them elsewhere."""
        ...


@dataclass(slots=True)
class Harvest:
    """What a guest got, since the start."""

    steps: int = 0
    guest_us: int = 0
    serving_us: int = 0
    stalls: int = 0


class Coserving:
    """Picks who steps. Called on the executor's thread alone."""

    def __init__(
        self,
        serving: Shared,
        guest: Shared,
        *,
        lender: Lender,
        budget: MemoryBudget,
        clock: Clock,
    ) -> None:
        self.lender, self.budget, self.harvest = lender, budget, Harvest()
        self._serving, self._guest, self._clock = serving, guest, clock
        self._leases: Leases[tuple[int, object]] = Leases()
        self._looked_us = 0
        self._progress_us = clock.monotonic_us()
        self.guest_us = 0
        """When the guest last stepped."""
        self._applied = -1
        self._version = guest.version
        self.reclaims_us: deque[int] = deque(maxlen=64)
        """How long it took to take everything back, each time."""
        budget.step_began()

    def __call__(self, ready: Sequence[Steppable]) -> Steppable | None:
        """Return who steps next; None where the guest may not and serving has nothing."""
        now_us = self._clock.monotonic_us()
        self._observe(now_us)
        if self._guest.version != self._version:
            self._version = self._guest.version
            self.begin_step()
        self._share_memory(now_us)
        is_short = self.budget.is_short
        serving = self._serving.as_serving(is_short_of_memory=is_short)
        guest = self._guest.as_guest()
        minute = self._clock.wall_us() // MINUTE_US % (24 * 60)
        decision = self.lender.decide(serving, guest, now_us=now_us, minute=minute)
        self._watch(decision, guest, now_us=now_us)
        return self._step_of(decision, ready)

    def lend(self) -> None:
        """Let the guest run from now on."""
        self.lender.is_lent = True
        self.begin_step()

    def reclaim(self) -> int:
        """Take time and memory back at once; return how many bytes the guest still has resident."""
        started_us = self._clock.monotonic_us()
        self.lender.is_lent = False
        self.budget.reclaim()
        self._guest.hand_back_all()
        self._apply()
        self.reclaims_us.append(self._clock.monotonic_us() - started_us)
        return self._guest.kv.resident_bytes()

    def begin_step(self) -> None:
        """Set the guest's memory anew: it has new weights, so it begins a step."""
        if self.lender.is_lent:
            self.budget.step_began()
            self._apply()

    def _observe(self, now_us: int) -> None:
        for turn, engine in ((Turn.SERVING, self._serving), (Turn.GUEST, self._guest)):
            stepped = engine.take_step()
            if stepped is None:
                continue
            took_us = now_us - stepped.started_us
            self.lender.stepped(turn, stepped.step, took_us=took_us)
            if turn is Turn.SERVING:
                self.harvest.serving_us += took_us
            else:
                self._progress_us = self.guest_us = now_us
                self.harvest.steps += 1
                self.harvest.guest_us += took_us
        for tokens in self._serving.new_prompts():
            self.lender.prompt_arrived(tokens)

    def _share_memory(self, now_us: int) -> None:
        least = LEAST_BLOCKS * self._guest.kv.block_bytes
        used = self._serving.kv.used_bytes
        self.budget.serving_uses(used, now_us=now_us, least_bytes=least)
        self._apply()
        if now_us - self._looked_us >= LOOK_US:
            self._looked_us = now_us
            kv = self._guest.kv
            kv.forget(self._leases.expired(kv.cached(), now_us=now_us))

    def _apply(self) -> None:
        """Have the engines keep to the budget: what the guest loses before serving gets it."""
        if self.budget.guest_bytes == self._applied:
            return
        self._applied = self.budget.guest_bytes
        self._guest.limit(self.budget.guest_bytes)
        self._serving.limit(self.budget.serving_bytes)

    def _watch(self, decision: Decision, guest: Guest, *, now_us: int) -> None:
        """Hand samples back that got no step for too long."""
        if decision.turn is Turn.GUEST or not guest.has_work:
            self._progress_us = now_us
        elif now_us - self._progress_us >= STALL_US:
            log.info("samples handed back", because="no slack for 2 s")
            self.harvest.stalls += 1
            self._progress_us = now_us
            self._guest.hand_back_all()

    def _step_of(self, decision: Decision, ready: Sequence[Steppable]) -> Steppable | None:
        if decision.turn is Turn.GUEST:
            self._guest.allow(decision.tokens)
            return self._guest.steppable
        return self._serving.steppable if self._serving.steppable in ready else None
