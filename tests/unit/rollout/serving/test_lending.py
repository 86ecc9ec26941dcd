"""The driver of lending: engines are told what the cores decide, and the owner's switches work."""

from __future__ import annotations

from typing import Any, cast

from plexsvc.rollout.core.lending import GuestRecord, Lender, Objectives
from plexsvc.rollout.core.lent_memory import LEASE_US, MemoryBudget
from plexsvc.rollout.core.step_times import Stepped, StepWork
from plexsvc.rollout.serving.lending import LOOK_US, STALL_US, Coserving
from tests.fakes.fake_clock import FakeClock
from tests.fakes.fake_shared import FakeShared

TOTAL = 100_000


class Rig:
    """A serving engine and guests, of which the first has work."""

    def __init__(self, guests: int = 1) -> None:
        self.clock = FakeClock()
        self.serving, self.guests = FakeShared(), [FakeShared() for _ in range(guests)]
        self.guest = self.guests[0]
        self.guest.work = True
        self.lending = Coserving(
            cast("Any", self.serving),
            cast("Any", self.guests),
            lender=Lender(
                objectives=Objectives(ttft_us=200_000, tpot_us=50_000),
                guests=[GuestRecord() for _ in self.guests],
            ),
            budget=MemoryBudget(total_bytes=TOTAL),
            clock=self.clock,
        )
        for i in range(64):
            step = StepWork(prompt_tokens=i % 3 * 100, samples=i % 5)
            took_us = 1000 + 10 * step.prompt_tokens + 100 * step.samples
            self.lending.lender.serving_times.observe(step, took_us=took_us)
            for one in self.lending.lender.guests:
                one.times.observe(step, took_us=took_us)

    def choose(self) -> str:
        ready = [one for one in (self.serving, *self.guests) if one.work]
        chosen = self.lending(ready)
        names = {id(one): f"guest {place}" for place, one in enumerate(self.guests)}
        names |= {id(self.serving): "serving", id(self.guest): "guest"}
        return names.get(id(chosen), "nobody")


def test_the_guest_is_stepped_within_its_tokens_and_gives_way() -> None:
    rig = Rig()
    assert rig.choose() == "guest"
    assert rig.guest.tokens > 4
    rig.serving.work, rig.serving.queued = True, 1
    assert rig.choose() == "serving"


def test_memory_is_limited_as_the_core_decides() -> None:
    rig = Rig()
    rig.choose()
    assert (rig.guest.limits, rig.serving.limits) == ([80_000], [20_000])
    rig.serving.kv.used_bytes = 11_000
    rig.choose()
    assert (rig.guest.limits[-1], rig.serving.limits[-1]) == (40_000, 60_000)


def test_a_guest_without_a_step_for_too_long_hands_its_samples_back() -> None:
    rig = Rig()
    rig.serving.work = True
    for _ in range(3):
        rig.serving.queued = 1
        rig.clock.monotonic += STALL_US // 2
        assert rig.choose() == "serving"
    assert rig.guest.handed_back == 1
    assert rig.lending.guests[0].harvest.stalls == 1


def test_reclaim_takes_time_memory_and_samples_at_once_and_lend_gives_them_again() -> None:
    rig = Rig()
    rig.choose()
    assert rig.lending.reclaim() == 0
    assert rig.guest.handed_back == 1
    assert (rig.guest.limits[-1], rig.serving.limits[-1]) == (0, TOTAL)
    assert rig.choose() == "nobody"
    rig.guest.version = "1"  # a step of the guest gives nothing while nothing is lent
    assert rig.choose() == "nobody"
    assert rig.guest.limits[-1] == 0
    rig.lending.lend()
    assert rig.guest.limits[-1] == 80_000
    assert rig.choose() == "guest"


def test_unused_prompts_of_the_guest_are_dropped_at_the_end_of_their_lease() -> None:
    rig = Rig()
    rig.guest.kv.unused = [(3, "hash")]
    rig.choose()
    rig.clock.monotonic += LOOK_US
    rig.choose()
    assert rig.guest.kv.unused
    rig.clock.monotonic += LEASE_US
    rig.choose()
    assert not rig.guest.kv.unused


def test_what_was_harvested_is_counted() -> None:
    rig = Rig()
    rig.guest.stepped = Stepped(StepWork(samples=4), started_us=rig.clock.monotonic)
    rig.clock.monotonic += 1500
    rig.choose()
    harvest = rig.lending.guests[0].harvest
    assert (harvest.steps, harvest.guest_us) == (1, 1500)


def test_new_weights_begin_a_step_which_has_its_memory_set_anew() -> None:
    rig = Rig()
    rig.serving.kv.used_bytes = 11_000
    rig.choose()
    assert rig.guest.limits[-1] == 40_000
    rig.guest.version = "1"
    rig.choose()
    assert rig.guest.limits[-1] == 69_000


def test_several_guests_step_in_turn_and_share_their_memory_while_they_have_work() -> None:
    rig = Rig(guests=2)
    other = rig.guests[1]
    assert rig.choose() == "guest"
    assert (rig.guest.limits[-1], rig.serving.limits[-1]) == (80_000, 20_000)
    other.work = True
    rig.guest.stepped = Stepped(StepWork(samples=4), started_us=rig.clock.monotonic)
    rig.clock.monotonic += 1500
    assert rig.choose() == "guest 1"
    assert other.tokens > 4
    assert (rig.guest.limits[-1], other.limits[-1]) == (40_000, 40_000)
    assert rig.serving.limits[-1] == 20_000, "between them nothing is taken from serving"
    rig.guest.work = False
    rig.clock.monotonic += LEASE_US
    assert rig.choose() == "guest 1"
    assert (rig.guest.limits[-1], other.limits[-1]) == (0, 80_000)


def test_what_one_guest_loses_it_loses_before_another_gets_it() -> None:
    rig = Rig(guests=2)
    told: list[int] = []
    for place, one in enumerate(rig.guests):
        one.limits = Told(told, place)
    rig.choose()
    rig.guests[1].work = True
    told.clear()
    rig.choose()
    assert told == [0, 1]


class Told(list[int]):
    """Limits of an engine that also note, in one list for all, whose they are."""

    def __init__(self, order: list[int], place: int) -> None:
        super().__init__()
        self._order, self._place = order, place

    def append(self, limit: int) -> None:
        self._order.append(self._place)
        super().append(limit)


def test_only_the_guest_that_got_no_step_hands_its_samples_back() -> None:
    rig = Rig(guests=2)
    rig.serving.work, rig.serving.queued = True, 1
    for _ in range(3):
        rig.clock.monotonic += STALL_US // 2
        assert rig.choose() == "serving"
    assert [one.handed_back for one in rig.guests] == [1, 0]


def test_reclaim_takes_from_all_guests() -> None:
    rig = Rig(guests=2)
    rig.guests[1].work = True
    rig.choose()
    rig.guests[1].kv.used_bytes = 700
    assert rig.lending.reclaim() == 700, "what is resident is counted over all of them"
    assert [one.handed_back for one in rig.guests] == [1, 1]
    assert [one.limits[-1] for one in rig.guests] == [0, 0]
    assert rig.serving.limits[-1] == TOTAL
    assert rig.choose() == "nobody"
