"""Arrangement of parked state between host memory and disk: what is needed first is in memory.

Theory of operation. Every WPG has its place to be parked, in memory or on disk, also while it is on
a device (`core`). A thread makes memory the place of those on devices, whose state is parked next,
then of those that the scheduler expects next, then of those that have been parked for longest. It
goes in steps, each under the lock of one WPG that nobody waits for: a step *sinks* the end of a
region to disk, or has it *rise* again. What a step moves is in both places until a successor would
find it in the new one. For a WPG on a device, a step changes the place alone. No step begins while
a move reads or writes the disk.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Final, TypeVar

from plexsvc.errors import ErrorCode, PlexError
from plexsvc.ids import WpgId
from plexsvc.log import Log
from plexsvc.residency import MOVING, Home, Residency
from plexsvc.statemanager.entries import Budget, RegionState, WpgEntry
from plexsvc.statemanager.links import RankLink
from plexsvc.statemanager.node import ManagedNode
from plexsvc.weights.checksums import BLOCK_BYTES

log = Log(__name__)

T = TypeVar("T")

STEP_BYTES: Final = 16 * BLOCK_BYTES
"""What is moved at most before a call that waits for the WPG comes in."""

LOOK_S: Final = 1.0
"""How often room is looked for that nobody has told of."""

MAX_BUSY: Final = 250
"""Looks for state that nobody uses just now: two callers may wait for each other's."""

POLL_S: Final = 0.02
"""Pause between them."""

