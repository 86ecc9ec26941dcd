"""Slots are shared so that whoever comes finds one, however much others want."""

from __future__ import annotations

from collections import Counter
from contextlib import ExitStack, suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from plexsvc.errors import ErrorCode, PlexError
from plexsvc.slots import Limit, Slots

CALLS = Limit(total=9, what="calls", key="router.max_calls")


def hold_all(slots: Slots, stack: ExitStack, tenant: str) -> int:
    """Hold as many as a tenant is given; return how many."""
    before = slots.taken
    with suppress(PlexError):
        while True:
            stack.enter_context(slots.hold(tenant))
    return slots.taken - before


def test_nobody_holds_more_than_is_left_free_for_others() -> None:
    slots = Slots(CALLS)
    with ExitStack() as stack:
        assert hold_all(slots, stack, "greedy") == 5
        assert hold_all(slots, stack, "late") == 2
        assert hold_all(slots, stack, "later") == 1
        assert slots.taken == 8
        with pytest.raises(PlexError, match=r"8 of 9 calls .*router\.max_calls") as refused:
            stack.enter_context(slots.hold("later"))
        assert refused.value.code is ErrorCode.QUEUE_FULL
        assert refused.value.retryable
        with slots.hold("newcomer"):
            assert hold_all(slots, stack, "another") == 0
    assert slots.taken == 0
    with ExitStack() as stack:
        assert hold_all(slots, stack, "late") == 5, "what was given back is there for anybody"


def test_a_slot_of_work_that_fails_is_given_back() -> None:
    slots = Slots(CALLS)
    with pytest.raises(ZeroDivisionError), slots.hold("a"):
        raise ZeroDivisionError
    assert slots.taken == 0


@given(st.lists(st.sampled_from("abcdef"), max_size=40), st.integers(1, 12))
def test_nobody_gets_more_than_half_and_whoever_has_none_gets_one_while_any_is_free(
    comers: list[str], total: int
) -> None:
    slots, held = Slots(Limit(total=total, what="calls", key="router.max_calls")), Counter[str]()
    with ExitStack() as stack:
        for tenant in comers:
            was_free = total - slots.taken
            try:
                stack.enter_context(slots.hold(tenant))
                held[tenant] += 1
            except PlexError:
                assert held[tenant] or not was_free
            assert held[tenant] <= (total + 1) // 2
            assert slots.taken == held.total() <= total


@given(st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 70)), max_size=40))
def test_bytes_are_shared_as_slots_are(wanted: list[tuple[str, int]]) -> None:
    limit = Limit(total=101, what="bytes of something", key="something_bytes")
    held = Counter[str]()
    for tenant, more in wanted:
        taken = held.total()
        try:
            limit.check(tenant, held=held[tenant], taken=taken, more=more)
        except PlexError:
            assert more > limit.most or taken, "nobody holds any, and it is no more than the most"
            continue
        held[tenant] += more
        assert held[tenant] <= min(limit.most, limit.total - held.total() + 1)
