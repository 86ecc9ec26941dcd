"""From operations to cycles: learned, averaged, recognised as changed, started warm."""

from __future__ import annotations

from dataclasses import replace

import pytest

from plexsvc.ids import TenantId
from plexsvc.scheduler.core.planning.profile import Mode, Profile, Segment
from plexsvc.scheduler.core.planning.profiler import (
    CycleProfiler,
    KeptProfile,
    News,
    ProfileBook,
    ProfileKey,
)


def play(
    profiler: CycleProfiler, cycles: int, *, period: int, phases: list[str], start: int = 0
) -> tuple[list[News], int]:
    news = []
    for cycle in range(cycles):
        at = start + cycle * period
        for phase in phases:
            news.append(profiler.observe(phase, start_us=at, end_us=at + 10))
            at += 10
    return news, start + cycles * period


def test_one_full_cycle_makes_a_profile() -> None:
    profiler = CycleProfiler()
    news, _ = play(profiler, 2, period=100, phases=["fwd", "step", "sync"])
    assert news == [News.NOTHING] * 3 + [News.PROFILED] + [News.NOTHING] * 2
    profile = profiler.profile
    assert profile is not None
    assert (profile.period_us, profile.busy_us) == (100, 30)
    assert [s.phase for s in profile.segments] == ["fwd", "step", "sync"]


def test_consecutive_operations_of_a_phase_are_one_segment() -> None:
    profiler = CycleProfiler()
    play(profiler, 2, period=100, phases=["fwd", "fwd", "fwd", "step"])
    assert profiler.profile is not None
    assert [(s.phase, s.duration_us) for s in profiler.profile.segments] == [
        ("fwd", 30),
        ("step", 10),
    ]


def test_a_slow_drift_is_followed_without_a_changed_cycle() -> None:
    profiler, at, seen = CycleProfiler(), 0, []
    for period in range(100, 200, 2):
        news, at = play(profiler, 1, period=period, phases=["fwd", "step"], start=at)
        seen += news
    assert News.CHANGED not in seen
    assert profiler.profile is not None
    assert 180 <= profiler.profile.period_us <= 200
    assert profiler.profile.jitter_ppm > 0


def test_a_new_phase_or_a_far_period_is_a_changed_cycle_once_it_came_twice() -> None:
    for phases, period in ((["fwd", "critic", "step"], 100), (["fwd", "step"], 300)):
        profiler = CycleProfiler()
        _, at = play(profiler, 5, period=100, phases=["fwd", "step"])
        news, _ = play(profiler, 4, period=period, phases=phases, start=at)
        assert news.count(News.CHANGED) == 1
        assert profiler.profile is not None
        assert profiler.profile.period_us == period
        assert [s.phase for s in profiler.profile.segments] == phases


def cycles_of(profiler: CycleProfiler, num: int, *, busy: int, start: int = 0) -> list[News]:
    """Have `num` cycles of 100 with one operation each, and the first operation of the next."""
    return [
        profiler.observe("step", start_us=at, end_us=at + busy)
        for at in range(start, start + 100 * (num + 1), 100)
    ]


def test_a_device_time_that_doubled_is_a_changed_cycle_once_it_came_twice() -> None:
    profiler = CycleProfiler()
    cycles_of(profiler, 5, busy=20)
    news = cycles_of(profiler, 2, busy=40, start=600)
    assert news == [News.NOTHING, News.NOTHING, News.CHANGED]
    assert profiler.profile is not None
    assert profiler.profile.busy_us == 40


def record(busy: int) -> Profile:
    segment = Segment(phase="step", offset_us=0, duration_us=busy)
    return Profile(period_us=100, segments=(segment,))


def test_the_first_cycle_of_a_run_overrules_a_record_that_is_far_off() -> None:
    profiler = CycleProfiler(known=record(20))
    assert cycles_of(profiler, 1, busy=40) == [News.NOTHING, News.CHANGED]
    assert profiler.profile is not None
    assert (profiler.profile.busy_us, profiler.num_cycles) == (40, 1)


