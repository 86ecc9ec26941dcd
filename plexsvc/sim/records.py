"""Records of a run: the outcome of each job, and of the whole."""

from __future__ import annotations

from dataclasses import dataclass, field

from plexsvc.ids import UnitId
from plexsvc.scheduler.core.planning.runtime import Counts
from plexsvc.sim.jobs import SimJob


@dataclass(frozen=True, slots=True, kw_only=True)
class Stay:
    """Where a job lived from a time on."""

    since_us: int
    group_id: int
    nodes: tuple[UnitId, ...]


@dataclass(slots=True, kw_only=True)
class Record:
    """What became of one job; times in microseconds."""

    job: SimJob
    alone_us: int
    stays: list[Stay] = field(default_factory=list)
    start_us: int | None = None
    finish_us: int | None = None
    shift_us: int = 0
    busy: list[tuple[int, int]] = field(default_factory=list)
    switch: list[tuple[int, int]] = field(default_factory=list)
    prefetch: list[tuple[int, int]] = field(default_factory=list)
    lost: list[tuple[int, int]] = field(default_factory=list)
    """Operations that a lost node cut short; their cycles ran again."""

    restarts: list[int] = field(default_factory=list)
    """When its nodes were lost: it went on from its last trained cycle."""

    moves: list[tuple[int, int]] = field(default_factory=list)
    """Times its state moved between groups; its operations waited."""

    host_bytes: int = 0
    """Of its parked state, what found room in each node's host memory where it last came to."""

    disk_bytes: int = 0
    """The rest, on each node's disk."""

    pauses: list[tuple[int, str]] = field(default_factory=list)
    """When it was put last in its group because it made others late, and why."""

    phases: list[str] = field(default_factory=list)


@dataclass(slots=True, kw_only=True)
class Drained:
    """A node that was asked to be empty, and when it was."""

    node_id: UnitId
    asked_us: int
    empty_us: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What a run came to."""

    policy: str
    records: tuple[Record, ...]
    counts: Counts
    events: int
    group_node_us: int
    """Node-microseconds for which groups were open."""

    pruned_share: float
    drains: tuple[Drained, ...] = ()
