"""A WPG's record says all that a successor needs, of the state before or after a move."""

from __future__ import annotations

import json

import pytest

from plexsvc.ids import JobId, WpgId
from plexsvc.residency import Residency
from plexsvc.statelink.client import ExportReport
from plexsvc.statelink.mapping import Extent
from plexsvc.statemanager import records
from plexsvc.statemanager.entries import RankState, RegionState, WpgEntry
from plexsvc.statemanager.links import RankLink
from plexsvc.statemanager.memory import RankMemory
from plexsvc.statemanager.tiers import CpuArena, DeviceExtents

W = WpgId("wpg_a")
EXTENTS = (Extent(offset=0, nbytes=4096), Extent(offset=12288, nbytes=4096))
EXPORT = ExportReport(
    dirty=frozenset({"params"}), scalars={"lr": 0.1 + 0.2, "step": 3}, applied_seq=9
)


def state(residency: Residency) -> WpgEntry:
    region = RegionState(name="params", nbytes=8192, is_droppable=False, has_host_copy=True)
    ranks = {n: RankState(rank=n, device_index=n, regions={"params": region}) for n in range(2)}
    return WpgEntry(
        wpg_id=W,
        job_id=JobId("job"),
        incarnation=3,
        residency=residency,
        lease_no=5,
        applied_seq=9,
        switch_bytes=8192,
        ranks=ranks,
    )


def links() -> list[RankLink]:
    made = [
        RankLink(
            None,
            client_id=10 + rank,
            wpg_id=W,
            rank=rank,
            job_id=JobId("job"),
            memory=RankMemory(CpuArena(8192, keep_pages=False)),
        )
        for rank in range(2)
    ]
    for link in made:
        link.memory.spans = {"params": DeviceExtents(nbytes=8192, extents=EXTENTS, fd=-1)}
        link.last_export = EXPORT
    return made


def parsed(wpg: WpgEntry, *, residency: Residency | None = None) -> records.StoredWpg:
    facts, _ = records.facts_of(wpg, links(), residency=residency, last_move={"move_id": "00"})
    return records.parse(json.loads(json.dumps(facts)))


@pytest.mark.parametrize(
    ("residency", "given", "expected"),
    [
        (Residency.DEVICE, None, Residency.DEVICE),
        (Residency.HOST, None, Residency.HOST),
        (Residency.OFFLOADING, None, Residency.DEVICE),
        (Residency.LOADING, None, Residency.HOST),
        (Residency.OFFLOADING, Residency.HOST, Residency.HOST),
        (Residency.LOADING, Residency.DEVICE, Residency.DEVICE),
    ],
)
def test_a_move_counts_only_when_it_is_said_to_be_done(
    residency: Residency, given: Residency | None, expected: Residency
) -> None:
    record = parsed(state(residency), residency=given)
    assert record.state == state(expected)
    assert record.last_move == {"move_id": "00"}
    extents = {"params": EXTENTS} if expected is Residency.DEVICE else {}
    for rank, known in record.ranks.items():
        assert known == records.RankRecord(client_id=10 + rank, extents=extents, export=EXPORT)


def test_a_rank_is_crossed_out_before_it_is_freed() -> None:
    left = records.without(state(Residency.DEVICE), 0)
    assert (list(left.ranks), left.lost, left.residency) == ([1], {0}, Residency.DEVICE)
    gone = records.without(left, 1)
    assert (gone.ranks, gone.lost, gone.residency) == ({}, {0, 1}, Residency.NONE)