def test_a_record_counts_as_one_cycle_for_device_times_and_as_many_for_the_period() -> None:
    profiler = CycleProfiler(known=record(20))
    assert News.CHANGED not in cycles_of(profiler, 1, busy=24)
    assert profiler.profile is not None
    assert (profiler.profile.busy_us, profiler.last_busy_us) == (22, 24)
    profiler = CycleProfiler(known=record(20))
    for at in (0, 120):
        profiler.observe("step", start_us=at, end_us=at + 20)
    assert profiler.profile is not None
    assert profiler.profile.period_us == 102


KEPT = KeptProfile(
    key=ProfileKey(tenant=TenantId("t"), model="m", layout="l", name="n"),
    profile=record(20),
    at_us=0,
)


def judged(*busy_us: int) -> ProfileBook:
    book = ProfileBook()
    for each in busy_us:
        book.judge(KEPT, busy_us=each)
    return book


def test_a_record_is_judged_by_how_far_the_truth_passes_it() -> None:
    book = ProfileBook()
    assert [book.judge(KEPT, busy_us=busy) for busy in (10, 20, 40)] == [0, 0, 1_000_000]


@pytest.mark.parametrize("busy_us", [10, 20, 40])
def test_records_that_are_wrong_alike_are_believed_to_be_what_is_true(busy_us: int) -> None:
    book = judged(*[busy_us] * 100)
    assert abs(book.believed(KEPT).busy_us - busy_us) <= 1


def test_records_that_are_wrong_by_different_factors_are_believed_to_be_wrong_by_the_mean() -> None:
    book = judged(*[10, 20, 40] * 30)
    assert 21 < book.believed(KEPT).busy_us < 28


def test_one_record_of_other_work_hardly_moves_the_belief() -> None:
    assert judged(*[20] * 50, 20_000).believed(KEPT).busy_us < 35


def test_a_record_that_followed_another_is_not_held_to_say_too_much() -> None:
    book = judged(*[10] * 100)
    assert book.believed(replace(KEPT, error_ppm=0)).busy_us == 20
    assert book.believed(replace(KEPT, error_ppm=500_000)).busy_us == 30


def test_beliefs_are_formed_anew_only_when_records_are_clearly_more_or_less_wrong() -> None:
    book = judged(20, 20)
    assert not book.has_shifted()
    news = [judged_again(book, busy_us=10) for _ in range(100)]
    assert 1 < sum(news) < 20
    assert not any(news[50:])


def judged_again(book: ProfileBook, *, busy_us: int) -> bool:
    book.judge(KEPT, busy_us=busy_us)
    return book.has_shifted()


def test_padding_lengthens_device_times_and_the_cycle_of_a_job_without_slack() -> None:
    segments = (
        Segment(phase="a", offset_us=0, duration_us=10),
        Segment(phase="b", offset_us=40, duration_us=20),
    )
    cycle = Profile(period_us=100, segments=segments)
    assert cycle.padded(0) is cycle
    longer = cycle.padded(500_000)
    assert [(s.offset_us, s.duration_us) for s in longer.segments] == [(0, 15), (45, 30)]
    assert longer.period_us == 115
    beside = replace(cycle, mode=Mode.ASYNC1)
    assert beside.padded(500_000).period_us == 100
    assert beside.padded(4_000_000).period_us == 180


def test_one_odd_cycle_changes_nothing() -> None:
    profiler = CycleProfiler()
    _, at = play(profiler, 3, period=100, phases=["fwd", "step"])
    _, at = play(profiler, 1, period=100, phases=["fwd", "eval", "step"], start=at)
    news, _ = play(profiler, 3, period=100, phases=["fwd", "step"], start=at)
    assert set(news) == {News.NOTHING}
    assert profiler.profile is not None
    assert [s.phase for s in profiler.profile.segments] == ["fwd", "step"]


def test_a_warm_start_is_never_profiled_again() -> None:
    cold = CycleProfiler()
    play(cold, 2, period=100, phases=["fwd", "step"])
    warm = CycleProfiler(known=cold.profile)
    news, _ = play(warm, 3, period=100, phases=["fwd", "step"])
    assert set(news) == {News.NOTHING}


