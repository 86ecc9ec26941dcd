"""Serving has its memory at every moment; a guest's is cut under pressure and not regrown."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from plexsvc.errors import PlexError
from plexsvc.rollout.core.lent_memory import LEASE_US, IdlePieces, MemoryBudget, Parts

TOTAL = 1000
LEAST = 40


def budget(**settings: object) -> MemoryBudget:
    return MemoryBudget(total_bytes=TOTAL, **settings)  # type: ignore[arg-type]  # as each test gives


def test_a_step_gets_what_serving_did_not_use_of_late_less_a_headroom() -> None:
    made = budget()
    made.serving_uses(300, now_us=0, least_bytes=LEAST)
    made.serving_uses(100, now_us=1, least_bytes=LEAST)
    made.step_began()
    assert made.guest_bytes == 1000 - 300 - 200
    assert made.serving_bytes == 500


def test_use_of_long_ago_is_forgotten() -> None:
    made = budget()
    made.serving_uses(700, now_us=0, least_bytes=LEAST)
    made.serving_uses(100, now_us=31_000_000, least_bytes=LEAST)
    made.serving_uses(100, now_us=62_000_000, least_bytes=LEAST)
    made.step_began()
    assert made.guest_bytes == 700


def test_under_pressure_the_budget_is_halved_once_and_stays_so_until_the_next_step() -> None:
    made = budget()
    made.step_began()
    assert made.guest_bytes == 800
    made.serving_uses(110, now_us=1, least_bytes=LEAST)
    assert (made.guest_bytes, made.cuts, made.is_frozen) == (400, 1, True)
    made.serving_uses(0, now_us=2, least_bytes=LEAST)
    assert made.guest_bytes == 400
    made.step_began()
    assert made.guest_bytes == 1000 - 110 - 200
    assert not made.is_frozen


def test_a_burst_takes_everything_if_it_needs_it() -> None:
    made = budget()
    made.step_began()
    made.serving_uses(950, now_us=1, least_bytes=LEAST)
    assert made.guest_bytes == 0
    assert made.is_short


def test_the_owners_share_bounds_the_guest() -> None:
    made = budget(share=0.1)
    made.step_began()
    assert made.guest_bytes == 100


def test_no_memory_is_no_budget() -> None:
    with pytest.raises(PlexError, match="total_bytes is 0"):
        MemoryBudget(total_bytes=0)


def test_a_lease_ends_unless_it_is_used_again() -> None:
    leases: IdlePieces[str] = IdlePieces()
    assert leases.expired(["a", "b"], now_us=0) == []
    assert leases.expired(["b"], now_us=LEASE_US - 1) == []
    assert leases.expired(["a", "b"], now_us=LEASE_US) == ["b"]


def test_guests_have_equal_parts_until_one_had_no_work_for_a_lease() -> None:
    parts = Parts(2)
    assert parts.of(800, [False, False], now_us=0) == [400, 400]
    assert parts.of(800, [True, False], now_us=1) == [800, 0]
    assert parts.of(800, [True, True], now_us=2) == [400, 400]
    assert parts.of(800, [True, False], now_us=LEASE_US + 1) == [400, 400]
    assert parts.of(800, [True, False], now_us=LEASE_US + 2) == [800, 0]
    assert parts.of(300, [False, False], now_us=9 * LEASE_US) == [300, 0], "the last one keeps it"


@given(
    st.integers(0, 10**6),
    st.lists(st.tuples(st.lists(st.booleans(), min_size=3, max_size=3), st.integers(0, LEASE_US))),
)
def test_parts_are_never_more_than_there_is_and_whoever_has_work_has_one(
    nbytes: int, course: list[tuple[list[bool], int]]
) -> None:
    parts, now_us = Parts(3), 0
    for has_work, after_us in course:
        now_us += after_us
        given_ = parts.of(nbytes, has_work, now_us=now_us)
        assert nbytes - 3 < sum(given_) <= nbytes
        assert len(set(given_) - {0}) <= 1, "they are equal"
        assert all(
            part >= nbytes // 3 for part, works in zip(given_, has_work, strict=True) if works
        )


class Budgets(RuleBasedStateMachine):
    """Any course of use, steps and reclaims."""

    @initialize(share=st.floats(0.05, 1.0))
    def begin(self, share: float) -> None:
        self.made, self.now_us, self.most = budget(share=share), 0, TOTAL
        self.made.step_began()

    @rule(used=st.integers(0, TOTAL), after_us=st.integers(0, 20_000_000))
    def use(self, used: int, after_us: int) -> None:
        self.now_us += after_us
        before = self.made.guest_bytes
        self.made.serving_uses(used, now_us=self.now_us, least_bytes=LEAST)
        assert self.made.guest_bytes <= before, "between steps it never grows"
        assert self.made.guest_bytes == 0 or not self.made.is_short
        assert self.made.guest_bytes == 0 or used <= self.made.serving_bytes

    @rule()
    def step(self) -> None:
        self.made.step_began()
        assert not self.made.is_frozen

    @rule()
    def reclaim(self) -> None:
        self.made.reclaim()
        assert self.made.guest_bytes == 0

    @precondition(lambda self: hasattr(self, "made"))
    @invariant()
    def serving_and_guest_share_what_there_is(self) -> None:
        made = self.made
        assert made.serving_bytes + made.guest_bytes == TOTAL
        assert 0 <= made.guest_bytes <= made.share * TOTAL + 1


TestBudgets = Budgets.TestCase
