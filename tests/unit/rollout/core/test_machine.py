"""The rollout core: its orders one by one, and its promises under any course of events."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from plexsvc.errors import ErrorCode, PlexError
from plexsvc.ids import OperationId, VersionId
from plexsvc.rollout.core import assignment, events, orders
from plexsvc.rollout.core.events import InstanceId, SampleKey, SampleTokens
from plexsvc.rollout.core.instances import TURN_CAP, Phase
from plexsvc.rollout.core.machine import RolloutCore
from plexsvc.rollout.core.membership import MAX_PROBES
from plexsvc.rollout.engines.base import MODEL
from tests.rigs.rollout_invariants import check

ONE, TWO = InstanceId(1), InstanceId(2)
OP, OTHER, THIRD = (OperationId(name.ljust(16, b".")) for name in (b"op", b"other", b"third"))
BROKEN = PlexError(ErrorCode.UNAVAILABLE, "connection reset")
LENGTH = 6
"""Tokens of a complete sample."""


def v(number: int, source: str = "job/actor") -> VersionId:
    """Return a version of a source; 0: the model's own weights."""
    return VersionId(source, 1, number) if number else VersionId()


def joined(*versions: VersionId, first: int = 1) -> events.InstancesReplaced:
    return events.InstancesReplaced(
        instances=tuple(
            events.InstanceJoined(instance_id=InstanceId(number), address=f"i{number}", version=v)
            for number, v in enumerate(versions, first)
        )
    )


def submitted(*keys: SampleKey) -> events.SamplesSubmitted:
    return events.SamplesSubmitted(operation_id=OP, samples=dict.fromkeys(keys, 0))


def submitted_as(operation_id: OperationId, *keys: SampleKey) -> events.SamplesSubmitted:
    return events.SamplesSubmitted(operation_id=operation_id, samples=dict.fromkeys(keys, 0))


def ended(
    instance_id: InstanceId, *keys: SampleKey, call: int, error: PlexError = BROKEN
) -> events.CallEnded:
    return events.CallEnded(
        operation_id=OP,
        call=call,
        instance_id=instance_id,
        address=f"i{instance_id}",
        samples=list(keys),
        error=error,
    )


def started(
    instance_id: InstanceId, *keys: SampleKey, call: int, version: VersionId = MODEL
) -> orders.StartSamples:
    return orders.StartSamples(
        operation_id=OP, call=call, instance_id=instance_id, samples=list(keys), version=version
    )


def arrived(instance_id: InstanceId, *arrivals: SampleTokens) -> events.TokensArrived:
    return events.TokensArrived(operation_id=OP, instance_id=instance_id, arrivals=list(arrivals))


def spot(
    number: int, version: VersionId = MODEL, checksum: str = "", *, kind: str = "spot"
) -> events.InstanceJoined:
    return events.InstanceJoined(
        instance_id=InstanceId(number),
        address=f"s{number}",
        version=version,
        checksum=checksum,
        kind=kind,
    )


@pytest.fixture
def core() -> RolloutCore:
    made = RolloutCore("job/rollout", max_losses=3, max_pending=2)
    assert made.handle(joined(v(0), v(0))) == []
    return made


def test_samples_of_a_lost_instance_continue_elsewhere_and_it_is_sought(core: RolloutCore) -> None:
    assert core.handle(submitted((0, 0), (0, 1))) == [
        started(ONE, (0, 0), call=1),
        started(TWO, (0, 1), call=2),
    ]
    assert core.handle(ended(ONE, (0, 0), call=1)) == [
        orders.SeekInstance(instance_id=ONE, probe=1),
        started(TWO, (0, 0), call=3),
    ]


def test_the_next_place_goes_to_the_generate_with_the_fewest_samples_under_way() -> None:
    core = RolloutCore("job/rollout", max_losses=3, max_pending=2)
    core.handle(joined(MODEL))
    long = [(prompt, 0) for prompt in range(6)]
    core.handle(submitted_as(OP, *long))
    core.handle(submitted_as(OTHER, (0, 0)))
    (_, short) = core.handle(arrived(ONE, SampleTokens(long[0], 0, 1, is_last=False)))
    assert isinstance(short, orders.StartSamples)
    assert (short.operation_id, short.samples) == (OTHER, [(0, 0)])
    check(core)


def test_samples_in_an_engines_queue_make_room_for_a_shorter_generate() -> None:
    core = RolloutCore("job/rollout", max_losses=3, max_pending=4)
    core.handle(joined(MODEL))
    long = [(prompt, 0) for prompt in range(8)]
    core.handle(submitted_as(OP, *long))
    core.handle(arrived(ONE, *(SampleTokens(key, 0, 1, is_last=False) for key in long[:2])))
    core.handle(submitted_as(OTHER, (0, 0), (0, 1)))
    assert core.handle(events.Ticked(at_us=1)) == [], "they may be in their prefill"
    (stop,) = stops(core.handle(events.Ticked(at_us=2)))
    assert (stop.operation_id, stop.samples) == (OP, long[2:6])
    assert stops(core.handle(events.Ticked(at_us=3))) == [], "they are told once"
    back = [SampleTokens(key, 0, 0, is_last=False, is_aborted=True) for key in long[2:6]]
    begun = [o for o in core.handle(arrived(ONE, *back)) if isinstance(o, orders.StartSamples)]
    assert [(order.operation_id, order.samples) for order in begun] == [
        (OTHER, [(0, 0), (0, 1)]),
        (OP, long[2:4]),
    ]
    check(core)
    core.handle(arrived(ONE, *(SampleTokens(key, 1, 1, is_last=False) for key in long[:2])))
    ticks = [core.handle(events.Ticked(at_us=at)) for at in range(5, 12)]
    assert ticks == [[]] * 7, "what nobody waits behind stays"


