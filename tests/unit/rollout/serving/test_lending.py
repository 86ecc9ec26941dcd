"""The driver of lending: engines are told what the cores decide, and the owner's switches work."""

from __future__ import annotations

from plexsvc.rollout.core.lending import Lender, Objectives
from plexsvc.rollout.core.lent_memory import LEASE_US, MemoryBudget
from plexsvc.rollout.core.step_times import Step, Stepped
from plexsvc.rollout.serving.lending import LOOK_US, STALL_US, Coserving
from tests.fakes.fake_clock import FakeClock
from tests.fakes.fake_shared import FakeShared

TOTAL = 100_000


class Rig:
    def __init__(self) -> None:
        self.clock = FakeClock()
        self.serving, self.guest = FakeShared(), FakeShared(work=True)
        self.lending = Coserving(
            self.serving,
            self.guest,
            lender=Lender(objectives=Objectives(ttft_us=200_000, tpot_us=50_000)),
            budget=MemoryBudget(total_bytes=TOTAL),
            clock=self.clock,
        )
        for i in range(64):
            step = Step(prompt_tokens=i % 3 * 100, samples=i % 5)
            took_us = 1000 + 10 * step.prompt_tokens + 100 * step.samples
            self.lending.lender.serving_times.observe(step, took_us=took_us)
            self.lending.lender.guest_times.observe(step, took_us=took_us)

    def choose(self) -> str:
        ready = [one for one in (self.serving, self.guest) if one.work]
        chosen = self.lending(ready)
        return {id(self.serving): "serving", id(self.guest): "guest"}.get(id(chosen), "nobody")


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
    assert rig.lending.harvest.stalls == 1


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
    rig.guest.stepped = Stepped(Step(samples=4), started_us=rig.clock.monotonic)
    rig.clock.monotonic += 1500
    rig.choose()
    assert (rig.lending.harvest.steps, rig.lending.harvest.guest_us) == (1, 1500)


def test_new_weights_begin_a_step_which_has_its_memory_set_anew() -> None:
    rig = Rig()
    rig.serving.kv.used_bytes = 11_000
    rig.choose()
    assert rig.guest.limits[-1] == 40_000
    rig.guest.version = "1"
    rig.choose()
    assert rig.guest.limits[-1] == 69_000
