"""Switches are counted once each, also after the timeline forgot them."""

from __future__ import annotations

from plexsvc.ids import DeploymentId, JobId, NodeId, OperationId
from plexsvc.scheduler.core.timeline import Stretch, Timeline
from plexsvc.scheduler.core.vocabulary import Place
from plexsvc.scheduler.ledger.tally import JobTally, Tally


def add(timeline: Timeline, kind: str, *, job: str = "j", is_move: bool = True) -> None:
    timeline.add(
        Stretch(
            places=(Place(node_id=NodeId("n"), device=0),),
            kind=kind,
            job_id=JobId(job),
            deployment_id=DeploymentId(f"{job}/actor"),
            operation_id=None if is_move else OperationId(bytes(16)),
            start_us=10,
            end_us=15,
            nbytes=7,
        )
    )


def test_loads_are_switches_and_both_ways_take_time() -> None:
    timeline = Timeline(limit=10)
    tally = Tally(timeline)
    add(timeline, "load")
    add(timeline, "step", is_move=False)
    add(timeline, "offload")
    add(timeline, "load", job="other")
    assert tally.of(JobId("j")) == JobTally(switches=1, switch_us=10)
    assert tally.of(JobId("other")) == JobTally(switches=1, switch_us=5)
    assert tally.of(JobId("nobody")) == JobTally()


def test_what_was_counted_stays_counted_when_spans_are_dropped() -> None:
    timeline = Timeline(limit=2)
    tally = Tally(timeline)
    for _ in range(5):
        add(timeline, "load")
        tally.take()
    assert tally.of(JobId("j")).switches == 5
    tally.forget({JobId("other")})
    assert tally.of(JobId("j")).switches == 0