def test_generates_that_overlap_get_large_calls_and_keep_them() -> None:  # noqa: C901 - an engine
    core = RolloutCore("job/rollout", max_losses=3, max_pending=64)
    core.handle(joined(MODEL))
    calls: list[tuple[OperationId, dict[SampleKey, int]]] = []
    todo: deque[events.Event] = deque()
    sizes: list[int] = []
    stopped: list[SampleKey] = []

    def tell(event: events.Event) -> None:
        todo.append(event)
        while todo:
            for order in core.handle(todo.popleft()):
                if isinstance(order, orders.StartSamples):
                    calls.append((order.operation_id, dict.fromkeys(order.samples, 0)))
                    sizes.append(len(order.samples))
                elif isinstance(order, orders.StopSamples):
                    stopped.extend(order.samples)
                    for name, at in calls:
                        keys = [key for key in order.samples if name == order.operation_id]
                        back = [(key, at.pop(key)) for key in keys if key in at]
                        send(name, [SampleTokens(k, n, 0, False, True) for k, n in back])
            check(core)

    def send(name: OperationId, arrivals: list[SampleTokens]) -> None:
        if arrivals:
            todo.append(events.TokensArrived(operation_id=name, instance_id=ONE, arrivals=arrivals))

    for name in (OperationId(bytes([number]) * 16) for number in range(5)):
        tell(submitted_as(name, *((prompt, n) for prompt in range(50) for n in range(4))))
    for step in range(1, 1000):
        slots = 64
        for name, at in calls[:]:  # each call has frames of its own
            running = list(at)[:slots]
            slots -= len(running)
            send(name, [SampleTokens(key, at[key], 1, at[key] == 19) for key in running])
            for key in running:
                at[key] += 1
                if at[key] == 20:
                    del at[key]
        tell(events.Ticked(at_us=step))
    assert not core.generates
    assert len(sizes) < 100, "of 16 samples, but for the last of each"
    assert len(stopped) < 100


def test_a_generate_that_comes_takes_no_place_before_one_that_waits_for_more_of_them() -> None:
    core = RolloutCore("job/rollout", max_losses=3, max_pending=8)
    core.handle(joined(MODEL))
    long = [(prompt, 0) for prompt in range(10)]
    core.handle(submitted_as(OP, *long))
    core.handle(arrived(ONE, SampleTokens(long[0], 0, 1, is_last=False)))
    assert core.handle(submitted_as(OTHER, (0, 0), (1, 0))) == [], "there is room for one"
    assert core.handle(submitted_as(THIRD, (0, 0))) == []
    (_, begun) = core.handle(arrived(ONE, SampleTokens(long[1], 0, 1, is_last=False)))
    assert isinstance(begun, orders.StartSamples)
    assert (begun.operation_id, begun.samples) == (OTHER, [(0, 0), (1, 0)])
    check(core)


def test_a_call_that_ends_loses_nothing_that_was_taken_back_from_it_and_waits() -> None:
    core = RolloutCore("job/rollout", max_losses=3, max_pending=2)
    core.handle(joined(MODEL))
    core.handle(submitted((0, 0), (1, 0)))
    core.handle(arrived(ONE, SampleTokens((0, 0), 0, LENGTH, is_last=True)))
    core.handle(submitted_as(OTHER, (0, 0), (1, 0), (2, 0)))
    core.handle(events.InstanceDrained(instance_id=ONE))
    back = SampleTokens((1, 0), 0, 0, is_last=False, is_aborted=True)
    core.handle(arrived(ONE, back))
    waiting = core.generates[OP].waiting
    assert list(waiting) == [(1, 0)]
    assert core.handle(ended(ONE, (0, 0), (1, 0), call=1)) == []
    assert list(waiting) == [(1, 0)]
    assert core.generates[OP].losses == 0
    check(core)


def stops(ordered: list[orders.Order]) -> list[orders.StopSamples]:
    return [order for order in ordered if isinstance(order, orders.StopSamples)]


def test_samples_wait_until_an_instance_has_the_wanted_version(core: RolloutCore) -> None:
    updates = core.handle(events.VersionWanted(version=v(4)))
    assert updates == [orders.UpdateInstance(instance_id=one, version=v(4)) for one in (ONE, TWO)]
    assert core.handle(submitted((0, 0))) == []
    served = core.handle(events.InstanceAnswered(instance_id=TWO, version=v(4)))
    assert served == [started(TWO, (0, 0), call=1, version=v(4))]


def test_samples_wait_for_the_successor_of_the_last_instance(core: RolloutCore) -> None:
    core.handle(events.VersionWanted(version=v(4)))
    for one in (ONE, TWO):
        core.handle(events.InstanceAnswered(instance_id=one, version=v(4), checksum="aa"))
    core.handle(submitted((0, 0), (0, 1)))
    core.handle(ended(ONE, (0, 0), call=1))
    assert core.handle(ended(TWO, (0, 0), call=3)) == [
        orders.SeekInstance(instance_id=TWO, probe=1)
    ]
    core.handle(ended(TWO, (0, 1), call=2))
    (three,) = joined(v(0), first=3).instances
    assert core.handle(events.SuccessorJoined(of=TWO, joined=three)) == [
        orders.UpdateInstance(instance_id=InstanceId(3), version=v(4))
    ]
    assert TWO not in core.instances
    back = events.InstanceAnswered(instance_id=InstanceId(3), version=v(4), checksum="aa")
    assert core.handle(back) == [started(InstanceId(3), (0, 1), (0, 0), call=4, version=v(4))]


def test_an_instance_that_answers_with_another_version_is_updated_first(core: RolloutCore) -> None:
    core.handle(events.VersionWanted(version=v(4)))
    for one in (ONE, TWO):
        core.handle(events.InstanceAnswered(instance_id=one, version=v(4)))
    assert core.handle(events.InstanceCallFailed(instance_id=ONE, because="reset")) == [
        orders.SeekInstance(instance_id=ONE, probe=1)
    ]
    assert core.handle(events.InstanceAnswered(instance_id=ONE, version=v(0))) == [
        orders.UpdateInstance(instance_id=ONE, version=v(4))
    ]
    assert not core.instances[ONE].is_serving
    core.handle(events.InstanceAnswered(instance_id=ONE, version=v(4)))
    assert core.instances[ONE].is_serving


def test_an_instance_is_given_up_after_so_many_probes(core: RolloutCore) -> None:
    lost = events.InstanceCallFailed(instance_id=ONE, because="gone")
    silent = events.InstanceCallFailed(instance_id=ONE, because="gone", is_probe=True)
    ordered = core.handle(lost)
    for probe in range(1, MAX_PROBES + 1):
        assert ordered == [orders.SeekInstance(instance_id=ONE, probe=probe)]
        ordered = core.handle(silent)
    assert ordered == [
        orders.GiveUpInstance(instance_id=ONE, kind="dedicated", address="i1", because="gone")
    ]


def test_the_same_number_of_another_source_is_another_version(core: RolloutCore) -> None:
    core.handle(events.VersionWanted(version=v(4)))
    for one in (ONE, TWO):
        core.handle(events.InstanceAnswered(instance_id=one, version=v(4), checksum="aa"))
    other = v(4, "job/teacher")
    assert core.handle(events.VersionWanted(version=other)) == [
        orders.UpdateInstance(instance_id=one, version=other) for one in (ONE, TWO)
    ]
    core.handle(events.InstanceAnswered(instance_id=ONE, version=v(4), checksum="aa"))
    assert not core.instances[ONE].is_serving
    core.handle(events.InstanceAnswered(instance_id=TWO, version=other, checksum="bb"))
    assert core.instances[TWO].is_serving


