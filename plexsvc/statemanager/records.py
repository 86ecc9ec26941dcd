"""A WPG's record in the book: what the ledger and its ranks' links know, as of its last whole move.

A move that is under way is not in it: until the copy is complete and every rank has let go, the
state counts as where it was.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import msgspec

from plexsvc.ids import WpgId
from plexsvc.residency import TRANSITIONS, Residency, ResidencyTrigger
from plexsvc.statelink.client import ExportReport
from plexsvc.statelink.mapping import Extent
from plexsvc.statemanager.book import Facts, Key
from plexsvc.statemanager.disk import blocks
from plexsvc.statemanager.entries import RegionState, SharedState, WpgEntry
from plexsvc.statemanager.hostcopy import HostCopy
from plexsvc.statemanager.links import RankLink


@dataclass(frozen=True, slots=True, kw_only=True)
class RankRecord:
    """What a successor needs of a rank: its client, where it lies, what it said last."""

    client_id: int
    extents: Mapping[str, tuple[Extent, ...]] = field(default_factory=dict)
    export: ExportReport = field(default_factory=ExportReport)
    twins: Mapping[str, int] = field(default_factory=dict)
    """Regions that are parked with another rank alone, and that rank."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredWpg:
    """A WPG as its record has it."""

    state: WpgEntry
    ranks: Mapping[int, RankRecord]
    last_move: Facts | None


def wpg_key(wpg_id: WpgId) -> Key:
    """Return the key of a WPG's record."""
    return ("wpg", wpg_id)


def host_key(wpg_id: WpgId, rank: int, region: str) -> Key:
    """Return the key of a region's host copy."""
    return ("host", wpg_id, str(rank), region)


def shared_key(device_index: int, key: str) -> Key:
    """Return the key of a shared region."""
    return ("shared", str(device_index), key)


def index_key(wpg_id: WpgId, rank: int) -> Key:
    """Return the key of a rank's canonical index."""
    return ("index", wpg_id, str(rank))


def facts_of(
    wpg: WpgEntry,
    links: Sequence[RankLink],
    *,
    residency: Residency | None,
    last_move: Facts | None,
) -> tuple[Facts, list[int]]:
    """Return a WPG's record, and the descriptors of its device memory that is in no arena.

    `residency` is given where a move is just done. Descriptors come in the order of `extents`.
    """
    # A move under way counts as failed: until it is whole the state is where it was.
    at = residency or TRANSITIONS.get((wpg.residency, ResidencyTrigger.MOVE_FAILED), wpg.residency)
    fds = [
        span.fd
        for link in links
        if at is Residency.DEVICE and link.rank in wpg.ranks and link.memory.tier.left is None
        for span in link.memory.spans.values()
    ]
    ranks = {
        link.rank: RankRecord(
            client_id=link.client_id,
            extents={
                name: span.extents
                for name, span in (link.memory.spans if at is Residency.DEVICE else {}).items()
            },
            export=link.last_export,
            twins={
                name: twin.rank
                for name, twin in (link.memory.twins if at is Residency.HOST else {}).items()
                if twin.rank in wpg.ranks
            },
        )
        for link in links
        if link.rank in wpg.ranks
    }
    assert ranks.keys() == wpg.ranks.keys(), (ranks, wpg)
    record = StoredWpg(state=replace(wpg, residency=at), ranks=ranks, last_move=last_move)
    facts: Facts = msgspec.to_builtins(record, str_keys=True)
    return facts, fds


def host_of(host: HostCopy) -> tuple[list[int], bytes]:
    """Return the files that a region is parked in, and the checksums of what is on disk."""
    if host.tail is None:
        return [host.file.fd], b""
    sums = (host.tail.checksums[at] for at, _ in blocks(host.split, host.nbytes))
    return [host.file.fd, host.tail.fd], b"".join(sums)


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedRecord:
    """A shared region as its record has it; without extents it is parked."""

    region: RegionState
    device_index: int
    is_filled: bool
    extents: tuple[Extent, ...] | None

    @property
    def state(self) -> SharedState:
        """What the ledger knows of it; who reads it is in the records of WPGs."""
        return SharedState(
            region=self.region,
            device_index=self.device_index,
            is_filled=self.is_filled,
            is_on_device=self.extents is not None,
        )


def shared_facts(state: SharedState, extents: tuple[Extent, ...] | None) -> Facts:
    """Return a shared region's record."""
    record = SharedRecord(
        region=state.region,
        device_index=state.device_index,
        is_filled=state.is_filled,
        extents=extents,
    )
    facts: Facts = msgspec.to_builtins(record)
    return facts


def without(wpg: WpgEntry, rank: int) -> WpgEntry:
    """Return what the ledger will say of a WPG when it has freed `rank`."""
    ranks = {number: state for number, state in wpg.ranks.items() if number != rank}
    has_lost = bool(wpg.ranks[rank].regions)
    return replace(
        wpg,
        residency=wpg.residency if ranks else Residency.NONE,
        ranks=ranks,
        lost=wpg.lost | ({rank} if has_lost else set()),
    )


def parse(facts: Facts) -> StoredWpg:
    """Return what a record says."""
    return msgspec.convert(facts, StoredWpg, str_keys=True)
