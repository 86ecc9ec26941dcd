"""One group at run time: grants, bursts, prefetches, and the bound on starvation."""

from __future__ import annotations

import heapq

from hypothesis import given, settings
from hypothesis import strategies as st

from plexsvc.ids import ResidentId, UnitId
from plexsvc.scheduler.core.planning.profile import Mode, Profile, Segment, SyncAt
from plexsvc.scheduler.core.planning.runtime import Decision, GroupRuntime, Run, SwitchTo
from plexsvc.scheduler.core.planning.runtime_rules import (
    HRRS,
    PLEX_RULES,
    Entry,
    Order,
    Rules,
    choose,
)

A, B, C = ResidentId("a"), ResidentId("b"), ResidentId("c")


def cycle(
    period: int = 1000, *durations: int, switch: int = 10, mode: Mode = Mode.ASYNC1
) -> Profile:
    segments, at = [], 0
    for index, duration in enumerate(durations or (50,)):
        segments.append(Segment(phase=f"p{index}", offset_us=at, duration_us=duration))
        at += duration
    return Profile(period_us=period, segments=tuple(segments), switch_us=switch, mode=mode)


def entry(name: str, *, since: int, service: int = 10, setup: int = 0) -> Entry:
    return Entry(
        resident_id=ResidentId(name),
        phase="p",
        since_us=since,
        service_us=service,
        setup_us=setup,
        burst_us=service,
        deadline_us=10**9,
        is_critical=False,
        continues_burst=False,
    )


def submit(
    group: GroupRuntime, job: ResidentId, now: int, *, starts: bool = True, us: int = 50
) -> list[Decision]:
    return group.submit(job, "p0", service_us=us, burst_us=us, starts_burst=starts, now_us=now)


def test_orders_differ_as_their_names_say() -> None:
    entries = [entry("old", since=0, service=1000), entry("short", since=90, service=5)]
    assert choose(entries, rules=Rules(order=Order.FCFS), now_us=100).resident_id == "old"
    assert choose(entries, rules=Rules(order=Order.SJF), now_us=100).resident_id == "short"
    assert choose(entries, rules=HRRS, now_us=100).resident_id == "short"


def test_hrrs_tears_a_burst_and_plex_keeps_it() -> None:
    for rules, expected in ((HRRS, [SwitchTo(B, is_prefetch=False)]), (PLEX_RULES, [Run(A)])):
        group = GroupRuntime(rules=rules)
        group.join(A, cycle(1000, 50, 50))
        group.join(B, cycle(1000, 50))
        submit(group, A, 0)
        group.switched(A, now_us=10)
        submit(group, B, 20)
        group.finished(A, now_us=60, ends_burst=False)
        decision = submit(group, A, 60, starts=False)
        assert decision == expected


def test_an_idle_group_brings_in_the_job_expected_next_and_counts_the_hit() -> None:
    group = GroupRuntime(rules=PLEX_RULES)
    group.join(A, cycle(1000))
    group.join(B, cycle(1000), expected_us=400)
    assert submit(group, A, 0) == [SwitchTo(A, is_prefetch=False)]
    assert group.switched(A, now_us=10) == [Run(A)]
    group.finished(A, now_us=60, ends_burst=True)
    assert group.next(now_us=60) == [SwitchTo(B, is_prefetch=True)]
    assert group.switched(B, now_us=70) == []
    assert submit(group, B, 400) == [Run(B)]
    assert (group.counts.prefetch_hits, group.counts.prefetch_wasted) == (1, 0)


def test_a_prefetch_for_the_wrong_job_is_counted_as_wasted() -> None:
    group = GroupRuntime(rules=PLEX_RULES)
    group.join(A, cycle(1000), expected_us=900)
    group.join(B, cycle(1000), expected_us=400)
    assert group.next(now_us=0) == [SwitchTo(B, is_prefetch=True)]
    group.switched(B, now_us=10)
    assert submit(group, A, 20) == [SwitchTo(A, is_prefetch=False)]
    assert (group.counts.prefetch_hits, group.counts.prefetch_wasted) == (0, 1)


def test_a_critical_operation_goes_before_one_with_slack() -> None:
    boundary = Profile(
        period_us=1000,
        segments=(Segment(phase="sync", offset_us=0, duration_us=10),),
        mode=Mode.ASYNC1,
        sync_at=SyncAt.BOUNDARY,
        switch_us=10,
    )
    group = GroupRuntime(rules=PLEX_RULES)
    group.join(A, cycle(1000))
    group.join(B, cycle(1000))
    group.join(C, boundary)
    submit(group, A, 0)
    group.switched(A, now_us=10)
    submit(group, B, 20)
    group.submit(C, "sync", service_us=10, burst_us=10, starts_burst=True, now_us=55)
    group.finished(A, now_us=60, ends_burst=True)
    assert group.next(now_us=60) == [SwitchTo(C, is_prefetch=False)]


def test_a_job_that_leaves_frees_the_devices_for_who_waits() -> None:
    group = GroupRuntime(rules=PLEX_RULES)
    group.join(A, cycle(1000))
    group.join(B, cycle(1000))
    submit(group, A, 0)
    group.switched(A, now_us=10)
    submit(group, B, 20)
    group.finished(A, now_us=60, ends_burst=True)
    group.leave(A)
    assert group.next(now_us=60) == [SwitchTo(B, is_prefetch=False)]
    assert group.switched(B, now_us=70) == [Run(B)]


