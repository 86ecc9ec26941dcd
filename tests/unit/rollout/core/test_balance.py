"""Balance between instances: one that is slower costs a job little, and never its end."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from plexsvc.ids import OperationId, VersionId
from plexsvc.rollout.core import events, orders
from plexsvc.rollout.core.balance import compare
from plexsvc.rollout.core.events import InstanceId, SampleKey, SampleTokens
from plexsvc.rollout.core.instances import Instance
from plexsvc.rollout.core.machine import RolloutCore
from tests.rigs.rollout_invariants import check

OP = OperationId(b"op".ljust(16, b"."))
STEP_US = 10_000
"""Fixed part of a step on an instance of slowness 1; each sample adds a tenth."""
TICK_US = 100_000


@dataclass(slots=True)
class FakeEngine:
    """Makes a token of each of its samples a step, which takes `factor` times as long as it may."""

    factor: int
    at: dict[SampleKey, int] = field(default_factory=dict)
    stopped: set[SampleKey] = field(default_factory=set)
    due_us: int = 0

    def begin(self, now_us: int) -> None:
        self.due_us = now_us + self.factor * (STEP_US + STEP_US * len(self.at) // 10)


class Play:
    """A core and its engines in virtual time."""

    def __init__(self, factors: list[int], *, samples: int, length: int) -> None:
        self.core = RolloutCore("job/rollout", max_losses=3, max_pending=64)
        self.engines = {InstanceId(n): FakeEngine(factor) for n, factor in enumerate(factors, 1)}
        self.tokens: dict[SampleKey, int] = dict.fromkeys([(n, 0) for n in range(samples)], 0)
        self.length, self.now_us, self.is_answered = length, 0, False
        joined = [
            events.InstanceJoined(instance_id=one, address=f"i{one}", version=VersionId())
            for one in self.engines
        ]
        self.tell(events.InstancesReplaced(instances=tuple(joined)))
        self.tell(events.SamplesSubmitted(operation_id=OP, samples=dict(self.tokens)))

    def tell(self, event: events.Event) -> None:
        for order in self.core.handle(event):
            match order:
                case orders.StartSamples():
                    engine = self.engines[order.instance_id]
                    if not engine.at:
                        engine.at |= {key: self.tokens[key] for key in order.samples}
                        engine.begin(self.now_us)
                    engine.at |= {key: self.tokens[key] for key in order.samples}
                case orders.StopSamples():
                    self.engines[order.instance_id].stopped |= set(order.samples)
                case orders.AnswerSamples():
                    assert order.error is None
                    self.is_answered = True
                case _:
                    pass
        check(self.core)

    def run(self) -> int:
        """Return when the last sample is complete, in us."""
        tick_us = TICK_US
        while not self.is_answered:
            busy = {one: engine for one, engine in self.engines.items() if engine.at}
            self.now_us = min([tick_us, *(engine.due_us for engine in busy.values())])
            if self.now_us == tick_us:
                self.tell(events.Ticked(at_us=self.now_us))
                tick_us += TICK_US
                continue
            one = min(busy, key=lambda name: busy[name].due_us)
            self.step(one, busy[one])
        assert set(self.tokens.values()) == {self.length}
        return self.now_us

    def step(self, one: InstanceId, engine: FakeEngine) -> None:
        arrivals = []
        for key, at in list(engine.at.items()):
            is_last, is_aborted = at + 1 == self.length, key in engine.stopped
            arrivals.append(SampleTokens(key, at, 1, is_last=is_last, is_aborted=is_aborted))
            self.tokens[key] = engine.at[key] = at + 1
            if is_last or is_aborted:
                del engine.at[key]
        engine.stopped.clear()
        engine.begin(self.now_us)
        self.tell(events.TokensArrived(operation_id=OP, instance_id=one, arrivals=arrivals))


@settings(max_examples=40, deadline=None)
@given(
    factors=st.lists(st.sampled_from([2, 5, 10, 30]), min_size=1, max_size=2),
    samples=st.integers(1, 40),
    length=st.integers(30, 100),
)
def test_what_a_slower_instance_was_given_ends_on_a_faster_one_in_one_more_turn(
    factors: list[int], samples: int, length: int
) -> None:
    without = Play([1], samples=samples, length=length).run()
    found = Play([1, *factors], samples=samples, length=length).run()
    known_us = 4 * TICK_US + max(factors) * 5 * STEP_US  # until it is seen, and a step of it
    assert found <= (1 + len(factors)) * without + known_us


@pytest.mark.parametrize("count", [2, 4])
def test_equal_instances_share_the_work(count: int) -> None:
    found = Play([1] * count, samples=8 * count, length=100).run()
    assert found == Play([1], samples=8, length=100).run()


def test_a_smaller_batch_that_steps_no_sooner_is_not_taken_for_a_slow_instance() -> None:
    def measured(batch: float, step_s: float) -> Instance:
        made = Instance(address="a", version=VersionId())
        made.batch, made.step_s = batch, step_s
        return made

    small, large, slow = measured(1, 0.010), measured(32, 0.040), measured(4, 0.120)
    unknown = Instance(address="a", version=VersionId())
    compare([small, large, slow, unknown])
    assert [one.slowness for one in (small, large, slow, unknown)] == [1, 1, 3, 1]
