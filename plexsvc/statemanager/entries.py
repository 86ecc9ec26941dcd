"""Entries of the ledger: the budget of each tier, and WPGs with their ranks and regions."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from plexsvc.errors import ErrorCode, PlexError
from plexsvc.ids import JobId, WpgId
from plexsvc.residency import NODE_TRANSITIONS, ON_DEVICE, Home, Residency, ResidencyTrigger


@dataclass(slots=True)
class Budget:
    """Bytes of one tier; `used` never exceeds `total`.

    >>> budget = Budget("host", total=10)
    >>> budget.take(8); budget.give(3); (budget.used, budget.free, budget.peak)
    (5, 5, 8)
    """

    name: str
    total: int
    used: int = 0
    peak: int = 0
    spares: list[Callable[[int], None]] = field(default_factory=list)
    """Each gives back as many bytes, if it can, before a lack of them is an error."""

    @property
    def free(self) -> int:
        """Bytes that may still be taken."""
        return self.total - self.used

    def take(self, nbytes: int) -> None:
        """Reserve `nbytes`.

        Raises:
            PlexError: `no_room` with `need` and `free`; `no_placement` for what can never fit.
        """
        # No wait cures this, so it must not read as `no_room`, which callers repeat.
        if nbytes > self.total:
            raise PlexError(
                ErrorCode.NO_PLACEMENT,
                f"{self.name}: {nbytes} bytes needed, and it has {self.total} in all; use a larger "
                "parallel layout, a smaller model, or configure more",
                tier=self.name,
                need=nbytes,
                total=self.total,
            )
        self.make_room(nbytes)
        if nbytes > self.free:
            raise PlexError(
                ErrorCode.NO_ROOM,
                f"{self.name}: {nbytes} bytes needed, {self.free} of {self.total} free; "
                "offload or forget something there first",
                tier=self.name,
                need=nbytes,
                free=self.free,
            )
        self.used += nbytes
        self.peak = max(self.peak, self.used)

    def make_room(self, nbytes: int) -> None:
        """Have others give back what they can spare, if `nbytes` are not free."""
        for give in self.spares:
            if nbytes > self.free:
                give(nbytes - self.free)

    def give(self, nbytes: int) -> None:
        """Return reserved bytes."""
        assert 0 <= nbytes <= self.used, (self, nbytes)
        self.used -= nbytes


@dataclass(slots=True, kw_only=True)
class RegionState:
    """One region of one rank; `nbytes` counts whole pages."""

    name: str
    nbytes: int
    is_droppable: bool
    has_host_copy: bool = False
    shared_key: str = ""
    """What all who read it call it; empty: it is one rank's own."""
    disk_bytes: int = 0
    """The end of it that is parked on disk, or will be: whole blocks."""
    home: Home = Home.DEVICE

    @property
    def device_bytes(self) -> int:
        """What it takes of its device while its WPG is there."""
        return 0 if self.home is Home.HOST else self.nbytes

    @property
    def may_have_twins(self) -> bool:
        """Whether other ranks may hold the same: not its gradients, nor what it works on parked."""
        return self.home is Home.DEVICE and not self.is_droppable

    @property
    def split(self) -> int:
        """Where that end begins; what lies below is parked in host memory."""
        return self.nbytes - self.disk_bytes


@dataclass(slots=True, kw_only=True)
class SharedState:
    """A region of one device that ranks of several WPGs read. The first of them fills it."""

    region: RegionState
    device_index: int
    is_filled: bool = False
    is_on_device: bool = True
    readers: set[tuple[WpgId, int]] = field(default_factory=set)


@dataclass(slots=True, kw_only=True)
class RankState:
    """A registered rank and what it owns."""

    rank: int
    device_index: int
    regions: dict[str, RegionState] = field(default_factory=dict)
    shared: dict[str, str] = field(default_factory=dict)
    """Keys of the regions that it reads and does not own, by its names of them."""

    @property
    def nbytes(self) -> int:
        """Bytes of all its regions."""
        return sum(region.nbytes for region in self.regions.values())

    @property
    def device_bytes(self) -> int:
        """What they take of its device while its WPG is there."""
        return sum(region.device_bytes for region in self.regions.values())


@dataclass(slots=True, kw_only=True)
class WpgEntry:
    """What the ledger knows of a WPG; `lost` are ranks that died with state."""

    wpg_id: WpgId
    job_id: JobId
    incarnation: int
    residency: Residency = Residency.NONE
    lease_no: int = 0
    applied_seq: int = 0
    """The last operation that all ranks of this node had applied when they were asked."""
    switch_bytes: int = 0
    ranks: dict[int, RankState] = field(default_factory=dict)
    lost: set[int] = field(default_factory=set)

    @property
    def nbytes(self) -> int:
        """Bytes of all regions of all ranks on this node."""
        return sum(rank.nbytes for rank in self.ranks.values())

    @property
    def device_bytes(self) -> int:
        """What they take of devices while it is there."""
        return sum(rank.device_bytes for rank in self.ranks.values())

    @property
    def disk_bytes(self) -> int:
        """Bytes of them that are parked on disk, or will be."""
        return sum(r.disk_bytes for rank in self.ranks.values() for r in rank.regions.values())

    @property
    def is_on_device(self) -> bool:
        """Whether device bytes are reserved for it."""
        return self.residency in ON_DEVICE

    def apply(self, trigger: ResidencyTrigger) -> None:
        """Change the residency along `NODE_TRANSITIONS`."""
        assert (self.residency, trigger) in NODE_TRANSITIONS, (self, trigger)
        self.residency = NODE_TRANSITIONS[self.residency, trigger]
