"""Shared regions: bytes that never change, once on a device for all ranks that read them.

A frozen model under adapters is one. The first rank that asks for a region fills it, and seals it;
from then on it has a copy on the host, and every reader maps it read-only. It stays on its device
when its last reader is parked, until others need the room, and is freed when nobody reads it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection

from plexsvc.errors import PlexError
from plexsvc.ids import WpgId
from plexsvc.statemanager import records
from plexsvc.statemanager.book import Book
from plexsvc.statemanager.caller import Tell, tell_nobody
from plexsvc.statemanager.core import Ledger
from plexsvc.statemanager.entries import RankState, SharedState
from plexsvc.statemanager.memory import RankMemory, SharedRegion


class SharedRegions:
    """Memory of a node's shared regions; `lock` guards the ledger."""

    def __init__(
        self,
        ledger: Ledger,
        *,
        lock: threading.Lock,
        book: Book,
        memory: Callable[[int], RankMemory],
    ) -> None:
        """Book in `ledger`; `memory` returns new memory of a device."""
        self._ledger = ledger
        self._lock = lock
        self._book = book
        self._memory = memory
        self._regions: dict[tuple[int, str], SharedRegion] = {}

    def of(self, rank: RankState) -> dict[str, SharedRegion]:
        """Return the regions that the ledger has a rank read, by its names of them."""
        with self._lock:
            return {name: self._open(rank.device_index, key) for name, key in rank.shared.items()}

    def bring(self, region: SharedRegion, tell: Tell = tell_nobody) -> int:
        """Have a region on its device, where the ledger has room for it; return the bytes copied.

        Raises:
            PlexError: `no_room`, `checksum_mismatch`.
            OSError: what `tell` raises.
        """
        memory, states = region.memory, [region.state.region]
        # A rank of another WPG, whose lock is another, may bring it at the same time.
        with region.lock:
            if memory.spans:
                return 0
            if not memory.hosts:
                memory.allocate(states, tell)
                nbytes = 0
            else:
                memory.reserve(states)
                try:
                    nbytes = memory.copy_in(states, tell)
                except (PlexError, OSError):
                    memory.leave_device()
                    raise
            self._write_down(region)
            return nbytes

    def seal(self, region: SharedRegion, tell: Tell = tell_nobody) -> None:
        """Let others read a region that its first reader has filled.

        Raises:
            PlexError: `no_room` when its copy on the host finds none.
            OSError: what `tell` raises.
        """
        state = region.state
        if not state.is_filled:
            region.memory.copy_out([state.region], tell)
            with self._lock:
                state.region.has_host_copy = state.is_filled = True
            self._write_down(region)

    def make_room(self, device_index: int, nbytes: int, *, keep: Collection[str]) -> None:
        """Take what nobody on a device reads off it until `nbytes` fit; the caller has the lock.

        The keys in `keep` stay.
        """
        for state in self._ledger.unread(device_index, nbytes, keep):
            region = self._regions[device_index, state.region.shared_key]
            self._ledger.take_off(state)
            self._write_down(region)  # before another has the memory
            region.memory.leave_device()

    def stop_reading(self, wpg_id: WpgId, rank: int) -> None:
        """Free what a rank was the last to read."""
        with self._lock:
            ended = self._ledger.stop_reading(wpg_id, rank)
            regions = []
            for state in ended:
                at = state.device_index, state.region.shared_key
                self._book.drop(records.shared_key(*at))
                if (region := self._regions.pop(at, None)) is not None:
                    regions.append(region)
        if ended:
            self._book.settle()  # before others have the memory
        for region in regions:
            region.memory.free()
        with self._lock:
            for state in ended:
                self._ledger.give_shared(state)

    def adopt(self, state: SharedState, memory: RankMemory) -> None:
        """Take over a region that a predecessor had.

        Raises:
            PlexError: `no_room`.
        """
        self._ledger.adopt_shared(state)
        at = state.device_index, state.region.shared_key
        self._regions[at] = SharedRegion(state=state, memory=memory)

    def end_unread(self) -> None:
        """Free what no adopted rank reads."""
        for at, state in list(self._ledger.shared.items()):
            if not state.readers:
                del self._ledger.shared[at]
                self._book.drop(records.shared_key(*at))
                self._regions.pop(at).memory.free()
                self._ledger.give_shared(state)

    def _open(self, device_index: int, key: str) -> SharedRegion:
        at = device_index, key
        if at not in self._regions:
            memory = self._memory(device_index)
            self._regions[at] = SharedRegion(state=self._ledger.shared[at], memory=memory)
        return self._regions[at]

    def _write_down(self, region: SharedRegion) -> None:
        state, host = region.state, region.host
        extents = region.span.extents if state.is_on_device and region.memory.spans else None
        fds, body = records.host_of(host)
        if extents is not None and region.memory.tier.left is None:
            fds.append(region.span.fd)
        key = records.shared_key(state.device_index, state.region.shared_key)
        self._book.put(key, records.shared_facts(state, extents), body=body, fds=fds)
