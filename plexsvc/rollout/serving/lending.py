"""The driver of lending: the executor's policy while a serving engine has guests.

It runs on the executor's thread before each step: it tells the cores what the engines did and have
to do, and carries out what they decide. The owner's switches come as calls between two steps.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from plexsvc.clock import Clock
from plexsvc.log import Log
from plexsvc.rollout.core.lending import Decision, Guest, Lender, Stepper
from plexsvc.rollout.core.lent_memory import IdlePieces, MemoryBudget, Parts
from plexsvc.rollout.engines.executor import Steppable

if TYPE_CHECKING:
    from plexsvc.rollout.engines.vllm.shared import SharedCore

log = Log(__name__)

LEAST_BLOCKS: Final = 4
"""A budget of fewer blocks is of no use to a guest."""

LOOK_US: Final = 1_000_000
"""Between two looks for what was cached and not used for its lease."""

STALL_US: Final = 2_000_000
"""A guest that got no step for so long hands its samples back."""

MINUTE_US: Final = 60_000_000


@dataclass(slots=True)
class Harvest:
    """What a guest got, since the start."""

    steps: int = 0
    guest_us: int = 0
    stalls: int = 0


@dataclass(slots=True)
class LentTo:
    """A guest as the policy follows it."""

    engine: SharedCore
    version: str
    progress_us: int
    """When it last stepped, or had nothing to do."""
    part_bytes: int = -1
    """What it was told that it may hold."""
    harvest: Harvest = field(default_factory=Harvest)
    leases: IdlePieces[tuple[int, object]] = field(default_factory=IdlePieces)


class Coserving:
    """Picks who steps. Called on the executor's thread alone."""

    def __init__(
        self,
        serving: SharedCore,
        guests: Sequence[SharedCore],
        *,
        lender: Lender,
        budget: MemoryBudget,
        clock: Clock,
    ) -> None:
        """Take a lender with a record for each of the guests."""
        self.lender, self.budget = lender, budget
        self._serving, self._clock = serving, clock
        now_us = clock.monotonic_us()
        self.guests = [LentTo(one, one.version, progress_us=now_us) for one in guests]
        self._parts = Parts(len(guests))
        self._looked_us = 0
        self.serving_us = 0
        """The time of serving's steps."""
        self.guest_us = 0
        """When a guest last stepped."""
        self.reclaims_us: deque[int] = deque(maxlen=64)
        """How long it took to take everything back, each time."""
        budget.step_began()

    def __call__(self, ready: Sequence[Steppable]) -> Steppable | None:
        """Return who steps next; None where no guest may and serving has nothing."""
        now_us = self._clock.monotonic_us()
        self._observe(now_us)
        if any(one.engine.version != one.version for one in self.guests):
            for one in self.guests:
                one.version = one.engine.version
            self.begin_step()
        guests = [one.engine.as_guest() for one in self.guests]
        self._share_memory(guests, now_us)
        serving = self._serving.as_serving(is_short_of_memory=self.budget.is_short)
        minute = self._clock.wall_us() // MINUTE_US % (24 * 60)
        decision = self.lender.decide(serving, guests, now_us=now_us, minute=minute)
        self._watch(decision, guests, now_us=now_us)
        if decision.turn is Stepper.GUEST:
            chosen = self.guests[decision.guest].engine
            chosen.allow(decision.tokens)
            return chosen.steppable
        return self._serving.steppable if self._serving.steppable in ready else None

    def lend(self) -> None:
        """Let the guests run from now on."""
        self.lender.is_lent = True
        self.begin_step()

    def reclaim(self) -> int:
        """Take time and memory back at once; return how many bytes guests still have resident."""
        started_us = self._clock.monotonic_us()
        self.lender.is_lent = False
        self.budget.reclaim()
        for one in self.guests:
            one.engine.hand_back_all()
        self._apply([one.engine.as_guest() for one in self.guests], started_us)
        self.reclaims_us.append(self._clock.monotonic_us() - started_us)
        return sum(one.engine.kv.resident_bytes() for one in self.guests)

    def begin_step(self) -> None:
        """Set the guests' memory anew: one has new weights, so it begins a step."""
        if self.lender.is_lent:
            self.budget.step_began()
            guests = [one.engine.as_guest() for one in self.guests]
            self._apply(guests, self._clock.monotonic_us())

    def _observe(self, now_us: int) -> None:
        if (stepped := self._serving.take_step()) is not None:
            took_us = now_us - stepped.started_us
            self.lender.stepped(Stepper.SERVING, stepped.step, took_us=took_us)
            self.serving_us += took_us
        for place, one in enumerate(self.guests):
            if (stepped := one.engine.take_step()) is None:
                continue
            took_us = now_us - stepped.started_us
            self.lender.stepped(Stepper.GUEST, stepped.step, took_us=took_us, guest=place)
            one.progress_us = self.guest_us = now_us
            one.harvest.steps += 1
            one.harvest.guest_us += took_us
        for tokens in self._serving.new_prompts():
            self.lender.prompt_arrived(tokens)

    def _share_memory(self, guests: Sequence[Guest], now_us: int) -> None:
        block_bytes = max(one.engine.kv.block_bytes for one in self.guests)
        least = LEAST_BLOCKS * block_bytes * self._parts.holders
        used = self._serving.kv.used_bytes
        self.budget.serving_uses(used, now_us=now_us, least_bytes=least)
        self._apply(guests, now_us)
        if now_us - self._looked_us >= LOOK_US:
            self._looked_us = now_us
            for one in self.guests:
                kv = one.engine.kv
                kv.forget(one.leases.expired(kv.cached(), now_us=now_us))

    def _apply(self, guests: Sequence[Guest], now_us: int) -> None:
        """Have the engines keep to the budget: what one loses, it loses before others get it."""
        parts = self._parts.of(
            self.budget.guest_bytes, [one.has_work for one in guests], now_us=now_us
        )
        changed = [
            (one, part)
            for one, part in zip(self.guests, parts, strict=True)
            if part != one.part_bytes
        ]
        for one, part in sorted(changed, key=lambda pair: pair[1] - pair[0].part_bytes):
            one.part_bytes = part
            one.engine.limit(part)
        if changed:
            self._serving.limit(self.budget.serving_bytes)

    def _watch(self, decision: Decision, guests: Sequence[Guest], *, now_us: int) -> None:
        """Hand samples back that got no step for too long."""
        stepping = self.guests[decision.guest] if decision.turn is Stepper.GUEST else None
        for one, guest in zip(self.guests, guests, strict=True):
            if one is stepping or not guest.has_work:
                one.progress_us = now_us
            elif now_us - one.progress_us >= STALL_US:
                log.info("samples handed back", because="no slack for 2 s")
                one.harvest.stalls += 1
                one.progress_us = now_us
                one.engine.hand_back_all()
