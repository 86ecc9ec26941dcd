"""The bill: read as from a meter, so that to read or write it twice counts nothing twice."""

from __future__ import annotations

from itertools import chain

import pytest

from plexclient.wire.v1 import service_pb2
from plexsvc.ids import DeploymentId, JobId, NodeId, TenantId
from plexsvc.scheduler.core.accounts import Usage
from plexsvc.scheduler.core.actions import StartOperation
from plexsvc.scheduler.core.events import OperationFinished, VersionsHeld
from plexsvc.scheduler.core.view import ClusterView
from plexsvc.scheduler.core.vocabulary import NodeBytes
from plexsvc.scheduler.driver.freezing import freeze, thaw
from plexsvc.scheduler.ledger.bill import CHARGED, HOUR_US, POOLED, Bill, by_operation, since
from plexsvc.store.rows import ChargesRow, JobUsage, UsageRow
from tests.fakes.fake_clock import FakeClock
from tests.fakes.fake_world import FakeWorld, op_id

A, B, LAB = JobId("a"), JobId("b"), TenantId("lab")


@pytest.fixture
def world() -> FakeWorld:
    """One training device of 100 bytes, jobs `a` and `b` of 60 bytes each up; `b` is resident."""
    world = FakeWorld()
    world.join(train=1)
    world.bring_up("a")
    world.bring_up("b")
    return world


def start(world: FakeWorld, name: str, *, job: str, seq: int) -> None:
    """Start an operation, after whatever switch it needs."""
    world.submit(name, job=job, seq=seq)
    while not isinstance(world.orders[0], StartOperation):
        world.report(world.orders[0])


def finish(world: FakeWorld, name: str) -> None:
    """End what started last, a millisecond after what came before."""
    world.orders.clear()
    world.tell(
        OperationFinished(
            at_us=world.tick(),
            operation_id=op_id(name),
            fault=None,
            is_refusal=False,
            run_us=1,
            digest="",
            num_tokens=7,
            nbytes=50,
        )
    )


def clock_at(now_us: int) -> FakeClock:
    clock = FakeClock()
    clock.wall = now_us
    return clock


def bill_of(view: ClusterView, *, now_us: int) -> Bill:
    bill = Bill(view, clock=clock_at(now_us))
    bill.rows()
    return bill


def usage(bill: Bill) -> list[UsageRow]:
    return [one for one in bill.rows() if isinstance(one, UsageRow)]


def charges(bill: Bill) -> list[ChargesRow]:
    return [one for one in bill.rows() if isinstance(one, ChargesRow)]


def costs(pages: list[ChargesRow]) -> list[service_pb2.Cost]:
    """Return what the operations of some rows were charged."""
    kept = (service_pb2.CostReply.FromString(page.body).costs for page in pages)
    return by_operation(chain.from_iterable(kept))


def row(kind: str, *, job: str = "a", hour: int = 0, **figures: int) -> UsageRow:
    return UsageRow(job_id=job, kind=kind, hour_us=hour * HOUR_US, **figures)


def test_an_operation_costs_its_time_and_each_job_the_moves_of_its_own_state(
    world: FakeWorld,
) -> None:
    before = bill_of(world.core.view, now_us=world.now_us)
    moved = before.of(B)["switch_out"].count if "switch_out" in before.of(B) else 0
    start(world, "a1", job="a", seq=1)
    running = bill_of(world.core.view, now_us=world.now_us + 400)
    assert running.of(A)["step"] == row("step", device_us=400)
    finish(world, "a1")
    bill = bill_of(world.core.view, now_us=world.now_us)
    assert bill.of(A)["step"] == row("step", count=1, device_us=1000, tokens=7, nbytes=50)
    assert bill.of(A)["switch_in"].switch_us > 0
    assert bill.of(B)["switch_out"].count == moved + 1
    assert "step" not in bill.of(B)
    spent_us = sum(one.device_us + one.switch_us for j in (A, B) for one in bill.of(j).values())
    assert bill.spent_us(LAB) == spent_us


def test_rows_are_due_until_they_are_written_and_again_when_they_changed(world: FakeWorld) -> None:
    start(world, "a1", job="a", seq=1)
    bill = bill_of(world.core.view, now_us=world.now_us)
    rows = bill.rows()
    assert bill.rows() == rows
    bill.written(rows)
    assert bill.rows() == []
    finish(world, "a1")
    late = bill.rows()
    assert [(one.job_id, one.kind) for one in late] == [("a", "step")]
    world.end("a")
    world.drain()
    bill.written(late)
    assert {one.job_id for one in bill.rows()} <= {"a"}
    assert bill.of(A)["step"].count == 1
    bill.forget(set())
    assert bill.of(A)["step"].count == 1, "the core still knows it"