def test_an_instance_with_other_bytes_under_the_same_version_does_not_serve(
    core: RolloutCore,
) -> None:
    core.handle(events.VersionWanted(version=v(4)))
    core.handle(events.InstanceAnswered(instance_id=ONE, version=v(4), checksum="aa"))
    core.handle(events.InstanceAnswered(instance_id=TWO, version=v(4), checksum="bb"))
    assert [core.instances[one].is_serving for one in (ONE, TWO)] == [True, False]
    assert "has checksum bb, the others' has aa" in core.instances[TWO].lost_because
    assert core.handle(submitted((0, 0))) == [started(ONE, (0, 0), call=1, version=v(4))]


def test_a_version_that_all_refuse_leaves_the_one_before_in_service(core: RolloutCore) -> None:
    core.handle(events.VersionWanted(version=v(4)))
    for one in (ONE, TWO):
        refusal = events.InstanceAnswered(instance_id=one, version=v(0), refusal="checksum")
        core.handle(refusal)
    assert core.version == v(0)
    assert all(instance.is_serving for instance in core.instances.values())


def unread(one: InstanceId) -> events.InstanceAnswered:
    return events.InstanceAnswered(
        instance_id=one, version=v(0), refusal="its node is lost", is_unread=True
    )


def serving_4_on_one() -> RolloutCore:
    """Return a core with an instance that has version 4, and one that cannot read it."""
    core = RolloutCore("job/rollout", max_losses=3, max_pending=2)
    core.handle(joined(v(4)))
    (_, looking) = joined(v(4), v(0)).instances
    assert core.handle(looking) == [orders.UpdateInstance(instance_id=TWO, version=v(4))]
    return core


def test_an_instance_that_cannot_read_the_version_is_never_given_up() -> None:
    core = serving_4_on_one()
    for _ in range(2 * MAX_PROBES):
        assert [type(order) for order in core.handle(unread(TWO))] == [orders.SeekInstance]
        probed = events.InstanceAnswered(instance_id=TWO, version=v(0), is_probe=True)
        assert core.handle(probed) == [orders.UpdateInstance(instance_id=TWO, version=v(4))]


def test_a_lost_version_is_sampled_from_where_it_is_and_nobody_looks_for_it() -> None:
    core = serving_4_on_one()
    core.handle(unread(TWO))
    assert core.handle(events.VersionLost(version=v(4))) == []
    probed = events.InstanceAnswered(instance_id=TWO, version=v(0), is_probe=True)
    assert core.handle(probed) == []
    assert core.handle(submitted((0, 0))) == [started(ONE, (0, 0), call=1, version=v(4))]
    check(core)


def test_generates_of_a_version_that_nobody_has_any_more_end_until_the_next_one() -> None:
    core = serving_4_on_one()
    core.handle(submitted((0, 0)))
    core.handle(events.VersionLost(version=v(4)))
    (successor,) = joined(v(0), first=3).instances
    (answer,) = core.handle(events.SuccessorJoined(of=ONE, joined=successor))
    assert isinstance(answer, orders.AnswerSamples)
    assert answer.error is not None
    assert (answer.error.code, "lost with its node" in answer.error.message) == ("not_found", True)
    (answer,) = core.handle(submitted((0, 0)))
    assert isinstance(answer, orders.AnswerSamples)
    ordered = core.handle(events.VersionWanted(version=v(5)))
    assert len([one for one in ordered if isinstance(one, orders.UpdateInstance)]) == 2
    core.handle(submitted((0, 0)))
    assert core.handle(events.InstanceAnswered(instance_id=TWO, version=v(5))) == [
        started(TWO, (0, 0), call=2, version=v(5))
    ]
    check(core)


def test_a_new_manager_samples_from_no_other_version_while_that_of_before_cannot_be_read() -> None:
    core = RolloutCore("job/rollout", max_losses=3, max_pending=2)
    core.handle(joined(v(0)))
    core.handle(events.VersionWanted(version=v(4), wakes=False))
    core.handle(unread(ONE))
    assert core.version == v(4)
    assert core.handle(submitted((0, 0))) == []


def test_a_version_that_one_has_stays_wanted_whoever_is_lost_later(core: RolloutCore) -> None:
    core.handle(events.VersionWanted(version=v(4)))
    core.handle(events.InstanceAnswered(instance_id=ONE, version=v(4)))
    core.handle(events.InstanceAnswered(instance_id=TWO, version=v(0), refusal="checksum"))
    core.handle(events.InstanceCallFailed(instance_id=ONE, because="reset"))
    assert core.version == v(4)


def test_a_refusal_that_another_instance_would_repeat_ends_the_generate(core: RolloutCore) -> None:
    core.handle(submitted((0, 0)))
    error = PlexError(ErrorCode.BAD_REQUEST, "no such token")
    assert core.handle(ended(ONE, (0, 0), call=1, error=error)) == [
        orders.AnswerSamples(operation_id=OP, losses=0, error=error)
    ]


@pytest.mark.parametrize(
    ("arrival", "says"),
    [
        (
            SampleTokens((0, 0), 2, 1, is_last=False),
            "position 2 of sample (0, 0), which has 0 tokens",
        ),
        (SampleTokens((7, 0), 0, 1, is_last=False), "which has not been asked for tokens"),
    ],
)
def test_tokens_that_leave_a_gap_or_were_not_asked_for_end_the_generate(
    core: RolloutCore, arrival: SampleTokens, says: str
) -> None:
    core.handle(submitted((0, 0)))
    (answer,) = core.handle(arrived(ONE, arrival))
    assert isinstance(answer, orders.AnswerSamples)
    assert answer.error is not None
    assert answer.error.code == ErrorCode.INTERNAL
    assert says in answer.error.message


def test_a_sample_waits_until_an_instance_has_room_and_takes_the_first(core: RolloutCore) -> None:
    keys = [(prompt, 0) for prompt in range(6)]
    first, second = core.handle(submitted(*keys))
    assert first == started(ONE, (0, 0), (2, 0), call=1)
    assert second == started(TWO, (1, 0), (3, 0), call=2)
    begun = SampleTokens((1, 0), 0, 1, is_last=False)
    recorded, third = core.handle(arrived(TWO, begun))
    assert recorded == orders.RecordTokens(operation_id=OP, known=[0])
    assert third == started(TWO, (4, 0), call=3)


