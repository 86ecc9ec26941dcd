"""Seeding window of a job: how long its training devices generate before they train (RLBoost).

Theory of operation. At the start of a step the engines on the training devices serve beside the
instances elsewhere. When the window is over they are drained: their samples go on elsewhere, and
training begins on the samples that are complete. A window that is too short leaves the trainer
waiting, one that is too long leaves the other instances waiting for the trainer. `end_step` moves
it by the difference of the two waits over the rate, and remembers what it was under so many
instances (Algorithm 1). It also says how many instances are worth having: those whose work fits
into the time of training. Without any other instance the window lasts as long as the samples.

Two things are not in the paper. The rate is not a constant: a second of the window is worth
`1 + engines / instances` seconds of wait, so a difference divided by that is gone in one step. And
after a change of instances to a number that is not remembered, the window is the one under which
the same work of rollout ends with training: `window * engines + (window + training) * instances`.
Numbers change about as often as steps end, so most windows are of this kind: one that is only moved
from the last one's lags behind them, and the trainer or the instances wait.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil
from typing import Final

STEADY: Final = 0.25
"""A step had one number of instances if its mean is so close to the number at its end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTimes:
    """What a step took."""

    train_us: int
    """Training, without waits."""
    train_wait_us: int
    """The training devices had neither samples to train on nor to generate."""
    remote_us: int
    """Instances elsewhere had samples, all together."""
    remote_wait_us: int
    """From the last sample to the end of the step."""
    seeded_us: int
    """The engines on the training devices served."""
    instances: float
    """Instances elsewhere, on average over the step."""
    instances_now: int
    """Those at its end."""


class Seeding:
    """The window of the next step, and the bound on instances elsewhere.

    >>> seeding = Seeding(engines=4, first_window_us=100)
    >>> seeding.end_step(
    ...     StepTimes(
    ...         train_us=100,
    ...         train_wait_us=80,
    ...         remote_us=600,
    ...         remote_wait_us=0,
    ...         seeded_us=100,
    ...         instances=2.0,
    ...         instances_now=2,
    ...     )
    ... )
    >>> seeding.window_us, seeding.most_instances
    (127, 10)
    """

    def __init__(self, *, engines: int, first_window_us: int) -> None:
        """Begin with as many instances at most as there are engines on the training devices."""
        assert engines > 0, engines
        assert first_window_us >= 0, first_window_us
        self.window_us, self.most_instances = first_window_us, engines
        self.engines = engines
        self._windows: dict[int, int] = {}

    def is_open(self, *, served_us: int, others: int) -> bool:
        """Whether the engines should serve, after `served_us` in this step.

        `others` are the instances elsewhere that serve now.
        """
        return served_us < self.window_us or not others

    def end_step(self, step: StepTimes) -> None:
        """Learn from a step; one without other instances says nothing about the window."""
        work_us = step.remote_us + step.seeded_us * self.engines
        self.most_instances = max(1, ceil(work_us / max(1, step.train_us)))
        now = step.instances_now
        if abs(step.instances - now) < STEADY and now:
            rate = 1 + self.engines / now
            moved_us = (step.train_wait_us - step.remote_wait_us) / rate
            self._windows[now] = max(0, round(self.window_us + moved_us))
        even_us = (work_us - step.train_us * now) / (self.engines + now)
        self.window_us = self._windows.get(now, max(0, round(even_us)))