def test_whoever_takes_over_reads_the_same_and_counts_nothing_twice(world: FakeWorld) -> None:
    start(world, "a1", job="a", seq=1)
    bill = bill_of(world.core.view, now_us=world.now_us)
    stored = [JobUsage(tenant=LAB, name="a", used=one) for one in usage(bill)]
    stored.append(JobUsage(tenant=LAB, name="old", used=row("step", job="old", device_us=5)))
    finish(world, "a1")
    after = thaw(freeze(world.core)).view
    for began_first in (True, False):
        successor = Bill(after, clock=clock_at(world.now_us))
        if not began_first:
            successor.rows()
        successor.begin(stored, {})
        successor.rows()
        bill.rows()
        assert {j: successor.of(j) for j in (A, B)} == {j: bill.of(j) for j in (A, B)}
        assert successor.spent_us(LAB) == bill.spent_us(LAB) + 5
        successor.forget({B})
        assert successor.of(JobId("old")) == {}
        assert successor.spent_us(LAB) == bill.spent_us(LAB) + 5


def test_what_operations_are_charged_sums_to_the_account_of_their_job(world: FakeWorld) -> None:
    bill = Bill(world.core.view, clock=clock_at(world.now_us))
    assert charges(bill) == [], "it is not known yet what the store has"
    bill.begin([], {one.job_id: one.number for one in world.core.view.charges})
    for seq in (1, 2):
        start(world, f"a{seq}", job="a", seq=seq)
        finish(world, f"a{seq}")
    found = costs(charges(bill))
    assert [(one.kind, one.operation_id, one.seq) for one in found] == [
        ("switch_in", op_id("a1"), 1),
        ("step", op_id("a1"), 1),
        ("step", op_id("a2"), 2),
    ]
    for kind in ("switch_in", "step"):
        used = bill.of(A)[kind]
        assert used.device_us + used.switch_us > 0
        for name in CHARGED:
            of_kind = sum(getattr(one, name) for one in found if one.kind == kind)
            assert of_kind == getattr(used, name), (kind, name)


def test_a_charge_is_written_once_by_whoever_reads_it(world: FakeWorld) -> None:
    bill = Bill(world.core.view, clock=clock_at(world.now_us))
    bill.begin([], {})
    start(world, "a1", job="a", seq=1)
    early = bill.rows()
    finish(world, "a1")
    late = bill.rows()
    assert [one.first for one in charges(bill)] == [
        one.first for one in early if isinstance(one, ChargesRow)
    ], "what was not written is in the next, in its place"
    bill.written(late)
    assert charges(bill) == []
    last = {one.job_id: one.last for one in late if isinstance(one, ChargesRow)}
    start(world, "b1", job="b", seq=1)
    finish(world, "b1")
    bill.forget(set())
    successor = Bill(thaw(freeze(world.core)).view, clock=clock_at(world.now_us))
    successor.begin([], last)
    assert charges(successor) == charges(bill)
    assert {one.operation_id for one in costs(charges(successor))} == {op_id("b1")}


def test_time_in_pools_is_added_to_what_earlier_services_had_written(world: FakeWorld) -> None:
    held = [(A, LAB, 30)]
    bill = Bill(world.core.view, clock=clock_at(world.now_us), pooled=lambda: held)
    bill.rows()
    assert POOLED not in bill.of(A), "it is not known yet what the store has"
    before = bill.spent_us(LAB)
    bill.begin([JobUsage(tenant=LAB, name="a", used=row(POOLED, device_us=100))], {})
    for held_us, total_us in ((30, 130), (30, 130), (45, 145), (5, 145), (10, 150)):
        held[0] = (A, LAB, held_us)
        bill.rows()
        assert bill.of(A)[POOLED].device_us == total_us
    assert bill.spent_us(LAB) == before + 150


def test_what_was_used_since_a_time_is_the_difference_of_two_readings() -> None:
    def of(*rows: UsageRow) -> list[JobUsage]:
        return [JobUsage(tenant=LAB, name="math", used=one) for one in rows]

    now = of(row("step", hour=9, count=5, device_us=50), row("switch_in", hour=3, count=2))
    then = of(row("step", hour=2, count=3, device_us=20), row("switch_in", hour=3, count=2))
    assert since(now, ()) == now
    assert since(now, then) == of(row("step", hour=9, count=2, device_us=30))


def test_a_job_pays_for_the_room_of_its_state_and_of_its_versions_until_it_ends(
    world: FakeWorld,
) -> None:
    view = world.core.view

    def kept(now_us: int) -> int:
        return view.used(now_us=now_us)[A]["memory"].host_byte_us

    assert kept(world.now_us + 1000) - kept(world.now_us) == 60 * 1000
    held = (NodeBytes(node_id=NodeId("n0"), nbytes=5),)
    world.tell(VersionsHeld(at_us=world.tick(), deployment_id=DeploymentId("a/actor"), held=held))
    before, since_us = kept(world.now_us), world.now_us
    assert kept(since_us + 1000) - before == 65 * 1000
    assert thaw(freeze(world.core)).view.used(now_us=since_us)[A]["memory"].host_byte_us == before
    world.end("a")
    world.drain()
    _, usage = view.ended_usage[A]
    assert usage["memory"].host_byte_us == before + 65 * (world.now_us - since_us)
    assert Usage(host_byte_us=3_999_999 << 20).host_mib_s == 3
