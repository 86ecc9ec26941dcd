"""The node's state, and how clients come, allocate and leave."""

from __future__ import annotations

import itertools
import socket
import threading
from collections.abc import Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Final

from plexclient.wire.v1 import statemanager_pb2
from plexsvc.errors import ErrorCode, PlexError
from plexsvc.fencing import Fence
from plexsvc.ids import JobId, WpgId
from plexsvc.log import Log
from plexsvc.residency import Residency
from plexsvc.statelink import mapping
from plexsvc.statemanager.book import Book, Facts, Key
from plexsvc.statemanager.config import StateManagerConfig
from plexsvc.statemanager.core import Ledger, RegionState, WpgState
from plexsvc.statemanager.devices import open_tier
from plexsvc.statemanager.links import KeyedLocks, RankLink
from plexsvc.statemanager.publishing import Publisher
from plexsvc.statemanager.records import facts_of, host_key, index_key, without, wpg_key
from plexsvc.statemanager.shelves import StagingRoom, VersionKey, VersionShelf
from plexsvc.statemanager.staging import Staging
from plexsvc.statemanager.tiers import ArenaFile, DeviceTier, HostCopy, Span
from plexsvc.weights import pieces

log = Log(__name__)

MAX_REGIONS_PER_RANK = 32

NUMBERS: Final[Key] = ("numbers",)
"""The record of the fencing numbers this node has seen."""


