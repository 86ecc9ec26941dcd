"""The pure core of a pool of capacity that comes and goes: which deployment has which slot of it.

Theory of operation. Providers say which *slots* come, are noticed and go: spot devices, or guests
of serving engines. Deployments say how many instances they want, and what they pay for one an hour.
A free slot goes to a deployment that it suits: one that pays its price, is of its model, and is of
a tenant that it is open to. Those below their least number come first, then the one with the
fewest. One that has two more than another gives one up, and so does one above its least number to
one below it. A slot that is passed on, whose process goes on then, goes to those first that
generate, and leaves one that does not for one that does. A slot that is noticed, or closed by hand,
gets no more instances, and its instance is drained; so is one that does not suit any more, as when
its price rises. One that goes has its process ended, whatever it did. A slot on which instances do
not come up or die is left alone for a while, longer each time, so that a provider that lies costs
little.

| slot | leaves it when |
|---|---|
| free | an instance is started (starting) |
| starting | it is up (up), or failed (stopping) |
| up | it is to be drained (draining), or gone (stopping) |
| draining | it is gone (stopping) |
| stopping | its process is no more (free, or forgotten) |
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final, TypeAlias, assert_never

from plexsvc.ids import DeploymentId
from plexsvc.newest import Newest

SlotId: TypeAlias = str
"""A spot device, as NODE:INDEX; a guest of a serving engine, as serving/NAME."""

FIRST_PAUSE_US: Final = 1_000_000
MAX_PAUSE_US: Final = 60_000_000
"""How long a slot is left alone after its first failure, and at most."""

MAX_BILLS: Final = 16_384
"""Deployments whose bills are kept; the oldest go first."""
_HOUR_US: Final = 3_600_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class OfSlot:
    """What concerns a slot."""

    slot_id: SlotId


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotCame:
    """A slot may be used from now on, on these terms."""

    slot_id: SlotId
    price: float = 0.0
    """Of an instance an hour."""
    model: str = ""
    """The only model that its instance can be of; empty: any."""
    tenants: frozenset[str] = frozenset()
    """Those whose deployments may have it; none: everybody's."""
    is_passed_on: bool = False
    """Whether another deployment costs it no more than other weights."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotPriced:
    """An instance on a slot costs something else from now on."""

    slot_id: SlotId
    price: float
    """Of an instance an hour."""


class SlotNoticed(OfSlot):
    """A slot will be taken back soon, or is not to be used for now."""


class SlotClosed(OfSlot):
    """An operator closed a slot: it is not to be used until it is opened."""


class SlotOpened(OfSlot):
    """An operator opened a slot that was closed."""


class SlotGone(OfSlot):
    """A slot was taken back."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """A deployment wants so many instances; a `most` of 0: none any more."""

    deployment_id: DeploymentId
    least: int = 0
    most: int
    price: float | None = None
    """The most it pays for one an hour; None: whatever is asked."""
    model: str = ""
    tenant: str = ""

    def pays(self, price: float) -> bool:
        """Whether it takes an instance at this price."""
        return self.price is None or price <= self.price


@dataclass(frozen=True, slots=True, kw_only=True)
class Generating:
    """A deployment has begun to generate, or generates no more."""

    deployment_id: DeploymentId
    is_generating: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class OfInstance(OfSlot):
    """What became of the instance of that number."""

    number: int


class InstanceUp(OfInstance):
    """An instance was started and its manager has it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class InstanceFailed(OfInstance):
    """An instance could not be started, or broke."""

    because: str


class SlotDrained(OfInstance):
    """The samples of an instance are elsewhere."""


