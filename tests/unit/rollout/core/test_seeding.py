"""The seeding window against a step whose times are known in closed form."""

from __future__ import annotations

from dataclasses import replace

import pytest

from plexsvc.rollout.core.seeding import Seeding, StepTimes

WORK_US, TRAIN_US, ENGINES = 1_440_000, 220_000, 4


def step_of(seeding: Seeding, *, instances: int) -> StepTimes:
    """Return what a step takes whose rollout is so much work of one engine, spread evenly."""
    seeded_us = seeding.window_us
    left_us = WORK_US - seeded_us * ENGINES
    rolled_us = max(seeded_us, left_us // instances)
    ended_us = max(rolled_us, seeded_us + TRAIN_US)
    return StepTimes(
        train_us=TRAIN_US,
        train_wait_us=ended_us - seeded_us - TRAIN_US,
        remote_us=rolled_us * instances,
        remote_wait_us=ended_us - rolled_us,
        seeded_us=seeded_us,
        instances=float(instances),
        instances_now=instances,
    )


@pytest.mark.parametrize("instances", [1, 2, 4, 6])
@pytest.mark.parametrize("first_us", [0, 300_000])
def test_the_window_settles_where_nobody_waits(instances: int, first_us: int) -> None:
    seeding = Seeding(engines=ENGINES, first_window_us=first_us)
    for _ in range(16):
        seeding.end_step(step_of(seeding, instances=instances))
    times = step_of(seeding, instances=instances)
    assert abs(times.train_wait_us - times.remote_wait_us) <= TRAIN_US // 50


def test_a_number_of_instances_seen_before_has_its_window_back() -> None:
    seeding = Seeding(engines=ENGINES, first_window_us=0)
    for _ in range(16):
        seeding.end_step(step_of(seeding, instances=2))
    before_us = seeding.window_us
    for _ in range(3):
        seeding.end_step(step_of(seeding, instances=6))
    assert seeding.window_us < before_us
    changed = step_of(seeding, instances=6)
    times = StepTimes(
        train_us=changed.train_us,
        train_wait_us=changed.train_wait_us,
        remote_us=changed.remote_us,
        remote_wait_us=changed.remote_wait_us,
        seeded_us=changed.seeded_us,
        instances=4.0,  # on average, of six that became two
        instances_now=2,
    )
    seeding.end_step(times)
    assert seeding.window_us == before_us


@pytest.mark.parametrize("first_us", [0, 100_000])
def test_a_new_number_of_instances_has_the_right_window_at_once(first_us: int) -> None:
    seeding = Seeding(engines=ENGINES, first_window_us=first_us)
    seeding.end_step(replace(step_of(seeding, instances=2), instances=1.5, instances_now=3))
    times = step_of(seeding, instances=3)
    assert abs(times.train_wait_us - times.remote_wait_us) <= TRAIN_US // 50


def test_as_many_instances_are_worth_having_as_do_the_work_while_training_lasts() -> None:
    seeding = Seeding(engines=ENGINES, first_window_us=0)
    assert seeding.most_instances == ENGINES
    seeding.end_step(step_of(seeding, instances=3))
    assert seeding.most_instances == 7  # 1.44 s of work in 0.22 s


def test_the_window_stays_open_while_nobody_else_serves() -> None:
    seeding = Seeding(engines=ENGINES, first_window_us=100)
    assert seeding.is_open(served_us=99, others=2)
    assert not seeding.is_open(served_us=100, others=2)
    assert seeding.is_open(served_us=10**9, others=0)
