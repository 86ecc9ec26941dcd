"""Rows of the store as tests write them."""

from __future__ import annotations

from plexsvc.store.rows import JobRow, JournalRow


def entry(idx: int) -> JournalRow:
    """Return event `idx` of a journal."""
    return JournalRow(idx=idx, at_us=idx * 10, kind="TimerFired", version=1, body='{"key":"é"}')


def job(state: str = "running") -> JobRow:
    """Return the one job of these tests."""
    return JobRow(
        job_id="job-1",
        tenant="lab",
        name="grpo",
        state=state,
        reason="",
        exit_code=None,
        created_us=5,
        ended_us=0,
    )
