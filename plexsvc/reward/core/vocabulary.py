"""Words of the reward core: requests, batches, programs, facts and orders."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, NamedTuple, NewType

from plexsvc.ids import JobId, TenantId

WorkerId = NewType("WorkerId", int)


class BatchId(NamedTuple):
    """A batch of one job. Its samples are known by their index in it."""

    tenant: TenantId
    job_id: JobId
    batch: bytes


class RequestId(NamedTuple):
    """One sample of a batch."""

    batch: BatchId
    sample: int


class Verdict(StrEnum):
    """How a request ended."""

    SCORED = "scored"
    TIMEOUT = "timeout"
    """The sample took longer than its stage may: it gets the program's timeout score."""
    ERROR = "error"
    """There is no score: the program failed as often as it is tried, or refused the sample."""


class Resource(NamedTuple):
    """What a worker holds, or what a node has for workers."""

    cpus: int = 1
    memory_bytes: int = 1 << 30
    gpus: int = 0

    def __str__(self) -> str:
        """Return it as `cpu=2,mem=4GiB`."""
        parts = [f"cpu={self.cpus}", f"mem={self.memory_bytes / (1 << 30):g}GiB"]
        return ",".join([*parts, f"gpu={self.gpus}"] if self.gpus else parts)

    def fits(self, room: Resource) -> bool:
        """Return whether it finds room."""
        return all(mine <= there for mine, there in zip(self, room, strict=True))

    def times(self, number: int) -> Resource:
        """Return `number` of it."""
        return Resource(*(number * one for one in self))

    def plus(self, other: Resource) -> Resource:
        """Return both together."""
        return Resource(*(one + two for one, two in zip(self, other, strict=True)))


LEAST: Final = Resource()
"""What a worker holds that nothing more was asked of."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StageSpec:
    """One stage of a program."""

    name: str
    timeout_us: int
    resource: Resource = LEAST
    """What a worker that runs it holds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgramSpec:
    """What the core must know of a program."""

    name: str
    stages: tuple[StageSpec, ...]
    timeout_score: float = -1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class RewardEvent:
    """Something that happened."""

    at_us: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplesArrived(RewardEvent):
    """Samples that nobody asked for before; `size` is of the whole batch.

    Without any it says that they will come.
    """

    batch: BatchId
    program: ProgramSpec
    size: int
    samples: tuple[int, ...]
    """Their indices in the batch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerFact(RewardEvent):
    """Something that happened to a worker, or to what it ran."""

    worker: WorkerId


class WorkerReady(WorkerFact):
    """A worker that was started takes requests now."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerLost(WorkerFact):
    """A worker's process has ended, for whatever cause."""

    reason: str


class StagePassed(WorkerFact):
    """A stage is done and the next one is to run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleScored(WorkerFact):
    """A stage gave the verdict, which ends the request."""

    score: float


class SampleTimedOut(WorkerFact):
    """The worker ended a stage that took too long."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleRefused(WorkerFact):
    """The program can give no score for this sample, however often it runs."""

    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgramFailed(WorkerFact):
    """The program failed, not the sample."""

    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchLeft(RewardEvent):
    """Nobody waits for a batch any more."""

    batch: BatchId


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolPlan:
    """What was planned for the workers of one resource type."""

    workers: int
    """At most."""
    held: int
    """That are kept until the next plan."""
    is_met: bool = True
    """Whether every batch ends in time with the most workers that there may be."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanMade(RewardEvent):
    """A plan of the pools that it names, in force until `until_us`; others follow their queues."""

    pools: Mapping[Resource, PoolPlan]
    until_us: int


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchesExpected(RewardEvent):
    """How long batches of jobs' programs took before this proxy was there."""

    lasts_us: Mapping[tuple[TenantId, JobId, str], int]


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacesKnown(RewardEvent):
    """What each node has for workers.

    One that is missing takes no more, and those that it has end after their request.
    """

    places: Mapping[str, Resource]


class TimePassed(RewardEvent):
    """It is `at_us`, and nothing else happened."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunStage:
    """Have a worker run one stage of a request."""

    worker: WorkerId
    request: RequestId
    stage: int


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerRequest:
    """Answer a request, which ends it."""

    request: RequestId
    verdict: Verdict
    score: float = 0.0
    run_us: int = 0
    """Of the runs that led to the verdict, all stages."""
    queue_us: int = 0
    """In queues, all stages."""
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class StartWorker:
    """Start a worker on a node."""

    worker: WorkerId
    place: str = ""
    resource: Resource = LEAST


@dataclass(frozen=True, slots=True, kw_only=True)
class StopWorker:
    """Kill a worker, whatever it does; what it was running is decided already."""

    worker: WorkerId


@dataclass(frozen=True, slots=True, kw_only=True)
class RememberBatch:
    """Have the planner remember how a batch went: the job's next one is expected to go alike."""

    batch: BatchId
    program: str
    samples: tuple[tuple[int, tuple[int, ...]], ...]
    """When each came, from the batch's begin, and how long each of the stages ran."""


Order = RunStage | AnswerRequest | StartWorker | StopWorker | RememberBatch