def test_a_drained_instance_stops_its_samples_and_is_released_when_they_are_elsewhere(
    core: RolloutCore,
) -> None:
    core.handle(spot(3))
    core.handle(submitted((0, 0), (1, 0), (2, 0)))
    three = InstanceId(3)
    core.handle(arrived(three, SampleTokens((2, 0), 0, 2, is_last=False)))
    assert core.handle(events.InstanceDrained(instance_id=three)) == [
        orders.StopSamples(operation_id=OP, instance_id=three, samples=[(2, 0)])
    ]
    assert core.instances[three].phase is Phase.DRAINING
    aborted = SampleTokens((2, 0), 2, 1, is_last=False, is_aborted=True)
    assert core.handle(arrived(three, aborted)) == [
        orders.RecordTokens(operation_id=OP, known=[0]),
        started(ONE, (2, 0), call=4),
        orders.ReleaseInstance(instance_id=three, address="s3"),
    ]
    assert core.handle(ended(three, (2, 0), call=3)) == [], "its call had nothing left"


def test_what_a_serving_instance_hands_back_goes_elsewhere_and_it_rests(core: RolloutCore) -> None:
    three = InstanceId(3)
    core.handle(spot(3, kind="serving"))
    core.handle(submitted((0, 0), (1, 0), (2, 0)))
    back = SampleTokens((2, 0), 0, 1, is_last=False, is_aborted=True)
    assert core.handle(arrived(three, back)) == [
        orders.RecordTokens(operation_id=OP, known=[0]),
        started(ONE, (2, 0), call=4),
    ]
    assert core.handle(ended(three, (2, 0), call=3)) == [], "that is no loss"
    assert core.instances[three].is_serving
    more = submitted_as(OTHER, (0, 0), (1, 0), (2, 0))
    given = [one for one in core.handle(more) if isinstance(one, orders.StartSamples)]
    assert {one.instance_id for one in given} <= {ONE, TWO}
    waiting = core.generates[OTHER].waiting
    assert list(waiting) == [(1, 0), (2, 0)]
    begun = [
        order
        for at in range(1, 5)
        for order in core.handle(events.Ticked(at_us=at * 500_000))
        if isinstance(order, orders.StartSamples)
    ]
    assert [(one.instance_id, one.samples) for one in begun] == [(three, [(1, 0), (2, 0)])]


def test_what_an_instance_hands_back_after_it_has_left_goes_elsewhere(core: RolloutCore) -> None:
    three = InstanceId(3)
    core.handle(spot(3, kind="serving"))
    core.handle(submitted((0, 0), (1, 0), (2, 0)))
    core.handle(events.InstanceEnded(instance_id=three, because="reclaimed"))
    back = SampleTokens((2, 0), 0, 0, is_last=False, is_aborted=True)
    assert started(ONE, (2, 0), call=4) in core.handle(arrived(three, back))
    check(core)


def test_a_dedicated_instance_that_stops_a_sample_unasked_keeps_it_until_its_call_ends(
    core: RolloutCore,
) -> None:
    core.handle(submitted((0, 0)))
    back = SampleTokens((0, 0), 0, 1, is_last=False, is_aborted=True)
    core.handle(arrived(ONE, back))
    assert core.instances[ONE].load == 1
    assert orders.SeekInstance(instance_id=ONE, probe=1) in core.handle(ended(ONE, (0, 0), call=1))


def test_a_spot_instance_whose_call_breaks_is_gone_at_once(core: RolloutCore) -> None:
    core.handle(spot(3))
    core.handle(submitted((0, 0), (1, 0), (2, 0)))
    given_up, moved = core.handle(ended(InstanceId(3), (2, 0), call=3))
    assert given_up == orders.GiveUpInstance(
        instance_id=InstanceId(3), kind="spot", address="s3", because="connection reset"
    )
    assert moved == started(ONE, (2, 0), call=4)
    assert list(core.instances) == [ONE, TWO]


def test_an_instance_that_joins_in_mid_step_serves_once_its_checksum_holds(
    core: RolloutCore,
) -> None:
    core.handle(events.VersionWanted(version=v(4)))
    for one in (ONE, TWO):
        core.handle(events.InstanceAnswered(instance_id=one, version=v(4), checksum="aa"))
    core.handle(submitted(*[(prompt, 0) for prompt in range(6)]))
    three = InstanceId(3)
    assert core.handle(spot(3)) == [orders.UpdateInstance(instance_id=three, version=v(4))]
    assert core.instances[three].phase is Phase.CATCHING_UP
    lies = events.InstanceAnswered(instance_id=three, version=v(4), checksum="bb")
    (given_up,) = core.handle(lies)
    assert isinstance(given_up, orders.GiveUpInstance)
    assert "has checksum bb" in given_up.because
    core.handle(spot(5))
    five = InstanceId(5)
    right = events.InstanceAnswered(instance_id=five, version=v(4), checksum="aa")
    assert core.handle(right) == [started(five, (4, 0), (5, 0), call=3, version=v(4))]


def test_losses_count_only_while_a_sample_gets_no_token(core: RolloutCore) -> None:
    core.handle(submitted((0, 0)))
    for number in range(5):
        holder = core.generates[OP].samples[0, 0].instance_id
        assert holder is not None
        core.handle(arrived(holder, SampleTokens((0, 0), number, 1, is_last=False)))
        core.handle(ended(holder, (0, 0), call=number + 1))
        back = events.InstanceAnswered(instance_id=holder, version=MODEL, is_probe=True)
        core.handle(back)
    assert core.generates[OP].samples[0, 0].num_tokens == 5


def test_samples_that_wait_in_a_full_engine_move_to_one_that_has_none(core: RolloutCore) -> None:
    core.handle(events.InstanceEnded(instance_id=TWO, because="gone"))
    core.handle(submitted((0, 0), (1, 0)))
    core.handle(arrived(ONE, SampleTokens((0, 0), 0, 1, is_last=False)))
    core.handle(spot(3))
    core.handle(events.Ticked(at_us=1))
    assert core.handle(events.Ticked(at_us=2)) == [
        orders.StopSamples(operation_id=OP, instance_id=ONE, samples=[(1, 0)])
    ]
    assert core.handle(events.Ticked(at_us=3)) == [], "one move at a time"
    aborted = SampleTokens((1, 0), 0, 0, is_last=False, is_aborted=True)
    assert core.handle(arrived(ONE, aborted))[1:] == [started(InstanceId(3), (1, 0), call=2)]


