"""State machine of the reward proxy: which request runs on which worker, and how it is answered.

Theory of operation. A request waits in the queue, runs one stage on one worker, and waits for its
next stage, until a stage gives a verdict. It is answered once. A stage that takes too long ends
with its worker and gives the timeout score. A program that fails, or whose worker dies, runs again
on another worker, `MAX_TRIES` times in all. The workers of a pool hold the same resources and run
any stage that asks for these. There are as many as were planned; where no plan is in force, as many
as there are requests, as far as the nodes have room. `dealing` says who of those that wait is next.
"""

from __future__ import annotations

from typing import Final, assert_never

from plexsvc.reward.core.crew import Crew
from plexsvc.reward.core.dealing import MAX_FAILED_STARTS, Dealer
from plexsvc.reward.core.planner import ActiveBatch, HistoryKey, PlanFacts
from plexsvc.reward.core.pools import PLANNED_IDLE_US, WorkerPool
from plexsvc.reward.core.state import OpenBatch, PoolLimits, Request, Worker
from plexsvc.reward.core.vocabulary import (
    AnswerRequest,
    BatchesExpected,
    BatchId,
    BatchLeft,
    Order,
    PlacesKnown,
    PlanMade,
    ProgramFailed,
    ProgramSpec,
    RememberBatch,
    RequestId,
    RewardEvent,
    SampleRefused,
    SamplesArrived,
    SampleScored,
    SampleTimedOut,
    StagePassed,
    TimePassed,
    Verdict,
    WorkerLost,
    WorkerReady,
)

MAX_TRIES: Final = 3
"""Runs of one stage of a request when the program fails."""

RunEnded = StagePassed | SampleScored | SampleTimedOut | SampleRefused | ProgramFailed