class InstanceStopped(OfInstance):
    """The process of an instance is no more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolTicked:
    """Time went by."""

    at_us: int


Fact: TypeAlias = SlotCame | SlotPriced | SlotNoticed | SlotGone
"""What a provider tells."""

ByHand: TypeAlias = SlotClosed | SlotOpened
"""What an operator orders."""

Outcome: TypeAlias = InstanceUp | InstanceFailed | SlotDrained | InstanceStopped
"""What became of an order."""

Event: TypeAlias = Fact | ByHand | Wanted | Generating | Outcome | PoolTicked


@dataclass(frozen=True, slots=True, kw_only=True)
class ToInstance(OfInstance):
    """What is ordered for the instance that a deployment has there."""

    deployment_id: DeploymentId


class StartInstance(ToInstance):
    """Start an instance; ends in `InstanceUp` or `InstanceFailed`."""


class DrainInstance(ToInstance):
    """Have an instance's samples go elsewhere; ends in `SlotDrained` or `InstanceFailed`."""


class StopInstance(ToInstance):
    """End the process of an instance, at once; ends in `InstanceStopped`."""


Order: TypeAlias = StartInstance | DrainInstance | StopInstance


class State(StrEnum):
    """What a slot is used for."""

    FREE = "free"
    STARTING = "starting"
    UP = "up"
    DRAINING = "draining"
    STOPPING = "stopping"


CHANGES: Final = {
    (State.FREE, State.STARTING),
    (State.STARTING, State.UP),
    (State.UP, State.DRAINING),
    (State.STARTING, State.STOPPING),
    (State.UP, State.STOPPING),
    (State.DRAINING, State.STOPPING),
    (State.STOPPING, State.FREE),
}
"""Legal changes; what is not here is a bug."""


@dataclass(slots=True)
class Slot:
    """One spot device, or guest."""

    terms: SlotCame
    """As its provider announced it, at the newest price."""
    state: State = State.FREE
    number: int = 0
    """Of its instance; every instance of the pool has another."""
    user: DeploymentId | None = None
    is_noticed: bool = False
    is_gone: bool = False
    failures: int = 0
    """In a row."""
    not_before_us: int = 0
    because: str = ""
    """Of the last failure."""

    @property
    def price(self) -> float:
        """Return what an instance costs an hour."""
        return self.terms.price

    def suits(self, want: Wanted) -> bool:
        """Whether a deployment may have it, and takes it at its price."""
        terms = self.terms
        return (
            want.pays(terms.price)
            and terms.model in {"", want.model}
            and (not terms.tenants or want.tenant in terms.tenants)
        )

    def enter(self, state: State) -> None:
        """Change the state by the table."""
        assert (self.state, state) in CHANGES, (self, state)
        self.state = state


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolBill:
    """What a deployment had of a pool, from each start of an instance to its process's end."""

    held_us: int = 0
    cost: float = 0.0
    """In the unit of the prices, which are an hour's."""

    def __add__(self, other: PoolBill) -> PoolBill:
        return PoolBill(held_us=self.held_us + other.held_us, cost=self.cost + other.cost)


