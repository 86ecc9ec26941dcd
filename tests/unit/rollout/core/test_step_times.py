"""What a step takes is learned from steps, and foretold so that few take longer."""

from __future__ import annotations

import random

from plexsvc.rollout.core.step_times import StepForecast, StepWork


def taught(*, noise: float = 0.0, steps: int = 600) -> StepForecast:
    """Return times of an engine of 2 ms a step, 10 us a prompt token and 500 us a sample."""
    dice, times = random.Random(0), StepForecast()
    for _ in range(steps):
        step = StepWork(prompt_tokens=dice.choice((0, 0, 100, 400)), samples=dice.randrange(1, 20))
        times.observe(step, took_us=round(plain_us(step) * (1 + dice.random() * noise)))
    return times


def plain_us(step: StepWork) -> int:
    return 2000 + 10 * step.prompt_tokens + 500 * step.samples


def test_nothing_is_foretold_of_an_engine_that_hardly_stepped() -> None:
    times = StepForecast()
    times.observe(StepWork(samples=1), took_us=1000)
    assert times.foretell_us(StepWork(samples=1)) is None
    assert times.tokens_within(10**9, samples=4, most=512) == 0


def test_prefill_and_decode_are_told_apart() -> None:
    times = taught()
    for step in (
        StepWork(samples=4),
        StepWork(prompt_tokens=1000),
        StepWork(prompt_tokens=64, samples=8),
    ):
        foretold = times.foretell_us(step)
        assert foretold is not None
        assert abs(foretold - plain_us(step)) < 0.02 * plain_us(step)


def test_on_a_noisy_machine_few_steps_take_longer_than_foretold() -> None:
    times, dice = taught(noise=1.0), random.Random(1)
    longer = 0
    for _ in range(1000):
        step = StepWork(samples=dice.randrange(1, 20))
        foretold = times.foretell_us(step)
        assert foretold is not None
        longer += plain_us(step) * (1 + dice.random()) > foretold
    assert longer < 100


def test_tokens_within_a_time_take_no_longer_and_samples_come_first() -> None:
    times = taught()
    assert times.tokens_within(1000, samples=4, most=512) == 0
    assert times.tokens_within(3600, samples=4, most=512) == 3
    tokens = times.tokens_within(6000, samples=4, most=512)
    assert 190 < tokens < 210
    assert times.tokens_within(6000, samples=4, most=50) == 50
    assert (times.foretell_us(StepWork(prompt_tokens=tokens - 4, samples=4)) or 0) <= 6000


def test_an_engine_that_only_decoded_is_not_thought_to_prefill_for_free() -> None:
    times = StepForecast()
    for i in range(100):
        times.observe(StepWork(samples=1 + i % 8), took_us=1000 + 300 * (1 + i % 8))
    assert (times.foretell_us(StepWork(prompt_tokens=100)) or 0) > 20_000


def test_pauses_that_lengthen_short_steps_do_not_lengthen_long_ones() -> None:
    dice, times = random.Random(0), StepForecast()
    for _ in range(1500):
        step = StepWork(prompt_tokens=dice.choice((0, 20_000)), samples=dice.randrange(1, 4))
        pause_us = 20_000 if dice.random() < 0.2 else 0
        times.observe(step, took_us=plain_us(step) + pause_us)
    long = StepWork(prompt_tokens=20_000, samples=2)
    assert (times.foretell_us(StepWork(samples=2)) or 0) > 15_000
    assert (times.foretell_us(long) or 0) < 1.4 * plain_us(long)
