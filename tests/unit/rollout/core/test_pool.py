"""The pool of spot devices: fair, honest about prices, and robust against providers that lie."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from plexsvc.ids import DeploymentId
from plexsvc.rollout.core import pool
from plexsvc.rollout.core.pool import Pool, State

A, B = DeploymentId("a"), DeploymentId("b")


def with_slots(count: int, *, price: float = 0.0) -> Pool:
    made = Pool()
    for number in range(count):
        assert made.handle(pool.SlotCame(slot_id=f"s:{number}", price=price)) == []
    return made


def users(made: Pool) -> Counter[DeploymentId | None]:
    return Counter(slot.user for slot in made.slots.values())


def test_two_deployments_share_what_there_is_and_caps_are_kept() -> None:
    made = with_slots(5)
    made.handle(pool.Wanted(deployment_id=A, most=2))
    made.handle(pool.Wanted(deployment_id=B, most=9))
    assert users(made) == {A: 2, B: 3}
    made = with_slots(0)
    for one in (A, B):
        made.handle(pool.Wanted(deployment_id=one, most=9))
    for number in range(6):
        made.handle(pool.SlotCame(slot_id=f"s:{number}"))
    assert users(made) == {A: 3, B: 3}


def test_a_deployment_below_its_least_number_comes_first() -> None:
    made = with_slots(0)
    made.handle(pool.Wanted(deployment_id=A, most=9))
    made.handle(pool.Wanted(deployment_id=B, least=2, most=9))
    for number in range(3):
        made.handle(pool.SlotCame(slot_id=f"s:{number}"))
    assert users(made) == {A: 1, B: 2}


def test_one_that_comes_later_gets_its_share_and_nobody_gives_up_more() -> None:
    made = with_slots(3)
    made.handle(pool.Wanted(deployment_id=A, most=3))
    for number in (1, 2, 3):
        made.handle(pool.InstanceUp(slot_id=f"s:{number - 1}", number=number))
    assert made.handle(pool.Wanted(deployment_id=B, most=3)) == [
        pool.DrainInstance(slot_id="s:2", number=3, deployment_id=A)
    ]
    made.handle(pool.SlotDrained(slot_id="s:2", number=3))
    assert made.handle(pool.InstanceStopped(slot_id="s:2", number=3)) == [
        pool.StartInstance(slot_id="s:2", number=4, deployment_id=B)
    ]
    assert made.handle(pool.InstanceUp(slot_id="s:2", number=4)) == []
    assert users(made) == {A: 2, B: 1}
    lowest = pool.Wanted(deployment_id=B, least=2, most=3)
    assert made.handle(lowest) == [pool.DrainInstance(slot_id="s:1", number=2, deployment_id=A)]


def test_nobody_gets_an_instance_above_the_price_it_pays() -> None:
    made = with_slots(1, price=2.5)
    assert made.handle(pool.Wanted(deployment_id=A, most=1, price=2.4)) == []
    assert made.handle(pool.Wanted(deployment_id=B, most=1, price=2.5)) == [
        pool.StartInstance(slot_id="s:0", number=1, deployment_id=B)
    ]


def test_a_slot_goes_to_deployments_of_its_model_and_of_tenants_it_is_open_to() -> None:
    made = Pool()
    lent = pool.SlotCame(slot_id="serving/chat", model="/m/a", tenants=frozenset({"lab"}))
    assert made.handle(lent) == []
    (slot,) = made.slots.values()
    assert not made.why_idle(slot), "nobody wants one"
    assert made.handle(pool.Wanted(deployment_id=A, most=1, model="/m/b", tenant="lab")) == []
    assert made.why_idle(slot) == "model: no deployment that wants one is of /m/a"
    assert made.handle(pool.Wanted(deployment_id=B, most=1, model="/m/a", tenant="rival")) == []
    assert made.why_idle(slot) == "tenants: no deployment that it suits may have it"
    fitting = pool.Wanted(deployment_id=A, most=1, model="/m/a", tenant="lab")
    assert made.handle(fitting) == [
        pool.StartInstance(slot_id="serving/chat", number=1, deployment_id=A)
    ]
    made.handle(pool.InstanceUp(slot_id="serving/chat", number=1))
    others = pool.SlotCame(slot_id="serving/chat", model="/m/a", tenants=frozenset({"rival"}))
    assert made.handle(others) == [
        pool.DrainInstance(slot_id="serving/chat", number=1, deployment_id=A)
    ]


def test_a_slot_that_is_passed_on_goes_to_whoever_generates() -> None:
    made = Pool()
    for one in (A, B):
        made.handle(pool.Wanted(deployment_id=one, most=1))
    made.handle(pool.Generating(deployment_id=B, is_generating=True))
    (start,) = made.handle(pool.SlotCame(slot_id="serving/chat", is_passed_on=True))
    assert start == pool.StartInstance(slot_id="serving/chat", number=1, deployment_id=B)
    made.handle(pool.InstanceUp(slot_id="serving/chat", number=1))
    assert made.handle(pool.Generating(deployment_id=A, is_generating=True)) == []
    assert made.handle(pool.Generating(deployment_id=B, is_generating=False)) == [
        pool.DrainInstance(slot_id="serving/chat", number=1, deployment_id=B)
    ]
    assert made.handle(pool.Generating(deployment_id=B, is_generating=True)) == []
    made.handle(pool.SlotDrained(slot_id="serving/chat", number=1))
    (start,) = made.handle(pool.InstanceStopped(slot_id="serving/chat", number=1))
    assert start == pool.StartInstance(slot_id="serving/chat", number=2, deployment_id=A)
    made.handle(pool.InstanceUp(slot_id="serving/chat", number=2))
    for one in (B, A):
        assert made.handle(pool.Generating(deployment_id=one, is_generating=False)) == []
    assert users(made) == {A: 1}


def test_a_slot_whose_process_would_end_is_not_passed_on() -> None:
    made = with_slots(1)
    made.handle(pool.Wanted(deployment_id=A, most=1))
    made.handle(pool.InstanceUp(slot_id="s:0", number=1))
    made.handle(pool.Wanted(deployment_id=B, most=1))
    assert made.handle(pool.Generating(deployment_id=B, is_generating=True)) == []


def test_nobody_gives_what_it_has_at_least_to_one_that_generates() -> None:
    made = Pool()
    made.handle(pool.SlotCame(slot_id="serving/chat", is_passed_on=True))
    made.handle(pool.Wanted(deployment_id=A, least=1, most=1))
    made.handle(pool.InstanceUp(slot_id="serving/chat", number=1))
    made.handle(pool.Wanted(deployment_id=B, most=1))
    assert made.handle(pool.Generating(deployment_id=B, is_generating=True)) == []


def test_a_deployment_is_billed_for_what_it_holds_until_the_process_is_gone() -> None:
    hour_us = 3_600_000_000
    made = with_slots(1, price=2.0)
    made.handle(pool.PoolTicked(at_us=5 * hour_us))
    made.handle(pool.Wanted(deployment_id=A, most=1))  # starts
    made.handle(pool.PoolTicked(at_us=6 * hour_us))
    made.handle(pool.InstanceUp(slot_id="s:0", number=1))
    made.handle(pool.SlotPriced(slot_id="s:0", price=4.0))
    made.handle(pool.PoolTicked(at_us=6 * hour_us + hour_us // 2))
    made.handle(pool.Wanted(deployment_id=A, most=0))  # stops
    made.handle(pool.PoolTicked(at_us=7 * hour_us))
    made.handle(pool.InstanceStopped(slot_id="s:0", number=1))
    made.handle(pool.PoolTicked(at_us=9 * hour_us))
    assert made.bills == {A: pool.PoolBill(held_us=2 * hour_us, cost=2.0 + 2.0 + 2.0)}


def test_a_notice_drains_and_the_end_kills() -> None:
    made = with_slots(1)
    made.handle(pool.Wanted(deployment_id=A, most=1))
    made.handle(pool.InstanceUp(slot_id="s:0", number=1))
    assert made.handle(pool.SlotNoticed(slot_id="s:0")) == [
        pool.DrainInstance(slot_id="s:0", number=1, deployment_id=A)
    ]
    assert made.handle(pool.SlotGone(slot_id="s:0")) == [
        pool.StopInstance(slot_id="s:0", number=1, deployment_id=A)
    ]
    assert made.handle(pool.SlotDrained(slot_id="s:0", number=1)) == []
    assert made.handle(pool.InstanceStopped(slot_id="s:0", number=1)) == []
    assert made.slots == {}


def test_a_noticed_slot_gets_no_instance_until_it_comes_anew() -> None:
    made = with_slots(1)
    made.handle(pool.SlotNoticed(slot_id="s:0"))
    assert made.handle(pool.Wanted(deployment_id=A, most=1)) == []
    assert len(made.handle(pool.SlotCame(slot_id="s:0"))) == 1


def test_a_slot_closed_by_hand_drains_and_stays_closed_until_it_is_opened() -> None:
    made = with_slots(1)
    made.handle(pool.Wanted(deployment_id=A, most=1))
    made.handle(pool.InstanceUp(slot_id="s:0", number=1))
    assert made.handle(pool.SlotClosed(slot_id="s:0")) == [
        pool.DrainInstance(slot_id="s:0", number=1, deployment_id=A)
    ]
    made.handle(pool.SlotDrained(slot_id="s:0", number=1))
    assert made.handle(pool.InstanceStopped(slot_id="s:0", number=1)) == []
    made.handle(pool.SlotGone(slot_id="s:0"))
    assert made.handle(pool.SlotCame(slot_id="s:0")) == [], "its provider cannot open it"
    assert made.handle(pool.SlotOpened(slot_id="s:0")) == [
        pool.StartInstance(slot_id="s:0", number=2, deployment_id=A)
    ]


def test_an_opened_slot_that_its_provider_takes_back_gets_no_instance() -> None:
    made = with_slots(1)
    made.handle(pool.SlotClosed(slot_id="s:0"))
    made.handle(pool.SlotNoticed(slot_id="s:0"))
    made.handle(pool.SlotOpened(slot_id="s:0"))
    assert made.handle(pool.Wanted(deployment_id=A, most=1)) == []


def test_an_instance_leaves_when_its_price_rises_above_what_its_deployment_pays() -> None:
    made = with_slots(1, price=1.0)
    made.handle(pool.Wanted(deployment_id=A, most=1, price=2.0))
    made.handle(pool.InstanceUp(slot_id="s:0", number=1))
    assert made.handle(pool.SlotPriced(slot_id="s:0", price=2.0)) == []
    assert made.handle(pool.SlotPriced(slot_id="s:0", price=2.5)) == [
        pool.DrainInstance(slot_id="s:0", number=1, deployment_id=A)
    ]
    made.handle(pool.SlotDrained(slot_id="s:0", number=1))
    assert made.handle(pool.InstanceStopped(slot_id="s:0", number=1)) == []
    assert made.handle(pool.SlotPriced(slot_id="s:0", price=1.5)) == [
        pool.StartInstance(slot_id="s:0", number=2, deployment_id=A)
    ]


def test_a_deployment_that_pays_less_than_before_gives_dear_instances_up() -> None:
    made = with_slots(1, price=1.0)
    made.handle(pool.Wanted(deployment_id=A, most=1))
    made.handle(pool.InstanceUp(slot_id="s:0", number=1))
    (drain,) = made.handle(pool.Wanted(deployment_id=A, most=1, price=0.5))
    assert isinstance(drain, pool.DrainInstance)


def test_a_slot_whose_instances_never_come_is_tried_ever_more_seldom() -> None:
    made = with_slots(1)
    made.handle(pool.PoolTicked(at_us=0))
    ordered = made.handle(pool.Wanted(deployment_id=A, most=1))
    starts = []
    for second in range(200):
        if ordered and isinstance(ordered[-1], pool.StartInstance):
            starts.append(second)
            number = ordered[-1].number
            (stop,) = made.handle(
                pool.InstanceFailed(slot_id="s:0", number=number, because="it never came")
            )
            assert isinstance(stop, pool.StopInstance)
            made.handle(pool.InstanceStopped(slot_id="s:0", number=number))
        ordered = made.handle(pool.PoolTicked(at_us=(second + 1) * 1_000_000))
    gaps = [after - before for before, after in pairwise(starts)]
    assert gaps == sorted(gaps)
    assert gaps[0] == 1
    assert max(gaps) == 60


def test_a_deployment_that_leaves_gives_all_its_slots_back() -> None:
    made = with_slots(2)
    made.handle(pool.Wanted(deployment_id=A, most=2))
    made.handle(pool.InstanceUp(slot_id="s:0", number=1))
    stopped = made.handle(pool.Wanted(deployment_id=A, most=0))
    assert [type(order) for order in stopped] == [pool.StopInstance] * 2


def test_an_instance_that_breaks_because_it_is_stopped_is_no_failure_of_its_slot() -> None:
    made = with_slots(1)
    made.handle(pool.Wanted(deployment_id=A, most=1))
    made.handle(pool.InstanceUp(slot_id="s:0", number=1))
    made.handle(pool.Wanted(deployment_id=A, most=0))
    assert made.handle(pool.InstanceFailed(slot_id="s:0", number=1, because="reset")) == []
    made.handle(pool.InstanceStopped(slot_id="s:0", number=1))
    assert len(made.handle(pool.Wanted(deployment_id=B, most=1))) == 1


class Course(RuleBasedStateMachine):
    """Any course of facts, with the outcomes of orders at random times."""

    def __init__(self) -> None:
        super().__init__()
        self.pool = Pool()
        self.at_us = 0
        self.starting: list[pool.StartInstance] = []
        self.draining: list[pool.DrainInstance] = []
        self.stopping: list[pool.StopInstance] = []
        self.living: dict[int, str] = {}
        """Slot of each process that may live, by its number."""

    def tell(self, event: pool.Event) -> None:
        for order in self.pool.handle(event):
            match order:
                case pool.StartInstance():
                    assert order.slot_id not in self.living.values(), "one process a device"
                    self.living[order.number] = order.slot_id
                    self.starting.append(order)
                case pool.DrainInstance():
                    self.draining.append(order)
                case pool.StopInstance():
                    self.stopping.append(order)

    @rule(number=st.integers(0, 3), price=st.sampled_from([0.0, 1.0, 2.0]))
    def come(self, number: int, price: float) -> None:
        self.tell(pool.SlotCame(slot_id=f"s:{number}", price=price, is_passed_on=number > 1))

    @rule(who=st.sampled_from([A, B]), is_generating=st.booleans())
    def generate(self, who: DeploymentId, is_generating: bool) -> None:
        self.tell(pool.Generating(deployment_id=who, is_generating=is_generating))

    @rule(number=st.integers(0, 3), is_noticed=st.booleans())
    def leave(self, number: int, is_noticed: bool) -> None:
        made = pool.SlotNoticed if is_noticed else pool.SlotGone
        self.tell(made(slot_id=f"s:{number}"))

    @rule(number=st.integers(0, 3), price=st.sampled_from([0.0, 1.0, 2.0]))
    def price(self, number: int, price: float) -> None:
        self.tell(pool.SlotPriced(slot_id=f"s:{number}", price=price))

    @rule(number=st.integers(0, 3), is_closed=st.booleans())
    def close(self, number: int, is_closed: bool) -> None:
        made = pool.SlotClosed if is_closed else pool.SlotOpened
        self.tell(made(slot_id=f"s:{number}"))

    @rule(
        who=st.sampled_from([A, B]),
        least=st.integers(0, 2),
        most=st.integers(0, 4),
        price=st.sampled_from([None, 0.5, 1.5]),
    )
    def want(self, who: DeploymentId, least: int, most: int, price: float | None) -> None:
        self.tell(pool.Wanted(deployment_id=who, least=min(least, most), most=most, price=price))

    @rule(seconds=st.integers(1, 90))
    def tick(self, seconds: int) -> None:
        self.at_us += seconds * 1_000_000
        self.tell(pool.PoolTicked(at_us=self.at_us))

    @precondition(lambda self: self.starting)
    @rule(data=st.data(), is_up=st.booleans())
    def start(self, data: st.DataObject, is_up: bool) -> None:
        order = data.draw(st.sampled_from(self.starting))
        self.starting.remove(order)
        if is_up:
            self.tell(pool.InstanceUp(slot_id=order.slot_id, number=order.number))
        else:
            self.tell(pool.InstanceFailed(slot_id=order.slot_id, number=order.number, because="no"))

    @precondition(lambda self: self.draining)
    @rule(data=st.data())
    def drain(self, data: st.DataObject) -> None:
        order = data.draw(st.sampled_from(self.draining))
        self.draining.remove(order)
        self.tell(pool.SlotDrained(slot_id=order.slot_id, number=order.number))

    @precondition(lambda self: self.living)
    @rule(data=st.data())
    def die(self, data: st.DataObject) -> None:
        number = data.draw(st.sampled_from(sorted(self.living)))
        failed = pool.InstanceFailed(slot_id=self.living[number], number=number, because="killed")
        self.tell(failed)

    @precondition(lambda self: self.stopping)
    @rule(data=st.data())
    def stop(self, data: st.DataObject) -> None:
        order = data.draw(st.sampled_from(self.stopping))
        self.stopping.remove(order)
        del self.living[order.number]
        self.tell(pool.InstanceStopped(slot_id=order.slot_id, number=order.number))

    @invariant()
    def caps_are_kept_and_every_used_slot_has_a_user(self) -> None:
        for one in (A, B):
            want = self.pool.wanted.get(one)
            assert self.pool.count(one) <= (want.most if want else 0)
        for name, slot in self.pool.slots.items():
            want = self.pool.wanted.get(slot.user) if slot.user else None
            if slot.state in {State.STARTING, State.UP}:
                assert not slot.is_noticed
                assert name not in self.pool.closed
                assert want is not None
                assert want.pays(slot.price)
            assert (slot.user is None) == (slot.state is State.FREE)
            assert not slot.is_gone or slot.state is State.STOPPING
            assert (slot.state is State.FREE) == (name not in self.living.values())

    def teardown(self) -> None:
        """Once nothing more is told, orders end: nobody passes anything back and forth."""
        for _ in range(40):
            for waiting in (self.stopping, self.draining, self.starting):
                while waiting:
                    self.end(waiting.pop(0))
        assert [*self.starting, *self.draining, *self.stopping] == []
        idle = {one for one in self.pool.wanted if one not in self.pool.generating}
        for slot in self.pool.slots.values():
            if slot.terms.is_passed_on and slot.user in idle and slot.state is State.UP:
                spare = self.pool.count(slot.user) - self.pool.wanted[slot.user].least
                for one in self.pool.generating if spare > 0 else ():
                    want = self.pool.wanted[one]
                    assert self.pool.count(one) >= want.most or not slot.suits(want)

    def end(self, order: pool.Order) -> None:
        """Have an order end as it should."""
        slot_id, number = order.slot_id, order.number
        match order:
            case pool.StartInstance():
                self.tell(pool.InstanceUp(slot_id=slot_id, number=number))
            case pool.DrainInstance():
                self.tell(pool.SlotDrained(slot_id=slot_id, number=number))
            case pool.StopInstance():
                del self.living[number]
                self.tell(pool.InstanceStopped(slot_id=slot_id, number=number))


TestCourse = Course.TestCase
TestCourse.settings = settings(max_examples=100, stateful_step_count=40, deadline=None)
