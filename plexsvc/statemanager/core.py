"""The ledger: who holds which bytes on this node, on which tier, under which fencing numbers.

Theory of operation. A WPG's ranks register, allocate regions (which reserves device bytes and a
place to be parked at once, so that an offload can never fail for room), and are moved together. A
region is parked in host memory, and its end on disk where host memory is full. The WPG's
residency follows `NODE_TRANSITIONS`; a load reserves the device bytes when it is ordered, an
offload gives them back when it is done, a failed move returns to where it came from. Budgets are
never exceeded: whatever does not fit is refused with `no_room(need, free)`. Commands with an older
epoch, lease or incarnation than the ledger has seen are refused with `stale_fence`.

A shared region counts once for all ranks that read it on a device. It stays there when the last of
them is parked, until others need the room, and ends with its last reader.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import ExitStack

from plexsvc.errors import ErrorCode, PlexError, bad_request, not_found
from plexsvc.fencing import Fence, refuse_older
from plexsvc.ids import JobId, WpgId
from plexsvc.residency import NODE_TRANSITIONS, Home, Residency, ResidencyTrigger
from plexsvc.statemanager.entries import Budget, RankState, RegionState, SharedState, WpgEntry
from plexsvc.weights.checksums import BLOCK_BYTES


class Ledger:
    """All WPGs and budgets of a node. Plain state: the caller serialises access."""

    def __init__(
        self, *, devices: Mapping[int, int], host_bytes: int, disk_bytes: int = 0, max_wpgs: int
    ) -> None:
        self.devices = {i: Budget(f"device {i}", total=n) for i, n in sorted(devices.items())}
        self.host = Budget("host", total=host_bytes)
        self.disk = Budget("disk", total=disk_bytes)
        self.wpgs: dict[WpgId, WpgEntry] = {}
        self.shared: dict[tuple[int, str], SharedState] = {}
        """Shared regions by device and key."""
        self.max_epoch = 0
        self._max_wpgs = max_wpgs
        self.incarnations: dict[WpgId, int] = {}
        """The newest incarnation seen of each WPG, also of those that are gone."""

    def check_fence(self, fence: Fence, *, wpg_id: WpgId | None = None) -> None:
        """Admit a command and remember its epoch.

        Raises:
            PlexError: `stale_fence` when its epoch or incarnation is older than one seen.
        """
        what = f"command for {wpg_id or 'this node'}"
        refuse_older(what, "scheduler_epoch", given=fence.scheduler_epoch, seen=self.max_epoch)
        if wpg_id is not None and fence.incarnation:
            seen = self.incarnations.get(wpg_id, 0)
            refuse_older(what, "incarnation", given=fence.incarnation, seen=seen)
        self.max_epoch = max(self.max_epoch, fence.scheduler_epoch)

    def adopt_numbers(self, *, max_epoch: int, incarnations: Mapping[WpgId, int]) -> None:
        """Refuse what a predecessor would have refused."""
        self.max_epoch = max_epoch
        self.incarnations.update(incarnations)

    def adopt(self, wpg: WpgEntry) -> None:
        """Take over a WPG as a predecessor had it, between two moves.

        Raises:
            PlexError: `no_room` when it does not fit, so was never here.
        """
        assert wpg.residency in (Residency.NONE, Residency.DEVICE, Residency.HOST), wpg
        self.host.take(wpg.nbytes - wpg.disk_bytes)
        self.disk.take(wpg.disk_bytes)
        for rank in wpg.ranks.values():
            for shared in self.shared_of(rank):
                shared.readers.add((wpg.wpg_id, rank.rank))
        if wpg.is_on_device:
            self._take_devices(wpg)
        self.wpgs[wpg.wpg_id] = wpg

    def adopt_shared(self, shared: SharedState) -> None:
        """Take over a shared region, whose readers are adopted next.

        Raises:
            PlexError: `no_room` when it does not fit, so was never here.
        """
        self.host.take(shared.region.split)
        self.disk.take(shared.region.disk_bytes)
        if shared.is_on_device:
            self.devices[shared.device_index].take(shared.region.nbytes)
        self.shared[shared.device_index, shared.region.shared_key] = shared

    def find(self, wpg_id: WpgId) -> WpgEntry:
        """Return the record of a WPG with ranks on this node.

        Raises:
            PlexError: `not_found`; `worker_died` when ranks died with state.
        """
        wpg = self.wpgs.get(wpg_id)
        if wpg is None:
            raise not_found(f"{wpg_id} has no rank on this node; spawn it first")
        if wpg.lost:
            raise PlexError(
                ErrorCode.WORKER_DIED,
                f"{wpg_id}: rank {min(wpg.lost)} died and its state with it; deploy again to go on",
                worker=f"{wpg_id}/{min(wpg.lost)}",
            )
        return wpg

    def superseded(self, wpg_id: WpgId, *, incarnation: int) -> tuple[int, ...]:
        """Return the ranks of older incarnations, to be freed before a newer one registers."""
        wpg = self.wpgs.get(wpg_id)
        return tuple(wpg.ranks) if wpg is not None and wpg.incarnation < incarnation else ()

    def register(
        self, wpg_id: WpgId, *, rank: int, incarnation: int, device_index: int, job_id: JobId
    ) -> None:
        """Record a rank that connected.

        Raises:
            PlexError: `stale_fence` for an older incarnation; `bad_request` for an unknown device
                or a rank that is connected already; `no_room` past `max_wpgs`.
        """
        seen = self.incarnations.get(wpg_id, 0)
        refuse_older(f"{wpg_id}/{rank}", "incarnation", given=incarnation, seen=seen)
        if device_index not in self.devices:
            known = ", ".join(map(str, self.devices)) or "none"
            raise bad_request(
                f"{wpg_id}/{rank} asks for device {device_index}; this node has {known}"
            )
        wpg = self.wpgs.get(wpg_id)
        if wpg is None or wpg.incarnation < incarnation:
            assert wpg is None or not wpg.ranks, ("free superseded ranks first", wpg)
            wpg = self._new_wpg(wpg_id, incarnation=incarnation, job_id=job_id)
        if rank in wpg.ranks or wpg.job_id != job_id:
            raise bad_request(f"{wpg_id}/{rank} of job {wpg.job_id} is connected already")
        wpg.ranks[rank] = RankState(rank=rank, device_index=device_index)

    def shared_of(self, rank: RankState) -> list[SharedState]:
        """Return the shared regions that a rank reads."""
        return [self.shared[rank.device_index, key] for key in rank.shared.values()]

    def unread(self, device_index: int, nbytes: int, keep: Collection[str]) -> list[SharedState]:
        """Return the shared regions to take off a device so that `nbytes` fit.

        They are those whose readers are all parked, but for the keys in `keep`.
        """
        found: list[SharedState] = []
        lacking = nbytes - self.devices[device_index].free
        for shared in self.shared.values():
            if lacking <= 0:
                break
            is_here = shared.device_index == device_index and shared.is_on_device
            is_read = any(self.wpgs[wpg_id].is_on_device for wpg_id, _ in shared.readers)
            is_read |= shared.region.shared_key in keep
            if is_here and shared.is_filled and not is_read:
                found.append(shared)
                lacking -= shared.region.nbytes
        return found

    def take_off(self, shared: SharedState) -> None:
        """Give back the device bytes of a shared region that is parked now."""
        assert shared.is_on_device, shared
        shared.is_on_device = False
        self.devices[shared.device_index].give(shared.region.nbytes)

    def stop_reading(self, wpg_id: WpgId, rank: int) -> list[SharedState]:
        """Note that a rank reads no shared regions any more; return those that nobody reads.

        Nobody finds them any more. Their bytes are booked until `give_shared`.
        """
        reader = self.wpgs[wpg_id].ranks[rank]
        ended = []
        for shared in self.shared_of(reader):
            shared.readers.discard((wpg_id, rank))
            if not shared.readers:
                ended.append(self.shared.pop((shared.device_index, shared.region.shared_key)))
        reader.shared = {}
        return ended

    def give_shared(self, shared: SharedState) -> None:
        """Give back all bytes of a shared region that is freed."""
        if shared.is_on_device:
            self.take_off(shared)
        self._give_room([shared.region])

    def lacking(self, wpg: WpgEntry) -> dict[int, int]:
        """Return the bytes that a parked WPG needs on each device."""
        needed = Counter[int]()
        for rank in wpg.ranks.values():
            needed[rank.device_index] += rank.device_bytes
        for shared in self._shared_by(wpg):
            needed[shared.device_index] += 0 if shared.is_on_device else shared.region.nbytes
        return dict(needed)

    def taken_by(self, rank: RankState, regions: Sequence[RegionState]) -> int:
        """Return the device bytes that new regions of a rank take beside what is there."""
        found = [(region, self._found(rank, region)) for region in regions]
        return sum(r.device_bytes for r, there in found if there is None or not there.is_on_device)

    def allocate(self, wpg_id: WpgId, rank: int, regions: Sequence[RegionState]) -> None:
        """Reserve device bytes and a place to be parked for all of `regions`, or for none.

        One that others share is read where it is. While its first reader fills it, a second one
        gets memory of its own.

        Raises:
            PlexError: `no_room`; `bad_request` for a repeated name or a parked WPG.
        """
        wpg = self.find(wpg_id)
        owner = wpg.ranks[rank]
        if (wpg.residency, ResidencyTrigger.ALLOCATED) not in NODE_TRANSITIONS:
            raise bad_request(f"{wpg_id} cannot allocate: it is {wpg.residency}; load it first")
        names = [region.name for region in regions]
        if len(set(names)) < len(names) or set(names) & (set(owner.regions) | set(owner.shared)):
            raise bad_request(
                f"{wpg_id}/{rank}: region names must be new and distinct, not {names}"
            )
        nbytes, device = self.taken_by(owner, regions), self.devices[owner.device_index]
        found = {region.name: self._found(owner, region) for region in regions}
        device.take(nbytes)
        try:
            self._take_room([region for region in regions if found[region.name] is None])
        except PlexError:
            device.give(nbytes)
            raise
        # Their bytes are booked by `taken_by`; `SharedRegions.bring` copies them there.
        for shared in found.values():
            if shared is not None:
                shared.is_on_device = True
        for region in regions:
            at = owner.device_index, region.shared_key
            if at in self.shared and found[region.name] is None:
                region.shared_key = ""
            if not region.shared_key:
                owner.regions[region.name] = region
                continue
            owner.shared[region.name] = region.shared_key
            new = SharedState(region=region, device_index=owner.device_index)
            self.shared.setdefault(at, new).readers.add((wpg_id, rank))
        wpg.apply(ResidencyTrigger.ALLOCATED)

    def deallocate(self, wpg_id: WpgId, rank: int, names: Sequence[str]) -> None:
        """Take back an allocation of a rank's own regions that the machine could not serve."""
        owner = self.wpgs[wpg_id].ranks[rank]
        regions = [owner.regions.pop(name) for name in names if name in owner.regions]
        self.devices[owner.device_index].give(sum(region.device_bytes for region in regions))
        self._give_room(regions)

    def free_rank(self, wpg_id: WpgId, rank: int) -> int:
        """Free a rank that left and return its bytes; a WPG that lost state stays, as a warning."""
        wpg = self.wpgs[wpg_id]
        gone = wpg.ranks.pop(rank)
        self._give_room(gone.regions.values())
        if wpg.is_on_device:
            self.devices[gone.device_index].give(gone.device_bytes)
        if gone.regions:
            wpg.lost.add(rank)
        if not wpg.ranks:
            wpg.apply(ResidencyTrigger.EMPTIED)
        if not wpg.ranks and not wpg.lost:
            del self.wpgs[wpg_id]
        return gone.nbytes

    def forget(self, wpg_id: WpgId) -> None:
        """Drop the record of a WPG whose ranks are freed; its incarnation stays refused."""
        wpg = self.wpgs.pop(wpg_id, None)
        assert wpg is None or not wpg.ranks, wpg

    def begin_move(self, wpg_id: WpgId, to: Residency, *, lease_no: int) -> bool:
        """Start a move, reserving what it needs; False when the state is there already.

        Raises:
            PlexError: `stale_fence` for an older lease; `no_room` when the device lacks it.
        """
        assert to in (Residency.DEVICE, Residency.HOST), to
        wpg = self.find(wpg_id)
        refuse_older(f"move of {wpg_id}", "lease_no", given=lease_no, seen=wpg.lease_no)
        if to is Residency.DEVICE and wpg.residency is not to:
            self._take_devices(wpg)
        wpg.lease_no = lease_no  # noted once nothing refuses any more
        if wpg.residency is to:
            return False
        loads = to is Residency.DEVICE
        wpg.apply(ResidencyTrigger.LOAD_ORDERED if loads else ResidencyTrigger.OFFLOAD_ORDERED)
        return True

    def finish_move(self, wpg_id: WpgId, *, is_done: bool) -> Residency:
        """End a move, done or rolled back, and return the residency."""
        wpg = self.wpgs[wpg_id]
        is_offload = wpg.residency is Residency.OFFLOADING
        done = ResidencyTrigger.OFFLOADED if is_offload else ResidencyTrigger.LOADED
        wpg.apply(done if is_done else ResidencyTrigger.MOVE_FAILED)
        if wpg.residency is Residency.HOST:
            for rank in wpg.ranks.values():
                self.devices[rank.device_index].give(rank.device_bytes)
        return wpg.residency

    def note_offload(self, wpg_id: WpgId, *, dirty: Mapping[int, frozenset[str]]) -> None:
        """Record which regions a rank's host copy holds: all but clean droppable ones."""
        wpg = self.wpgs[wpg_id]
        wpg.switch_bytes = 0
        for rank, names in dirty.items():
            _note_copies(wpg.ranks[rank], dirty=names)
            for region in wpg.ranks[rank].regions.values():
                wpg.switch_bytes += region.device_bytes if region.has_host_copy else 0

    def note_step(self, wpg_id: WpgId, rank: int, *, dirty: frozenset[str]) -> None:
        """Record which regions the host copy of a parked rank holds after it worked there.

        Raises:
            PlexError: `bad_request` when it is not parked.
        """
        wpg = self.find(wpg_id)
        if wpg.residency is not Residency.HOST:
            raise bad_request(f"{wpg_id} is {wpg.residency}: it works on parked state only there")
        _note_copies(wpg.ranks[rank], dirty=dirty)

    def _take_room(self, regions: Sequence[RegionState]) -> None:
        """Book where each region is parked: host memory as far as that goes, then the disk."""
        nbytes = sum(region.nbytes for region in regions)
        if not self.disk.total:
            self.host.take(nbytes)
            return
        self.host.make_room(nbytes)  # what is only kept for speed goes before the disk is used
        total, used = self.host.total + self.disk.total, self.host.used + self.disk.used
        both = Budget("host and disk", total=total, used=used)
        both.take(nbytes)
        free = self.host.free
        # What stays in memory goes first.
        for region in sorted(regions, key=lambda one: one.home is Home.DEVICE):
            here = min(region.nbytes, max(0, free))
            # The part on disk begins at a whole block; a region that fits has no such part.
            here -= here % BLOCK_BYTES if here < region.nbytes else 0
            here = here if region.home is Home.DEVICE else region.nbytes
            region.disk_bytes = region.nbytes - here
            free -= here
        here = sum(region.split for region in regions)
        self.host.take(here)
        try:
            self.disk.take(sum(region.disk_bytes for region in regions))
        except PlexError:
            self.host.give(here)
            raise

    def _give_room(self, regions: Iterable[RegionState]) -> None:
        for region in regions:
            self.host.give(region.split)
            self.disk.give(region.disk_bytes)

    def _found(self, rank: RankState, region: RegionState) -> SharedState | None:
        """Return the region that a rank asks to share, if it is filled."""
        found = self.shared.get((rank.device_index, region.shared_key))
        return found if found is not None and found.is_filled else None

    def _new_wpg(self, wpg_id: WpgId, *, incarnation: int, job_id: JobId) -> WpgEntry:
        if wpg_id not in self.wpgs and len(self.wpgs) >= self._max_wpgs:
            raise PlexError(
                ErrorCode.NO_ROOM,
                f"{wpg_id} not registered: the node has {self._max_wpgs} WPGs already (max_wpgs); "
                "forget one first",
            )
        # Put last again: those that nothing was heard of for longest are forgotten first.
        self.incarnations.pop(wpg_id, None)
        self.incarnations[wpg_id] = incarnation
        # More than there are WPGs: a late command of one that is gone is to find its number.
        while len(self.incarnations) > 4 * self._max_wpgs:
            del self.incarnations[next(iter(self.incarnations))]
        wpg = WpgEntry(wpg_id=wpg_id, job_id=job_id, incarnation=incarnation)
        self.wpgs[wpg_id] = wpg
        return wpg

    def _take_devices(self, wpg: WpgEntry) -> None:
        with ExitStack() as undo:
            for index, nbytes in self.lacking(wpg).items():
                self.devices[index].take(nbytes)
                undo.callback(self.devices[index].give, nbytes)
            undo.pop_all()
        for shared in self._shared_by(wpg):
            shared.is_on_device = True

    def _shared_by(self, wpg: WpgEntry) -> list[SharedState]:
        found = {
            (rank.device_index, key) for rank in wpg.ranks.values() for key in rank.shared.values()
        }
        return [self.shared[at] for at in sorted(found)]


def _note_copies(rank: RankState, *, dirty: frozenset[str]) -> None:
    for region in rank.regions.values():
        region.has_host_copy = not region.is_droppable or region.name in dirty
