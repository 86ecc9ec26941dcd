"""State machine of the reward proxy: which request runs on which worker, and how it is answered.

Theory of operation. A request waits in the queue, runs one stage on one worker, and waits for its
next stage, until a stage gives a verdict. It is answered once. A stage that takes too long ends
with its worker and gives the timeout score. A program that fails, or whose worker dies, runs again
on another worker, `MAX_TRIES` times in all. Workers are of one kind and run any stage; there are as
many as there are requests, within `min_workers` and `max_workers`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final, assert_never

from plexsvc.ids import JobId, TenantId
from plexsvc.reward.core.queues import PoolQueue, Urgency
from plexsvc.reward.core.vocabulary import (
    AnswerRequest,
    BatchId,
    BatchLeft,
    Fact,
    Order,
    ProgramFailed,
    ProgramSpec,
    RequestId,
    RunStage,
    SampleRefused,
    SamplesArrived,
    SampleScored,
    SampleTimedOut,
    StagePassed,
    StartWorker,
    StopWorker,
    TimePassed,
    Verdict,
    WorkerId,
    WorkerLost,
    WorkerReady,
)

MAX_TRIES: Final = 3
"""Runs of one stage of a request when the program fails."""

START_PAUSE_US: Final = 1_000_000
"""After a worker that did not come up, before the next is started; doubles with each in a row."""

MAX_FAILED_STARTS: Final = 5
"""Workers that may die in a row before any was ready; then nothing waits for a worker."""

RunEnded = StagePassed | SampleScored | SampleTimedOut | SampleRefused | ProgramFailed
HistoryKey = tuple[TenantId, JobId, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolLimits:
    """Bounds of the pool."""

    min_workers: int = 1
    max_workers: int = 2
    idle_us: int = 60_000_000
    """How long a worker beyond `min_workers` may have nothing to do."""
    start_us: int = 30_000_000
    """How long a worker may take from its start to being ready."""
    grace_us: int = 1_000_000
    """How long after a stage's timeout its worker may still say so itself."""
    max_histories: int = 4096
    """Programs of jobs whose last batch is remembered."""


@dataclass(slots=True, kw_only=True)
class Request:
    """A request that is not answered."""

    program: ProgramSpec
    urgency: Urgency
    since_us: int
    """When it began to wait, or to run."""
    stage: int = 0
    tries: int = 0
    worker: WorkerId | None = None
    run_us: int = 0
    queue_us: int = 0


@dataclass(slots=True, kw_only=True)
class Batch:
    """A batch of which not every sample is answered."""

    program: ProgramSpec
    begun_us: int
    expected_end_us: int
    size: int
    answered: int = 0
    requests: dict[int, Request] = field(default_factory=dict)


@dataclass(slots=True, kw_only=True)
class Worker:
    """A worker's process, from the order to start it to its end."""

    is_ready: bool = False
    request: RequestId | None = None
    since_us: int = 0
    """When it was started, or became idle, or began to run."""
    is_stopped: bool = False