def test_a_sample_in_a_long_prefill_is_moved_once_and_not_from_an_instance_that_does_no_more(
    core: RolloutCore,
) -> None:
    core.handle(submitted((0, 0)))
    ticks = [core.handle(events.Ticked(at_us=at)) for at in range(1, 9)]
    assert ticks == [[]] * 8, "its instance has nothing else: it is at it"
    core.handle(events.InstanceEnded(instance_id=TWO, because="gone"))
    core.handle(submitted_as(OTHER, (0, 0)))
    core.handle(arrived(ONE, SampleTokens((0, 0), 0, 1, is_last=False)))
    core.handle(spot(3))
    core.handle(events.Ticked(at_us=10))
    (stop,) = core.handle(events.Ticked(at_us=11))
    assert isinstance(stop, orders.StopSamples)
    assert (stop.operation_id, stop.samples) == (OTHER, [(0, 0)])
    aborted = SampleTokens((0, 0), 0, 0, is_last=False, is_aborted=True)
    told = events.TokensArrived(operation_id=OTHER, instance_id=ONE, arrivals=[aborted])
    (_, start) = core.handle(told)
    assert isinstance(start, orders.StartSamples)
    assert start.instance_id == InstanceId(3)
    core.handle(submitted_as(THIRD, (0, 0), (1, 0)))
    for one, key in ((3, (1, 0)), (1, (0, 0))):
        begun = SampleTokens(key, 0, 1, is_last=False)
        told = events.TokensArrived(
            operation_id=THIRD, instance_id=InstanceId(one), arrivals=[begun]
        )
        core.handle(told)
    assert [core.handle(events.Ticked(at_us=at)) for at in range(20, 26)] == [[]] * 6