class Pool:
    """Slots and the deployments that want them."""

    def __init__(self, closed: Iterable[SlotId] = ()) -> None:
        """Start without slots; `closed` are not to be used when they come."""
        self.slots: dict[SlotId, Slot] = {}
        self.wanted: dict[DeploymentId, Wanted] = {}
        self.generating: set[DeploymentId] = set()
        """Those of `wanted` that generate now."""
        self.closed = set(closed)
        """Those that an operator closed, whether they are there or not."""
        self.bills: dict[DeploymentId, PoolBill] = Newest(MAX_BILLS)
        """Of deployments that are gone, too; exact to a tick."""
        self._numbers = 0
        self._now_us = 0
        """Of the last tick; 0 before the first."""

    def handle(self, event: Event) -> list[Order]:
        """Apply an event and return the orders that follow from it."""
        ordered = self._apply(event)
        for slot_id, slot in self.slots.items():  # of another price by now, or another model
            if slot.user in self.wanted and not slot.suits(self.wanted[slot.user]):
                ordered += self._drain(slot_id, slot)
        return [*ordered, *self._assign(), *self._share()]

    def count(self, deployment_id: DeploymentId) -> int:
        """Return how many slots a deployment has that it will keep."""
        kept = (State.STARTING, State.UP)
        return sum(s.user == deployment_id and s.state in kept for s in self.slots.values())

    def why_idle(self, slot: Slot) -> str:
        """Return why a free slot is nobody's: its last failure, or the term that suits nobody."""
        wanting = [want for want in self.wanted.values() if want.most]
        if slot.because or not wanting or any(map(slot.suits, wanting)):
            return slot.because
        terms = slot.terms
        if all(terms.model not in {"", want.model} for want in wanting):
            return f"model: no deployment that wants one is of {terms.model}"
        if not any(want.pays(terms.price) for want in wanting):
            return f"price: no deployment that wants one pays {terms.price:g}"
        return "tenants: no deployment that it suits may have it"

    def _apply(self, event: Event) -> list[Order]:
        match event:
            case SlotCame():
                known = self.slots.setdefault(event.slot_id, Slot(event))
                known.terms, known.is_noticed, known.is_gone = event, False, False
                return []
            case Wanted():
                return self._want(event)
            case Generating():
                if event.is_generating and event.deployment_id in self.wanted:
                    self.generating.add(event.deployment_id)
                else:
                    self.generating.discard(event.deployment_id)
                return []
            case PoolTicked():
                self._charge(event.at_us)
                return []
            case SlotOpened():
                self.closed.discard(event.slot_id)
                return []
            case SlotClosed():
                self.closed.add(event.slot_id)
            case _:
                pass
        slot = self.slots.get(event.slot_id)
        return [] if slot is None else self._on_slot(event, slot)

    def _on_slot(  # noqa: PLR0911 - one answer an event
        self, event: SlotPriced | SlotNoticed | SlotGone | SlotClosed | Outcome, slot: Slot
    ) -> list[Order]:
        slot_id = event.slot_id
        match event:
            case SlotPriced():
                slot.terms = replace(slot.terms, price=event.price)
                return []
            case SlotNoticed():
                slot.is_noticed = True
                return self._drain(slot_id, slot)
            case SlotClosed():
                return self._drain(slot_id, slot)
            case SlotGone():
                slot.is_gone = True
                return self._leave(slot_id, slot)
            case _ if event.number != slot.number:  # of an instance that is no more
                return []
            case InstanceUp():
                if slot.state is not State.STARTING:
                    return []
                slot.enter(State.UP)
                slot.failures = 0
                return [] if self._is_open(slot_id, slot) else self._drain(slot_id, slot)
            case InstanceFailed():
                return self._fail(event, slot)
            case SlotDrained():
                return self._stop(slot_id, slot)
            case InstanceStopped():
                slot.enter(State.FREE)
                slot.user = None
                return self._leave(slot_id, slot) if slot.is_gone else []
        assert_never(event)

    def _charge(self, at_us: int) -> None:
        """Let time go by, at the newest price of what each deployment holds."""
        lasted_us = at_us - self._now_us if self._now_us else 0
        self._now_us = at_us
        for slot in self.slots.values():
            if slot.user is not None:
                used = PoolBill(held_us=lasted_us, cost=slot.price * lasted_us / _HOUR_US)
                self.bills[slot.user] = self.bills.get(slot.user, PoolBill()) + used

    def _want(self, event: Wanted) -> list[Order]:
        """Note what a deployment wants; it keeps the oldest of what it has too many of."""
        if event.most:
            self.wanted[event.deployment_id] = event
        else:
            self.wanted.pop(event.deployment_id, None)
            self.generating.discard(event.deployment_id)
        has = [(s.number, name) for name, s in self.slots.items() if s.user == event.deployment_id]
        ordered: list[Order] = []
        for _, name in sorted(has)[event.most :]:
            slot = self.slots[name]
            ordered += self._drain(name, slot) if event.most else self._stop(name, slot)
        return ordered

    def _fail(self, event: InstanceFailed, slot: Slot) -> list[Order]:
        """Leave a slot alone for a while, unless it is being taken back."""
        if slot.state is State.STOPPING:  # by our own doing
            return []
        slot.because = event.because
        if self._is_open(event.slot_id, slot) and not slot.is_gone:
            # Doubled each time; ten times are beyond the longest already.
            pause_us = min(MAX_PAUSE_US, FIRST_PAUSE_US << min(slot.failures, 10))
            slot.failures += 1
            slot.not_before_us = self._now_us + pause_us
        return self._stop(event.slot_id, slot)

    def _drain(self, slot_id: SlotId, slot: Slot) -> list[Order]:
        if slot.state is State.STARTING:  # it has nothing yet
            return self._stop(slot_id, slot)
        if slot.state is not State.UP or slot.user is None:
            return []
        slot.enter(State.DRAINING)
        return [DrainInstance(slot_id=slot_id, number=slot.number, deployment_id=slot.user)]

    def _stop(self, slot_id: SlotId, slot: Slot) -> list[Order]:
        if slot.state in {State.FREE, State.STOPPING} or slot.user is None:
            return []
        slot.enter(State.STOPPING)
        return [StopInstance(slot_id=slot_id, number=slot.number, deployment_id=slot.user)]

    def _leave(self, slot_id: SlotId, slot: Slot) -> list[Order]:
        if slot.state is State.FREE:
            del self.slots[slot_id]
            return []
        return self._stop(slot_id, slot)

    def _is_open(self, slot_id: SlotId, slot: Slot) -> bool:
        """Whether a slot may get an instance, and keep one."""
        return not slot.is_noticed and slot_id not in self.closed

    def _assign(self) -> list[Order]:
        """Give free slots, the cheapest first, to deployments that want one."""
        if not self.wanted:
            return []
        free = [
            (slot.price, name)
            for name, slot in self.slots.items()
            if slot.state is State.FREE
            and self._is_open(name, slot)
            and slot.not_before_us <= self._now_us
        ]
        counts = {one: self.count(one) for one in self.wanted} if free else {}
        started: list[Order] = []
        for _, name in sorted(free):
            slot = self.slots[name]
            takers = [
                (counts[one] >= want.least, self._is_idle(slot, one), counts[one], order, one)
                for order, (one, want) in enumerate(self.wanted.items())
                if counts[one] < want.most and slot.suits(want)
            ]
            if takers:
                slot.user = taker = min(takers)[-1]
                counts[taker] += 1
                self._numbers += 1
                slot.number = self._numbers
                slot.enter(State.STARTING)
                start = StartInstance(slot_id=name, number=slot.number, deployment_id=taker)
                started.append(start)
        return started

    def _share(self) -> list[Order]:
        """Drain one instance of a deployment that has more than its share, for another."""
        leaving = (State.DRAINING, State.STOPPING)
        if any(slot.state in leaving for slot in self.slots.values()):
            return []  # what it frees is given out first
        counts = {one: self.count(one) for one in self.wanted}
        newest = sorted(self.slots.items(), key=lambda item: -item[1].number)
        for poor in sorted(self.wanted, key=lambda one: counts[one]):
            want = self.wanted[poor]
            for slot_id, slot in newest if counts[poor] < want.most else ():
                if slot.state is not State.UP or slot.user is None or not slot.suits(want):
                    continue
                spare = counts[slot.user] - self.wanted[slot.user].least
                is_busier = self._is_idle(slot, slot.user) > self._is_idle(slot, poor)
                is_owed = counts[poor] < want.least or is_busier
                if counts[slot.user] - counts[poor] >= 2 or (is_owed and spare > 0):
                    return self._drain(slot_id, slot)
        return []

    def _is_idle(self, slot: Slot, deployment_id: DeploymentId) -> bool:
        """Whether others come first for a slot, since they generate."""
        return slot.terms.is_passed_on and deployment_id not in self.generating