class Node:
    """Everything the daemon holds. `lock` guards bookkeeping; a WPG's lock its memory and links.

    `pending` are the clients of a predecessor that have not resumed; until the last one with
    regions has, or is freed, no device memory is granted: it may still be mapped by one of them.
    """

    def __init__(
        self,
        config: StateManagerConfig,
        *,
        book: Book,
        arenas: Mapping[int, ArenaFile],
    ) -> None:
        self.config = config
        self.book = book
        self.lock = threading.Lock()
        self.wpg_locks = KeyedLocks()
        self.ledger = Ledger(
            devices={device.index: device.bytes_total for device in config.devices},
            host_bytes=config.host_bytes,
            max_wpgs=config.max_wpgs,
        )
        self.tiers: dict[int, DeviceTier] = {
            device.index: open_tier(
                device,
                keep_pages=config.keep_pages,
                huge_pages=config.huge_pages,
                left=arenas.get(device.index),
            )
            for device in config.devices
        }
        shelf = VersionShelf(
            self.ledger.host, max_per_deployment=config.max_versions_per_deployment
        )
        room = StagingRoom(
            staging_bytes=config.staging_bytes, max_per_job=config.max_staged_per_job
        )
        self.publisher = Publisher(shelf, node_id=config.node_id, lock=self.lock, book=book)
        self.staging = Staging(room, lock=self.lock, book=book)
        self.links: dict[tuple[WpgId, int], RankLink] = {}
        self.pending: set[tuple[WpgId, int]] = set()
        self.rank_threads = ThreadPoolExecutor(max_workers=32, thread_name_prefix="rank")
        self.client_ids = itertools.count(1)
        self._settled = threading.Event()
        self._settled.set()

    def admit(self, fence: Fence, wpg_id: WpgId | None = None) -> None:
        """Admit a command and remember its epoch.

        Raises:
            PlexError: `stale_fence` when its epoch or incarnation is older than one seen.
        """
        with self.lock:
            before = self.ledger.max_epoch
            self.ledger.check_fence(fence, wpg_id=wpg_id)
            if self.ledger.max_epoch != before:
                self._write_numbers()

    def await_ranks(self, keys: Collection[tuple[WpgId, int]]) -> None:
        """Wait for these clients of a predecessor, which are in `links`."""
        self._settled.clear()
        self.pending.update(keys)
        self._look_who_is_missing()

    def wait_until_settled(self) -> None:
        """Return when every rank of a predecessor that has regions has resumed or was freed."""
        self._settled.wait()

    def connect(
        self,
        sock: socket.socket,
        *,
        wpg_id: WpgId,
        rank: int,
        incarnation: int,
        device_index: int,
        job_id: JobId,
    ) -> RankLink:
        """Register a client; ranks of an older incarnation of its WPG are freed first.

        Raises:
            PlexError: see `Ledger.register`.
        """
        with self.wpg_locks.hold(wpg_id):
            with self.lock:
                evicted = self.ledger.superseded(wpg_id, incarnation=incarnation)
            for old_rank in evicted:
                self._free(self.links[wpg_id, old_rank])
            if (left := self._left_meanwhile(wpg_id, rank)) is not None:
                self._free(left)
            with self.lock:
                self.ledger.register(
                    wpg_id,
                    rank=rank,
                    incarnation=incarnation,
                    device_index=device_index,
                    job_id=job_id,
                )
                client_id = next(self.client_ids)
                self._write_numbers()
            link = RankLink(sock, client_id=client_id, wpg_id=wpg_id, rank=rank, job_id=job_id)
            self.links[wpg_id, rank] = link
            self.write_down(wpg_id)
        log.info("client connected", rank=link.name, incarnation=incarnation)
        return link

    def resume(
        self,
        sock: socket.socket,
        *,
        wpg_id: WpgId,
        rank: int,
        incarnation: int,
        held: Mapping[VersionKey, int],
    ) -> RankLink | None:
        """Return a rank of a predecessor that came back, None for one that is not awaited.

        It holds what it says it maps; the rest comes with its data connection (`settle`).
        """
        with self.wpg_locks.hold(wpg_id):
            link = self.links.get((wpg_id, rank))
            wpg = self.ledger.wpgs.get(wpg_id)
            is_awaited = (wpg_id, rank) in self.pending
            if link is None or wpg is None or wpg.incarnation != incarnation or not is_awaited:
                return None
            link.take_call(sock)
            self.publisher.hold_all(held, holder=link.client_id)
        log.info("client resumed", rank=link.name, incarnation=incarnation)
        return link

    def settle(self, link: RankLink) -> None:
        """Wait for a rank no longer: it has resumed, or is gone."""
        if (link.wpg_id, link.rank) in self.pending:
            with self.lock:
                self.pending.discard((link.wpg_id, link.rank))
            self._look_who_is_missing()

    def _left_meanwhile(self, wpg_id: WpgId, rank: int) -> RankLink | None:
        """Return a client without state that left a predecessor and comes anew."""
        link = self.links.get((wpg_id, rank))
        is_pending = link is not None and (wpg_id, rank) in self.pending
        return link if is_pending and link is not None and not link.hosts else None

    def _look_who_is_missing(self) -> None:
        with self.lock:
            has_all = not self.pending
            missing = [self.links[key] for key in self.pending if key in self.links]
        if has_all:
            self.publisher.free_unneeded()
        if not any(link.hosts for link in missing):
            self._settled.set()

    def drop_pending(self) -> None:
        """Free the ranks of a predecessor that have not come back."""
        for key in sorted(self.pending):
            log.warning("client did not resume", wpg_id=key[0], rank=key[1])
            if (link := self.links.get(key)) is not None:
                self.disconnect(link)

    def disconnect(self, link: RankLink) -> None:
        """Free all that a client had; safe to repeat."""
        with self.wpg_locks.hold(link.wpg_id):
            if self.links.get((link.wpg_id, link.rank)) is link:
                self._free(link)

    def allocate(self, link: RankLink, regions: Sequence[RegionState]) -> None:
        """Give a client zeroed device memory for `regions`, all or none.

        Raises:
            PlexError: `no_room`; `bad_request`.
        """
        if len(link.spans) + len(regions) > MAX_REGIONS_PER_RANK:
            raise PlexError(
                ErrorCode.BAD_REQUEST,
                f"{link.name} asks for region {len(link.spans) + len(regions)}; a rank has at most "
                f"{MAX_REGIONS_PER_RANK}, so pack tensors into fewer",
            )
        self.wait_until_settled()
        with self.wpg_locks.hold(link.wpg_id):
            with self.lock:
                self.ledger.allocate(link.wpg_id, link.rank, regions)
            tier = self.tier_of(link)
            spans: dict[str, Span] = {}
            hosts: dict[str, HostCopy] = {}
            try:
                for region in regions:
                    spans[region.name] = tier.reserve(region.nbytes, is_zeroed=True)
                    hosts[region.name] = HostCopy(region.nbytes)
            except PlexError:
                for span in spans.values():
                    tier.release(span, is_final=True)
                for host in hosts.values():
                    host.close()
                with self.lock:
                    self.ledger.deallocate(link.wpg_id, link.rank, [r.name for r in regions])
                raise
            link.spans |= spans
            link.hosts |= hosts
            for name, host in hosts.items():
                self.book.put(host_key(link.wpg_id, link.rank, name), {}, fds=(host.file.fd,))
            self.write_down(link.wpg_id)

    def set_index(self, link: RankLink, index: Sequence[statemanager_pb2.CanonicalPiece]) -> None:
        """Replace a client's canonical index.

        Raises:
            PlexError: `bad_request` for a piece that does not lie in a region of the client.
        """
        with self.wpg_locks.hold(link.wpg_id):
            sizes = {name: host.nbytes for name, host in link.hosts.items()}
            for piece in index:
                pieces.check_piece(piece, sizes)
                piece.rank = link.rank
            link.pieces = tuple(index)
            body = statemanager_pb2.VersionManifest(pieces=index).SerializeToString()
            self.book.put(index_key(link.wpg_id, link.rank), {}, body=body)

    def forget(self, wpg_id: WpgId, fence: Fence) -> int:
        """Free all a WPG has on every tier and cut its clients off; return the bytes. Repeatable.

        Raises:
            PlexError: `stale_fence`.
        """
        with self.wpg_locks.hold(wpg_id):
            self.admit(fence, wpg_id)
            freed = sum(self._free(link) for link in self.links_of(wpg_id))
            with self.lock:
                self.ledger.forget(wpg_id)
            self.book.drop(wpg_key(wpg_id))
        log.info("WPG forgotten", wpg_id=wpg_id, freed_bytes=freed)
        return freed

    def links_of(self, wpg_id: WpgId) -> list[RankLink]:
        """Return a WPG's clients by rank."""
        with self.lock:
            found = [link for key, link in self.links.items() if key[0] == wpg_id]
        return sorted(found, key=lambda link: link.rank)

    def tier_of(self, link: RankLink) -> DeviceTier:
        """Return the device that a client computes on."""
        return self.tiers[self.state_of(link.wpg_id).ranks[link.rank].device_index]

    def state_of(self, wpg_id: WpgId) -> WpgState:
        """Return the ledger's record.

        Raises:
            PlexError: `not_found`, `worker_died`.
        """
        with self.lock:
            return self.ledger.find(wpg_id)

    def write_down(
        self, wpg_id: WpgId, *, residency: Residency | None = None, move: Facts | None = None
    ) -> None:
        """Note a WPG for a successor; `residency` and `move` of a move that is just done."""
        links = self.links_of(wpg_id)
        with self.lock:
            wpg = self.ledger.wpgs[wpg_id]
            facts = facts_of(wpg, links, residency=residency, last_move=move)
        self.book.put(wpg_key(wpg_id), facts)

    def close(self) -> None:
        """Free everything but the book; clients see their connections end."""
        self.book.close()
        with self.lock:
            links = list(self.links.values())
        for link in links:
            link.cut()
            self.disconnect(link)
        self.rank_threads.shutdown()
        self.publisher.close()
        self.staging.close()
        for tier in self.tiers.values():
            tier.close()

    def _free(self, link: RankLink) -> int:
        """Free a client's memory; the caller holds its WPG's lock."""
        link.cut()
        link.close()
        self._cross_out(link)
        with self.lock:
            tier = self.tiers[self.ledger.wpgs[link.wpg_id].ranks[link.rank].device_index]
        for span in link.spans.values():
            tier.release(span, is_final=True)
        for host in link.hosts.values():
            host.close()
        link.spans, link.hosts, link.pieces = {}, {}, ()
        with self.lock:
            freed = self.ledger.free_rank(link.wpg_id, link.rank)
            del self.links[link.wpg_id, link.rank]
        self.staging.drop_unsealed(link.client_id)
        self.publisher.unhold_all(link.client_id)
        self.settle(link)
        log.info("client left", rank=link.name, freed_bytes=freed)
        return freed

    def _cross_out(self, link: RankLink) -> None:
        """Take a rank out of the book before its memory is given to others."""
        with self.lock:
            left = without(self.ledger.wpgs[link.wpg_id], link.rank)
        if left.ranks or left.lost:
            facts = facts_of(left, self.links_of(link.wpg_id), residency=None, last_move=None)
            self.book.put(wpg_key(link.wpg_id), facts)
        else:
            self.book.drop(wpg_key(link.wpg_id))
        self.book.drop(index_key(link.wpg_id, link.rank))
        for name in link.hosts:
            self.book.drop(host_key(link.wpg_id, link.rank, name))

    def _write_numbers(self) -> None:
        facts = {
            "max_epoch": self.ledger.max_epoch,
            "incarnations": dict(self.ledger.incarnations),
        }
        self.book.put(NUMBERS, facts)


def region_state(name: str, nbytes: int, *, is_droppable: bool) -> RegionState:
    """Return the ledger's record of a region a client asks for.

    Raises:
        PlexError: `bad_request` for a size that is none.
    """
    if nbytes <= 0 or not name:
        text = f"region {name!r} of {nbytes} bytes; give it a name and at least one byte"
        raise PlexError(ErrorCode.BAD_REQUEST, text)
    rounded = mapping.round_to_pages(nbytes)
    return RegionState(name=name, nbytes=rounded, is_droppable=is_droppable)
