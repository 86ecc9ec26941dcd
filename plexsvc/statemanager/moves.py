"""Moves of a whole WPG between device and host: done on all its ranks, or rolled back on all.

Offload: export on every rank, copy what is dirty, park every rank, give the device memory back.
Load: take device memory, copy, map on every rank and hand its scalars back. A step that fails
before the end puts every rank back to where it was; a rank that died loses its state and fails the
WPG. The book has the move as done once every rank is parked, or mapped, and not before. Memory that
was given back by then, or is yet to be taken, holds no state, so a successor can go on from either
side.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from typing import TypeVar

from plexsvc.clock import Clock
from plexsvc.errors import PlexError
from plexsvc.fencing import Fence
from plexsvc.ids import WpgId
from plexsvc.log import Log
from plexsvc.residency import Residency
from plexsvc.statemanager.caller import Tell, WaitingCaller
from plexsvc.statemanager.entries import RegionState
from plexsvc.statemanager.links import RankLink
from plexsvc.statemanager.memory import RankMemory
from plexsvc.statemanager.node import ManagedNode
from plexsvc.statemanager.replicas import Leaving, Offload

log = Log(__name__)

T = TypeVar("T")

Commit = Callable[[int], None]
"""Called with the copied bytes between the last step that may fail and the first that may not."""

MAX_REMEMBERED_MOVES = 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class MoveOutcome:
    """What a move did: bytes copied, time of the copies alone, of everything, of each step."""

    residency: Residency
    nbytes: int = 0
    copy_us: int = 0
    total_us: int = 0
    step_us: Mapping[str, int] = field(default_factory=dict)


class Steps:
    """Times the steps of one move."""

    def __init__(self, clock: Clock) -> None:
        self.us: dict[str, int] = {}
        self._clock = clock
        self._start_us = clock.monotonic_us()

    @contextmanager
    def time(self, name: str) -> Iterator[None]:
        """Note how long the body takes under `name`."""
        start_us = self._clock.monotonic_us()
        yield
        self.us[name] = self._clock.monotonic_us() - start_us

    def outcome(self, residency: Residency, nbytes: int) -> MoveOutcome:
        """Return what the move has done so far; its copies are done."""
        return MoveOutcome(
            residency=residency,
            nbytes=nbytes,
            copy_us=self.us["copy"],
            total_us=self._clock.monotonic_us() - self._start_us,
            step_us=dict(self.us),
        )


class StateMover:
    """Performs moves; those of one WPG one after the other, of different ones at once."""

    def __init__(self, node: ManagedNode, *, clock: Clock) -> None:
        self._node = node
        self._clock = clock
        self._done: dict[tuple[WpgId, bytes], MoveOutcome] = {}
        self._under_way: dict[WpgId, tuple[int, int]] = {}
        self.spared_bytes = 0

    def move(
        self, wpg_id: WpgId, to: Residency, *, fence: Fence, move_id: bytes, caller: WaitingCaller
    ) -> MoveOutcome:
        """Return when the state is where it was asked. A repeated move id is answered as before.

        Raises:
            PlexError: `no_room`, `stale_fence`, `not_found`, `worker_died`, `cancelled`, or what a
                rank raised; the state is then where it was.
        """
        self._node.wait_until_settled()
        steps = Steps(self._clock)
        with self._node.wpg_locks.hold(wpg_id):
            caller.check()
            self._node.admit(fence, wpg_id)
            with self._node.lock:
                wpg = self._node.ledger.find(wpg_id)
                before = wpg.lease_no
                if to is Residency.DEVICE and not wpg.is_on_device:
                    keep = {key for rank in wpg.ranks.values() for key in rank.shared.values()}
                    for index, nbytes in self._node.ledger.lacking(wpg).items():
                        self._node.shared.make_room(index, nbytes, keep=keep)
                is_moving = self._node.ledger.begin_move(wpg_id, to, lease_no=fence.lease_no)
            is_new_lease = fence.lease_no != before
            if not is_moving:
                if is_new_lease:
                    self._node.write_down(wpg_id)
                return self._answered_before(wpg_id, to, move_id=move_id)

            def commit(nbytes: int) -> None:
                facts = asdict(steps.outcome(to, nbytes))
                self._node.write_down(
                    wpg_id, residency=to, move={"move_id": move_id.hex(), **facts}
                )

            with self._moving(wpg_id):
                if is_new_lease:
                    self._node.write_down(wpg_id)
                else:  # a successor would know of what left the device to make room
                    self._node.book.settle()
                act = self._offload if to is Residency.HOST else self._load
                links = self._node.links_of(wpg_id)
                nbytes = act(links, steps, commit=commit, tell=caller.tell)
            done = steps.outcome(to, nbytes)
            self.remember(wpg_id, move_id, done)
        with self._node.lock:
            self._node.parked.pop(wpg_id, None)  # so that it becomes the last, if it was in already
            if to is Residency.HOST:
                self._node.parked[wpg_id] = None
        self._node.changed.set()
        log.info("moved", wpg_id=wpg_id, to=to, nbytes=done.nbytes, total_us=done.total_us)
        return done

    def _answered_before(self, wpg_id: WpgId, to: Residency, *, move_id: bytes) -> MoveOutcome:
        before = self._done.get((wpg_id, move_id))
        if before is None or before.residency is not to:
            return MoveOutcome(residency=to)
        return before

    def progress(self, wpg_id: WpgId) -> tuple[int, int]:
        """Return for how long a WPG's move has run, in us, and the bytes that it has moved."""
        now = self._clock.monotonic_us(), self._node.worked.of(wpg_id)
        since_us, worked = self._under_way.get(wpg_id, now)
        return now[0] - since_us, now[1] - worked

    @contextmanager
    def _moving(self, wpg_id: WpgId) -> Iterator[None]:
        """End a move that has begun: where it was going, or, if the body raises, where it was."""
        is_done = False
        self._under_way[wpg_id] = self._clock.monotonic_us(), self._node.worked.of(wpg_id)
        try:
            yield
            is_done = True
        finally:
            del self._under_way[wpg_id]
            with self._node.lock:
                self._node.ledger.finish_move(wpg_id, is_done=is_done)
            if not is_done:
                # The record of its commit may still be read, if that is where it failed.
                with suppress(PlexError):
                    self._node.put_down(wpg_id)

    def _offload(
        self, links: Sequence[RankLink], steps: Steps, *, commit: Commit, tell: Tell
    ) -> int:
        with steps.time("export"):
            self._on_all(links, lambda link: link.export())
        self._note_offload(links[0].wpg_id, links)
        with steps.time("copy"):
            nbytes = self._copy_out(links, tell)
        # On record before the ranks let go: from then on this is the only copy.
        for link in links if self._node.disk is not None else ():
            for region in self._copied(link):
                self._node.write_host(link, region.name)
        try:
            with steps.time("unmap"):
                self._on_all(links, lambda link: link.release())
            commit(nbytes)
        except Exception:
            self._on_living(links, lambda link: link.ready())
            raise
        self.spared_bytes += self._node.state_of(links[0].wpg_id).device_bytes - nbytes
        with steps.time("return"):
            for link in links:
                try:
                    link.memory.leave_device()
                except Exception:  # noqa: BLE001 - the move is done, and its state on the host
                    log.error("device memory not given back", rank=link.name)
        return nbytes

    def _copy_out(self, links: Sequence[RankLink], tell: Tell) -> int:
        """Copy all ranks to the host, what several have with the same bytes once."""
        offload = Offload(
            [
                Leaving(
                    rank=link.rank,
                    memory=link.memory,
                    regions={region.name: region for region in self._copied(link)},
                    writes=link.last_export.writes,
                )
                for link in links
            ]
        )
        nbytes = sum(self._on_all(links, lambda link: offload.work(link.rank, tell)))
        nbytes += offload.finish()
        return nbytes + sum(self._on_all(links, lambda link: offload.rest(link.rank, tell)))

    def _load(self, links: Sequence[RankLink], steps: Steps, *, commit: Commit, tell: Tell) -> int:
        try:
            with steps.time("populate"):
                for link in links:
                    link.memory.reserve(self._regions(link))
            with steps.time("copy"):
                nbytes = sum(self._on_all(links, lambda link: self._bring(link, links, tell)))
            with steps.time("map"):
                self._on_all(links, lambda link: link.ready())
            commit(nbytes)
        except Exception:
            self._on_living(links, lambda link: link.release())
            for link in links:
                link.memory.leave_device()
            raise
        return nbytes

    def _bring(self, link: RankLink, links: Sequence[RankLink], tell: Tell) -> int:
        """Copy a rank's regions to its device, and those it shares where they are not there."""
        readers = defaultdict[str, list[RankMemory]](list)
        for other in links:
            for name, twin in other.memory.twins.items():
                if twin.rank == link.rank:
                    readers[name].append(other.memory)
        shared = link.memory.shared.values()
        return sum(self._node.shared.bring(region, tell) for region in shared) + (
            link.memory.copy_in(self._copied(link), tell, readers=readers)
        )

    def _note_offload(self, wpg_id: WpgId, links: Sequence[RankLink]) -> None:
        dirty = {link.rank: link.last_export.dirty for link in links}
        with self._node.lock:
            ledger = self._node.ledger
            ledger.note_offload(wpg_id, dirty=dirty)
            applied = min(link.last_export.applied_seq for link in links)
            ledger.wpgs[wpg_id].applied_seq = applied

    def _regions(self, link: RankLink) -> Collection[RegionState]:
        return self._node.state_of(link.wpg_id).ranks[link.rank].regions.values()

    def _copied(self, link: RankLink) -> list[RegionState]:
        return [region for region in self._regions(link) if region.has_host_copy]

    def _on_all(self, links: Sequence[RankLink], step: Callable[[RankLink], T]) -> list[T]:
        """Run a step on every rank at once and raise the first failure after all ended."""
        if len(links) == 1:
            return [step(links[0])]
        futures = [self._node.rank_threads.submit(step, link) for link in links]
        # Asking for its error waits for each: nothing copies any more when a failure is told.
        errors = [error for future in futures if (error := future.exception()) is not None]
        if errors:
            raise errors[0]
        return [future.result() for future in futures]

    def _on_living(self, links: Sequence[RankLink], step: Callable[[RankLink], None]) -> None:
        """Roll back: run a step on every rank, letting dead ones be."""
        for link in links:
            with suppress(PlexError):
                step(link)

    def remember(self, wpg_id: WpgId, move_id: bytes, outcome: MoveOutcome) -> None:
        """Answer a repeat of a move as it was answered, also by a predecessor."""
        self._done[wpg_id, move_id] = outcome
        while len(self._done) > MAX_REMEMBERED_MOVES:
            del self._done[next(iter(self._done))]
