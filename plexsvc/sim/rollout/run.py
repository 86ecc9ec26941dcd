"""Simulated runs of one job: the cores that run live decide, engines are profiles.

Theory of operation. `RolloutCore` says which sample goes where, `SpotPool` which spot device has an
instance, `Seeding` how long the training devices generate. This driver does what they order in
virtual time and tells them what came of it, as `Fleet` and `SpotInstances` do live. Their
invariants are checked after every event.

A step: a version is wanted, the engines of the training devices join, samples are submitted. When
the window is over those engines are drained and the trainer takes micro-batches of whatever is
complete. When all is trained the step ends, and the window learns from it.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final, assert_never

from plexsvc.errors import ErrorCode, PlexError
from plexsvc.ids import DeploymentId, OperationId, VersionId
from plexsvc.rollout.core import events, orders, pool
from plexsvc.rollout.core.events import InstanceId, SampleKey
from plexsvc.rollout.core.instances import RESERVED, SPOT
from plexsvc.rollout.core.invariants import check
from plexsvc.rollout.core.machine import RolloutCore
from plexsvc.rollout.core.pool import SpotPool, State
from plexsvc.rollout.core.seeding import Seeding, StepTimes
from plexsvc.sim.rollout.engine import Engine, Spent, Task
from plexsvc.sim.rollout.workload import RolloutWorkload

DEPLOYMENT: Final = DeploymentId("job/rollout")
HOUR_US: Final = 3_600_000_000
TAKEN: Final = PlexError(ErrorCode.UNAVAILABLE, "its spot device was taken back")
MAX_EVENTS: Final = 20_000_000
"""A run that takes more has gone astray."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutPolicy:
    """What of the product a run uses."""

    name: str
    uses_spot: bool = True
    migrates: bool = True
    """Whether a sample goes on elsewhere from its tokens; else it starts again."""
    balances: bool = True
    seeds: bool = True
    """Whether the training devices generate while there are other instances."""


POLICIES: Final = {
    policy.name: policy
    for policy in (
        RolloutPolicy(name="reserved", uses_spot=False),
        RolloutPolicy(name="plain", migrates=False, balances=False, seeds=False),
        RolloutPolicy(name="plex"),
    )
}
"""The training devices alone; spot instances without what makes them cheap to lose; the product."""


@dataclass(slots=True, kw_only=True)
class StepRecord:
    """One step."""

    began_us: int
    window_us: int
    most_instances: int
    ended_us: int = 0
    tokens: int = 0
    seeded_us: int = 0
    train_us: int = 0
    rolled_us: int = 0
    """When the last sample was complete."""
    remote_us: float = 0
    """What engines elsewhere had worked when it began, since the start of the run."""
    instance_us: int = 0
    """Time of serving spot instances, all together."""

    @property
    def instances(self) -> float:
        """Return how many spot instances served, on average."""
        return self.instance_us / max(1, self.ended_us - self.began_us)


@dataclass(slots=True, kw_only=True)
class RolloutOutcome:
    """What a run came to."""

    policy: RolloutPolicy
    steps: list[StepRecord] = field(default_factory=list)
    spent: Spent = field(default_factory=Spent)
    slot_us: int = 0
    """Time of spot devices that were paid for, all together."""
    starts: int = 0
    kills: int = 0
    moved: int = 0
    """Samples that went on elsewhere."""
    events: int = 0
    counts: list[tuple[int, int]] = field(default_factory=list)
    """Since when so many spot instances served."""


@dataclass(slots=True)
class _Unit:
    """An engine with its place in the cores."""

    engine: Engine
    address: str
    alarm: int = 0
    """Number of its latest alarm; earlier ones are void."""
    slot: str = ""
    number: int = 0


