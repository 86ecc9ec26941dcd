"""Adoption of a dead state manager's memory files, tables and unanswered moves.

The records say what was true between two moves (`records`), each written before it was acted on.
Memory that no record names is let go. Ranks are awaited (`Clients.await_ranks`): each says what it
maps when it resumes, and is told what it should.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import msgspec

from plexclient.wire.v1 import statemanager_pb2
from plexsvc import paths
from plexsvc.errors import PlexError, internal
from plexsvc.log import Log
from plexsvc.residency import Residency
from plexsvc.statelink import dataplane, mapping
from plexsvc.statelink.mapping import Extent
from plexsvc.statemanager import checkpoints, records
from plexsvc.statemanager.book import Book, BookEntry, Key
from plexsvc.statemanager.clients import Clients
from plexsvc.statemanager.config import StateManagerConfig
from plexsvc.statemanager.disk import SUM_BYTES
from plexsvc.statemanager.entries import RegionState
from plexsvc.statemanager.hostcopy import Tail
from plexsvc.statemanager.links import RankLink
from plexsvc.statemanager.memory import RankMemory, Twin
from plexsvc.statemanager.moves import MoveOutcome, StateMover
from plexsvc.statemanager.node import NUMBERS, ManagedNode
from plexsvc.statemanager.records import StoredWpg
from plexsvc.statemanager.tiers import ArenaFile
from plexsvc.weights.checksums import BLOCK_BYTES

log = Log(__name__)

ARENA = "arena"


def open_node(config: StateManagerConfig, book: Book) -> tuple[ManagedNode, list[BookEntry]]:
    """Return the node over the arenas that a predecessor left, and the records to `adopt`.

    Raises:
        PlexError: `checksum_mismatch`, `internal`: nothing can be adopted.
    """
    entries = book.read()
    arenas = {int(entry.key[1]): _arena(entry) for entry in entries if entry.key[0] == ARENA}
    node = ManagedNode(config, book=book, arenas=arenas)
    for index, tier in node.tiers.items():
        # A new arena is on record before anything lies in it.
        if index not in arenas and (left := tier.left) is not None:
            book.put((ARENA, str(index)), {"page_bytes": left.page_bytes}, fds=(left.fd,))
    return node, [entry for entry in entries if entry.key[0] != ARENA]


def adopt(
    node: ManagedNode, clients: Clients, mover: StateMover, entries: Sequence[BookEntry]
) -> None:
    """Rebuild a predecessor's tables; its ranks are awaited from now on.

    Raises:
        PlexError: `no_room`, `internal`: the records contradict each other or the configuration.
    """
    left = {entry.key: entry for entry in entries}
    if (numbers := left.pop(NUMBERS, None)) is not None:
        node.ledger.adopt_numbers(**numbers.facts)
    # First, because the records of WPGs name the shared regions that their ranks read.
    for entry in _take(left, "shared"):
        _adopt_shared(node, entry)
    for entry in _take(left, "wpg"):
        record = records.parse(entry.facts)
        _adopt_wpg(node, record, iter(entry.fds), left)
        _adopt_move(mover, record)
    for entry in _take(left, "version"):
        node.publisher.adopt(entry)
    for entry in _take(left, "staged"):
        node.staging.adopt(entry)
    for entry in _take(left, checkpoints.SAVE):
        _clear_away(entry)
        node.book.drop(entry.key)
    for entry in left.values():  # of a rank that is in no record any more
        dataplane.close_all(entry.fds)
        node.book.drop(entry.key)
    # A kill between two records may have left a region whose last reader is gone.
    node.shared.end_unread()
    for tier in node.tiers.values():
        tier.tidy()
    node.book.settle()
    clients.await_ranks(node.links)
    if entries:
        log.warning("adopted what was left", wpgs=len(node.ledger.wpgs), ranks=len(node.links))


def _clear_away(entry: BookEntry) -> None:
    """Remove what an unfinished save of a predecessor left, if its place can still be reached."""
    place = paths.CheckedPath(path=Path(entry.facts["directory"]), root=Path(entry.facts["root"]))
    try:
        with paths.opened_directory(place) as directory:
            checkpoints.remove_unfinished(directory)
    except (PlexError, OSError) as error:
        log.warning("an unfinished save stays", directory=place.path, error=error)


def _arena(entry: BookEntry) -> ArenaFile:
    (fd,) = entry.fds
    return ArenaFile(fd=fd, page_bytes=entry.facts["page_bytes"])


def _take(left: dict[Key, BookEntry], kind: str) -> Iterable[BookEntry]:
    return [left.pop(key) for key in list(left) if key[0] == kind]


def _adopt_shared(node: ManagedNode, entry: BookEntry) -> None:
    record = msgspec.convert(entry.facts, records.SharedRecord)
    region = record.region
    memory = RankMemory(node.tiers[record.device_index], node.disk)
    node.shared.adopt(record.state, memory)
    fds = list(entry.fds)
    is_apart = record.extents is not None and memory.tier.left is None
    span_fd = fds.pop() if is_apart else None
    memory.adopt(
        region,
        host_fd=fds[0],
        tail=_tail(entry, fds[1:], region, is_there=True),
        extents=record.extents,
        span_fd=span_fd,
    )


def _adopt_wpg(
    node: ManagedNode, record: StoredWpg, span_fds: Iterator[int], left: dict[Key, BookEntry]
) -> None:
    state = record.state
    parked = {
        (rank, name): _needed(left, records.host_key(state.wpg_id, rank, name))
        for rank, known in state.ranks.items()
        for name in known.regions
    }
    if state.residency is Residency.HOST:
        # What moved between memory and disk since is in the records of the regions alone.
        for (rank, name), entry in parked.items():
            region = state.ranks[rank].regions[name]
            if region.has_host_copy:
                region.disk_bytes = region.nbytes - entry.facts.get("split", region.nbytes)
    node.ledger.adopt(state)
    for rank, known in record.ranks.items():
        link = RankLink(
            None,
            client_id=known.client_id,
            wpg_id=state.wpg_id,
            rank=rank,
            job_id=state.job_id,
            memory=RankMemory(node.tiers[state.ranks[rank].device_index], node.disk),
        )
        link.last_export = known.export
        is_apart = link.memory.tier.left is None
        fds = {name: next(span_fds) for name in known.extents if is_apart}
        for name, region in state.ranks[rank].regions.items():
            entry = parked[rank, name]
            is_there = state.residency is Residency.HOST
            link.memory.adopt(
                region,
                host_fd=entry.fds[0],
                tail=_tail(entry, entry.fds[1:], region, is_there=is_there),
                extents=known.extents.get(name),
                span_fd=fds.get(name),
            )
        link.memory.shared = node.shared.of(state.ranks[rank])
        index = left.pop(records.index_key(state.wpg_id, rank), None)
        if index is not None:
            link.pieces = tuple(statemanager_pb2.VersionManifest.FromString(index.body).pieces)
        node.links[state.wpg_id, rank] = link
    for rank, known in record.ranks.items():
        node.links[state.wpg_id, rank].memory.twins = {
            name: Twin(rank=twin, memory=node.links[state.wpg_id, twin].memory)
            for name, twin in known.twins.items()
        }


def _tail(
    entry: BookEntry, fds: Sequence[int], region: RegionState, *, is_there: bool
) -> Tail | None:
    """Return what of a region is on disk; what is there of one that is loaded is let go."""
    if not fds:
        return None
    (fd,) = fds
    if not (is_there and region.has_host_copy and region.disk_bytes):
        os.close(fd)
        return None
    if region.split:
        # A kill may have come between the record of what rose and the return of its blocks.
        mapping.punch(fd, Extent(offset=0, nbytes=region.split))
    body, at = entry.body, range(region.split, region.nbytes, BLOCK_BYTES)
    sums = (body[low : low + SUM_BYTES] for low in range(0, len(body), SUM_BYTES))
    return Tail(fd=fd, checksums=dict(zip(at, sums, strict=True)))


def _needed(left: dict[Key, BookEntry], key: Key) -> BookEntry:
    if key not in left:
        raise internal(
            f"record {'/'.join(key)} is missing; start without the last state manager's records"
        )
    return left.pop(key)


def _adopt_move(mover: StateMover, record: StoredWpg) -> None:
    if record.last_move is None:
        return
    facts = dict(record.last_move)
    move_id = bytes.fromhex(facts.pop("move_id"))
    facts["residency"] = Residency(facts["residency"])
    mover.remember(record.state.wpg_id, move_id, MoveOutcome(**facts))
