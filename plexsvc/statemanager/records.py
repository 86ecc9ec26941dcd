"""A WPG's record in the book: what the ledger and its ranks' links know, as of its last whole move.

A move that is under way is not in it: until the copy is complete and every rank has let go, the
state counts as where it was.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from plexsvc.ids import JobId, WpgId
from plexsvc.residency import TRANSITIONS, Residency, ResidencyTrigger
from plexsvc.statelink.mapping import Extent
from plexsvc.statemanager.book import Facts, Key
from plexsvc.statemanager.core import RankState, RegionState, WpgState
from plexsvc.statemanager.links import Export, RankLink


@dataclass(frozen=True, slots=True, kw_only=True)
class RankRecord:
    """What a successor needs of a rank: its client, where it lies, what it said last."""

    client_id: int
    extents: Mapping[str, tuple[Extent, ...]] = field(default_factory=dict)
    export: Export = field(default_factory=Export)


@dataclass(frozen=True, slots=True, kw_only=True)
class WpgRecord:
    """A WPG as its record has it."""

    state: WpgState
    ranks: Mapping[int, RankRecord]
    last_move: Facts | None


def wpg_key(wpg_id: WpgId) -> Key:
    """Return the key of a WPG's record."""
    return ("wpg", wpg_id)


def host_key(wpg_id: WpgId, rank: int, region: str) -> Key:
    """Return the key of a region's host copy."""
    return ("host", wpg_id, str(rank), region)


def index_key(wpg_id: WpgId, rank: int) -> Key:
    """Return the key of a rank's canonical index."""
    return ("index", wpg_id, str(rank))


def facts_of(
    wpg: WpgState,
    links: Iterable[RankLink],
    *,
    residency: Residency | None,
    last_move: Facts | None,
) -> Facts:
    """Return a WPG's record; `residency` where a move is just done."""
    # A move under way counts as failed: until it is whole the state is where it was.
    at = residency or TRANSITIONS.get((wpg.residency, ResidencyTrigger.MOVE_FAILED), wpg.residency)
    by_rank = {link.rank: link for link in links}
    is_on_device = at is Residency.DEVICE
    return {
        "job_id": wpg.job_id,
        "incarnation": wpg.incarnation,
        "residency": at,
        "lease_no": wpg.lease_no,
        "applied_seq": wpg.applied_seq,
        "switch_bytes": wpg.switch_bytes,
        "lost": sorted(wpg.lost),
        "last_move": last_move,
        "ranks": [
            _facts_of_rank(rank, by_rank[rank.rank], is_on_device=is_on_device)
            for rank in wpg.ranks.values()
        ],
    }


def without(wpg: WpgState, rank: int) -> WpgState:
    """Return what the ledger will say of a WPG when it has freed `rank`."""
    ranks = {number: state for number, state in wpg.ranks.items() if number != rank}
    has_lost = bool(wpg.ranks[rank].regions)
    return replace(
        wpg,
        residency=wpg.residency if ranks else Residency.NONE,
        ranks=ranks,
        lost=wpg.lost | ({rank} if has_lost else set()),
    )


def parse(wpg_id: WpgId, facts: Facts) -> WpgRecord:
    """Return what a record says."""
    state = WpgState(
        wpg_id=wpg_id,
        job_id=JobId(facts["job_id"]),
        incarnation=facts["incarnation"],
        residency=Residency(facts["residency"]),
        lease_no=facts["lease_no"],
        applied_seq=facts["applied_seq"],
        switch_bytes=facts["switch_bytes"],
        ranks={rank["rank"]: _rank_state(rank) for rank in facts["ranks"]},
        lost=set(facts["lost"]),
    )
    ranks = {rank["rank"]: _rank_record(rank) for rank in facts["ranks"]}
    return WpgRecord(state=state, ranks=ranks, last_move=facts["last_move"])


def _facts_of_rank(rank: RankState, link: RankLink, *, is_on_device: bool) -> Facts:
    export = link.last_export
    return {
        "rank": rank.rank,
        "device_index": rank.device_index,
        "client_id": link.client_id,
        "regions": [
            {
                "name": region.name,
                "nbytes": region.nbytes,
                "is_droppable": region.is_droppable,
                "has_host_copy": region.has_host_copy,
            }
            for region in rank.regions.values()
        ],
        "extents": {
            name: [[extent.offset, extent.nbytes] for extent in span.extents]
            for name, span in (link.memory.spans if is_on_device else {}).items()
        },
        "dirty": sorted(export.dirty),
        "scalars": dict(export.scalars),
        "applied_seq": export.applied_seq,
    }


def _rank_state(facts: Mapping[str, Any]) -> RankState:
    regions = [RegionState(**region) for region in facts["regions"]]
    return RankState(
        rank=facts["rank"],
        device_index=facts["device_index"],
        regions={region.name: region for region in regions},
    )


def _rank_record(facts: Mapping[str, Any]) -> RankRecord:
    extents = {
        name: tuple(Extent(offset=at, nbytes=nbytes) for at, nbytes in found)
        for name, found in facts["extents"].items()
    }
    export = Export(
        dirty=frozenset(facts["dirty"]),
        scalars=facts["scalars"],
        applied_seq=facts["applied_seq"],
    )
    return RankRecord(client_id=facts["client_id"], extents=extents, export=export)
