"""The seeding window of a deployment as it is lived: what each step took, and when to close it.

Theory of operation. A *step* lasts from a generate to the next one. Its window is *opened* when the
training devices are there for the generate: their engines join as instances of kind `reserved`. It
*closes* when `Seeding` says so, or the generate is over: they are drained, and when the last one
has left, the devices are free to train. What a step took is learned from when the next window
opens, since training goes on after the generate. The first window lasts as long as the samples:
nothing is known before it.
"""

from __future__ import annotations

from dataclasses import dataclass

from plexsvc.ids import OperationId
from plexsvc.rollout.core.events import Trained, WindowOpened
from plexsvc.rollout.core.orders import EndWindow
from plexsvc.rollout.core.seeding import Seeding, StepTimes


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

    def _learn(self, step: Lived, trained: Trained, *, engines: int) -> None:
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
