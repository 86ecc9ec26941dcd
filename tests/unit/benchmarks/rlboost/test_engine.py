"""Simulated engines against an engine that makes one token after the other."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.rlboost.engine import Engine, EngineProfile, Task
from plexsvc.rollout.core.events import SampleKey, SampleTokens

PROFILE = EngineProfile(
    fixed_us=1000, each_us=50, context_us=0.5, prefill_us=10, kv_tokens=10_000, batch=4
)


def task(prompt: int, length: int, *, made: int = 0) -> Task:
    return Task(call=1, key=(prompt, 0), prompt_tokens=10, sent=made, made=made, length=length)


def play(engine: Engine) -> tuple[Counter[SampleKey], dict[SampleKey, int]]:
    """Return the tokens of each sample, and when it ended."""
    counts: Counter[SampleKey] = Counter()
    ends: dict[SampleKey, int] = {}
    for _ in range(100_000):
        due_us = engine.next_us()
        if due_us is None:
            return counts, ends
        take(counts, engine.advance(due_us), ends, due_us)
    raise AssertionError("it never ends")


def take(
    counts: Counter[SampleKey], arrived: list[SampleTokens], ends: dict[SampleKey, int], at_us: int
) -> None:
    for arrival in arrived:
        assert arrival.position == counts[arrival.key], "each position comes once, in order"
        counts[arrival.key] += arrival.count
        if arrival.is_last:
            ends[arrival.key] = at_us


def naive(lengths: list[int]) -> dict[SampleKey, float]:
    """Return when each of at most `batch` samples ends, token by token."""
    at_us, made, ends = len(lengths) * 10 * PROFILE.prefill_us, 0, {}
    left = dict(enumerate(lengths))
    while left:
        context = sum(10 + made for _ in left)
        at_us += PROFILE.step_us(len(left), context)
        made += 1
        for prompt in [one for one, length in left.items() if length == made]:
            ends[prompt, 0] = at_us
            del left[prompt]
    return ends


@given(st.lists(st.integers(1, 400), min_size=1, max_size=4))
def test_samples_end_when_steps_one_by_one_would_end_them(lengths: list[int]) -> None:
    engine = Engine(PROFILE)
    first = engine.start([task(p, length) for p, length in enumerate(lengths)], now_us=0)
    assert first == []
    counts, ends = play(engine)
    assert counts == {(p, 0): length for p, length in enumerate(lengths)}
    assert ends == pytest.approx(naive(lengths), abs=2 * len(lengths))


def test_a_sample_that_is_stopped_sends_what_it_has_and_goes_on_elsewhere() -> None:
    engine, other = Engine(PROFILE), Engine(PROFILE)
    engine.start([task(0, 100), task(1, 100)], now_us=0)
    counts: Counter[SampleKey] = Counter()
    stopped = engine.stop([(0, 0)], now_us=50_000)
    take(counts, stopped, {}, 50_000)
    made = counts[0, 0]
    assert 0 < made < 100
    assert stopped[-1].is_aborted
    assert engine.load == 1
    other.start([task(0, 100, made=made)], now_us=50_000)
    assert play(other)[0][0, 0] == 100 - made if made == 0 else True
    assert other.spent.prefilled == 10 + made


def test_a_batch_that_outgrows_the_cache_waits_and_ends_all_the_same() -> None:
    small = EngineProfile(
        fixed_us=1000, each_us=50, context_us=0.5, prefill_us=10, kv_tokens=700, batch=4
    )
    engine = Engine(small)
    engine.start([task(p, 400) for p in range(4)], now_us=0)
    counts, _ = play(engine)
    assert counts == {(p, 0): 400 for p in range(4)}
    assert engine.spent.prefilled > 4 * 10, "what was pushed out is prefilled again"


def test_samples_of_one_prompt_are_prefilled_once() -> None:
    engine = Engine(PROFILE)
    keys = [(0, sample) for sample in range(4)]
    tasks = [Task(call=1, key=k, prompt_tokens=50, sent=0, made=0, length=5) for k in keys]
    engine.start(tasks, now_us=0)
    play(engine)
    assert (engine.spent.prefilled, engine.spent.cached) == (50, 150)