class RewardCore:
    """The decisions of one proxy. `handle` is its only way in; the rest is to look at."""

    def __init__(self, limits: PoolLimits) -> None:
        self.batches: dict[BatchId, Batch] = {}
        self.workers: dict[WorkerId, Worker] = {}
        self.queue = PoolQueue()
        self.limits = limits
        self._history_us: dict[HistoryKey, int] = {}
        self._next_worker = 0
        self._arrivals = 0
        self._failed_starts = 0
        self._start_at_us = 0
        self._is_start_due = False
        self._orders: list[Order] = []

    def handle(self, fact: Fact) -> list[Order]:
        """Return what is to be done because of `fact`, in order."""
        self._note(fact)
        self._settle(fact.at_us)
        orders, self._orders = self._orders, []
        return orders

    def next_deadline_us(self) -> int | None:
        """Return when `TimePassed` is due if nothing happens before; None while nothing is."""
        has_spare = self._num_working() > self.limits.min_workers
        times = [self._deadline_us(w, has_spare=has_spare) for w in self.workers.values()]
        due = [time for time in times if time is not None]
        return min([*due, self._start_at_us] if self._is_start_due else due, default=None)

    def _note(self, fact: Fact) -> None:
        match fact:
            case SamplesArrived():
                self._arrive(fact)
            case WorkerReady():
                self._ready(fact)
            case WorkerLost():
                self._lost(fact)
            case (
                StagePassed()
                | SampleScored()
                | SampleTimedOut()
                | SampleRefused()
                | ProgramFailed()
            ):
                self._ended(fact)
            case BatchLeft():
                self._leave(fact.batch)
            case TimePassed():
                self._expire(fact.at_us)
            case _:
                raise AssertionError(fact)

    def _arrive(self, fact: SamplesArrived) -> None:
        batch = self.batches.get(fact.batch)
        if batch is None:
            batch = self.batches[fact.batch] = Batch(
                program=fact.program,
                begun_us=fact.at_us,
                expected_end_us=fact.at_us + self._expected_us(fact),
                size=fact.size,
            )
        batch.size = max(batch.size, fact.size)
        for index in fact.samples:
            assert index not in batch.requests, (fact.batch, index)
            self._arrivals += 1
            urgency = Urgency(batch.expected_end_us, self._arrivals)
            request = Request(program=fact.program, urgency=urgency, since_us=fact.at_us)
            batch.requests[index] = request
            self.queue.put(RequestId(fact.batch, index), urgency)

    def _expected_us(self, fact: SamplesArrived) -> int:
        """Return how long the job's last batch of this program took, or what one sample may."""
        known = self._history_us.get(_history_key(fact.batch, fact.program))
        return known or sum(stage.timeout_us for stage in fact.program.stages)

    def _ready(self, fact: WorkerReady) -> None:
        worker = self.workers[fact.worker]
        if not worker.is_stopped:
            self._failed_starts = 0
            worker.is_ready, worker.since_us = True, fact.at_us

    def _lost(self, fact: WorkerLost) -> None:
        worker = self.workers.pop(fact.worker)
        if worker.request is not None:
            self._failed(worker.request, fact.at_us, reason=fact.reason)
        elif not worker.is_ready and not worker.is_stopped:
            self._failed_start(fact.at_us, reason=fact.reason)

    def _failed_start(self, at_us: int, *, reason: str) -> None:
        """Count a worker that did not come up; answer what waits once none does."""
        self._failed_starts += 1
        exponent = min(self._failed_starts, MAX_FAILED_STARTS) - 1
        self._start_at_us = at_us + (START_PAUSE_US << exponent)
        if self._failed_starts < MAX_FAILED_STARTS:
            return
        text = f"{MAX_FAILED_STARTS} workers in a row did not come up, last: {reason}"
        while (found := self.queue.take(workers=1)) is not None:
            request = self.batches[found.batch].requests[found.sample]
            request.queue_us += at_us - request.since_us
            self._answer(found, at_us, verdict=Verdict.ERROR, reason=text)

    def _ended(self, fact: RunEnded) -> None:
        worker = self.workers.get(fact.worker)
        if worker is None or worker.request is None:
            return  # it was stopped meanwhile, and what it ran was decided then
        found = worker.request
        if isinstance(fact, ProgramFailed):
            self._stop(fact.worker)
            self._failed(found, fact.at_us, reason=fact.reason)
            return
        worker.request, worker.since_us = None, fact.at_us
        request = self._finish_run(found, fact.at_us)
        match fact:
            case StagePassed():
                assert request.stage + 1 < len(request.program.stages), found
                request.stage, request.tries = request.stage + 1, 0
                self.queue.put(found, request.urgency)
            case SampleScored():
                self._answer(found, fact.at_us, verdict=Verdict.SCORED, score=fact.score)
            case SampleTimedOut():
                self._time_out(found, fact.at_us)
            case SampleRefused():
                self._answer(found, fact.at_us, verdict=Verdict.ERROR, reason=fact.reason)
            case _:
                assert_never(fact)

    def _failed(self, found: RequestId, at_us: int, *, reason: str) -> None:
        """Run a stage again because its program or worker failed, unless that was the last try."""
        request = self._finish_run(found, at_us)
        request.tries += 1
        if request.tries < MAX_TRIES:
            self.queue.put(found, request.urgency)
            return
        text = f"the program failed {MAX_TRIES} times, last: {reason}"
        self._answer(found, at_us, verdict=Verdict.ERROR, reason=text)

    def _finish_run(self, found: RequestId, at_us: int) -> Request:
        request = self.batches[found.batch].requests[found.sample]
        self.queue.running[found.batch.tenant] -= 1
        request.run_us += at_us - request.since_us
        request.since_us, request.worker = at_us, None
        return request

    def _time_out(self, found: RequestId, at_us: int) -> None:
        request = self.batches[found.batch].requests[found.sample]
        stage = request.program.stages[request.stage]
        reason = f"stage {stage.name} took longer than {stage.timeout_us / 1e6:g} s"
        score = request.program.timeout_score
        self._answer(found, at_us, verdict=Verdict.TIMEOUT, score=score, reason=reason)

    def _answer(
        self,
        found: RequestId,
        at_us: int,
        *,
        verdict: Verdict,
        score: float = 0.0,
        reason: str = "",
    ) -> None:
        batch = self.batches[found.batch]
        request = batch.requests.pop(found.sample)
        batch.answered += 1
        self._orders.append(
            AnswerRequest(
                request=found,
                verdict=verdict,
                score=score,
                run_us=request.run_us,
                queue_us=request.queue_us,
                reason=reason,
            )
        )
        if batch.answered >= batch.size and not batch.requests:
            del self.batches[found.batch]
            key = _history_key(found.batch, batch.program)
            self._history_us.pop(key, None)
            self._history_us[key] = at_us - batch.begun_us
            if len(self._history_us) > self.limits.max_histories:
                del self._history_us[next(iter(self._history_us))]

    def _leave(self, batch_id: BatchId) -> None:
        batch = self.batches.pop(batch_id, None)
        for index, request in batch.requests.items() if batch is not None else ():
            if request.worker is None:
                self.queue.drop(RequestId(batch_id, index))
            else:
                self.queue.running[batch_id.tenant] -= 1
                self._stop(request.worker)

    def _stop(self, worker_id: WorkerId) -> None:
        worker = self.workers[worker_id]
        worker.request, worker.is_ready, worker.is_stopped = None, False, True
        self._orders.append(StopWorker(worker=worker_id))

    def _expire(self, now_us: int) -> None:
        for worker_id, worker in list(self.workers.items()):
            has_spare = self._num_working() > self.limits.min_workers
            deadline_us = self._deadline_us(worker, has_spare=has_spare)
            if deadline_us is None or deadline_us > now_us:
                continue
            found = worker.request
            if not worker.is_ready:
                reason = f"not ready after {self.limits.start_us / 1e6:g} s"
                self._failed_start(now_us, reason=reason)
            self._stop(worker_id)
            if found is not None:
                self._finish_run(found, now_us)
                self._time_out(found, now_us)

    def _deadline_us(self, worker: Worker, *, has_spare: bool) -> int | None:
        """Return when a worker is to be stopped if it goes on as it does."""
        if worker.is_stopped:
            return None
        if not worker.is_ready:
            return worker.since_us + self.limits.start_us
        if worker.request is not None:
            request = self.batches[worker.request.batch].requests[worker.request.sample]
            timeout_us = request.program.stages[request.stage].timeout_us
            return worker.since_us + timeout_us + self.limits.grace_us
        return worker.since_us + self.limits.idle_us if has_spare else None

    def _num_working(self) -> int:
        return sum(not worker.is_stopped for worker in self.workers.values())

    def _settle(self, now_us: int) -> None:
        """Give idle workers what waits, and start as many as more would have something to do."""
        for worker_id, worker in self.workers.items():
            if worker.is_ready and worker.request is None:
                found = self.queue.take(workers=self._num_working())
                if found is None:
                    break
                self._run(found, worker_id, now_us)
        starting = sum(not w.is_ready and not w.is_stopped for w in self.workers.values())
        working = self._num_working()
        wanted = max(len(self.queue) - starting, self.limits.min_workers - working)
        wanted = min(wanted, self.limits.max_workers - working)
        if wanted <= 0:
            return
        if self._failed_starts and now_us < self._start_at_us:
            self._is_start_due = True
            return
        self._is_start_due = False
        for _ in range(wanted):
            self._next_worker += 1
            worker_id = WorkerId(self._next_worker)
            self.workers[worker_id] = Worker(since_us=now_us)
            self._orders.append(StartWorker(worker=worker_id))

    def _run(self, found: RequestId, worker_id: WorkerId, now_us: int) -> None:
        worker = self.workers[worker_id]
        request = self.batches[found.batch].requests[found.sample]
        worker.request, worker.since_us = found, now_us
        request.worker = worker_id
        request.queue_us += now_us - request.since_us
        request.since_us = now_us
        self.queue.running[found.batch.tenant] += 1
        self._orders.append(RunStage(worker=worker_id, request=found, stage=request.stage))


def _history_key(batch: BatchId, program: ProgramSpec) -> HistoryKey:
    return (batch.tenant, batch.job_id, program.name)
