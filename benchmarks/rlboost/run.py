"""Simulated runs of one job: the cores that run live decide, engines are profiles.

Theory of operation. `RolloutCore` says which sample goes where, `Pool` which spot device has an
instance, `Seeding` how long the training devices generate. This driver does what they order in
virtual time and tells them what came of it, as `Fleet` and `SpotInstances` do live. Their
invariants are checked after every event.

A step: a version is wanted, the engines of the training devices join, samples are submitted. When
the window is over those engines are drained and the trainer takes micro-batches of whatever is
complete. When all is trained the step ends, and the window learns from it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final, assert_never

from benchmarks.rlboost.engine import Engine, Spent
from benchmarks.rlboost.floor import DEPLOYMENT, Floor, Unit
from benchmarks.rlboost.workload import RolloutWorkload
from plexsvc.errors import ErrorCode, PlexError
from plexsvc.ids import VersionId
from plexsvc.rollout.core import events, pool
from plexsvc.rollout.core.events import InstanceId, SampleKey
from plexsvc.rollout.core.instances import RESERVED, SPOT
from plexsvc.rollout.core.machine import RolloutCore
from plexsvc.rollout.core.pool import Pool, State
from plexsvc.rollout.core.window import Seeding, StepTimes

HOUR_US: Final = 3_600_000_000
TAKEN: Final = PlexError(ErrorCode.UNAVAILABLE, "its spot device was taken back")


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


class RolloutRun(Floor):
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
        core = RolloutCore(DEPLOYMENT, max_losses=1 << 30, max_pending=workload.max_pending)
        super().__init__(core, prompt_tokens=workload.prompt_tokens, pull_us=workload.spot.pull_us)
        self.migrates = policy.migrates
        self.outcome = RolloutOutcome(policy=policy)
        self._work, self._policy, self._seed, self._told = workload, policy, seed, told
        self._pool = Pool()
        self._seeding = Seeding(
            engines=workload.trainer.engines, first_window_us=workload.first_window_us
        )
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
            for change in self._work.spot.changes:
                slot, price = change.slot, self._work.spot.price
                if change.is_add:
                    came = pool.SlotCame(slot_id=slot, price=price)
                    self._at(change.at_us, came)
                    continue
                self._at(change.at_us - self._work.spot.notice_us, pool.SlotNoticed(slot_id=slot))
                self._at(change.at_us, pool.SlotGone(slot_id=slot))
            self._tick()
        self._begin_step()
        while not self._is_over:
            self.happen()
        self._count_serving()
        return self._finished()

    def _finished(self) -> RolloutOutcome:
        self.account_all()
        self.outcome.spent, self.outcome.moved = self.spent, self.moved
        self.outcome.events = self.events
        held = [slot for slot in self._pool.slots.values() if slot.state is not State.FREE]
        self.outcome.slot_us += self.now_us * len(held)
        return self.outcome

    # ---- time

    @property
    def _is_over(self) -> bool:
        return bool(self.outcome.steps) and self.outcome.steps[-1].ended_us > 0

    @property
    def _step(self) -> StepRecord:
        return self.outcome.steps[-1]

    def _tick(self) -> None:
        """Let time pass for both cores, as their drivers do."""
        self._tell_pool(pool.PoolTicked(at_us=self.now_us))
        if self._policy.balances:
            self.balance()
        self._look()
        self.after(self._work.balance_us, self._tick)

    # ---- steps

    def _begin_step(self) -> None:
        self.step, work = self.step + 1, self._work
        self.outcome.steps.append(
            StepRecord(
                began_us=self.now_us,
                window_us=self._seeding.window_us,
                most_instances=self._seeding.most_instances,
                remote_us=self._remote_us(),
            )
        )
        self.lengths = work.lengths.draw(
            prompts=work.prompts, samples=work.samples, seed=(self._seed, self.step)
        )
        self._step.tokens = sum(map(sum, self.lengths)) + (
            work.prompts * work.samples * work.prompt_tokens
        )
        self._untrained = work.prompts * work.samples
        if self._policy.uses_spot:
            most = self._work.spot.most
            if most is None:
                most = self._seeding.most_instances
            self._tell_pool(pool.Wanted(deployment_id=DEPLOYMENT, most=most))
        self.tell(events.VersionWanted(version=self.version))
        if self._policy.seeds or not self.core.instances:
            self._wake()
        self.submit()

    def _look(self) -> None:
        """Open or close the window, and train what is complete."""
        if self._is_training or not self._untrained:
            return
        incomplete = bool(self.core.generates)
        if self._seeding_since_us is not None:
            served_us = self.now_us - self._seeding_since_us
            if not incomplete or not self._is_window_open(served_us):
                self._sleep()
        elif incomplete and not self._ready and not self.core.instances:
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
        kinds = [one.kind for one in self.core.instances.values() if one.is_serving]
        return sum(kind is not RESERVED for kind in kinds)

    def _wake(self) -> None:
        """Let the engines of the training devices join."""
        self._seeding_since_us = self.now_us
        step = self.step
        for _ in range(self._work.trainer.engines):
            self.after(self._work.trainer.wake_us, lambda: self._awake(step))

    def _awake(self, step: int) -> None:
        if step == self.step and self._seeding_since_us is not None:
            unit = Unit(Engine(self._work.profile), "reserved")
            self.join(unit, kind=RESERVED.name, version=self.version)

    def _sleep(self) -> None:
        """Drain the engines of the training devices."""
        assert self._seeding_since_us is not None
        self._step.seeded_us += self.now_us - self._seeding_since_us
        self._seeding_since_us = None
        for one in [i for i, has in self.core.instances.items() if has.kind is RESERVED]:
            self.tell(events.InstanceDrained(instance_id=one))

    def _train(self) -> None:
        """Train a micro-batch, if there is one."""
        if len(self._ready) < min(self._work.micro_batch, self._untrained):
            return
        tokens = sum(self.lengths[p][s] + self._work.prompt_tokens for p, s in self._ready)
        took_us = tokens * self._work.trainer.token_us
        self._untrained -= len(self._ready)
        self._ready.clear()
        took_us += self._work.trainer.update_us if not self._untrained else 0
        self._is_training = True
        self._step.train_us += round(took_us)
        self.after(took_us, self._trained)

    def _trained(self) -> None:
        self._is_training = False
        if self._untrained:
            self._look()
            return
        self._count_serving()
        step, self._step.ended_us = self._step, self.now_us
        self._learn(step)
        self._told(step)
        if self.now_us < self._work.duration_us:
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

    def tell(self, event: events.Event) -> None:
        """Give the rollout core an event, and count the instances that serve then."""
        super().tell(event)
        if self._others != self._serving:
            self._count_serving()

    def _count_serving(self) -> None:
        if self.outcome.steps and not self._is_over:
            self._step.instance_us += self._serving * (
                self.now_us - max(self._serving_since_us, self._step.began_us)
            )
        self._serving, self._serving_since_us = self._others, self.now_us
        self.outcome.counts.append((self.now_us, self._serving))

    def answered(self) -> None:
        """Close the window, if it is open."""
        self._step.rolled_us = self.now_us
        self.after(0, self._look)

    def completed(self, keys: Sequence[SampleKey]) -> None:
        """Train samples when there are enough."""
        self._ready += keys
        self._look()

    def served(self) -> None:
        """Look whether the window may close now."""
        self._look()

    def released(self, unit: Unit) -> None:
        """Stop a spot instance that was drained."""
        self._gone_us += unit.engine.spent.busy_us if unit.slot else 0
        if unit.slot:
            self._tell_pool(pool.SlotDrained(slot_id=unit.slot, number=unit.number))

    def _remote_us(self) -> float:
        """Return the time that engines elsewhere have worked."""
        return self._gone_us + sum(u.engine.spent.busy_us for u in self.units.values() if u.slot)

    # ---- the pool

    def _at(self, at_us: int, fact: pool.Fact) -> None:
        self.after(max(0, at_us), lambda: self._tell_pool(fact))

    def _tell_pool(self, event: pool.Event) -> None:
        for order in self._pool.handle(event):
            self._perform_pool(order)

    def _perform_pool(self, order: pool.Order) -> None:
        slot, number = order.slot_id, order.number
        match order:
            case pool.StartInstance():
                self.outcome.starts += 1
                self.outcome.slot_us -= self.now_us
                self.after(self._work.spot.start_us, lambda: self._started(slot, number))
            case pool.DrainInstance():
                found = self._instance_of(slot)
                if found is None:
                    self._tell_pool(pool.SlotDrained(slot_id=slot, number=number))
                else:
                    self.tell(events.InstanceDrained(instance_id=found))
            case pool.StopInstance():
                self.outcome.slot_us += self.now_us
                self._stop_instance(slot, number)
            case _:
                assert_never(order)

    def _started(self, slot: str, number: int) -> None:
        has = self._pool.slots.get(slot)
        if has is None or has.number != number or has.state is not State.STARTING:
            return
        engine = Engine(self._work.profile)
        unit = Unit(engine, slot, slot=slot, number=number)
        self.join(unit, kind=SPOT.name, version=VersionId())
        self._tell_pool(pool.InstanceUp(slot_id=slot, number=number))

    def _instance_of(self, slot: str) -> InstanceId | None:
        return next((one for one, unit in self.units.items() if unit.slot == slot), None)

    def _stop_instance(self, slot: str, number: int) -> None:
        """End a process: its calls break, and its instance is forgotten."""
        found = self._instance_of(slot)
        if found is not None:
            self.outcome.kills += 1
            self._gone_us += self.units[found].engine.spent.busy_us
            self.kill(found, error=TAKEN)
        self._tell_pool(pool.InstanceStopped(slot_id=slot, number=number))
