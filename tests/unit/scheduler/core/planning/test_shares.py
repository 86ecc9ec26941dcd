"""Tenants get devices by their weights, whatever number of jobs each of them has."""

from __future__ import annotations

from collections import Counter

from plexsvc.ids import ResidentId, TenantId
from plexsvc.scheduler.core.planning.profile import PPM, Demand, Profile, Segment
from plexsvc.scheduler.core.planning.shares import HOST, Shares

KIND = "train"
A, B, C = TenantId("a"), TenantId("b"), TenantId("c")
HOUR_US = 3_600_000_000


def demand(name: str, tenant: TenantId, *, priority: int = 0) -> Demand:
    profile = Profile(period_us=100, segments=(Segment(phase="p", offset_us=0, duration_us=50),))
    return Demand(
        resident_id=ResidentId(name),
        num_units=1,
        profile=profile,
        tenant=tenant,
        priority=priority,
        arrived_us=int(name[1:]),
    )


def turn(job: Demand) -> tuple[TenantId, tuple[int, ...]]:
    return job.tenant, (-job.priority,)


def taken(shares: Shares, waiting: list[Demand], *, slots: int) -> Counter[TenantId]:
    """Fill so many slots at once, each with the job whose turn it is; return whose they were."""
    turns = shares.in_turn(waiting, kind=KIND, turn=turn)
    found: Counter[TenantId] = Counter()
    for _, job in zip(range(slots), turns, strict=False):
        shares.book(job.tenant, KIND, PPM)
        found[job.tenant] += 1
    return found


def sized(weights: dict[str, int] | None = None, *, devices: int = 10) -> Shares:
    shares = Shares(weights or {})
    shares.grow(KIND, devices)
    shares.grow(HOST, 100)
    return shares


def jobs(**counts: int) -> list[Demand]:
    tenants = [TenantId(t) for t, count in counts.items() for _ in range(count)]
    return [demand(f"j{at}", tenant) for at, tenant in enumerate(tenants)]


def test_ten_times_the_jobs_get_no_more_devices() -> None:
    assert taken(sized(), jobs(a=100, b=10), slots=10) == {A: 5, B: 5}


def test_a_tenant_of_three_times_the_weight_gets_three_times_as_much() -> None:
    assert taken(sized({"b": 3}, devices=8), jobs(a=20, b=20), slots=8) == {A: 2, B: 6}


def test_who_had_more_so_far_waits_until_the_others_caught_up() -> None:
    shares = sized()
    shares.enter(B, KIND)
    shares.book(A, KIND, 10 * PPM)
    shares.now_us = HOUR_US
    shares.book(A, KIND, -10 * PPM)
    assert taken(shares, jobs(a=20, b=20), slots=10) == {B: 10}


def test_nobody_saves_up_shares_by_being_away() -> None:
    shares = sized()
    for tenant in (A, B):
        shares.enter(tenant, KIND)
    shares.book(A, KIND, 5 * PPM)
    shares.book(B, KIND, 5 * PPM)
    shares.now_us = 100 * HOUR_US
    shares.enter(C, KIND)
    for tenant in (A, B):
        shares.book(tenant, KIND, -5 * PPM)
    assert taken(shares, jobs(a=20, b=20, c=20), slots=9) == {A: 3, B: 3, C: 3}


def test_who_fills_the_host_memory_pays_for_that() -> None:
    shares = sized()
    shares.book(A, HOST, 90 * PPM)
    assert shares.share_ppm(A) == 900_000
    assert taken(shares, jobs(a=20, b=20), slots=8) == {B: 8}


def test_a_higher_priority_goes_before_all_shares() -> None:
    shares = sized()
    shares.book(A, KIND, 9 * PPM)
    waiting = [*jobs(b=3), demand("j9", A, priority=1)]
    turns = shares.in_turn(waiting, kind=KIND, turn=turn)
    assert [job.tenant for job in turns] == [A, B, B, B]
