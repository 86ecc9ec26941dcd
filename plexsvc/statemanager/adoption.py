"""Takes over what a state manager left that died: its memory files, tables and unanswered moves.

The records say what was true between two moves (`records`), each written before it was acted on.
What no record speaks of any more is let go. Ranks are awaited (`Node.await_ranks`): each says what
it maps when it resumes, and is told what it should.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterable, Sequence

from plexclient.wire.v1 import statemanager_pb2
from plexsvc.errors import ErrorCode, PlexError
from plexsvc.ids import WpgId
from plexsvc.log import Log
from plexsvc.residency import Residency
from plexsvc.statelink import dataplane
from plexsvc.statemanager import records
from plexsvc.statemanager.book import Book, Entry, Key
from plexsvc.statemanager.config import StateManagerConfig
from plexsvc.statemanager.links import RankLink
from plexsvc.statemanager.moves import MoveOutcome, Mover
from plexsvc.statemanager.node import NUMBERS, Node
from plexsvc.statemanager.records import RankRecord, WpgRecord
from plexsvc.statemanager.tiers import ArenaFile, CpuArena, HostCopy

log = Log(__name__)

ARENA = "arena"


def open_node(config: StateManagerConfig, book: Book) -> tuple[Node, list[Entry]]:
    """Return the node over the arenas that a predecessor left, and the records to `adopt`.

    Raises:
        PlexError: `checksum_mismatch`, `internal`: nothing can be adopted.
    """
    entries = book.read()
    arenas = {int(entry.key[1]): _arena(entry) for entry in entries if entry.key[0] == ARENA}
    node = Node(config, book=book, arenas=arenas)
    for index, tier in node.tiers.items():
        if index not in arenas and isinstance(tier, CpuArena):
            facts = {"nbytes": tier.nbytes, "page_bytes": tier.file.page_bytes}
            book.put((ARENA, str(index)), facts, fds=(tier.file.fd,))
        elif isinstance(tier, CpuArena) and os.fstat(tier.file.fd).st_size != tier.nbytes:
            text = f"device {index} was left with another size than {tier.nbytes} bytes"
            raise PlexError(ErrorCode.INTERNAL, f"{text}; start without its records")
    return node, [entry for entry in entries if entry.key[0] != ARENA]


def adopt(node: Node, mover: Mover, entries: Sequence[Entry]) -> None:
    """Rebuild a predecessor's tables; its ranks are awaited from now on.

    Raises:
        PlexError: `no_room`, `internal`: the records contradict each other or the configuration.
    """
    left = {entry.key: entry for entry in entries}
    if (numbers := left.pop(NUMBERS, None)) is not None:
        node.ledger.adopt_numbers(**numbers.facts)
    for entry in _take(left, "wpg"):
        record = records.parse(WpgId(entry.key[1]), entry.facts)
        _adopt_wpg(node, record, left)
        _adopt_move(mover, record)
    for entry in _take(left, "version"):
        node.publisher.adopt(entry)
    for entry in _take(left, "staged"):
        node.staging.adopt(entry)
    for entry in left.values():  # of a rank that is in no record any more
        dataplane.close_all(entry.fds)
        node.book.drop(entry.key)
    for tier in node.tiers.values():
        if isinstance(tier, CpuArena):
            tier.tidy()
    last = max((link.client_id for link in node.links.values()), default=0)
    node.client_ids = itertools.count(last + 1)
    node.await_ranks(node.links)
    if entries:
        log.warning("adopted what was left", wpgs=len(node.ledger.wpgs), ranks=len(node.links))


def _arena(entry: Entry) -> ArenaFile:
    (fd,) = entry.fds
    return ArenaFile(fd=fd, page_bytes=entry.facts["page_bytes"])


def _take(left: dict[Key, Entry], kind: str) -> Iterable[Entry]:
    return [left.pop(key) for key in list(left) if key[0] == kind]


def _adopt_wpg(node: Node, record: WpgRecord, left: dict[Key, Entry]) -> None:
    node.ledger.adopt(record.state)
    for rank, known in record.ranks.items():
        link = _link(node, record, rank, known)
        for name, region in record.state.ranks[rank].regions.items():
            entry = _needed(left, records.host_key(record.state.wpg_id, rank, name))
            link.hosts[name] = HostCopy(region.nbytes, fd=entry.fds[0])
        index = left.pop(records.index_key(record.state.wpg_id, rank), None)
        if index is not None:
            link.pieces = tuple(statemanager_pb2.VersionManifest.FromString(index.body).pieces)
        node.links[record.state.wpg_id, rank] = link


def _link(node: Node, record: WpgRecord, rank: int, known: RankRecord) -> RankLink:
    state = record.state
    link = RankLink(
        None, client_id=known.client_id, wpg_id=state.wpg_id, rank=rank, job_id=state.job_id
    )
    link.last_export = known.export
    tier = node.tiers[state.ranks[rank].device_index]
    for name, extents in known.extents.items():
        assert isinstance(tier, CpuArena), tier  # no other outlives its owner, nor is kept
        link.spans[name] = tier.claim(state.ranks[rank].regions[name].nbytes, extents)
    return link


def _needed(left: dict[Key, Entry], key: Key) -> Entry:
    if key not in left:
        text = f"record {'/'.join(key)} is missing; start without the last state manager's records"
        raise PlexError(ErrorCode.INTERNAL, text)
    return left.pop(key)


def _adopt_move(mover: Mover, record: WpgRecord) -> None:
    if record.last_move is None:
        return
    facts = dict(record.last_move)
    move_id = bytes.fromhex(facts.pop("move_id"))
    facts["residency"] = Residency(facts["residency"])
    mover.remember(record.state.wpg_id, move_id, MoveOutcome(**facts))
