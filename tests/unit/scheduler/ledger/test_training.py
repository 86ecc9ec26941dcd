"""Training between generates: counted once, without the time in which its devices generated."""

from __future__ import annotations

from plexsvc.scheduler.ledger.training import TrainingMeter, TrainingSpan


def test_operations_that_wait_for_each_other_are_counted_once() -> None:
    training = TrainingMeter()
    training.ran(since_us=10, until_us=14)
    training.ran(since_us=11, until_us=18)
    training.ran(since_us=30, until_us=31)
    training.generate_began()
    assert training.before == TrainingSpan(train_us=9, ended_us=31)


def test_what_waits_for_the_window_to_close_is_not_training() -> None:
    training = TrainingMeter()
    training.seeded(until_us=20)
    training.ran(since_us=5, until_us=26)
    training.generate_began()
    assert training.before == TrainingSpan(train_us=6, ended_us=26)


def test_a_step_without_training_says_so() -> None:
    training = TrainingMeter()
    training.ran(since_us=1, until_us=2)
    training.generate_began()
    training.generate_began()
    assert training.before == TrainingSpan()
