"""A WPG's record in the book: what the ledger and its ranks' links know, as of its last whole move.

A move that is under way is not in it: until the copy is complete and every rank has let go, the
state counts as where it was.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

import msgspec

from plexsvc.ids import WpgId
from plexsvc.residency import TRANSITIONS, Residency, ResidencyTrigger
from plexsvc.statelink.mapping import Extent
from plexsvc.statemanager.book import Facts, Key
from plexsvc.statemanager.core import WpgState
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
    ranks = {
        link.rank: RankRecord(
            client_id=link.client_id,
            extents={
                name: span.extents
                for name, span in (link.memory.spans if at is Residency.DEVICE else {}).items()
            },
            export=link.last_export,
        )
        for link in links
        if link.rank in wpg.ranks
    }
    assert ranks.keys() == wpg.ranks.keys(), (ranks, wpg)
    record = WpgRecord(state=replace(wpg, residency=at), ranks=ranks, last_move=last_move)
    facts: Facts = msgspec.to_builtins(record, str_keys=True)
    return facts


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


def parse(facts: Facts) -> WpgRecord:
    """Return what a record says."""
    return msgspec.convert(facts, WpgRecord, str_keys=True)
