"""The order of operations that share devices: what each rule picks, and what the default keeps."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from plexsvc.ids import ResidentId
from plexsvc.scheduler.core.planning.runtime_rules import (
    Entry,
    Order,
    choose,
    has_starved,
)


def entry(
    name: str,
    *,
    since: int,
    service: int = 10,
    setup: int = 0,
    is_critical: bool = False,
    burst: bool = False,
) -> Entry:
    return Entry(
        resident_id=ResidentId(name),
        since_us=since,
        service_us=service,
        setup_us=setup,
        burst_us=service,
        deadline_us=10**9,
        is_critical=is_critical,
        continues_burst=burst,
    )


def first(*entries: Entry, order: Order = Order.PLEX, now: int = 100) -> str:
    return choose(entries, order=order, now_us=now).resident_id


def test_orders_differ_as_their_names_say() -> None:
    old, short = entry("old", since=0, service=1000), entry("short", since=90, service=5)
    assert first(old, short, order=Order.FCFS) == "old"
    assert first(old, short, order=Order.SJF) == "short"
    assert first(old, short, order=Order.HRRS) == "short"


def test_hrrs_tears_a_burst_and_plex_keeps_it() -> None:
    going_on, waits = entry("a", since=60, burst=True), entry("b", since=20, setup=10)
    assert first(going_on, waits, order=Order.HRRS) == "b"
    assert first(going_on, waits) == "a"


def test_a_critical_operation_goes_before_one_with_slack() -> None:
    slack, critical = entry("b", since=80), entry("c", since=90, is_critical=True)
    assert first(slack, critical) == "c"


def test_a_burst_with_slack_is_torn_for_a_critical_operation_where_switches_cost_nobody() -> None:
    kept = replace(entry("k", since=90, service=50, burst=True), has_room=True)
    waits = entry("w", since=90, setup=20, is_critical=True)
    assert first(kept, waits) == "w"
    assert first(replace(kept, has_room=False), waits) == "k", "all would be late for the switches"
    whole = replace(waits, burst_us=300)
    assert first(replace(kept, deadline_us=100 + 50 + 300), whole) == "k", "it goes on all along"


@given(
    st.lists(
        st.tuples(st.integers(0, 2000), st.integers(1, 40), st.integers(0, 40), st.booleans())
    ).filter(bool)
)
def test_of_those_that_starve_the_one_that_waited_longest_goes_first(
    facts: list[tuple[int, int, int, bool]],
) -> None:
    now = 2000
    entries = [
        entry(str(at), since=now - waited, service=service, setup=setup, burst=burst)
        for at, (waited, service, setup, burst) in enumerate(facts)
    ]
    starved = [e for e in entries if has_starved(e, now_us=now)]
    chosen = choose(entries, order=Order.PLEX, now_us=now)
    if starved:
        assert chosen.since_us == min(e.since_us for e in starved)
