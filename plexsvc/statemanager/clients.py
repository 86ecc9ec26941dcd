"""Clients of the state manager: how they come, resume after a restart, and leave.

The clients of a predecessor are awaited. Until the last one with regions has resumed, or is freed,
no device memory is granted: it may still be mapped by one of them.
"""

from __future__ import annotations

import itertools
import socket
from collections.abc import Collection, Mapping

from plexsvc.fencing import Fence
from plexsvc.ids import JobId, VersionId, WpgId
from plexsvc.log import Log
from plexsvc.statemanager.links import RankLink
from plexsvc.statemanager.memory import RankMemory
from plexsvc.statemanager.node import ManagedNode
from plexsvc.statemanager.records import facts_of, host_key, index_key, without, wpg_key
from plexsvc.statemanager.shelves import UNHEARD

log = Log(__name__)


class Clients:
    """Registers the clients of a node and frees what they had when they leave."""

    def __init__(self, node: ManagedNode) -> None:
        self._node = node
        self._ids = itertools.count(1)

    def await_ranks(self, keys: Collection[tuple[WpgId, int]]) -> None:
        """Wait for these clients of a predecessor; ids of new ones follow theirs."""
        last = max((link.client_id for link in self._node.links.values()), default=0)
        self._ids = itertools.count(last + 1)
        self._node.settled.clear()
        self._node.pending.update(keys)
        self._look_who_is_missing()

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
        with self._node.wpg_locks.hold(wpg_id):
            with self._node.lock:
                evicted = self._node.ledger.superseded(wpg_id, incarnation=incarnation)
            # Freed before the new rank registers: device memory must not be booked twice.
            for old_rank in evicted:
                self._free(self._node.links[wpg_id, old_rank])
            if (left := self._left_meanwhile(wpg_id, rank)) is not None:
                self._free(left)
            with self._node.lock:
                self._node.ledger.register(
                    wpg_id,
                    rank=rank,
                    incarnation=incarnation,
                    device_index=device_index,
                    job_id=job_id,
                )
                client_id = next(self._ids)
                self._node.write_numbers()
            link = RankLink(
                sock,
                client_id=client_id,
                wpg_id=wpg_id,
                rank=rank,
                job_id=job_id,
                memory=RankMemory(self._node.tiers[device_index], self._node.disk),
            )
            with self._node.lock:
                self._node.links[wpg_id, rank] = link
            self._node.write_down(wpg_id)
        log.info("client connected", rank=link.name, incarnation=incarnation)
        return link

    def resume(
        self,
        sock: socket.socket,
        *,
        wpg_id: WpgId,
        rank: int,
        incarnation: int,
        held: Mapping[VersionId, int],
    ) -> RankLink | None:
        """Return a rank of a predecessor that came back, None for one that is not awaited.

        It holds what it says it maps; the rest comes with its data connection (`settle`).
        """
        with self._node.wpg_locks.hold(wpg_id):
            link = self._node.links.get((wpg_id, rank))
            wpg = self._node.ledger.wpgs.get(wpg_id)
            is_awaited = (wpg_id, rank) in self._node.pending
            if link is None or wpg is None or wpg.incarnation != incarnation or not is_awaited:
                return None
            link.call_sock = sock
            self._node.publisher.hold_all(held, holder=link.client_id)
        log.info("client resumed", rank=link.name, incarnation=incarnation)
        return link

    def settle(self, link: RankLink) -> None:
        """Wait for a rank no longer: it has resumed, or is gone."""
        if (link.wpg_id, link.rank) in self._node.pending:
            with self._node.lock:
                self._node.pending.discard((link.wpg_id, link.rank))
            self._look_who_is_missing()

    def drop_pending(self) -> None:
        """Free the ranks of a predecessor that have not come back."""
        for key in sorted(self._node.pending):
            log.warning("client did not resume", wpg_id=key[0], rank=key[1])
            if (link := self._node.links.get(key)) is not None:
                self.disconnect(link)

    def disconnect(self, link: RankLink) -> None:
        """Free all that a client had; safe to repeat."""
        with self._node.wpg_locks.hold(link.wpg_id):
            if self._node.links.get((link.wpg_id, link.rank)) is link:
                self._free(link)

    def forget(self, wpg_id: WpgId, fence: Fence) -> int:
        """Free all a WPG has on every tier and cut its clients off; return the bytes. Repeatable.

        Raises:
            PlexError: `stale_fence`.
        """
        with self._node.wpg_locks.hold(wpg_id):
            self._node.admit(fence, wpg_id)
            freed = sum(self._free(link) for link in self._node.links_of(wpg_id))
            with self._node.lock:
                self._node.ledger.forget(wpg_id)
                self._node.parked.pop(wpg_id, None)
            self._node.book.drop(wpg_key(wpg_id))
        self._node.worked.forget(wpg_id)
        self._node.changed.set()
        log.info("WPG forgotten", wpg_id=wpg_id, freed_bytes=freed)
        return freed

    def _left_meanwhile(self, wpg_id: WpgId, rank: int) -> RankLink | None:
        """Return a client without state that left a predecessor and comes anew."""
        link = self._node.links.get((wpg_id, rank))
        is_pending = link is not None and (wpg_id, rank) in self._node.pending
        return link if is_pending and link is not None and not link.memory.hosts else None

    def _look_who_is_missing(self) -> None:
        with self._node.lock:
            has_all = not self._node.pending
            missing = [
                self._node.links[key] for key in self._node.pending if key in self._node.links
            ]
        if has_all:
            self._node.publisher.unhold_all(UNHEARD)
        if not any(link.memory.hosts for link in missing):
            self._node.settled.set()

    def _free(self, link: RankLink) -> int:
        """Free all that a client has; the caller holds its WPG's lock.

        What fails in between is done by repeating all: the client is known until nothing is left.
        """
        link.cut()
        link.close()
        self._cross_out(link)
        link.memory.free()
        link.memory.shared = {}
        self._node.shared.stop_reading(link.wpg_id, link.rank)
        link.pieces = ()
        self._node.staging.drop_unsealed(link.client_id)
        self._node.publisher.unhold_all(link.client_id)
        self.settle(link)
        with self._node.lock:
            freed = self._node.ledger.free_rank(link.wpg_id, link.rank)
            del self._node.links[link.wpg_id, link.rank]
            if all(other.job_id != link.job_id for other in self._node.links.values()):
                self._node.arrivals.forget(link.job_id)
        log.info("client left", rank=link.name, freed_bytes=freed)
        return freed

    def _cross_out(self, link: RankLink) -> None:
        """Take a rank out of the book before its memory is given to others."""
        with self._node.lock:
            left = without(self._node.ledger.wpgs[link.wpg_id], link.rank)
        if left.ranks or left.lost:
            links = self._node.links_of(link.wpg_id)
            facts, fds = facts_of(left, links, residency=None, last_move=None)
            self._node.book.put(wpg_key(link.wpg_id), facts, fds=fds)
        else:
            self._node.book.drop(wpg_key(link.wpg_id))
        self._node.book.drop(index_key(link.wpg_id, link.rank))
        for name in link.memory.hosts:
            self._node.book.drop(host_key(link.wpg_id, link.rank, name))
        self._node.book.settle()
