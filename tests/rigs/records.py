"""Records of jobs that were never played, for tests of what is made of records."""

from __future__ import annotations

from dataclasses import replace

from plexsvc.ids import NodeId, TenantId, UnitId
from plexsvc.scheduler.core.planning.profile import SECOND_US
from plexsvc.sim.records import Lost, Outcome, Record, Restart, StateCopy, Stay
from tests.rigs.traces import job


def stay(since_s: int, group: int) -> Stay:
    return Stay(since_us=since_s * SECOND_US, group_id=group, nodes=(UnitId(f"n{group}"),))


def moved_record(name: str = "j", *, tenant: str = "") -> Record:
    """Return a job that waits 10 s, runs on n0, moves to n1, loses it, waits and ends on n2."""
    one = job(name, durations=(10,), cycles=3)
    one = replace(one, demand=replace(one.demand, tenant=TenantId(tenant)))
    spans = [(20, 30), (110, 120), (300, 310)]
    return Record(
        job=one,
        alone_us=30 * SECOND_US,
        work_us=30 * SECOND_US,
        stays=[stay(10, 0), stay(100, 1), stay(290, 2)],
        start_us=10 * SECOND_US,
        finish_us=310 * SECOND_US,
        busy=[(start * SECOND_US, end * SECOND_US) for start, end in spans],
        phases=["sync"] * 3,
        moves=[StateCopy(since_us=90 * SECOND_US, until_us=100 * SECOND_US, why="n0 is drained")],
        restarts=[Restart(at_us=140 * SECOND_US, node_id=NodeId("n1"))],
    )


def outcome_of(*records: Record) -> Outcome:
    """Return a run in which n1 was lost and came back."""
    return Outcome(
        policy="plex",
        records=records,
        events=0,
        node_us=0,
        device_us=0,
        cost=0.0,
        losses=(Lost(node_id=NodeId("n1"), at_us=140 * SECOND_US, back_us=200 * SECOND_US),),
    )