class RewardCore:
    """The decisions of one proxy. `handle` is its only way in; the rest is to look at."""

    def __init__(self, limits: PoolLimits, *, dealer: type[Dealer] = Dealer) -> None:
        self.batches: dict[BatchId, OpenBatch] = {}
        self.limits = limits
        self._orders: list[Order] = []
        self.crew = Crew(limits, self._orders.append)
        self.workers, self.pools = self.crew.workers, self.crew.pools
        self._dealer = dealer(self.batches, self.crew, self._orders.append)
        self._history_us: dict[HistoryKey, int] = {}
        self._arrivals = 0
        self._at_us = 0

    def handle(self, fact: RewardEvent) -> list[Order]:
        """Return what is to be done because of `fact`, in order."""
        self._at_us = fact.at_us
        self._note(fact)
        self._note_homeless(fact.at_us)
        self._dealer.settle(fact.at_us)
        orders = self._orders.copy()
        self._orders.clear()
        return orders

    def next_deadline_us(self) -> int | None:
        """Return when `TimePassed` is due if nothing happens before; None while nothing is."""
        times = [self._deadline_us(worker, self._at_us) for worker in self.workers.values()]
        times += [self._dealer.patience_ends_us(pool, self._at_us) for pool in self.pools.values()]
        times += [self._gives_up_us(pool) for pool in self.pools.values()]
        times.append(self._dealer.start_due_us)
        return min((time for time in times if time is not None), default=None)

    def expected_us(self, key: HistoryKey) -> int | None:
        """Return how long the next batch of a job's program is expected to take."""
        return self._history_us.get(key)

    def _expect(self, key: HistoryKey, lasts_us: int) -> None:
        """Have the next batch of a job's program be expected to take so long."""
        self._history_us.pop(key, None)
        self._history_us[key] = lasts_us
        if len(self._history_us) > self.limits.max_histories:
            del self._history_us[next(iter(self._history_us))]

    def plan_facts(self, now_us: int) -> PlanFacts:
        """Return what the planner must know."""
        used = {stage.resource for one in self.batches.values() for stage in one.program.stages}
        batches = tuple(
            ActiveBatch(
                key=_history_key(batch_id, batch.program),
                program=batch.program,
                state=batch.under_way(now_us),
            )
            for batch_id, batch in self.batches.items()
        )
        return PlanFacts(
            now_us=now_us,
            batches=batches,
            most=[(one, self.crew.most(one)) for one in sorted(used)],
        )

    def _gives_up_us(self, pool: WorkerPool) -> int | None:
        """Return until when what waits does so without a node that could run it."""
        if pool.homeless_since_us is None:
            return None
        return pool.homeless_since_us + self.limits.no_room_us

    def _note_homeless(self, now_us: int) -> None:
        """Note which pools have work and no node, and answer what has waited too long for one."""
        for pool in self.pools.values():
            if pool.working or not len(pool.queue) or self.crew.has_room_for(pool.resource):
                pool.homeless_since_us = None
                continue
            if pool.homeless_since_us is None:
                pool.homeless_since_us = now_us
            if now_us >= pool.homeless_since_us + self.limits.no_room_us:
                waited_s = (now_us - pool.homeless_since_us) / 1e6
                reason = (
                    f"no node had room for a worker of {pool.resource} for {waited_s:g} s "
                    "(reward.no_room_us): those that could run it are closed or lost"
                )
                self._give_up(pool, now_us, reason=reason)
                pool.homeless_since_us = None

    def _note(self, fact: RewardEvent) -> None:
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
                batch = self.batches.pop(fact.batch, None)
                for index, request in batch.requests.items() if batch is not None else ():
                    queue = self.crew.pool(request.resource).queue
                    if request.worker is None:
                        queue.drop(RequestId(fact.batch, index))
                    else:
                        queue.running[fact.batch.tenant] -= 1
                        self.crew.stop(request.worker)
            case PlanMade() | BatchesExpected() | PlacesKnown():
                self._told(fact)
            case TimePassed():
                self._expire(fact.at_us)
            case _:
                raise AssertionError(fact)

    def _told(self, fact: PlanMade | BatchesExpected | PlacesKnown) -> None:
        """Take what planner and nodes say."""
        match fact:
            case PlanMade():
                for resource, found in fact.pools.items():
                    pool = self.crew.pool(resource)
                    pool.plan, pool.plan_until_us = found, fact.until_us
            case BatchesExpected():
                for key, lasts_us in fact.lasts_us.items():
                    if self.expected_us(key) is None:
                        self._expect(key, lasts_us)
            case PlacesKnown():
                self.crew.replace_places(fact.places)
            case _:
                assert_never(fact)

    def _arrive(self, fact: SamplesArrived) -> None:
        batch = self.batches.get(fact.batch)
        if batch is None:
            batch = self.batches[fact.batch] = self._begin(fact)
            self.crew.pool(fact.program.stages[0].resource)
        batch.size = max(batch.size, fact.size)
        batch.arrived += len(fact.samples)
        for index in fact.samples:
            assert index not in batch.requests, (fact.batch, index)
            self._arrivals += 1
            request = batch.requests[index] = Request(
                program=fact.program,
                number=self._arrivals,
                since_us=fact.at_us,
                arrived_us=fact.at_us - batch.begun_us,
                runs_us=[0] * len(fact.program.stages),
            )
            self._dealer.put(RequestId(fact.batch, index), request)

    def _begin(self, fact: SamplesArrived) -> OpenBatch:
        """Return a new batch, expected to take as long as the last one, or as one sample may."""
        known_us = self.expected_us(_history_key(fact.batch, fact.program))
        expected_us = known_us or sum(stage.timeout_us for stage in fact.program.stages)
        return OpenBatch(
            program=fact.program,
            begun_us=fact.at_us,
            expected_end_us=fact.at_us + expected_us,
            size=fact.size,
            is_known=known_us is not None,
        )

    def _ready(self, fact: WorkerReady) -> None:
        worker = self.workers[fact.worker]
        if not worker.is_stopped:
            self._dealer.failed_starts = 0
            worker.is_ready, worker.since_us = True, fact.at_us
            worker.pool.starting -= 1
            self.crew.keep(fact.worker)

    def _lost(self, fact: WorkerLost) -> None:
        self.crew.count_out(fact.worker)
        worker = self.workers.pop(fact.worker)
        if worker.request is not None:
            self._failed(worker.request, fact.at_us, reason=fact.reason)
        elif not worker.is_ready and not worker.is_stopped and worker.place in self.crew.places:
            self._failed_start(fact.at_us, reason=fact.reason)

    def _failed_start(self, at_us: int, *, reason: str) -> None:
        """Count a worker that did not come up; answer what waits once none does."""
        if not self._dealer.fail_start(at_us):
            return
        text = f"{MAX_FAILED_STARTS} workers in a row did not come up, last: {reason}"
        for pool in self.pools.values():
            self._give_up(pool, at_us, reason=text)

    def _give_up(self, pool: WorkerPool, at_us: int, *, reason: str) -> None:
        """Answer all that waits for a pool's workers."""
        while (found := pool.queue.take(workers=1)) is not None:
            request = self.batches[found.batch].requests[found.sample]
            request.queue_us += at_us - request.since_us
            self._answer(found, at_us, verdict=Verdict.ERROR, reason=reason)

    def _ended(self, fact: RunEnded) -> None:
        worker = self.workers.get(fact.worker)
        if worker is None or worker.request is None:
            return  # it was stopped meanwhile, and what it ran was decided then
        found = worker.request
        if isinstance(fact, ProgramFailed):
            # With its worker: whatever failed may have left that in any state.
            self.crew.stop(fact.worker)
            self._failed(found, fact.at_us, reason=fact.reason)
            return
        request = self._finish_run(found, fact.at_us)
        worker.request, worker.since_us = None, fact.at_us
        self.crew.keep(fact.worker)
        match fact:
            case StagePassed():
                assert request.stage + 1 < len(request.program.stages), found
                # Tries are of one stage: the next has as many.
                request.stage, request.tries = request.stage + 1, 0
                self._dealer.put(found, request)
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
            self._dealer.put(found, request)
            return
        text = f"the program failed {MAX_TRIES} times, last: {reason}"
        self._answer(found, at_us, verdict=Verdict.ERROR, reason=text)

    def _finish_run(self, found: RequestId, at_us: int) -> Request:
        request = self.batches[found.batch].requests[found.sample]
        self.crew.pool(request.resource).queue.running[found.batch.tenant] -= 1
        request.runs_us[request.stage] += at_us - request.since_us
        request.since_us, request.worker = at_us, None
        return request

    def _time_out(self, found: RequestId, at_us: int) -> None:
        request = self.batches[found.batch].requests[found.sample]
        stage = request.program.stages[request.stage]
        reason = f"stage {stage.name} took longer than it may, {stage.timeout_us / 1e6:g} s at most"
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
        batch.ended.append((request.arrived_us, tuple(request.runs_us)))
        self._orders.append(
            AnswerRequest(
                request=found,
                verdict=verdict,
                score=score,
                run_us=sum(request.runs_us),
                queue_us=request.queue_us,
                reason=reason,
            )
        )
        if batch.answered >= batch.size and not batch.requests:
            self._end(found.batch, at_us)

    def _end(self, batch_id: BatchId, at_us: int) -> None:
        """Forget a batch that is answered but for how it went."""
        batch = self.batches.pop(batch_id)
        self._expect(_history_key(batch_id, batch.program), at_us - batch.begun_us)
        samples = tuple(sorted(batch.ended))
        self._orders.append(
            RememberBatch(batch=batch_id, program=batch.program.name, samples=samples)
        )

    def _expire(self, now_us: int) -> None:
        for worker_id, worker in list(self.workers.items()):
            deadline_us = self._deadline_us(worker, now_us)
            if deadline_us is None or deadline_us > now_us:
                continue
            found = worker.request
            if not worker.is_ready:
                reason = f"not ready after {self.limits.start_us / 1e6:g} s"
                self._failed_start(now_us, reason=reason)
            self.crew.stop(worker_id)
            if found is not None:
                self._finish_run(found, now_us)
                self._time_out(found, now_us)

    def _deadline_us(self, worker: Worker, now_us: int) -> int | None:
        """Return when a worker is to be stopped if it goes on as it does."""
        if worker.is_stopped:
            return None
        if not worker.is_ready:
            return worker.since_us + self.limits.start_us
        if worker.request is not None:
            request = self.batches[worker.request.batch].requests[worker.request.sample]
            timeout_us = request.program.stages[request.stage].timeout_us
            return worker.since_us + timeout_us + self.limits.grace_us
        if not worker.pool.has_spare(now_us, least=self.crew.least(worker.pool)):
            return None
        is_planned = worker.pool.planned(now_us) is not None
        idle_us = min(self.limits.idle_us, PLANNED_IDLE_US) if is_planned else self.limits.idle_us
        return worker.since_us + idle_us


def _history_key(batch: BatchId, program: ProgramSpec) -> HistoryKey:
    return (batch.tenant, batch.job_id, program.name)