class RolloutRun:
    """One run of a workload under a policy; `run()` once."""

    def __init__(
        self,
        workload: RolloutWorkload,
        *,
        policy: RolloutPolicy,
        seed: int,
        told: Callable[[StepRecord], None] = lambda _: None,
    ) -> None:
        """Tell `told` of each step that has ended."""
        self.outcome = RolloutOutcome(policy=policy)
        self._work, self._policy, self._seed, self._told = workload, policy, seed, told
        self._core = RolloutCore(DEPLOYMENT, max_losses=1 << 30, max_pending=workload.max_pending)
        self._pool = SpotPool()
        self._seeding = Seeding(
            engines=workload.trainer.engines, first_window_us=workload.first_window_us
        )
        self._now_us = 0
        self._due: list[tuple[int, int, Callable[[], None]]] = []
        self._units: dict[InstanceId, _Unit] = {}
        self._numbers = 0
        self._lengths: list[list[int]] = []
        self._ready: deque[SampleKey] = deque()
        """Complete samples that are not trained yet."""
        self._untrained = 0
        self._is_training = False
        self._seeding_since_us: int | None = None
        """Since when the training devices generate, or wake for it."""
        self._serving, self._serving_since_us = 0, 0
        self._gone_us = 0.0
        """What engines elsewhere worked that are gone."""

    def run(self) -> RolloutOutcome:
        """Play all steps.

        Raises:
            PlexError: `internal` if the run never ends.
        """
        if self._policy.uses_spot:
            self._plan_spot()
            self._tick()
        self._begin_step()
        while not self._is_over:
            if not self._due or self.outcome.events >= MAX_EVENTS:
                raise self._stuck()
            self._now_us, _, happens = heapq.heappop(self._due)
            happens()
        return self._finished()

    def _finished(self) -> RolloutOutcome:
        for unit in self._units.values():
            self._account(unit)
        held = [slot for slot in self._pool.slots.values() if slot.state is not State.FREE]
        self.outcome.slot_us += self._now_us * len(held)
        return self.outcome

    # ---- time

    @property
    def _is_over(self) -> bool:
        return bool(self.outcome.steps) and self.outcome.steps[-1].ended_us > 0

    @property
    def _step(self) -> StepRecord:
        return self.outcome.steps[-1]

    def _after(self, us: float, happens: Callable[[], None]) -> None:
        self._numbers += 1
        heapq.heappush(self._due, (self._now_us + round(us), self._numbers, happens))

    def _tick(self) -> None:
        """Let time pass for both cores, as their drivers do."""
        self._tell_pool(pool.PoolTicked(at_us=self._now_us))
        if self._policy.balances:
            self._tell(events.Ticked(at_us=self._now_us))
        self._look()
        self._after(self._work.balance_us, self._tick)

    def _stuck(self) -> PlexError:
        waiting = sum(len(one.waiting) for one in self._core.generates.values())
        return PlexError(
            ErrorCode.INTERNAL,
            f"{self._work.name} under {self._policy.name} stands still in step "
            f"{len(self.outcome.steps)} after {self.outcome.events} events: {waiting} samples wait",
        )

    # ---- steps

    def _begin_step(self) -> None:
        number, work = len(self.outcome.steps) + 1, self._work
        self.outcome.steps.append(
            StepRecord(
                began_us=self._now_us,
                window_us=self._seeding.window_us,
                most_instances=self._seeding.most_instances,
                remote_us=self._remote_us(),
            )
        )
        self._lengths = work.lengths.draw(
            prompts=work.prompts, samples=work.samples, seed=(self._seed, number)
        )
        self._step.tokens = sum(map(sum, self._lengths)) + (
            work.prompts * work.samples * work.prompt_tokens
        )
        self._untrained = work.prompts * work.samples
        self._want_instances()
        self._tell(events.VersionWanted(version=self._version))
        if self._policy.seeds or not self._core.instances:
            self._wake()
        keys = [(p, s) for p in range(work.prompts) for s in range(work.samples)]
        submitted = events.SamplesSubmitted(
            operation_id=self._operation,
            samples=dict.fromkeys(keys, 0),
            prompt_tokens=(work.prompt_tokens,) * work.prompts,
        )
        self._tell(submitted)

    @property
    def _operation(self) -> OperationId:
        return OperationId(len(self.outcome.steps).to_bytes(16, "big"))

    @property
    def _version(self) -> VersionId:
        return VersionId("job/actor", 1, len(self.outcome.steps))

    def _look(self) -> None:
        """Open or close the window, and train what is complete."""
        if self._is_training or not self._untrained:
            return
        incomplete = bool(self._core.generates)
        if self._seeding_since_us is not None:
            served_us = self._now_us - self._seeding_since_us
            if not incomplete or not self._is_window_open(served_us):
                self._sleep()
        elif incomplete and not self._ready and not self._core.instances:
            self._wake()
        if self._seeding_since_us is None:
            self._train()

    def _is_window_open(self, served_us: int) -> bool:
        if not self._policy.seeds:
            return True
        return self._seeding.is_open(
            served_us=self._step.seeded_us + served_us, others=self._others
        )

    @property
    def _others(self) -> int:
        """Return how many instances serve beside the training devices."""
        kinds = [one.kind for one in self._core.instances.values() if one.is_serving]
        return sum(kind is not RESERVED for kind in kinds)

    def _wake(self) -> None:
        """Let the engines of the training devices join."""
        self._seeding_since_us = self._now_us
        step = len(self.outcome.steps)
        for _ in range(self._work.trainer.engines):
            self._after(self._work.trainer.wake_us, lambda: self._awake(step))

    def _awake(self, step: int) -> None:
        if step == len(self.outcome.steps) and self._seeding_since_us is not None:
            self._join(_Unit(Engine(self._work.profile), "reserved"), kind=RESERVED.name)

    def _sleep(self) -> None:
        """Drain the engines of the training devices."""
        assert self._seeding_since_us is not None
        self._step.seeded_us += self._now_us - self._seeding_since_us
        self._seeding_since_us = None
        for one in [i for i, has in self._core.instances.items() if has.kind is RESERVED]:
            self._tell(events.InstanceDrained(instance_id=one))

    def _train(self) -> None:
        """Train a micro-batch, if there is one."""
        if len(self._ready) < min(self._work.micro_batch, self._untrained):
            return
        tokens = sum(self._lengths[p][s] + self._work.prompt_tokens for p, s in self._ready)
        took_us = tokens * self._work.trainer.token_us
        self._untrained -= len(self._ready)
        self._ready.clear()
        took_us += self._work.trainer.update_us if not self._untrained else 0
        self._is_training = True
        self._step.train_us += round(took_us)
        self._after(took_us, self._trained)

    def _trained(self) -> None:
        self._is_training = False
        if self._untrained:
            self._look()
            return
        self._count_serving()
        step, self._step.ended_us = self._step, self._now_us
        self._learn(step)
        self._told(step)
        if self._now_us < self._work.duration_us:
            self._begin_step()

    def _learn(self, step: StepRecord) -> None:
        took_us = step.ended_us - step.began_us
        times = StepTimes(
            train_us=step.train_us,
            train_wait_us=took_us - step.train_us - step.seeded_us,
            remote_us=round(self._remote_us() - step.remote_us),
            remote_wait_us=step.ended_us - step.rolled_us,
            seeded_us=step.seeded_us,
            instances=step.instances,
            instances_now=self._others,
        )
        self._seeding.end_step(times)

    # ---- the rollout core

    def _tell(self, event: events.Event) -> None:
        ordered = self._core.handle(event)
        check(self._core)
        self.outcome.events += 1
        if self._others != self._serving:
            self._count_serving()
        for order in ordered:
            self._perform(order)

    def _count_serving(self) -> None:
        if self.outcome.steps and not self._is_over:
            self._step.instance_us += self._serving * (
                self._now_us - max(self._serving_since_us, self._step.began_us)
            )
        self._serving, self._serving_since_us = self._others, self._now_us
        self.outcome.counts.append((self._now_us, self._serving))

    def _perform(self, order: orders.Order) -> None:
        match order:
            case orders.StartSamples():
                self._start_samples(order)
            case orders.StopSamples():
                self._stop_samples(order)
            case orders.RecordTokens():
                pass  # nobody reads them
            case orders.AnswerSamples():
                if order.error is not None:
                    raise order.error
                self._step.rolled_us = self._now_us
                self._after(0, self._look)
            case orders.UpdateInstance():
                self._after(self._work.spot.pull_us, lambda: self._updated(order))
            case orders.ReleaseInstance():
                self._released(order)
            case orders.GiveUpInstance() | orders.SeekInstance():
                pass  # its device went, which the pool knows
            case _:
                assert_never(order)

    def _start_samples(self, order: orders.StartSamples) -> None:
        known = self._core.generates[order.operation_id].samples
        tasks = []
        for key in order.samples:
            has = known[key].num_tokens
            self.outcome.moved += has > 0
            made = has if self._policy.migrates else 0
            prompt, sample = key
            task = Task(
                call=order.call,
                key=key,
                prompt_tokens=self._work.prompt_tokens,
                sent=made,
                made=made,
                length=self._lengths[prompt][sample],
            )
            tasks.append(task)
        one = order.instance_id
        arrived = self._units[one].engine.start(tasks, now_us=self._now_us)
        self._sent(one, arrived)

    def _stop_samples(self, order: orders.StopSamples) -> None:
        unit = self._units.get(order.instance_id)
        if unit is not None:
            arrived = unit.engine.stop(order.samples, now_us=self._now_us)
            self._sent(order.instance_id, arrived)

    def _sent(self, one: InstanceId, arrived: list[events.Arrival]) -> None:
        """Have tokens arrive after the present event is dealt with, and set the next alarm."""
        if arrived:
            operation_id = self._operation
            self._after(0, lambda: self._arrive(operation_id, one, arrived))
        unit = self._units[one]
        unit.alarm += 1
        due_us, alarm = unit.engine.next_us(), unit.alarm
        if due_us is not None:
            self._after(max(0, due_us - self._now_us), lambda: self._wake_engine(one, alarm))

    def _wake_engine(self, one: InstanceId, alarm: int) -> None:
        unit = self._units.get(one)
        if unit is not None and unit.alarm == alarm:
            self._sent(one, unit.engine.advance(self._now_us))

    def _arrive(
        self, operation_id: OperationId, one: InstanceId, arrived: list[events.Arrival]
    ) -> None:
        if operation_id not in self._core.generates:
            return
        self._ready += [arrival.key for arrival in arrived if arrival.is_last]
        self._tell(
            events.TokensArrived(operation_id=operation_id, instance_id=one, arrivals=arrived)
        )
        if self._ready:
            self._look()

    def _join(self, unit: _Unit, *, kind: str) -> None:
        self._numbers += 1
        one = InstanceId(self._numbers)
        self._units[one] = unit
        version = self._version if kind == RESERVED.name else VersionId()
        self._tell(
            events.InstanceJoined(
                instance_id=one,
                address=unit.address,
                version=version,
                checksum=str(version),
                kind=kind,
            )
        )

    def _updated(self, order: orders.UpdateInstance) -> None:
        unit = self._units.get(order.instance_id)
        if unit is None:
            return
        unit.engine.forget_prompts()
        self._tell(
            events.InstanceAnswered(
                instance_id=order.instance_id,
                version=order.version,
                checksum=str(order.version),
            )
        )
        self._look()

    def _released(self, order: orders.ReleaseInstance) -> None:
        unit = self._units.pop(order.instance_id)
        self._account(unit)
        if unit.slot:
            self._tell_pool(pool.SlotDrained(slot_id=unit.slot, number=unit.number))

    def _remote_us(self) -> float:
        """Return the time that engines elsewhere have worked."""
        return self._gone_us + sum(u.engine.spent.busy_us for u in self._units.values() if u.slot)

    def _account(self, unit: _Unit) -> None:
        spent, total = unit.engine.spent, self.outcome.spent
        self._gone_us += spent.busy_us if unit.slot else 0
        total.busy_us += spent.busy_us
        total.tokens += spent.tokens
        total.prefilled += spent.prefilled
        total.cached += spent.cached

    # ---- the pool

    def _plan_spot(self) -> None:
        """Let spot devices come and go as the workload says."""
        for change in self._work.spot.changes:
            slot, price = change.slot, self._work.spot.price
            if change.is_add:
                came = pool.SlotCame(slot_id=slot, price=price)
                self._at(change.at_us, came)
                continue
            self._at(change.at_us - self._work.spot.notice_us, pool.SlotNoticed(slot_id=slot))
            self._at(change.at_us, pool.SlotGone(slot_id=slot))

    def _at(self, at_us: int, fact: pool.Fact) -> None:
        self._after(max(0, at_us), lambda: self._tell_pool(fact))

    def _want_instances(self) -> None:
        if self._policy.uses_spot:
            most = self._work.spot.most
            if most is None:
                most = self._seeding.most_instances
            self._tell_pool(pool.Wanted(deployment_id=DEPLOYMENT, most=most))

    def _tell_pool(self, event: pool.Event) -> None:
        for order in self._pool.handle(event):
            self._perform_pool(order)

    def _perform_pool(self, order: pool.Order) -> None:
        slot, number = order.slot_id, order.number
        match order:
            case pool.StartInstance():
                self.outcome.starts += 1
                self.outcome.slot_us -= self._now_us
                self._after(self._work.spot.start_us, lambda: self._started(slot, number))
            case pool.DrainInstance():
                found = self._instance_of(slot)
                if found is None:
                    self._tell_pool(pool.SlotDrained(slot_id=slot, number=number))
                else:
                    self._tell(events.InstanceDrained(instance_id=found))
            case pool.StopInstance():
                self.outcome.slot_us += self._now_us
                self._stop_instance(slot, number)
            case _:
                assert_never(order)

    def _started(self, slot: str, number: int) -> None:
        has = self._pool.slots.get(slot)
        if has is None or has.number != number or has.state is not State.STARTING:
            return
        engine = Engine(self._work.profile)
        self._join(_Unit(engine, slot, slot=slot, number=number), kind=SPOT.name)
        self._tell_pool(pool.InstanceUp(slot_id=slot, number=number))

    def _instance_of(self, slot: str) -> InstanceId | None:
        return next((one for one, unit in self._units.items() if unit.slot == slot), None)

    def _stop_instance(self, slot: str, number: int) -> None:
        """End a process: its calls break, and its instance is forgotten."""
        found = self._instance_of(slot)
        if found is not None:
            unit = self._units.pop(found)
            self._account(unit)
            self.outcome.kills += 1
            for call, keys in unit.engine.kill().items():
                self._tell(
                    events.CallEnded(
                        operation_id=self._operation,
                        call=call,
                        instance_id=found,
                        address=slot,
                        samples=keys,
                        error=TAKEN,
                    )
                )
            self._tell(events.InstanceEnded(instance_id=found, because=TAKEN.message))
        self._tell_pool(pool.InstanceStopped(slot_id=slot, number=number))