@pytest.mark.parametrize("count", [8, 20])
def test_half_of_the_samples_move_to_an_idle_instance(count: int) -> None:
    core = RolloutCore("job/rollout", max_losses=3, max_pending=64)
    core.handle(joined(v(0)))
    profile = core.instances[ONE].profile
    for batch in (2, 4, 8, 16, 32, 64) * 2:  # 8 samples have 80 % of the highest throughput
        profile.observe(batch=batch, context=10, tokens_per_s=batch / (0.002 + 0.001 * batch))
    keys = [(prompt, 0) for prompt in range(count)]
    core.handle(submitted(*keys))
    core.handle(arrived(ONE, *[SampleTokens(key, 0, 1 + key[0], is_last=False) for key in keys]))
    assert core.handle(events.Ticked(at_us=1)) == []
    core.handle(spot(3))
    (stop,) = core.handle(events.Ticked(at_us=2))
    assert isinstance(stop, orders.StopSamples)
    assert stop.samples == keys[: count // 2], "the shortest"


def test_turns_stay_with_their_prefix_while_a_smaller_batch_would_be_slower() -> None:
    core = RolloutCore("job/rollout", max_losses=3, max_pending=64)
    core.handle(joined(v(0)))
    profile = core.instances[ONE].profile
    for batch in (2, 4, 8, 16, 32, 64) * 2:  # 8 samples have 80 % of the highest throughput
        profile.observe(batch=batch, context=10, tokens_per_s=batch / (0.002 + 0.001 * batch))
    asked = [turn(session, 1) for session in "abcdefgh"]
    for one in asked:
        core.handle(one)
        core.handle(
            events.TokensArrived(
                operation_id=one.operation_id,
                instance_id=ONE,
                arrivals=[SampleTokens((0, 0), 0, 1, is_last=False)],
            )
        )
    core.handle(events.Ticked(at_us=1))
    core.handle(spot(3))
    assert core.handle(events.Ticked(at_us=2)) == []


def turn(session: str, number: int) -> events.SamplesSubmitted:
    return events.SamplesSubmitted(
        operation_id=OperationId(f"{session}{number}".encode().ljust(16, b".")),
        samples={(0, 0): 0},
        is_turn=True,
        session=session,
    )


def where(ordered: list[orders.Order]) -> list[InstanceId]:
    return [order.instance_id for order in ordered if isinstance(order, orders.StartSamples)]


def finish(core: RolloutCore, asked: events.SamplesSubmitted) -> list[InstanceId]:
    """Have a turn end; return where others start by that."""
    holder = core.generates[asked.operation_id].samples[0, 0].instance_id
    assert holder is not None
    last = events.TokensArrived(
        operation_id=asked.operation_id,
        instance_id=holder,
        arrivals=[SampleTokens((0, 0), 0, 1, is_last=True)],
    )
    return where(core.handle(last))


def test_an_engine_that_joins_while_its_window_closes_gets_no_samples(core: RolloutCore) -> None:
    three, four = InstanceId(3), InstanceId(4)
    trained = events.StepTrained(train_us=1, ended_us=0)
    core.handle(submitted((0, 0), (1, 0)))
    core.handle(events.WindowOpened(at_us=0, operation_id=OP, engines=2, trained=trained))
    core.handle(spot(3, kind="reserved"))
    core.handle(submitted_as(OTHER, (0, 0)))
    assert [one.instance_id for one in stops(core.handle(events.WindowLeft(at_us=1)))] == [three]
    for one in (ONE, TWO):
        core.handle(events.InstanceEnded(instance_id=one, because="gone"))
    core.handle(ended(ONE, (0, 0), call=1))
    assert core.generates[OP].waiting
    assert core.handle(spot(4, kind="reserved")) == [
        orders.ReleaseInstance(instance_id=four, address="s4")
    ]


def test_turns_under_way_end_before_a_version_that_waits_for_them_and_others_begin_with_it(
    core: RolloutCore,
) -> None:
    old, new = turn("a", 1), turn("b", 1)
    core.handle(old)
    assert not core.finishes_turns, "no version waits"
    assert core.handle(events.TurnsHeld()) == []
    assert core.handle(new) == []
    assert core.finishes_turns
    assert core.handle(events.InstanceCallFailed(instance_id=TWO, because="reset")), "it goes on"
    assert finish(core, old) == [], "the one that came since waits for the version"
    assert not core.finishes_turns
    core.handle(events.VersionWanted(version=v(4)))
    begun = core.handle(events.InstanceAnswered(instance_id=ONE, version=v(4)))
    assert [one.version for one in begun if isinstance(one, orders.StartSamples)] == [v(4)]


def test_turns_that_were_held_begin_when_the_version_does_not_come(core: RolloutCore) -> None:
    core.handle(events.TurnsHeld())
    assert core.handle(turn("a", 1)) == []
    assert where(core.handle(events.TurnsHeld(is_over=True))) == [ONE]


def test_a_turn_goes_where_its_prefix_is_cached_and_others_to_the_least_loaded(
    core: RolloutCore,
) -> None:
    first, other = turn("a", 1), turn("b", 1)
    assert where(core.handle(first)) == [ONE]
    assert where(core.handle(other)) == [TWO]
    finish(core, first)
    finish(core, other)
    for number in (2, 3):
        assert where(core.handle(turn("b", number))) == [TWO], "though both are as loaded"
    assert where(core.handle(turn("a", 2))) == [ONE]
    assert where(core.handle(turn("", 1))) == [ONE], "no session, the least loaded"


def test_a_turn_goes_elsewhere_where_its_instance_is_full_and_waits_where_all_are() -> None:
    core = RolloutCore("job/rollout", max_losses=3, max_pending=64)
    core.handle(joined(v(0), v(0)))
    for instance in core.instances.values():
        instance.turn_cap = 1
    first = turn("a", 1)
    core.handle(first)
    assert where(core.handle(turn("a", 2))) == [TWO]
    third = turn("a", 3)
    assert core.handle(third) == []
    assert finish(core, first) == [ONE]
    assert core.sessions["a"] == ONE, "its latest turn is there now"


def test_a_session_whose_instance_is_gone_goes_on_elsewhere(core: RolloutCore) -> None:
    first = turn("a", 1)
    core.handle(first)
    finish(core, first)
    core.handle(events.InstanceEnded(instance_id=ONE, because="gone"))
    assert where(core.handle(turn("a", 2))) == [TWO]


def test_turns_go_before_samples_of_a_large_batch_that_wait(core: RolloutCore) -> None:
    core.handle(submitted(*[(prompt, 0) for prompt in range(9)]))
    asked = turn("a", 1)
    assert core.handle(asked) == []
    begun = core.handle(arrived(ONE, SampleTokens((0, 0), 0, 1, is_last=False)))
    (start,) = [order for order in begun if isinstance(order, orders.StartSamples)]
    assert start.operation_id == asked.operation_id


def test_the_cap_on_turns_follows_the_profile(core: RolloutCore) -> None:
    one = core.instances[ONE]
    core.handle(turn("a", 1))
    core.handle(events.Ticked(at_us=1))
    assert one.turn_cap == TURN_CAP
    for batch in (2, 4, 8, 16, 32, 64) * 2:  # the plateau is at 8 samples
        one.profile.observe(batch=batch, context=10, tokens_per_s=batch / (0.002 + 0.001 * batch))
    core.handle(events.Ticked(at_us=2))
    assert one.turn_cap == 8


def test_the_oldest_session_is_forgotten_beyond_the_bound(
    core: RolloutCore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(assignment, "MAX_SESSIONS", 2)
    for session in ("a", "b", "c"):
        asked = turn(session, 1)
        core.handle(asked)
        finish(core, asked)
    assert list(core.sessions) == ["b", "c"]


@dataclass(slots=True, eq=False)
class Call:
    """A stream to a fake instance; `at` is how far it has sent each sample."""

    number: int
    operation_id: OperationId
    instance_id: InstanceId
    at: dict[SampleKey, int]
    asked: list[SampleKey]
    """Samples that it was begun with."""
    stopped: list[SampleKey] = field(default_factory=list)
    """Samples that are to be aborted."""


def begin_cut() -> tuple[RolloutCore, dict[InstanceId, list[SampleKey]]]:
    """Return a core whose two instances have two samples each, and are spared when one ended."""
    core = RolloutCore("job/rollout", max_losses=3, max_pending=64, cut=0.5)
    core.handle(joined(MODEL, MODEL))
    samples = {(prompt, 0): 0 for prompt in range(4)}
    starts = core.handle(events.SamplesSubmitted(operation_id=OP, samples=samples))
    has = {one.instance_id: one.samples for one in starts if isinstance(one, orders.StartSamples)}
    return core, has


def test_an_instance_that_is_cut_is_spared_until_the_generate_ends() -> None:
    core, has = begin_cut()
    last = core.handle(arrived(ONE, SampleTokens(has[ONE][0], 0, LENGTH, is_last=True)))
    assert not stops(last), "the other has no slot yet"
    last = core.handle(arrived(TWO, SampleTokens(has[TWO][0], 0, LENGTH, is_last=True)))
    assert [(stop.instance_id, stop.samples) for stop in stops(last)] == [(TWO, [has[TWO][1]])]
    assert core.spared == {TWO}
    check(core)
    gone = SampleTokens(has[TWO][1], 0, 2, is_last=False, is_aborted=True)
    moved = [o for o in core.handle(arrived(TWO, gone)) if isinstance(o, orders.StartSamples)]
    assert [(one.instance_id, one.samples) for one in moved] == [(ONE, [has[TWO][1]])]
    assert not stops(core.handle(events.Ticked(at_us=1))), "nothing is balanced back to it"
    core.handle(arrived(ONE, SampleTokens(has[TWO][1], 2, LENGTH - 2, is_last=True)))
    core.handle(arrived(ONE, SampleTokens(has[ONE][1], 0, LENGTH, is_last=True)))
    assert not core.spared
    check(core)


def test_an_instance_that_is_cut_leaves_a_shared_device_once_its_samples_are_elsewhere() -> None:
    core, has = begin_cut()
    core.is_shared = True
    core.handle(arrived(ONE, SampleTokens(has[ONE][0], 0, LENGTH, is_last=True)))
    core.handle(arrived(TWO, SampleTokens(has[TWO][0], 0, LENGTH, is_last=True)))
    assert core.instances[TWO].is_serving, "its last sample is still there"
    gone = SampleTokens(has[TWO][1], 0, 2, is_last=False, is_aborted=True)
    ordered = core.handle(arrived(TWO, gone))
    left = [order for order in ordered if isinstance(order, orders.LeaveDevice)]
    assert [(one.instance_id, one.operation_id) for one in left] == [(TWO, OP)]
    assert core.instances[TWO].phase is Phase.ASLEEP
    check(core)
    lost = core.handle(ended(ONE, has[ONE][1], call=1))
    assert not any(isinstance(order, orders.StartSamples) for order in lost), "it stays asleep"
    core.handle(events.OperationEnded(operation_id=OP))
    core.handle(events.InstanceAnswered(instance_id=TWO, version=MODEL))
    assert core.instances[TWO].is_serving, "it woke"
    check(core)


def test_a_spared_instance_serves_again_when_the_others_are_lost() -> None:
    core, has = begin_cut()
    core.handle(arrived(ONE, SampleTokens(has[ONE][0], 0, LENGTH, is_last=True)))
    core.handle(arrived(TWO, SampleTokens(has[TWO][0], 0, LENGTH, is_last=True)))
    core.handle(arrived(TWO, SampleTokens(has[TWO][1], 0, 2, is_last=False, is_aborted=True)))
    ordered = core.handle(ended(ONE, has[ONE][1], call=1))
    starts = [one for one in ordered if isinstance(one, orders.StartSamples)]
    assert {one.instance_id for one in starts} == {TWO}
    assert not core.spared
    check(core)


class Course(RuleBasedStateMachine):
    """Any course of events; what the core orders is done at random times with random outcomes."""

    def __init__(self) -> None:
        super().__init__()
        self.core = RolloutCore("job/rollout", max_losses=4, max_pending=3, cut=0.5)
        self.core.portion = 2
        self.next_instance = 1
        self.next_operation = 0
        self.at_us = 0
        self.calls: list[Call] = []
        self.recorded: dict[OperationId, dict[SampleKey, int]] = {}
        """Tokens of each sample of unanswered generates."""
        self.complete: set[tuple[OperationId, SampleKey]] = set()
        self.probes: list[InstanceId] = []
        self.updates: list[orders.UpdateInstance] = []
        self.arriving: list[SampleTokens] = []
        self.windows: list[OperationId] = []
        """Generates whose window was opened and has not ended: at most one."""
        self.leaving: list[InstanceId] = []
        self.replace(2)

    def tell(self, event: events.Event) -> None:
        ordered = self.core.handle(event)
        check(self.core)
        for order in ordered:
            self.perform(order)

    def perform(self, order: orders.Order) -> None:  # noqa: C901, PLR0912, PLR0915 - one case an order
        match order:
            case orders.StartSamples():
                instance = self.core.instances[order.instance_id]
                assert instance.is_serving
                assert instance.version == order.version == self.core.version
                known = self.recorded[order.operation_id]
                at = {key: known[key] for key in order.samples}
                asked = order.samples
                made = Call(order.call, order.operation_id, order.instance_id, at, asked)
                self.calls.append(made)
            case orders.StopSamples():
                for call in self.calls:
                    if (call.operation_id, call.instance_id) == (
                        order.operation_id,
                        order.instance_id,
                    ):
                        call.stopped += [key for key in order.samples if key in call.at]
            case orders.ReleaseInstance():
                for call in self.calls:
                    keys = [(call.operation_id, key) for key in call.at]
                    assert call.instance_id != order.instance_id or self.complete.issuperset(keys)
            case orders.RecordTokens():
                known = self.recorded[order.operation_id]
                for arrival, old in zip(self.arriving, order.known, strict=True):
                    done = (order.operation_id, arrival.key) in self.complete
                    assert (old is None) == done
                    if old is None:
                        continue
                    assert arrival.position + min(old, arrival.count) <= known[arrival.key]
                    assert arrival.position + old == known[arrival.key], "once, and without a gap"
                    known[arrival.key] += max(0, arrival.count - old)
                    if arrival.is_last:
                        self.complete.add((order.operation_id, arrival.key))
            case orders.AnswerSamples():
                known = self.recorded.pop(order.operation_id)  # fails for a second answer
                expected = ErrorCode.NOT_FOUND if self.core.is_lost else ErrorCode.WORKER_DIED
                assert order.error is None or order.error.code == expected
                if order.error is None:
                    assert all((order.operation_id, key) in self.complete for key in known)
                    assert set(known.values()) == {LENGTH}
                self.calls = [c for c in self.calls if c.operation_id != order.operation_id]
            case orders.SeekInstance():
                assert order.instance_id not in self.probes
                self.probes.append(order.instance_id)
            case orders.UpdateInstance():
                self.updates.append(order)
            case orders.GiveUpInstance():
                pass
            case orders.EndWindow():
                self.end_window(order)
            case orders.LeaveDevice():
                assert self.core.is_shared
                assert order.operation_id in self.core.generates
                assert not self.core.instances[order.instance_id].load
                self.leaving.append(order.instance_id)

    def end_window(self, order: orders.EndWindow) -> None:
        kinds = [one.kind.name for one in self.core.instances.values()]
        assert "reserved" not in kinds, "the devices are free"
        self.windows.remove(order.operation_id)  # fails for a second end

    @rule(is_shared=st.booleans())
    def share(self, is_shared: bool) -> None:
        self.core.is_shared = is_shared

    @precondition(lambda self: self.leaving)
    @rule(is_asleep=st.booleans())
    def leave(self, is_asleep: bool) -> None:
        one = self.leaving.pop()
        if is_asleep:
            self.tell(events.InstanceAnswered(instance_id=one, version=v(0), is_asleep=True))
        else:
            self.tell(events.InstanceCallFailed(instance_id=one, because="sleep"))

    @rule(count=st.integers(1, 3))
    def replace(self, count: int) -> None:
        versions = [self.core.version] * count
        self.tell(joined(*versions, first=self.next_instance))
        self.next_instance += count

    @rule(
        prompts=st.integers(1, 3),
        samples=st.integers(1, 2),
        had=st.integers(0, LENGTH - 1),
        session=st.sampled_from([None, "", "a", "b"]),
    )
    def submit(self, prompts: int, samples: int, had: int, session: str | None) -> None:
        self.next_operation += 1
        name = OperationId(str(self.next_operation).encode().rjust(16))
        keys = [(prompt, sample) for prompt in range(prompts) for sample in range(samples)]
        self.recorded[name] = dict.fromkeys(keys, had)
        self.tell(
            events.SamplesSubmitted(
                operation_id=name,
                samples=dict.fromkeys(keys, had),
                is_turn=session is not None,
                session=session or "",
            )
        )

    @precondition(lambda self: any(call.at for call in self.calls))
    @rule(data=st.data(), back=st.integers(0, 2), count=st.integers(0, LENGTH))
    def send(self, data: st.DataObject, back: int, count: int) -> None:
        call = data.draw(st.sampled_from([call for call in self.calls if call.at]))
        self.arriving = []
        keys = st.sampled_from(sorted(call.at)) if call.at else st.nothing()
        for key in data.draw(st.lists(keys, unique=True)):
            start = max(0, call.at[key] - back)
            end = min(LENGTH, start + count)
            call.at[key] = max(call.at[key], end)
            self.arriving.append(SampleTokens(key, start, end - start, is_last=end == LENGTH))
        self.tell(
            events.TokensArrived(
                operation_id=call.operation_id,
                instance_id=call.instance_id,
                arrivals=list(self.arriving),
            )
        )

    @precondition(lambda self: any(call.stopped for call in self.calls))
    @rule(data=st.data())
    def abort(self, data: st.DataObject) -> None:
        call = data.draw(st.sampled_from([call for call in self.calls if call.stopped]))
        keys, call.stopped = set(call.stopped) & set(call.at), []
        at = [(key, call.at.pop(key)) for key in sorted(keys)]
        self.arriving = [SampleTokens(key, n, 0, is_last=False, is_aborted=True) for key, n in at]
        self.tell(
            events.TokensArrived(
                operation_id=call.operation_id,
                instance_id=call.instance_id,
                arrivals=list(self.arriving),
            )
        )

    @rule(version=st.integers(0, 3), kind=st.sampled_from(("spot", "serving")))
    def one_joins(self, version: int, kind: str) -> None:
        self.tell(spot(self.next_instance, v(version), kind=kind))
        self.next_instance += 1

    @precondition(lambda self: not self.windows)
    @rule(data=st.data(), engines=st.integers(1, 3), train_us=st.integers(0, 3_000_000))
    def open_window(self, data: st.DataObject, engines: int, train_us: int) -> None:
        names = [name for name, one in self.core.generates.items() if not one.is_turn]
        name = data.draw(st.sampled_from([*names, OP]))  # one that is over by then, too
        self.windows.append(name)
        trained = events.StepTrained(train_us=train_us, ended_us=self.at_us)
        self.tell(
            events.WindowOpened(
                at_us=self.at_us, operation_id=name, engines=engines, trained=trained
            )
        )

    @precondition(lambda self: self.windows)
    @rule(version=st.integers(0, 3))
    def engine_joins(self, version: int) -> None:
        self.tell(spot(self.next_instance, v(version), kind="reserved"))
        self.next_instance += 1

    @rule()
    def leave_window(self) -> None:
        self.tell(events.WindowLeft(at_us=self.at_us))

    @rule()
    def lenders_take_everything_back(self) -> None:
        kinds = {one: instance.kind.name for one, instance in self.core.instances.items()}
        for call in self.calls:
            if kinds.get(call.instance_id) == "serving":
                call.stopped = list(call.at)

    @precondition(lambda self: self.core.instances)
    @rule(data=st.data(), is_noticed=st.booleans())
    def spot_leaves(self, data: st.DataObject, is_noticed: bool) -> None:
        one = data.draw(st.sampled_from(sorted(self.core.instances)))
        if is_noticed:
            self.tell(events.InstanceDrained(instance_id=one))
        else:
            self.tell(events.InstanceEnded(instance_id=one, because="reclaimed"))

    @rule(plateau=st.sampled_from([1, 2, 16]))
    def tick(self, plateau: int) -> None:
        self.at_us += 1_000_000
        for instance in self.core.instances.values():
            instance.profile.plateau = lambda **_: plateau  # type: ignore[method-assign]
        self.tell(events.Ticked(at_us=self.at_us))

    @precondition(lambda self: self.calls)
    @rule(data=st.data())
    def end_a_call(self, data: st.DataObject) -> None:
        call = data.draw(st.sampled_from(self.calls))
        self.calls.remove(call)
        self.tell(
            events.CallEnded(
                operation_id=call.operation_id,
                call=call.number,
                instance_id=call.instance_id,
                address="i",
                samples=call.asked,
                error=BROKEN,
            )
        )

    @precondition(lambda self: self.probes)
    @rule(data=st.data(), version=st.integers(0, 3), answers=st.booleans())
    def probe(self, data: st.DataObject, version: int, answers: bool) -> None:
        one = data.draw(st.sampled_from(self.probes))
        self.probes.remove(one)
        if answers:
            self.tell(events.InstanceAnswered(instance_id=one, version=v(version), is_probe=True))
        else:
            self.tell(events.InstanceCallFailed(instance_id=one, because="silent", is_probe=True))

    @precondition(lambda self: self.updates)
    @rule(
        data=st.data(),
        outcome=st.sampled_from(["served", "refused", "lost"]),
        is_unread=st.booleans(),
    )
    def update(self, data: st.DataObject, outcome: str, is_unread: bool) -> None:
        order = data.draw(st.sampled_from(self.updates))
        self.updates.remove(order)
        one = order.instance_id
        if outcome == "served":
            self.tell(events.InstanceAnswered(instance_id=one, version=order.version))
        elif outcome == "refused":
            refusal = events.InstanceAnswered(
                instance_id=one, version=v(0), refusal="checksum", is_unread=is_unread
            )
            self.tell(refusal)
        else:
            self.tell(events.InstanceCallFailed(instance_id=one, because="reset"))

    @rule(version=st.integers(0, 3), wakes=st.booleans())
    def want(self, version: int, wakes: bool) -> None:
        self.tell(events.VersionWanted(version=v(version), wakes=wakes))

    @rule(version=st.integers(0, 3))
    def lose_a_version(self, version: int) -> None:
        self.tell(events.VersionLost(version=v(version)))

    @rule(is_over=st.booleans())
    def hold_turns(self, is_over: bool) -> None:
        self.tell(events.TurnsHeld(is_over=is_over))

    @precondition(lambda self: self.core.instances)
    @rule(data=st.data(), version=st.integers(0, 3))
    def succeed(self, data: st.DataObject, version: int) -> None:
        gone = data.draw(st.sampled_from(sorted(self.core.instances)))
        (one,) = joined(v(version), first=self.next_instance).instances
        self.next_instance += 1
        self.tell(events.SuccessorJoined(of=gone, joined=one))

    @precondition(lambda self: self.recorded)
    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(sorted(self.recorded)))
        del self.recorded[name]
        self.calls = [call for call in self.calls if call.operation_id != name]
        self.tell(events.OperationEnded(operation_id=name, at_us=self.at_us))

    @invariant()
    def every_incomplete_sample_is_in_one_call_or_waits(self) -> None:
        assert set(self.core.generates) == set(self.recorded)
        for name, generate in self.core.generates.items():
            here = [key for c in self.calls if c.operation_id == name for key in c.at]
            open_keys = sorted(key for key in here if (name, key) not in self.complete)
            left = sorted(key for key, one in generate.samples.items() if not one.is_complete)
            assert sorted([*open_keys, *generate.waiting]) == left


TestCourse = pytest.mark.timeout(300)(Course.TestCase)  # a failure takes a while to be made small
TestCourse.settings = settings(max_examples=100, stateful_step_count=40, deadline=None)
