"""The seeding window of a deployment: how long its training devices generate before they train.

It is RLBoost's. `Seeding` says how long the next one is; `SeedingWindow` notes what each step took.

Theory of operation. A *step* lasts from a generate to the next one. Its window is *opened* when the
training devices are there for the generate: their engines join as instances of kind `reserved`. It
*closes* when `Seeding` says so, or the generate is over: they are drained, and when the last one
has left, the devices are free to train. What a step took is learned from when the next window
opens, since training goes on after the generate. The first window lasts as long as the samples:
nothing is known before it.

A window that is too short leaves the trainer waiting, one that is too long leaves the other
instances waiting for the trainer. `end_step` moves it by the difference of the two waits over the
rate, and remembers what it was under so many instances (Algorithm 1). It also says how many
instances are worth having: those whose work fits into the time of training. Without any other
instance the window lasts as long as the samples.

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

from plexsvc.ids import OperationId
from plexsvc.rollout.core.events import StepTrained, WindowOpened
from plexsvc.rollout.core.orders import EndWindow

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


@dataclass(slots=True)
class Lived:
    """What a step took so far."""

    began_us: int
    rolled_us: int = 0
    """When its last sample was complete; until then, when it was last looked at."""
    seeded_us: int = 0
    others_us: int = 0
    """Instances elsewhere served, all together."""
    remote_us: int = 0
    """They had samples, all together."""


class SeedingWindow:
    """The window of one deployment. It is told of time; it reads no clock."""

    def __init__(self) -> None:
        self.seeding: Seeding | None = None
        """None before the first step that was trained on."""
        self.operation_id: OperationId | None = None
        """The generate for which it is open, or closing."""
        self.is_closing = False
        self._opened_us = self._now_us = 0
        self._step: Lived | None = None
        """The step that generates now, or trains."""
        self._before: Lived | None = None
        """The step before it, until it is learned from."""
        self._is_generating = False
        self._others = 0

    @property
    def is_open(self) -> bool:
        """Whether engines on training devices may serve."""
        return self.operation_id is not None and not self.is_closing

    def look(self, at_us: int, *, is_generating: bool, others: int, working: int) -> None:
        """Count the time since the last look.

        Until now `others` instances elsewhere served, of which `working` had samples.
        """
        elapsed_us, self._now_us = max(0, at_us - self._now_us), max(at_us, self._now_us)
        if is_generating and not self._is_generating:
            self._before, self._step = self._step, Lived(self._now_us, self._now_us)
        elif self._step is not None and self._is_generating:
            self._step.rolled_us = self._now_us
            self._step.others_us += elapsed_us * others
            self._step.remote_us += elapsed_us * working
        self._is_generating, self._others = is_generating, others

    def open(self, event: WindowOpened) -> None:
        """Learn from the step before, and begin to serve a generate."""
        if self._before is not None and event.trained is not None:
            self._learn(self._before, event.trained, engines=event.engines)
        self._before = None
        self.operation_id, self.is_closing = event.operation_id, False
        self._opened_us = self._now_us

    def is_over(self, *, is_complete: bool) -> bool:
        """Whether an open window is to close; `is_complete`: its generate is over."""
        if not self.is_open:
            return False
        served_us = self._now_us - self._opened_us
        seeding = self.seeding
        return is_complete or (
            seeding is not None and not seeding.is_open(served_us=served_us, others=self._others)
        )

    def close(self) -> None:
        """Serve no more; the engines are drained."""
        if self.is_open and self._step is not None:
            self._step.seeded_us += self._now_us - self._opened_us
        self.is_closing = self.operation_id is not None

    def end(self) -> EndWindow:
        """Say that the last engine has left."""
        assert self.operation_id is not None, self
        operation_id, self.operation_id, self.is_closing = self.operation_id, None, False
        return EndWindow(
            operation_id=operation_id,
            seeded_us=0 if self._step is None else self._step.seeded_us,
            next_window_us=None if self.seeding is None else self.seeding.window_us,
            most_instances=None if self.seeding is None else self.seeding.most_instances,
        )

    def _learn(self, step: Lived, trained: StepTrained, *, engines: int) -> None:
        took_us = trained.ended_us - step.began_us
        if not trained.train_us or took_us <= 0:
            return
        if self.seeding is None or self.seeding.engines != engines:
            first_us = step.seeded_us if self.seeding is None else self.seeding.window_us
            self.seeding = Seeding(engines=engines, first_window_us=first_us)
        times = StepTimes(
            train_us=trained.train_us,
            train_wait_us=max(0, took_us - trained.train_us - step.seeded_us),
            remote_us=step.remote_us,
            remote_wait_us=max(0, trained.ended_us - step.rolled_us),
            seeded_us=step.seeded_us,
            instances=step.others_us / max(1, step.rolled_us - step.began_us),
            instances_now=self._others,
        )
        self.seeding.end_step(times)
