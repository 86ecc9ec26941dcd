"""The node's state, and how clients come, allocate and leave."""

from __future__ import annotations

import itertools
import socket
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from plexclient.wire.v1 import statemanager_pb2
from plexsvc.errors import ErrorCode, PlexError
from plexsvc.ids import JobId, WpgId
from plexsvc.log import Log
from plexsvc.statemanager import pieces
from plexsvc.statemanager.config import StateManagerConfig
from plexsvc.statemanager.core import FenceNumbers, Ledger, RegionState, WpgState
from plexsvc.statemanager.devices import open_tier
from plexsvc.statemanager.links import KeyedLocks, RankLink
from plexsvc.statemanager.publishing import Publisher
from plexsvc.statemanager.shelves import StagingRoom, VersionShelf
from plexsvc.statemanager.staging import Staging
from plexsvc.statemanager.tiers import DeviceTier, HostCopy, Span
from plexsvc.transport import mapping

log = Log(__name__)

MAX_REGIONS_PER_RANK = 32


class Node:
    """Everything the daemon holds. `lock` guards bookkeeping; a WPG's lock its memory and links."""

    def __init__(self, config: StateManagerConfig) -> None:
        self.config = config
        self.lock = threading.Lock()
        self.wpg_locks = KeyedLocks()
        self.ledger = Ledger(
            devices={device.index: device.bytes_total for device in config.devices},
            host_bytes=config.host_bytes,
            max_wpgs=config.max_wpgs,
        )
        self.tiers: dict[int, DeviceTier] = {
            device.index: open_tier(
                device, keep_pages=config.keep_pages, huge_pages=config.huge_pages
            )
            for device in config.devices
        }
        shelf = VersionShelf(
            self.ledger.host, max_per_deployment=config.max_versions_per_deployment
        )
        room = StagingRoom(
            staging_bytes=config.staging_bytes, max_per_job=config.max_staged_per_job
        )
        self.publisher = Publisher(shelf, lock=self.lock)
        self.staging = Staging(room, lock=self.lock)
        self.links: dict[tuple[WpgId, int], RankLink] = {}
        self.rank_threads = ThreadPoolExecutor(max_workers=32, thread_name_prefix="rank")
        self._client_ids = itertools.count(1)

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
            with self.lock:
                self.ledger.register(
                    wpg_id,
                    rank=rank,
                    incarnation=incarnation,
                    device_index=device_index,
                    job_id=job_id,
                )
                client_id = next(self._client_ids)
            link = RankLink(sock, client_id=client_id, wpg_id=wpg_id, rank=rank, job_id=job_id)
            self.links[wpg_id, rank] = link
        log.info("client connected", rank=link.name, incarnation=incarnation)
        return link

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
        with self.wpg_locks.hold(link.wpg_id):
            with self.lock:
                self.ledger.allocate(link.wpg_id, link.rank, regions)
            tier = self.tier_of(link)
            spans: dict[str, Span] = {}
            try:
                for region in regions:
                    spans[region.name] = tier.reserve(region.nbytes, is_zeroed=True)
            except PlexError:
                for span in spans.values():
                    tier.release(span, is_final=True)
                with self.lock:
                    self.ledger.deallocate(link.wpg_id, link.rank, [r.name for r in regions])
                raise
            link.spans |= spans
            link.hosts |= {region.name: HostCopy(region.nbytes) for region in regions}

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

    def forget(self, wpg_id: WpgId, fence: FenceNumbers) -> int:
        """Free all a WPG has on every tier and cut its clients off; return the bytes. Repeatable.

        Raises:
            PlexError: `stale_fence`.
        """
        with self.wpg_locks.hold(wpg_id):
            with self.lock:
                self.ledger.check_fence(fence, wpg_id=wpg_id)
            freed = sum(self._free(link) for link in self.links_of(wpg_id))
            with self.lock:
                self.ledger.forget(wpg_id)
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

    def close(self) -> None:
        """Free everything; clients see their connections end."""
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
        log.info("client left", rank=link.name, freed_bytes=freed)
        return freed


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
