"""Tables of a run: tenants, and the jobs that waited longest with the reason."""

from __future__ import annotations

from dataclasses import replace

from plexsvc.scheduler.core.planning.profile import SECOND_US
from plexsvc.sim.records import Record
from plexsvc.sim.tables import NUM_WORST, reason, report
from tests.rigs.records import moved_record, outcome_of


def queued(record: Record, *, wait_s: int) -> Record:
    """Return a job that waits for its first place and for nothing else."""
    return replace(
        record,
        start_us=wait_s * SECOND_US,
        finish_us=wait_s * SECOND_US + record.alone_us,
        moves=[],
        restarts=[],
    )


def test_the_reason_is_what_took_most() -> None:
    assert "after 1 lost nodes" in reason(moved_record())
    assert reason(queued(moved_record(), wait_s=3600)) == "1.00 h in the queue"
    assert reason(queued(moved_record(), wait_s=0)) == "nothing: it did not wait"


def test_a_job_behind_others_operations_says_so() -> None:
    late = queued(moved_record(), wait_s=0)
    late.finish_us = (late.finish_us or 0) + 7200 * SECOND_US
    assert reason(late) == "2.00 h behind operations of others"


def test_tenants_and_the_worst_jobs_are_listed() -> None:
    records = [
        queued(moved_record(f"j{at}", tenant=f"t{at % 2}"), wait_s=100 * at) for at in range(12)
    ]
    text = report(outcome_of(*records), title="a run")
    assert "| t0 | 6 |" in text
    assert "| t1 | 6 |" in text
    worst = [line for line in text.splitlines() if line.startswith("| j")][1:]
    assert len(worst) == NUM_WORST
    assert worst[0].startswith("| j11 ")