def test_profiles_are_kept_by_key_with_an_age_and_a_limit() -> None:
    profile = Profile(period_us=100, segments=(Segment(phase="fwd", offset_us=0, duration_us=10),))
    keys = [
        ProfileKey(tenant=TenantId("t"), model="m", layout="tp1", name=f"job-{i}") for i in range(3)
    ]
    book = ProfileBook(limit=2, max_age_us=50)
    kept = [KeptProfile(key=key, profile=profile, at_us=10 * i) for i, key in enumerate(keys)]
    book.keep(kept[0])
    book.keep(kept[1])
    assert book.warm(keys[0], now_us=20) == kept[0]
    book.keep(kept[2])
    assert book.warm(keys[1], now_us=20) is None
    assert book.warm(keys[0], now_us=51) is None
    assert len(book) == 1


def test_a_cycle_that_is_marked_may_repeat_its_phases() -> None:
    profiler = CycleProfiler()
    for cycle in range(3):
        for step in range(4):
            at = 1000 * cycle + 20 * step
            profiler.observe("fwd", start_us=at, end_us=at + 10, starts_cycle=step == 0)
            profiler.observe("step", start_us=at + 10, end_us=at + 15, starts_cycle=False)
    assert profiler.profile is not None
    assert profiler.profile.period_us == 1000
    assert len(profiler.profile.segments) == 8


def test_a_single_operation_a_cycle_is_a_cycle() -> None:
    profiler = CycleProfiler()
    news = [profiler.observe("fwd", start_us=100 * i, end_us=100 * i + 10) for i in range(3)]
    assert news == [News.NOTHING, News.PROFILED, News.NOTHING]
    assert profiler.profile is not None
    assert (profiler.profile.period_us, profiler.profile.busy_us) == (100, 10)
    assert profiler.next_gap_us() == 90


def test_what_follows_is_predicted_from_the_cycle() -> None:
    profiler = CycleProfiler()
    play(profiler, 2, period=100, phases=["fwd", "bwd", "step"])
    profiler.observe("fwd", start_us=200, end_us=210)
    assert profiler.next_gap_us() == 0
    assert profiler.burst_us(max_gap_us=1) == 20
    profiler.observe("bwd", start_us=210, end_us=220)
    profiler.observe("step", start_us=220, end_us=230)
    assert profiler.next_gap_us() == 70
    assert profiler.burst_us(max_gap_us=1) == 30, "the next burst, of which nothing ran yet"


def test_a_burst_that_begins_with_what_was_left_to_publish_goes_on_in_the_next_cycle() -> None:
    segments = tuple(
        Segment(phase=phase, offset_us=offset_us, duration_us=10)
        for phase, offset_us in (("fwd", 0), ("step", 10), ("sync", 90))
    )
    profiler = CycleProfiler(known=Profile(period_us=100, segments=segments))
    profiler.observe("fwd", start_us=0, end_us=4)
    assert profiler.burst_us(max_gap_us=1) == 16, "a part of the first segment ran"
    profiler.observe("step", start_us=10, end_us=20)
    assert profiler.burst_us(max_gap_us=1) == 30
    assert profiler.burst_us(max_gap_us=70) == 30, "no longer than a cycle"


def test_training_beside_rollout_is_one_step_behind() -> None:
    profiler = CycleProfiler()
    for cycle in range(2):
        at = 100 * cycle
        profiler.observe("fwd", start_us=at, end_us=at + 10, is_beside_rollout=True)
        profiler.observe("step", start_us=at + 10, end_us=at + 20, is_beside_rollout=False)
    assert profiler.profile is not None
    assert profiler.profile.mode is Mode.ASYNC1


def test_a_cycle_that_is_taken_anew_keeps_what_is_known_of_its_jitter() -> None:
    cycles, at = CycleProfiler(), 0
    for period_us in (100, 104, 100, 104, 100, 300, 300, 300, 300):
        cycles.observe("fwd", start_us=at, end_us=at + 10)
        at += period_us
    assert cycles.profile is not None
    assert cycles.profile.period_us > 200
    assert cycles.profile.jitter_ppm > 0
