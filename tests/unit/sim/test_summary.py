"""Summary of a run: how long jobs were away after a loss."""

from __future__ import annotations

from plexsvc.ids import NodeId, UnitId
from plexsvc.sim.records import Record, Restart, Stay
from plexsvc.sim.summary import back_us
from tests.rigs.traces import job


def test_each_loss_counts_until_the_job_has_places_again() -> None:
    record = Record(job=job("j"), alone_us=1, work_us=1)
    record.stays = [
        Stay(since_us=at_us, group_id=1, nodes=(UnitId("n00000"),)) for at_us in (5, 30, 70)
    ]
    record.restarts = [Restart(at_us=at_us, node_id=NodeId("n00000")) for at_us in (20, 70, 90)]
    assert back_us(record) == [10, 0]
