"""The seeding window in the core: opened, closed by what was learned, and ended."""

from __future__ import annotations

from dataclasses import replace

import pytest

from plexsvc.ids import OperationId, VersionId
from plexsvc.rollout.core import events, orders
from plexsvc.rollout.core.events import InstanceId, SampleKey, SampleTokens
from plexsvc.rollout.core.machine import RolloutCore
from plexsvc.rollout.core.window import Seeding, StepTimes
from tests.rigs.rollout_invariants import check

OWN, ENGINE = InstanceId(1), InstanceId(2)
KEYS: list[SampleKey] = [(0, 0), (0, 1), (1, 0), (1, 1)]
SECOND = 1_000_000


def op(step: int) -> OperationId:
    return OperationId(str(step).encode().rjust(16))


class Loop:
    """A job's steps on a core: one instance of its own, one engine on its training device."""

    def __init__(self) -> None:
        self.core = RolloutCore("job/rollout", max_losses=3, max_pending=2)
        self.at_us = 0
        self.tell(self.joined(OWN, "dedicated"))

    def tell(self, event: events.Event) -> list[orders.Order]:
        ordered = self.core.handle(event)
        check(self.core)
        return ordered

    @staticmethod
    def joined(one: InstanceId, kind: str) -> events.InstanceJoined:
        return events.InstanceJoined(
            instance_id=one, address=f"i{one}", version=VersionId(), kind=kind
        )

    def begin(self, step: int, *, trained: events.StepTrained | None = None) -> list[orders.Order]:
        """Submit a generate, open its window, and have the engine join."""
        keys = dict.fromkeys(KEYS, 0)
        self.tell(events.SamplesSubmitted(operation_id=op(step), samples=keys, at_us=self.at_us))
        opened = events.WindowOpened(
            at_us=self.at_us, operation_id=op(step), engines=1, trained=trained
        )
        return [*self.tell(opened), *self.tell(self.joined(ENGINE, "reserved"))]

    def tick(self, after_us: int) -> list[orders.Order]:
        self.at_us += after_us
        return self.tell(events.Ticked(at_us=self.at_us))

    def finish(self, step: int) -> list[orders.Order]:
        """Have all samples arrive complete, and the generate end."""
        found: list[orders.Order] = []
        held = self.core.generates[op(step)].samples
        for one in (OWN, ENGINE):
            keys = [key for key, has in held.items() if has.instance_id == one]
            arrivals = [SampleTokens(key, 0, 6, is_last=True) for key in keys]
            found += self.tell(
                events.TokensArrived(operation_id=op(step), instance_id=one, arrivals=arrivals)
            )
        ended = events.OperationEnded(operation_id=op(step), at_us=self.at_us)
        return found + self.tell(ended)


def ends(ordered: list[orders.Order]) -> list[orders.EndWindow]:
    return [order for order in ordered if isinstance(order, orders.EndWindow)]


def first_step(loop: Loop) -> events.StepTrained:
    """Play a step of one second of rollout on both, then one of training."""
    loop.begin(1)
    loop.tick(SECOND)
    (over,) = ends(loop.finish(1))
    assert (over.operation_id, over.seeded_us, over.next_window_us) == (op(1), SECOND, None)
    loop.at_us += SECOND
    return events.StepTrained(train_us=SECOND, ended_us=loop.at_us)


def test_the_first_window_lasts_as_long_as_the_samples_and_its_devices_are_free_then() -> None:
    loop = Loop()
    loop.begin(1)
    assert not ends(loop.tick(100 * SECOND))
    assert ENGINE in loop.core.instances
    found = [type(order) for order in loop.finish(1)]
    assert found.index(orders.ReleaseInstance) < found.index(orders.EndWindow)
    assert ENGINE not in loop.core.instances


def test_a_window_is_counted_to_the_end_of_its_generate_whatever_is_told_before() -> None:
    loop = Loop()
    loop.begin(1)
    loop.at_us += SECOND
    for one, keys in ((OWN, KEYS[:2]), (ENGINE, KEYS[2:])):
        arrivals = [SampleTokens(key, 0, 6, is_last=True) for key in keys]
        loop.tell(events.TokensArrived(operation_id=op(1), instance_id=one, arrivals=arrivals))
    assert not ends(loop.tell(loop.joined(InstanceId(9), "dedicated")))
    (over,) = ends(loop.tell(events.OperationEnded(operation_id=op(1), at_us=loop.at_us)))
    assert over.seeded_us == SECOND