def test_a_paused_job_runs_only_while_no_other_waits_and_is_not_brought_in_ahead() -> None:
    group = GroupRuntime(rules=PLEX_RULES)
    group.join(A, cycle(1000))
    group.join(B, cycle(1000))
    group.pause(A, is_paused=True)
    assert submit(group, A, 0) == [SwitchTo(A, is_prefetch=False)]
    assert group.switched(A, now_us=10) == [Run(A)]
    submit(group, B, 55)
    group.finished(A, now_us=60, ends_burst=False)
    assert submit(group, A, 60, starts=False) == [SwitchTo(B, is_prefetch=False)]
    assert group.switched(B, now_us=10_000) == [Run(B)]
    group.finished(B, now_us=10_050, ends_burst=True)
    group.pause(A, is_paused=False)
    submit(group, B, 10_051)
    assert group.members[A].is_switching


LEFT, RIGHT = frozenset({UnitId("n0")}), frozenset({UnitId("n1")})


def test_jobs_that_share_no_node_run_side_by_side_and_a_wide_one_gets_both_nodes_next() -> None:
    group = GroupRuntime(rules=PLEX_RULES)
    group.join(A, cycle(1000, switch=0), units=LEFT)
    group.join(B, cycle(1000, switch=0), units=RIGHT)
    group.join(C, cycle(1000, switch=0), units=LEFT | RIGHT)
    assert submit(group, A, 0) == [Run(A)]
    assert submit(group, B, 10) == [Run(B)]
    assert submit(group, C, 20) == []
    group.finished(A, now_us=50, ends_burst=True)
    assert submit(group, A, 51) == [], "the wide job is next and has the left unit kept for it"
    group.finished(B, now_us=60, ends_burst=True)
    assert group.next(now_us=60) == [Run(C)]
    group.finished(C, now_us=110, ends_burst=True)
    assert group.next(now_us=110) == [Run(A)]


def test_each_side_of_a_group_prefetches_for_itself() -> None:
    group = GroupRuntime(rules=PLEX_RULES)
    group.join(A, cycle(1000), units=LEFT, expected_us=100)
    group.join(B, cycle(1000), units=RIGHT, expected_us=200)
    group.join(C, cycle(1000), units=LEFT | RIGHT, expected_us=900)
    expected = [SwitchTo(A, is_prefetch=True), SwitchTo(B, is_prefetch=True)]
    assert group.next(now_us=0) == expected
    group.switched(A, now_us=10)
    group.switched(B, now_us=10)
    assert submit(group, C, 20) == [SwitchTo(C, is_prefetch=False)]
    assert group.counts.prefetch_wasted == 2


def test_a_job_goes_on_in_a_part_that_split_off() -> None:
    group, part = GroupRuntime(rules=PLEX_RULES), GroupRuntime(rules=PLEX_RULES)
    group.join(A, cycle(1000), units=LEFT)
    group.join(B, cycle(1000), units=RIGHT)
    submit(group, A, 0)
    group.switched(A, now_us=10)
    group.hand_over(A, to=part)
    part.finished(A, now_us=60, ends_burst=True)
    assert submit(part, A, 100) == [Run(A)]
    assert submit(group, B, 100) == [SwitchTo(B, is_prefetch=False)]


@settings(max_examples=150, deadline=None)
@given(
    st.lists(
        st.tuples(st.integers(1, 40), st.integers(0, 400), st.integers(1, 4)),
        min_size=2,
        max_size=5,
    ),
    st.integers(0, 30),
)
def test_no_operation_waits_longer_than_the_stated_bound(
    jobs: list[tuple[int, int, int]], switch: int
) -> None:
    """W <= 2*starve_factor*S' + what runs + one operation with its switch of every other job."""
    group = GroupRuntime(rules=PLEX_RULES)
    heap: list[tuple[int, int, str, int]] = []
    for at, (service, gap, ops) in enumerate(jobs):
        mode = Mode.SYNC if at % 2 else Mode.ASYNC1
        profile = cycle(max(service * ops + gap, 1), *[service] * ops, switch=switch, mode=mode)
        group.join(ResidentId(str(at)), profile)
        heap.append((gap, at, "submit", 0))
    heapq.heapify(heap)
    since: dict[int, int] = {}
    steps: dict[int, int] = {}
    slowest = max(service for service, _, _ in jobs) + switch
    for _ in range(300):
        now, at, kind, step = heapq.heappop(heap)
        service, gap, ops = jobs[at]
        decisions: list[Decision] = []
        if kind == "submit":
            since[at], steps[at] = now, step
            decisions = group.submit(
                ResidentId(str(at)),
                "p",
                service_us=service,
                burst_us=service * (ops - step),
                starts_burst=step == 0,
                now_us=now,
            )
        elif kind == "end":
            group.finished(ResidentId(str(at)), now_us=now, ends_burst=step + 1 == ops)
            next_step = (step + 1) % ops
            heapq.heappush(heap, (now + (gap if next_step == 0 else 0), at, "submit", next_step))
            if not (heap[0][0] == now and heap[0][2] == "submit"):
                decisions = group.next(now_us=now)
        else:
            decisions = group.switched(ResidentId(str(at)), now_us=now)
        for decision in decisions:
            match decision:
                case Run(resident_id=resident_id):
                    runner = int(resident_id)
                    waited = now - since[runner]
                    own = jobs[runner][0] + switch
                    assert waited <= 2 * PLEX_RULES.starve_factor * own + (len(jobs) + 1) * slowest
                    heapq.heappush(heap, (now + jobs[runner][0], runner, "end", steps[runner]))
                case SwitchTo(resident_id=resident_id):
                    heapq.heappush(heap, (now + switch, int(resident_id), "switched", 0))
