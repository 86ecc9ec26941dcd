"""Caps: a notice at nine tenths; at all of it the end of the tenant's jobs, and nobody else's."""

from __future__ import annotations

import logging

import pytest

from plexsvc.errors import ErrorCode, PlexError
from plexsvc.ids import JobId, TenantId
from plexsvc.scheduler.config import SchedulerConfig
from plexsvc.scheduler.core.actions import RefuseOperation, StartOperation
from plexsvc.scheduler.core.events import Event, JobEndRequested, JobSubmitted
from plexsvc.scheduler.core.vocabulary import JobState
from plexsvc.scheduler.ledger.bill import Bill
from plexsvc.scheduler.ledger.caps import Caps
from plexsvc.scheduler.ledger.jobs import Registry
from plexsvc.store.rows import QuotaRow
from tests.fakes.fake_clock import FakeClock
from tests.fakes.fake_world import FakeWorld, codes

LAB, RIVAL = TenantId("lab"), TenantId("rival")
CAP = QuotaRow(tenant=LAB, what="spend", most=10)
SECOND = 1_000_000


class Capped:
    """A world with a job of the lab whose operation runs, one of a rival, and a cap on the lab."""

    def __init__(self, *quotas: QuotaRow) -> None:
        self.world, self.clock = FakeWorld(), FakeClock()
        self.world.join(train=1)
        self.world.bring_up("a")
        rival = JobSubmitted(at_us=self.world.tick(), job_id=JobId("r"), tenant=RIVAL)
        self.world.tell(rival)
        self.world.submit("a1", job="a", seq=1)
        self.world.submit("a2", job="a", seq=2)
        self.posted: list[Event] = []
        registry = Registry(SchedulerConfig(), quotas=quotas)
        view = self.world.core.view
        self.bill = Bill(view, clock=self.clock)
        self.caps = Caps(registry, self.bill, view=view, post=self.posted.append)
        self.passed(0)
        self.base_us = self.bill.spent_us(LAB)

    def passed(self, seconds: float) -> None:
        """Let the operation run so long, all together."""
        self.clock.wall = self.world.now_us + round(seconds * SECOND)
        self.bill.rows()
        self.caps.heed()


def test_nobody_without_a_cap_is_told_or_ended() -> None:
    capped = Capped()
    capped.passed(1e6)
    capped.caps.check(LAB)
    assert (capped.posted, capped.caps.notice(LAB)) == ([], "")


def test_nine_tenths_are_a_notice_and_all_of_it_the_end_of_the_tenants_jobs(
    caplog: pytest.LogCaptureFixture,
) -> None:
    capped = Capped(CAP)
    with caplog.at_level(logging.WARNING):
        capped.passed(8)
        assert capped.caps.notice(LAB) == ""
        capped.passed(9.1)
        capped.passed(9.2)
    assert "has spent 9 of the 10 device-seconds" in capped.caps.notice(LAB)
    assert capped.caps.notice(RIVAL) == ""
    assert len([one for one in caplog.records if "nine tenths" in one.message]) == 1
    capped.caps.check(LAB)
    assert capped.posted == []
    capped.passed(10.1)
    (end,) = capped.posted
    assert isinstance(end, JobEndRequested)
    assert (end.job_id, end.outcome, end.code) == ("a", JobState.FAILED, ErrorCode.OVER_BUDGET)
    assert "has spent 10 device-seconds, and its cap is 10" in end.reason
    with pytest.raises(PlexError, match="over_budget"):
        capped.caps.check(LAB)
    capped.caps.check(RIVAL)


def test_what_waits_is_refused_by_that_name_what_runs_ends_and_nothing_is_ended_twice() -> None:
    capped = Capped(CAP)
    capped.passed(11)
    (end,) = capped.posted
    assert isinstance(end, JobEndRequested)
    actions = capped.world.tell(
        JobEndRequested(
            at_us=capped.world.tick(),
            job_id=end.job_id,
            outcome=end.outcome,
            reason=end.reason,
            code=end.code,
        )
    )
    assert codes(actions) == [ErrorCode.OVER_BUDGET]
    assert [type(order) for order in capped.world.orders] == [StartOperation]
    assert any(isinstance(action, RefuseOperation) for action in actions)
    capped.passed(12)
    assert len(capped.posted) == 1