PAUSE_S: Final = 5.0
"""How long a disk that refused is let be."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ParkingStep:
    """What is moved next: bytes of a region to disk, or, where negative, to memory."""

    wpg_id: WpgId
    rank: int
    region: RegionState
    nbytes: int


class Parking:
    """Moves parked state between memory and disk. Thread-safe."""

    def __init__(self, node: ManagedNode) -> None:
        self._node = node
        self._expected: dict[WpgId, int] = {}
        self._makers = 0
        self.sunk_bytes = self.risen_bytes = 0
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="parking", daemon=True)

    def start(self) -> None:
        """Begin, where there is a disk."""
        if self._node.disk is not None:
            self._thread.start()

    def close(self) -> None:
        """End the step at work."""
        self._closing.set()
        self._node.changed.set()
        if self._thread.is_alive():
            self._thread.join()

    def expect(self, order: Sequence[str]) -> None:
        """Take the scheduler's word for which of some WPGs are needed next, in which order."""
        with self._node.lock:
            self._expected |= {WpgId(wpg_id): at for at, wpg_id in enumerate(order)}
            for gone in self._expected.keys() - self._node.ledger.wpgs.keys():
                del self._expected[gone]

    def queued_bytes(self) -> int:
        """Return the bytes on disk that are to be in memory; the caller holds the node's lock."""
        order = self._order()
        wanted = self._wanted(order)
        return sum(max(0, wanted[wpg.wpg_id] - _in_memory(wpg)) for wpg in order)

    def bring_back(self, wpg_id: WpgId) -> None:
        """Have all of a parked WPG in memory; the caller holds its lock.

        A GPU's state is read by way of its place in memory, so that must be there as well.

        Raises:
            PlexError: `no_room`, `checksum_mismatch`, `not_found`, `worker_died`.
        """
        wpg = self._node.state_of(wpg_id)
        for link in self._node.links_of(wpg_id):
            # An arena is read where it is.
            if wpg.residency is Residency.DEVICE and link.memory.tier.kind == "cpu":
                continue
            for region in wpg.ranks[link.rank].regions.values():
                while nbytes := _rising(region, STEP_BYTES):
                    self.with_room(self._act, link, region, -nbytes)

    def with_room(self, work: Callable[..., T], *arguments: object) -> T:
        """Return what `work` does; while it lacks host memory, have others' state sink.

        The caller may hold the lock of one WPG, whose state stays.

        Raises:
            PlexError: what `work` raises; `no_room` when disk and memory are full.
        """
        busy = 0
        with self._making_room():
            while True:
                try:
                    return work(*arguments)
                except PlexError as error:
                    is_full = error.code is ErrorCode.NO_ROOM and error.facts.get("tier") == "host"
                    steps = self._all_sinking() if is_full else []
                    # With nothing left to sink, what just sank may have made the room.
                    if not is_full or busy == MAX_BUSY or (busy and not steps):
                        raise
                    if not any(self._take(step) for step in steps):
                        busy += 1
                        self._closing.wait(POLL_S)

    @contextmanager
    def booked(self, nbytes: int) -> Iterator[None]:
        """Have host memory that no version or WPG is given.

        Raises:
            PlexError: `no_room` when disk and memory are full.
        """
        with ExitStack() as stack:
            self.with_room(lambda: stack.enter_context(self._node.booked(nbytes)))
            yield

    def _run(self) -> None:
        while not self._closing.is_set():
            self._node.changed.wait(LOOK_S)
            self._node.changed.clear()
            try:
                while not self._closing.is_set() and self._step():
                    pass
            except (PlexError, OSError) as error:
                log.error("parked state stays where it is", error=error)
                self._closing.wait(PAUSE_S)

    def _step(self) -> bool:
        """Bring the arrangement nearer to what it should be; say whether that was possible."""
        with self._node.lock:
            order = self._order()
            is_disk_wanted = any(wpg.residency in MOVING and wpg.disk_bytes for wpg in order)
            if self._makers or is_disk_wanted or not self._node.settled.is_set():
                return False
            wanted = self._wanted(order)
            rising = next(self._rising_of(order, wanted), None)
            if rising is None:
                return False
            step: ParkingStep | None = rising
            if -rising.nbytes > self._node.ledger.host.free:
                steps = (
                    step
                    for wpg in reversed(order)
                    for step in self._sinking_of(wpg, most=_in_memory(wpg) - wanted[wpg.wpg_id])
                )
                step = next(steps, None)
        return step is not None and self._take(step)

    @contextmanager
    def _making_room(self) -> Iterator[None]:
        """Have nothing rise meanwhile into the room that is made."""
        with self._node.lock:
            self._makers += 1
        try:
            yield
        finally:
            with self._node.lock:
                self._makers -= 1

    def _all_sinking(self) -> list[ParkingStep]:
        """Return what could go to disk, what is needed last first."""
        with self._node.lock:
            return [
                step
                for wpg in reversed(self._order())
                for step in self._sinking_of(wpg, most=_in_memory(wpg))
            ]

    def _order(self) -> list[WpgEntry]:
        """Return all WPGs, those first that need their place in memory first."""
        parked = {wpg_id: at for at, wpg_id in enumerate(self._node.parked)}
        last = len(parked)

        def key(wpg: WpgEntry) -> tuple[bool, int, int, str]:
            at = self._expected.get(wpg.wpg_id, last)
            return not wpg.is_on_device, at, parked.get(wpg.wpg_id, last), wpg.wpg_id

        return sorted(self._node.ledger.wpgs.values(), key=key)

    def _wanted(self, order: Sequence[WpgEntry]) -> dict[WpgId, int]:
        """Return how much of each should have its place in memory, of what others leave."""
        host = self._node.ledger.host
        room = host.free + sum(map(_in_memory, order))
        wanted: dict[WpgId, int] = {}
        for wpg in order:
            wanted[wpg.wpg_id] = min(wpg.nbytes, room)
            room -= wanted[wpg.wpg_id]
        return wanted

    def _rising_of(
        self, order: Sequence[WpgEntry], wanted: dict[WpgId, int]
    ) -> Iterator[ParkingStep]:
        for wpg in order:
            most = min(STEP_BYTES, wanted[wpg.wpg_id] - _in_memory(wpg))
            for rank, region in _regions(wpg):
                if nbytes := _rising(region, most):
                    yield ParkingStep(wpg_id=wpg.wpg_id, rank=rank, region=region, nbytes=-nbytes)

    def _sinking_of(self, wpg: WpgEntry, *, most: int) -> Iterator[ParkingStep]:
        """Yield steps that take whole blocks, `most` bytes at most, to disk, if it has room."""
        most = min(STEP_BYTES, most, self._node.ledger.disk.free)
        for rank, region in _regions(wpg):
            # The rank maps that memory, and may use it at any time.
            if region.home is not Home.DEVICE:
                continue
            low = -(-max(0, region.split - most) // BLOCK_BYTES) * BLOCK_BYTES
            if (nbytes := region.split - low) > 0:
                yield ParkingStep(wpg_id=wpg.wpg_id, rank=rank, region=region, nbytes=nbytes)

    def _take(self, step: ParkingStep) -> bool:
        """Take a step, unless somebody uses the WPG, or it has changed; say whether it was done."""
        with self._node.wpg_locks.try_hold(step.wpg_id) as is_held:
            link = self._node.links.get((step.wpg_id, step.rank))
            wpg = self._node.ledger.wpgs.get(step.wpg_id)
            if not is_held or link is None or wpg is None or wpg.lost or wpg.residency in MOVING:
                return False
            if wpg.ranks[step.rank].regions.get(step.region.name) is not step.region:
                return False
            self._act(link, step.region, step.nbytes)
            return True

    def _act(self, link: RankLink, region: RegionState, nbytes: int) -> None:
        """Move the end of a region; the caller holds its WPG's lock.

        Raises:
            PlexError: `no_room`, `checksum_mismatch`; everything is where it was.
        """
        node, host = self._node, link.memory.hosts[region.name]
        ledger = node.ledger
        to, source = (ledger.disk, ledger.host) if nbytes > 0 else (ledger.host, ledger.disk)
        split = region.split - nbytes
        has_bytes = region.has_host_copy and node.state_of(link.wpg_id).residency is Residency.HOST
        # What is parked with another rank has its own place booked, for when the two differ.
        has_bytes = has_bytes and region.name not in link.memory.twins
        with self._booked(to, abs(nbytes)):
            if has_bytes and nbytes > 0:
                host.to_disk(split)
            elif has_bytes:
                host.from_disk(split)
            with node.lock:
                region.disk_bytes += nbytes
                source.give(abs(nbytes))
        if not has_bytes:
            host.empty(split)
            node.write_host(link, region.name)
            node.write_down(link.wpg_id)
        else:
            self.sunk_bytes += max(0, nbytes)
            self.risen_bytes -= min(0, nbytes)
            host.split = split
            # What is held twice goes once a successor would look in the new place.
            node.write_host(link, region.name)
            node.book.settle()
            host.let_go()
        link.memory.prepare(host)

    @contextmanager
    def _booked(self, budget: Budget, nbytes: int) -> Iterator[None]:
        """Book bytes, which stay booked unless the block raises."""
        with self._node.lock:
            budget.take(nbytes)
        try:
            yield
        except BaseException:
            with self._node.lock:
                budget.give(nbytes)
            raise


def _in_memory(wpg: WpgEntry) -> int:
    return wpg.nbytes - wpg.disk_bytes


def _regions(wpg: WpgEntry) -> Iterator[tuple[int, RegionState]]:
    for rank in wpg.ranks.values():
        for region in rank.regions.values():
            yield rank.rank, region


def _rising(region: RegionState, most: int) -> int:
    """Return how much of a region may rise in one step: whole blocks, or all that is on disk."""
    nbytes = min(region.disk_bytes, most)
    return nbytes if nbytes == region.disk_bytes else nbytes - nbytes % BLOCK_BYTES
