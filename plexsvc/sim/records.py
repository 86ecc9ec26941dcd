"""Records of a run: the outcome of each job, and of the whole."""

from __future__ import annotations

from dataclasses import dataclass, field

from plexsvc.ids import NodeId, UnitId
from plexsvc.sim.jobs import SimJob


@dataclass(frozen=True, slots=True, kw_only=True)
class Stay:
    """Where a job lived from a time on."""

    since_us: int
    group_id: int
    nodes: tuple[UnitId, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class StateCopy:
    """A copy of a job's state to other nodes, while which its operations waited, and why."""

    since_us: int
    until_us: int
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Restart:
    """A loss of a node that a job lived on: it goes on from its last trained cycle."""

    at_us: int
    node_id: NodeId


@dataclass(slots=True, kw_only=True)
class Lost:
    """A node that was lost, and when it was back."""

    node_id: NodeId
    at_us: int
    back_us: int | None = None


@dataclass(slots=True, kw_only=True)
class Record:
    """What became of one job; times in microseconds."""

    job: SimJob
    alone_us: int
    """What it takes by itself, from the start of its processes on."""
    work_us: int
    """What its training nodes work for it by itself: no schedule has them do less."""

    rolled_us: int = 0
    """The same of its rollout nodes, where it takes turns on them."""

    stays: list[Stay] = field(default_factory=list)
    start_us: int | None = None
    finish_us: int | None = None
    busy: list[tuple[int, int]] = field(default_factory=list)
    switch: list[tuple[int, int]] = field(default_factory=list)
    prefetch: list[tuple[int, int]] = field(default_factory=list)
    lost: list[tuple[int, int]] = field(default_factory=list)
    """Operations that a lost node cut short; their cycles ran again."""

    restarts: list[Restart] = field(default_factory=list)
    moves: list[StateCopy] = field(default_factory=list)
    rollout_stays: list[Stay] = field(default_factory=list)
    """The nodes it held for its rollouts alone."""

    host_bytes: int = 0
    """Of its parked state, what found room in each node's host memory where it last came to."""

    disk_bytes: int = 0
    """The rest, on each node's disk."""

    phases: list[str] = field(default_factory=list)


@dataclass(slots=True, kw_only=True)
class Drained:
    """A node that was asked to be empty, and when it was."""

    node_id: NodeId
    asked_us: int
    empty_us: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What a run came to."""

    policy: str
    records: tuple[Record, ...]
    events: int
    node_us: int
    """Node-microseconds for which somebody had a place."""

    device_us: int
    """The same of all devices of those nodes."""

    cost: float
    """The same by what they cost, in microseconds of a device with a price of 1."""

    switches: int = 0
    prefetch_hits: int = 0
    prefetch_wasted: int = 0
    drains: tuple[Drained, ...] = ()
    losses: tuple[Lost, ...] = ()
