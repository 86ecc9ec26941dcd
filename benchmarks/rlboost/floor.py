"""The floor of a simulated rollout: one rollout core, engines that are profiles, a virtual clock.

Subclasses say what happens besides: `answered`, `completed`, `served`, `released`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, assert_never

from benchmarks.rlboost.engine import Engine, Spent, Task
from benchmarks.rlboost.timeline import Timeline
from plexsvc.errors import ErrorCode, PlexError
from plexsvc.ids import DeploymentId, OperationId, VersionId
from plexsvc.rollout.core import events, orders
from plexsvc.rollout.core.events import InstanceId, SampleKey
from plexsvc.rollout.core.machine import RolloutCore
from tests.rigs.rollout_invariants import check

DEPLOYMENT: Final = DeploymentId("job/rollout")
MAX_EVENTS: Final = 20_000_000
"""A run that takes more has gone astray."""


@dataclass(slots=True)
class Unit:
    """An engine with its place in the cores."""

    engine: Engine
    address: str
    alarm: int = 0
    """Number of its latest alarm; earlier ones are void."""
    slot: str = ""
    number: int = 0


class Floor(Timeline, ABC):
    """Engines and the core that says what they do. Times are virtual, in microseconds."""

    def __init__(self, core: RolloutCore, *, prompt_tokens: int, pull_us: int) -> None:
        """`pull_us` is what an instance takes to load a version."""
        super().__init__()
        self.core, self.events = core, 0
        self.units: dict[InstanceId, Unit] = {}
        self.spent = Spent()
        """Of the engines that are gone."""
        self.lengths: Sequence[Sequence[int]] = []
        """Of each sample of each prompt."""
        self.step = 0
        """Counts versions and operations."""
        self.migrates = True
        """Whether a sample goes on elsewhere from its tokens; else it starts again."""
        self.moved = 0
        """Samples that went on elsewhere."""
        self._prompt_tokens, self._pull_us = prompt_tokens, pull_us
        self._numbers = 0

    # ---- what happens besides

    @abstractmethod
    def answered(self) -> None:
        """Take note that all samples are complete."""

    @abstractmethod
    def completed(self, keys: Sequence[SampleKey]) -> None:
        """Take note of samples that are complete."""

    @abstractmethod
    def served(self) -> None:
        """Take note that an instance may serve by now."""

    @abstractmethod
    def released(self, unit: Unit) -> None:
        """Take note that the core let an instance go."""

    # ---- time

    def happen(self) -> None:
        """Let the next thing happen.

        Raises:
            PlexError: `internal` if there is none, or there were too many.
        """
        if self.is_empty or self.events >= MAX_EVENTS:
            waiting = sum(len(one.waiting) for one in self.core.generates.values())
            raise PlexError(
                ErrorCode.INTERNAL,
                f"the rollout stands still in step {self.step} after {self.events} events: "
                f"{waiting} samples wait",
            )
        super().happen()

    # ---- the core

    @property
    def operation(self) -> OperationId:
        """Return the id of the present step's generate."""
        return OperationId(self.step.to_bytes(16, "big"))

    @property
    def version(self) -> VersionId:
        """Return the version of the present step."""
        return VersionId("job/actor", 1, self.step)

    def tell(self, event: events.Event) -> None:
        """Give the core an event, check it, and do what it orders."""
        ordered = self.core.handle(event)
        check(self.core)
        self.events += 1
        for order in ordered:
            self._perform(order)

    def submit(self) -> None:
        """Submit a sample for each length."""
        samples = {(p, s): 0 for p, them in enumerate(self.lengths) for s in range(len(them))}
        self.tell(
            events.SamplesSubmitted(
                operation_id=self.operation,
                samples=samples,
                prompt_tokens=(self._prompt_tokens,) * len(self.lengths),
            )
        )

    def join(self, unit: Unit, *, kind: str, version: VersionId) -> None:
        """Let an instance join."""
        self._numbers += 1
        one = InstanceId(self._numbers)
        self.units[one] = unit
        self.tell(
            events.InstanceJoined(
                instance_id=one,
                address=unit.address,
                version=version,
                checksum=str(version),
                kind=kind,
            )
        )

    def kill(self, one: InstanceId, *, error: PlexError) -> None:
        """End a process: its calls break, and its instance is forgotten."""
        unit = self.units.pop(one)
        self._account(unit)
        for call, keys in unit.engine.kill().items():
            self.tell(
                events.CallEnded(
                    operation_id=self.operation,
                    call=call,
                    instance_id=one,
                    address=unit.address,
                    samples=keys,
                    error=error,
                )
            )
        self.tell(events.InstanceEnded(instance_id=one, because=error.message))

    def account_all(self) -> None:
        """Count what the engines did that are there, once, at the end."""
        for unit in self.units.values():
            self._account(unit)

    def _perform(self, order: orders.Order) -> None:
        match order:
            case orders.StartSamples():
                self._start_samples(order)
            case orders.StopSamples():
                self._stop_samples(order)
            case orders.AnswerSamples():
                if order.error is not None:
                    raise order.error
                self.answered()
            case orders.UpdateInstance():
                self.after(self._pull_us, lambda: self._updated(order))
            case orders.ReleaseInstance():
                unit = self.units.pop(order.instance_id)
                self._account(unit)
                self.released(unit)
            case (
                orders.RecordTokens()
                | orders.GiveUpInstance()
                | orders.SeekInstance()
                | orders.EndWindow()
                | orders.LeaveDevice()
            ):
                pass  # nobody reads tokens or sleeps; whoever ended anything knows
            case _:
                assert_never(order)

    def _start_samples(self, order: orders.StartSamples) -> None:
        known = self.core.generates[order.operation_id].samples
        tasks = []
        for key in order.samples:
            has = known[key].num_tokens
            self.moved += has > 0
            made = has if self.migrates else 0
            prompt, sample = key
            task = Task(
                call=order.call,
                key=key,
                prompt_tokens=self._prompt_tokens,
                sent=made,
                made=made,
                length=self.lengths[prompt][sample],
            )
            tasks.append(task)
        one = order.instance_id
        arrived = self.units[one].engine.start(tasks, now_us=self.now_us)
        self._sent(one, arrived)

    def _stop_samples(self, order: orders.StopSamples) -> None:
        unit = self.units.get(order.instance_id)
        if unit is not None:
            arrived = unit.engine.stop(order.samples, now_us=self.now_us)
            self._sent(order.instance_id, arrived)

    def _sent(self, one: InstanceId, arrived: list[events.SampleTokens]) -> None:
        """Have tokens arrive after the present event is dealt with, and set the next alarm."""
        if arrived:
            operation_id = self.operation
            self.after(0, lambda: self._arrive(operation_id, one, arrived))
        unit = self.units[one]
        unit.alarm += 1
        due_us, alarm = unit.engine.next_us(), unit.alarm
        if due_us is not None:
            self.after(max(0, due_us - self.now_us), lambda: self._wake_engine(one, alarm))

    def balance(self) -> None:
        """Let time pass for the core, which has all tokens by then, as from frames of 20 ms."""
        for one, unit in self.units.items():
            self._sent(one, unit.engine.report(self.now_us))
        self.after(0, lambda: self.tell(events.Ticked(at_us=self.now_us)))

    def _wake_engine(self, one: InstanceId, alarm: int) -> None:
        unit = self.units.get(one)
        if unit is not None and unit.alarm == alarm:
            self._sent(one, unit.engine.advance(self.now_us))

    def _arrive(
        self, operation_id: OperationId, one: InstanceId, arrived: list[events.SampleTokens]
    ) -> None:
        if operation_id not in self.core.generates:
            return
        self.tell(
            events.TokensArrived(operation_id=operation_id, instance_id=one, arrivals=arrived)
        )
        if done := [arrival.key for arrival in arrived if arrival.is_last]:
            self.completed(done)

    def _updated(self, order: orders.UpdateInstance) -> None:
        unit = self.units.get(order.instance_id)
        if unit is None:
            return
        unit.engine.forget_prompts()
        self.tell(
            events.InstanceAnswered(
                instance_id=order.instance_id,
                version=order.version,
                checksum=str(order.version),
            )
        )
        self.served()

    def _account(self, unit: Unit) -> None:
        spent, total = unit.engine.spent, self.spent
        total.busy_us += spent.busy_us
        total.tokens += spent.tokens
        total.prefilled += spent.prefilled
        total.cached += spent.cached
