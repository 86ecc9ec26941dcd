"""Executor thread of an engine: it owns the device and runs one step or call at a time.

Theory of operation. Engines of one process share it: process-wide state of the engine library
allows only one step at a time. A policy picks who steps next, which is where co-serving decides.
With nothing to step the thread sleeps on its queue. While a policy holds back an engine that has
work, it is asked again every few milliseconds.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Final, Protocol, TypeVar

from plexsvc.clock import Clock

T = TypeVar("T")

HELD_S: Final = 0.005
"""Pause before a policy that chose nobody is asked again."""


class Steppable(Protocol):
    """Something that advances by steps; both methods run on the executor's thread."""

    def has_work(self) -> bool:
        """Return whether a step would do anything."""

    def step(self) -> None:
        """Advance once; failures are the engine's own to report."""


Policy = Callable[[Sequence[Steppable]], "Steppable | None"]


class RoundRobin:
    """Steps those with work in turn."""

    def __init__(self) -> None:
        self._last: Steppable | None = None

    def __call__(self, ready: Sequence[Steppable]) -> Steppable | None:
        """Return the one after the last chosen."""
        if not ready:
            return None
        after = ready.index(self._last) + 1 if self._last in ready else 0
        self._last = ready[after % len(ready)]
        return self._last


class StepExecutor:
    """One thread; `call` runs a function on it between steps."""

    def __init__(self, policy: Policy | None = None, *, clock: Clock) -> None:
        self._policy = policy or RoundRobin()
        self._clock = clock
        self._step_since_us: int | None = None
        self._engines: list[Steppable] = []
        self._calls: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="step-executor", daemon=True)
        self._thread.start()

    def call(self, function: Callable[[], T]) -> Future[T]:
        """Run `function` on the thread before the next step; its outcome is the future's."""
        future: Future[T] = Future()

        def run() -> None:
            if not future.set_running_or_notify_cancel():
                return
            try:
                future.set_result(function())
            except BaseException as error:  # noqa: BLE001 - every outcome belongs to the caller
                future.set_exception(error)

        self._calls.put(run)
        return future

    @property
    def step_us(self) -> int:
        """Return how long the step under way has taken; 0 between steps. Any thread may ask."""
        since_us = self._step_since_us
        return 0 if since_us is None else self._clock.monotonic_us() - since_us

    def follow(self, policy: Policy) -> None:
        """Let `policy` choose from now on."""

        def switch() -> None:
            self._policy = policy

        self.call(switch).result()

    def add(self, engine: Steppable) -> None:
        """Step `engine` from now on."""
        self.call(lambda: self._engines.append(engine)).result()

    def remove(self, engine: Steppable) -> None:
        """Never step `engine` again; when this returns it is not being stepped."""
        self.call(lambda: self._engines.remove(engine)).result()

    def close(self) -> None:
        """End the thread after the calls already queued."""
        self._calls.put(None)
        self._thread.join()

    def _run(self) -> None:
        while True:
            ready = [engine for engine in self._engines if engine.has_work()]
            chosen = self._policy(ready)
            if not self._run_calls(wait=chosen is None, most_s=HELD_S if ready else None):
                return
            if chosen is not None and chosen in self._engines and chosen.has_work():
                self._step_since_us = self._clock.monotonic_us()
                chosen.step()
                self._step_since_us = None

    def _run_calls(self, *, wait: bool, most_s: float | None) -> bool:
        """Run queued calls; with `wait` sleep for the first. Return False at the end."""
        while True:
            try:
                call = self._calls.get(block=wait, timeout=most_s)
            except queue.Empty:
                return True
            if call is None:
                return False
            call()
            wait = False
