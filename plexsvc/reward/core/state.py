"""State of the reward core: batches, their requests, workers, and the bounds of pools."""

from __future__ import annotations

from dataclasses import dataclass, field

from plexsvc.reward.core.planning import UnderWay
from plexsvc.reward.core.pools import WorkerPool
from plexsvc.reward.core.vocabulary import ProgramSpec, RequestId, Resource, WorkerId


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolLimits:
    """Bounds of the pools."""

    min_workers: int = 1
    """Of the workers that hold the least."""
    max_workers: int = 2
    """Processors that workers may hold together where no nodes are told."""
    idle_us: int = 60_000_000
    """How long a worker beyond `min_workers` may have nothing to do."""
    start_us: int = 30_000_000
    """How long a worker may take from its start to being ready."""
    grace_us: int = 1_000_000
    """How long after a stage's timeout its worker may still say so itself."""
    no_room_us: int = 600_000_000
    """How long what waits does so while no node could have a worker for it."""
    max_histories: int = 4096
    """Programs of jobs whose last batch is remembered."""


@dataclass(slots=True, kw_only=True)
class Request:
    """A request that is not answered."""

    program: ProgramSpec
    number: int
    """Of its arrival."""
    since_us: int
    """When it began to wait, or to run."""
    stage: int = 0
    tries: int = 0
    worker: WorkerId | None = None
    arrived_us: int = 0
    """From its batch's begin."""
    runs_us: list[int] = field(default_factory=list)
    """How long each stage ran so far."""
    queue_us: int = 0

    @property
    def resource(self) -> Resource:
        """What its stage asks for."""
        return self.program.stages[self.stage].resource


@dataclass(slots=True, kw_only=True)
class OpenBatch:
    """A batch of which not every sample is answered."""

    program: ProgramSpec
    begun_us: int
    expected_end_us: int
    size: int
    is_known: bool = False
    """Whether the expectation is that of the job's last batch."""
    arrived: int = 0
    requests: dict[int, Request] = field(default_factory=dict)
    ended: list[tuple[int, tuple[int, ...]]] = field(default_factory=list)
    """Of each sample that is answered: when it came, and how long each stage ran."""

    @property
    def answered(self) -> int:
        """Samples that are answered."""
        return len(self.ended)

    def under_way(self, now_us: int) -> UnderWay:
        """Return it as the planner sees it."""
        queued: list[tuple[int, int]] = []
        running: list[tuple[int, int, int]] = []
        for one in self.requests.values():
            since_us = now_us - one.since_us
            if one.worker is None:
                queued.append((one.stage, one.queue_us + since_us))
            else:
                running.append((one.stage, one.queue_us, since_us))
        return UnderWay(
            begun_us=self.begun_us,
            size=self.size,
            arrived=self.arrived,
            queued=queued,
            running=running,
        )


@dataclass(slots=True, kw_only=True)
class Worker:
    """A worker's process, from the order to start it to its end."""

    pool: WorkerPool
    place: str
    is_ready: bool = False
    request: RequestId | None = None
    since_us: int = 0
    """When it was started, or became idle, or began to run."""
    is_stopped: bool = False
