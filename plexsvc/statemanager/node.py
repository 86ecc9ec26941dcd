"""State of a node: its ledger, tiers, versions, staged bundles and connected clients."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Final

from plexclient.wire.v1 import statemanager_pb2
from plexsvc.errors import PlexError, bad_request, unavailable
from plexsvc.fencing import Fence
from plexsvc.ids import WpgId
from plexsvc.log import Log
from plexsvc.residency import Home, Residency
from plexsvc.rpc.keys import read_keys
from plexsvc.statelink.client import ExportReport
from plexsvc.statemanager.arrivals import Arrivals
from plexsvc.statemanager.book import Book, Facts, Key
from plexsvc.statemanager.caller import Tally
from plexsvc.statemanager.config import StateManagerConfig
from plexsvc.statemanager.core import Ledger
from plexsvc.statemanager.devices import check_budgets, open_tier
from plexsvc.statemanager.disk import Disk
from plexsvc.statemanager.entries import RegionState, WpgEntry
from plexsvc.statemanager.links import KeyedLocks, RankLink
from plexsvc.statemanager.memory import RankMemory
from plexsvc.statemanager.publishing import Publisher
from plexsvc.statemanager.records import facts_of, host_key, host_of, index_key, wpg_key
from plexsvc.statemanager.shared import SharedRegions
from plexsvc.statemanager.shelves import StagingRoom, VersionShelf
from plexsvc.statemanager.staging import Staging
from plexsvc.statemanager.tiers import ArenaFile, DeviceTier
from plexsvc.weights import pieces

log = Log(__name__)

MAX_REGIONS_PER_RANK = 32

SETTLE_TIMES: Final = 3
"""Times `resume_timeout_us` that a call waits for ranks, which are freed after one."""

NUMBERS: Final[Key] = ("numbers",)
"""The record of the fencing numbers this node has seen."""


class ManagedNode:
    """Everything the daemon holds: bookkeeping under `lock`, and by WPG memory and links.

    Nobody waits for another process while holding `lock`. `pending` are the clients of a
    predecessor that have not resumed (`clients`).
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
            disk_bytes=config.disk_bytes,
            max_wpgs=config.max_wpgs,
        )
        check_budgets(config.devices)
        self.disk = Disk(config.disk_dir) if config.disk_bytes else None
        self.tiers: dict[int, DeviceTier] = {
            device.index: open_tier(
                device, config, left=arenas.get(device.index), let_go=book.let_go
            )
            for device in config.devices
        }
        shelf = VersionShelf(
            self.ledger.host, max_per_deployment=config.max_versions_per_deployment
        )
        room = StagingRoom(
            staging_bytes=config.staging_bytes, max_per_job=config.max_staged_per_job
        )
        self.publisher = Publisher(
            shelf, host=self.ledger.host, node_id=config.node_id, lock=self.lock, book=book
        )
        self.arrivals = Arrivals(
            self.ledger.host,
            lock=self.lock,
            keys=lambda: read_keys(config.keys_file),
            site=config.site,
        )
        self.staging = Staging(room, lock=self.lock, book=book)
        self.shared = SharedRegions(
            self.ledger,
            lock=self.lock,
            book=book,
            memory=lambda index: RankMemory(self.tiers[index], self.disk),
        )
        self.links: dict[tuple[WpgId, int], RankLink] = {}
        self.pending: set[tuple[WpgId, int]] = set()
        self.rank_threads = ThreadPoolExecutor(max_workers=32, thread_name_prefix="rank")
        self.worked = Tally()
        self.parked: dict[WpgId, None] = {}
        """WPGs that were offloaded, the longest ago first."""
        self.changed = threading.Event()
        """Set when state may be needed elsewhere in the hierarchy (`parking`)."""
        self.settled = threading.Event()
        self.settled.set()

    def admit(self, fence: Fence, wpg_id: WpgId | None = None) -> None:
        """Admit a command and remember its epoch.

        Raises:
            PlexError: `stale_fence` when its epoch or incarnation is older than one seen.
        """
        with self.lock:
            before = self.ledger.max_epoch
            self.ledger.check_fence(fence, wpg_id=wpg_id)
            if self.ledger.max_epoch != before:
                self.write_numbers()

    def wait_until_settled(self) -> None:
        """Return when every rank of a predecessor that has regions has resumed or was freed.

        Raises:
            PlexError: `unavailable` when that lasts longer than it may.
        """
        limit_us = SETTLE_TIMES * self.config.resume_timeout_us
        if not self.settled.wait(limit_us / 1e6):
            raise unavailable("ranks of the last state manager are still awaited; try again")

    @contextmanager
    def booked(self, nbytes: int) -> Iterator[None]:
        """Have host memory that no version or WPG is given.

        Raises:
            PlexError: `no_room`.
        """
        with self.lock:
            self.ledger.host.take(nbytes)
        try:
            yield
        finally:
            with self.lock:
                self.ledger.host.give(nbytes)

    def allocate(
        self, link: RankLink, regions: Sequence[RegionState], *, is_repeat: bool = False
    ) -> None:
        """Give a client zeroed device memory for `regions`, all or none; tell it how far that is.

        A repeat that finds them given changes nothing: the answer was lost.

        Raises:
            PlexError: `no_room`; `bad_request`.
            OSError: the client left meanwhile; it has none of them.
        """
        self.wait_until_settled()
        with self.wpg_locks.hold(link.wpg_id):
            sizes = {name: host.nbytes for name, host in link.memory.hosts.items()}
            sizes |= {name: one.state.region.nbytes for name, one in link.memory.shared.items()}
            if is_repeat and all(sizes.get(region.name) == region.nbytes for region in regions):
                return
            if (count := len(sizes) + len(regions)) > MAX_REGIONS_PER_RANK:
                raise bad_request(
                    f"{link.name} asks for region {count}; a rank has at most "
                    f"{MAX_REGIONS_PER_RANK}, so pack tensors into fewer"
                )
            rank = self.state_of(link.wpg_id).ranks[link.rank]
            with self.lock:
                nbytes = self.ledger.taken_by(rank, regions)
                keep = {region.shared_key for region in regions}
                self.shared.make_room(rank.device_index, nbytes, keep=keep)
                self.ledger.allocate(link.wpg_id, link.rank, regions)
            own = [region for region in regions if not region.shared_key]
            try:
                self.book.settle()  # a successor would know of what left the device to make room
                link.memory.shared = self.shared.of(rank)
                for shared in link.memory.shared.values():
                    self.shared.bring(shared, link.say_done)
                link.memory.allocate(own, link.say_done)
            except (PlexError, OSError):
                link.memory.shared = {}
                with self.lock:
                    self.ledger.deallocate(link.wpg_id, link.rank, [r.name for r in own])
                self.shared.stop_reading(link.wpg_id, link.rank)
                raise
            for region in own:
                self.write_host(link, region.name)
            self.write_down(link.wpg_id)

    def seal(self, link: RankLink, name: str) -> None:
        """Let others read a shared region that a client has filled; one of its own stays that.

        Raises:
            PlexError: `no_room`.
        """
        with self.wpg_locks.hold(link.wpg_id):
            if (region := link.memory.shared.get(name)) is not None:
                self.shared.seal(region, link.say_done)

    def set_index(self, link: RankLink, index: Sequence[statemanager_pb2.CanonicalPiece]) -> None:
        """Replace a client's canonical index.

        Raises:
            PlexError: `bad_request` for a piece that does not lie in a region of the client.
        """
        with self.wpg_locks.hold(link.wpg_id):
            sizes = {name: host.nbytes for name, host in link.memory.hosts.items()}
            for piece in index:
                pieces.check_piece(piece, sizes)
                piece.rank = link.rank
            link.pieces = tuple(index)
            body = statemanager_pb2.VersionManifest(pieces=index).SerializeToString()
            self.book.put(index_key(link.wpg_id, link.rank), {}, body=body)

    def note_step(self, link: RankLink, report: ExportReport) -> None:
        """Take what a rank says that has worked on its parked state.

        Takes no lock of its WPG: who holds that may wait for the rank.

        Raises:
            PlexError: `bad_request` when it is not parked.
        """
        with self.lock:
            self.ledger.note_step(link.wpg_id, link.rank, dirty=report.dirty)
            link.last_export = report
            ranks = [other for key, other in self.links.items() if key[0] == link.wpg_id]
            applied = min(other.last_export.applied_seq for other in ranks)
            self.ledger.wpgs[link.wpg_id].applied_seq = applied
        for host in link.memory.hosts.values():
            host.writes = report.writes  # what it holds is newer than what was on the device
        self.write_down(link.wpg_id)

    def links_of(self, wpg_id: WpgId) -> list[RankLink]:
        """Return a WPG's clients by rank."""
        with self.lock:
            found = [link for key, link in self.links.items() if key[0] == wpg_id]
        return sorted(found, key=lambda link: link.rank)

    def state_of(self, wpg_id: WpgId) -> WpgEntry:
        """Return the ledger's record.

        Raises:
            PlexError: `not_found`, `worker_died`.
        """
        with self.lock:
            return self.ledger.find(wpg_id)

    def write_down(
        self, wpg_id: WpgId, *, residency: Residency | None = None, move: Facts | None = None
    ) -> None:
        """Note a WPG for a successor; `residency` and `move` of a move that is just done.

        Raises:
            PlexError: `unavailable`.
        """
        self.put_down(wpg_id, residency=residency, move=move)
        self.book.settle()

    def put_down(
        self, wpg_id: WpgId, *, residency: Residency | None = None, move: Facts | None = None
    ) -> None:
        """Write what `write_down` does, and wait for nobody to read it.

        Raises:
            PlexError: `unavailable`.
        """
        links = self.links_of(wpg_id)
        with self.lock:
            wpg = self.ledger.wpgs[wpg_id]
            facts, fds = facts_of(wpg, links, residency=residency, last_move=move)
        self.book.put(wpg_key(wpg_id), facts, fds=fds)

    def write_host(self, link: RankLink, name: str) -> None:
        """Note for a successor what of a parked region is in memory, and what on disk."""
        host = link.memory.hosts[name]
        fds, body = host_of(host)
        key = host_key(link.wpg_id, link.rank, name)
        self.book.put(key, {"split": host.split}, body=body, fds=fds)

    def beat(self) -> None:
        """Show that the lock can be had.

        Raises:
            PlexError: `unavailable` when the vault is gone.
        """
        with self.lock:
            pass
        self.book.beat()

    def close(self) -> None:
        """Free what is left when the clients are gone."""
        self.rank_threads.shutdown()
        self.publisher.close()
        self.staging.close()
        for tier in self.tiers.values():
            tier.close()
        if self.disk is not None:
            self.disk.close()

    def write_numbers(self) -> None:
        """Note the fencing numbers for a successor."""
        facts = {
            "max_epoch": self.ledger.max_epoch,
            "incarnations": dict(self.ledger.incarnations),
        }
        self.book.put(NUMBERS, facts)


def region_state(
    name: str,
    nbytes: int,
    *,
    is_droppable: bool,
    shared_key: str = "",
    home: Home = Home.DEVICE,
    granule: int,
) -> RegionState:
    """Return the ledger's record of a region a client asks for, in whole granules of its device.

    Raises:
        PlexError: `bad_request` for a size that is none.
    """
    if nbytes <= 0 or not name:
        raise bad_request(
            f"region {name!r} of {nbytes} bytes; give it a name and at least one byte"
        )
    rounded = -(-nbytes // granule) * granule
    return RegionState(
        name=name, nbytes=rounded, is_droppable=is_droppable, shared_key=shared_key, home=home
    )