def test_later_windows_close_in_mid_rollout_and_samples_go_on_elsewhere() -> None:
    loop = Loop()
    trained = first_step(loop)
    loop.begin(2, trained=trained)
    seeding = loop.core.window.seeding
    assert seeding is not None
    assert seeding.window_us == SECOND // 2, "half of the work, less half of the training"
    assert not ends(loop.tick(SECOND // 4))
    (stop,) = loop.tick(SECOND // 4)
    assert isinstance(stop, orders.StopSamples)
    assert stop.instance_id == ENGINE
    begun = [SampleTokens(key, 0, 1, is_last=False) for key in KEYS if key not in stop.samples]
    loop.tell(events.TokensArrived(operation_id=op(2), instance_id=OWN, arrivals=begun))
    aborted = [SampleTokens(key, 0, 2, is_last=False, is_aborted=True) for key in stop.samples]
    moved = loop.tell(
        events.TokensArrived(operation_id=op(2), instance_id=ENGINE, arrivals=aborted)
    )
    starts = [order for order in moved if isinstance(order, orders.StartSamples)]
    assert [(one.instance_id, one.samples) for one in starts] == [(OWN, stop.samples)]
    (over,) = ends(moved)
    assert (over.seeded_us, over.most_instances) == (SECOND // 2, 2)


def test_the_window_stays_open_while_nobody_else_serves() -> None:
    loop = Loop()
    loop.begin(2, trained=first_step(loop))
    broke = events.InstanceCallFailed(instance_id=OWN, because="reset")
    loop.tell(broke)
    assert not ends(loop.tick(10 * SECOND))
    loop.tell(events.InstanceAnswered(instance_id=OWN, version=VersionId(), is_probe=True))
    assert [type(order) for order in loop.tick(1)] == [orders.StopSamples], "closed at once"


def test_an_engine_that_comes_when_the_window_is_closing_goes_at_once() -> None:
    loop = Loop()
    loop.begin(1)
    loop.tell(events.WindowLeft(at_us=loop.at_us))
    late = InstanceId(3)
    assert [type(order) for order in loop.tell(loop.joined(late, "reserved"))] == [
        orders.ReleaseInstance
    ]


def test_an_engine_killed_in_the_window_ends_it_when_it_closes_and_costs_no_sample() -> None:
    loop = Loop()
    loop.begin(1)
    samples = loop.core.generates[op(1)].samples
    held = [key for key, has in samples.items() if has.instance_id == ENGINE]
    assert len(held) == 2
    loop.tell(events.InstanceEnded(instance_id=ENGINE, because="killed"))
    assert not ends(loop.tick(SECOND)), "others of its kind may be there"
    assert ends(loop.tell(events.WindowLeft(at_us=loop.at_us)))
    assert all(not samples[key].is_complete for key in held)


def test_a_step_that_was_not_trained_on_teaches_nothing() -> None:
    loop = Loop()
    first_step(loop)
    loop.begin(2, trained=events.StepTrained(train_us=0, ended_us=0))
    assert loop.core.window.seeding is None
    loop.finish(2)
    loop.begin(3)
    assert loop.core.window.seeding is None


def test_another_number_of_engines_keeps_the_window() -> None:
    loop = Loop()
    trained = first_step(loop)
    loop.begin(2, trained=trained)
    loop.finish(2)
    loop.at_us += SECOND
    keys = dict.fromkeys(KEYS, 0)
    loop.tell(events.SamplesSubmitted(operation_id=op(3), samples=keys, at_us=loop.at_us))
    seeding = loop.core.window.seeding
    loop.tell(
        events.WindowOpened(
            at_us=loop.at_us,
            operation_id=op(3),
            engines=2,
            trained=events.StepTrained(train_us=SECOND, ended_us=loop.at_us),
        )
    )
    found = loop.core.window.seeding
    assert found is not None
    assert found is not seeding
    assert found.engines == 2


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


def test_a_window_stays_open_past_its_length_while_nobody_else_serves() -> None:
    seeding = Seeding(engines=ENGINES, first_window_us=100)
    assert seeding.is_open(served_us=99, others=2)
    assert not seeding.is_open(served_us=100, others=2)
    assert seeding.is_open(served_us=10**9, others=0)
