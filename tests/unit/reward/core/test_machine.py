"""The reward core: every request is answered once, whatever workers and programs do."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from plexsvc.ids import JobId, TenantId
from plexsvc.reward.core.dealing import MAX_FAILED_STARTS, PATIENCE_US
from plexsvc.reward.core.machine import MAX_TRIES, RewardCore
from plexsvc.reward.core.planning import UnderWay
from plexsvc.reward.core.pools import PLANNED_IDLE_US
from plexsvc.reward.core.state import PoolLimits
from plexsvc.reward.core.vocabulary import (
    LEAST,
    AnswerRequest,
    BatchesExpected,
    BatchId,
    BatchLeft,
    Order,
    PlacesKnown,
    PlanMade,
    PoolPlan,
    ProgramFailed,
    ProgramSpec,
    RememberBatch,
    RequestId,
    Resource,
    RewardEvent,
    RunStage,
    SamplesArrived,
    SampleScored,
    SampleTimedOut,
    StagePassed,
    StageSpec,
    StartWorker,
    StopWorker,
    TimePassed,
    Verdict,
    WorkerId,
    WorkerLost,
    WorkerReady,
)

S = 1_000_000
ONE = ProgramSpec(name="one", stages=(StageSpec(name="run", timeout_us=10 * S),))
TWO = ProgramSpec(
    name="two",
    stages=(StageSpec(name="compile", timeout_us=5 * S), StageSpec(name="run", timeout_us=S)),
    timeout_score=-2.0,
)
BATCH = BatchId(TenantId("acme"), JobId("job-1"), b"b1")
OTHER = BatchId(TenantId("other"), JobId("job-2"), b"b2")
W1, W2 = WorkerId(1), WorkerId(2)


def arrived(
    *samples: int, at_us: int = 0, batch: BatchId = BATCH, program: ProgramSpec = ONE
) -> SamplesArrived:
    return SamplesArrived(
        at_us=at_us, batch=batch, program=program, size=len(samples), samples=samples
    )


def core_with_a_worker(*, max_workers: int = 1) -> RewardCore:
    core = RewardCore(PoolLimits(max_workers=max_workers))
    assert core.handle(TimePassed(at_us=0)) == [StartWorker(worker=W1)]
    assert core.handle(WorkerReady(at_us=0, worker=W1)) == []
    return core


def test_a_batch_that_is_to_come_keeps_a_worker_idle_for_it() -> None:
    core = core_with_a_worker(max_workers=2)
    assert core.handle(arrived(at_us=1)) == [], "one is idle"
    core.handle(arrived(0, batch=OTHER, at_us=2))
    assert W2 in core.workers, "the idle one has work now"
    core.handle(WorkerReady(at_us=3, worker=W2))
    first = RequestId(BATCH, 0)
    assert core.handle(arrived(0, at_us=4)) == [RunStage(worker=W2, request=first, stage=0)]


def test_a_batch_that_never_comes_keeps_no_worker() -> None:
    core = core_with_a_worker(max_workers=2)
    core.handle(arrived(at_us=1))
    core.handle(BatchLeft(at_us=2, batch=BATCH))
    core.handle(arrived(0, batch=OTHER, at_us=3))
    assert list(core.workers) == [W1]


def test_a_sample_runs_on_the_idle_worker_and_is_answered_with_its_times() -> None:
    core = core_with_a_worker()
    request = RequestId(BATCH, 0)
    assert core.handle(arrived(0, 1, at_us=S)) == [RunStage(worker=W1, request=request, stage=0)]
    assert core.handle(SampleScored(at_us=3 * S, worker=W1, score=0.5)) == [
        AnswerRequest(request=request, verdict=Verdict.SCORED, score=0.5, run_us=2 * S),
        RunStage(worker=W1, request=RequestId(BATCH, 1), stage=0),
    ]
    assert core.handle(SampleScored(at_us=4 * S, worker=W1, score=1.0)) == [
        AnswerRequest(
            request=RequestId(BATCH, 1),
            verdict=Verdict.SCORED,
            score=1.0,
            run_us=S,
            queue_us=2 * S,
        ),
        RememberBatch(batch=BATCH, program="one", samples=((0, (S,)), (0, (2 * S,)))),
    ]
    assert core.batches == {}


def test_stages_follow_each_other_and_a_verdict_ends_them() -> None:
    core = core_with_a_worker()
    core.handle(arrived(0, 1, program=TWO))
    assert core.handle(StagePassed(at_us=S, worker=W1)) == [
        RunStage(worker=W1, request=RequestId(BATCH, 0), stage=1)
    ]
    ended = core.handle(SampleScored(at_us=2 * S, worker=W1, score=1.0))
    assert ended[1] == RunStage(worker=W1, request=RequestId(BATCH, 1), stage=0)
    early = core.handle(SampleScored(at_us=3 * S, worker=W1, score=0.0))
    assert [type(order) for order in early] == [AnswerRequest, RememberBatch]


def test_workers_start_as_many_as_have_something_to_do() -> None:
    core = core_with_a_worker(max_workers=3)
    orders = core.handle(arrived(*range(2)))
    assert [o for o in orders if isinstance(o, StartWorker)] == [StartWorker(worker=W2)]
    orders = core.handle(arrived(*range(9), batch=BatchId(BATCH.tenant, BATCH.job_id, b"b2")))
    assert [type(order) for order in orders] == [StartWorker]


def test_a_worker_that_says_it_took_too_long_gives_the_timeout_score() -> None:
    core = core_with_a_worker()
    core.handle(arrived(0, program=TWO))
    answer, _ = core.handle(SampleTimedOut(at_us=5 * S, worker=W1))
    assert isinstance(answer, AnswerRequest)
    assert (answer.verdict, answer.score) == (Verdict.TIMEOUT, -2.0)
    assert answer.reason == "stage compile took longer than it may, 5 s at most"


def test_a_worker_that_says_nothing_is_stopped_and_replaced() -> None:
    core = core_with_a_worker()
    core.handle(arrived(0))
    assert core.next_deadline_us() == 11 * S
    orders = core.handle(TimePassed(at_us=11 * S))
    assert orders[0] == StopWorker(worker=W1)
    assert isinstance(orders[1], AnswerRequest)
    assert orders[1].verdict is Verdict.TIMEOUT
    assert orders[3:] == [StartWorker(worker=W2)]
    assert core.handle(SampleScored(at_us=11 * S, worker=W1, score=1.0)) == [], "decided before"
    assert core.handle(WorkerLost(at_us=12 * S, worker=W1, reason="killed")) == []


@pytest.mark.parametrize("how", ["fails", "dies"])
def test_a_program_that_fails_is_tried_on_other_workers_then_reported(how: str) -> None:
    core = core_with_a_worker()
    request, used = RequestId(BATCH, 0), []
    orders = core.handle(arrived(0))
    for number in range(1, MAX_TRIES + 1):
        worker = WorkerId(number)
        assert RunStage(worker=worker, request=request, stage=0) in orders
        used.append(worker)
        if how == "fails":
            orders = core.handle(ProgramFailed(at_us=S, worker=worker, reason="boom"))
            assert orders[0] == StopWorker(worker=worker)
        else:
            orders = core.handle(WorkerLost(at_us=S, worker=worker, reason="boom"))
        if number < MAX_TRIES:
            orders = core.handle(WorkerReady(at_us=S, worker=WorkerId(number + 1)))
    answer = next(order for order in orders if isinstance(order, AnswerRequest))
    assert answer.verdict is Verdict.ERROR
    assert answer.reason == "the program failed 3 times, last: boom"
    assert len(set(used)) == MAX_TRIES


def test_workers_that_never_come_up_end_what_waits_with_the_reason() -> None:
    core = RewardCore(PoolLimits(max_workers=1))
    orders, now_us, pauses = core.handle(arrived(0)), 0, []
    answers: list[Order] = []
    for _ in range(MAX_FAILED_STARTS):
        (started,) = [order for order in orders if isinstance(order, StartWorker)]
        lost = WorkerLost(at_us=now_us, worker=started.worker, reason="no module x")
        answers = core.handle(lost)
        due_us = core.next_deadline_us()
        assert due_us is not None
        pauses.append(due_us - now_us)
        now_us = due_us
        orders = core.handle(TimePassed(at_us=now_us))
    assert pauses == [S, 2 * S, 4 * S, 8 * S, 16 * S]
    answer = next(order for order in answers if isinstance(order, AnswerRequest))
    assert answer.verdict is Verdict.ERROR
    assert "no module x" in answer.reason


def test_a_worker_that_is_not_ready_in_time_is_stopped() -> None:
    core = RewardCore(PoolLimits(max_workers=1, start_us=S))
    core.handle(TimePassed(at_us=0))
    assert core.next_deadline_us() == S
    orders = core.handle(TimePassed(at_us=S))
    assert orders == [StopWorker(worker=W1)]
    assert core.handle(TimePassed(at_us=2 * S)) == [StartWorker(worker=W2)]
    assert core.handle(WorkerReady(at_us=2 * S, worker=W1)) == []
    assert core.handle(arrived(0, at_us=S)) == [], "the stopped worker is given nothing"


def test_spare_workers_stop_when_they_have_been_idle() -> None:
    core = core_with_a_worker(max_workers=2)
    core.handle(arrived(0, 1))
    core.handle(WorkerReady(at_us=0, worker=W2))
    core.handle(SampleScored(at_us=S, worker=W1, score=0.0))
    core.handle(SampleScored(at_us=2 * S, worker=W2, score=0.0))
    assert core.next_deadline_us() == 61 * S
    assert core.handle(TimePassed(at_us=61 * S)) == [StopWorker(worker=W1)]
    assert core.next_deadline_us() is None, "one stays warm"


def test_a_batch_that_was_left_frees_queue_and_workers() -> None:
    core = core_with_a_worker()
    core.handle(arrived(0, 1))
    orders = core.handle(BatchLeft(at_us=S, batch=BATCH))
    assert orders == [StopWorker(worker=W1), StartWorker(worker=W2)]
    assert (core.batches, len(core.pools[LEAST].queue), +core.pools[LEAST].queue.running) == (
        {},
        0,
        Counter(),
    )


def test_the_next_batch_of_a_job_is_expected_to_take_as_long_as_the_last() -> None:
    core = core_with_a_worker()
    core.handle(arrived(0))
    assert core.batches[BATCH].expected_end_us == 10 * S
    core.handle(SampleScored(at_us=3 * S, worker=W1, score=0.0))
    later = BatchId(BATCH.tenant, BATCH.job_id, b"b2")
    core.handle(arrived(0, batch=later, at_us=5 * S))
    assert core.batches[later].expected_end_us == 8 * S


def test_endless_programs_of_one_tenant_leave_the_others_their_share() -> None:
    core = RewardCore(PoolLimits(min_workers=4, max_workers=4))
    core.handle(TimePassed(at_us=0))
    for number in range(1, 5):
        core.handle(WorkerReady(at_us=0, worker=WorkerId(number)))
    core.handle(arrived(*range(100), batch=BatchId(TenantId("endless"), JobId("j"), b"x")))
    others = [BatchId(TenantId(f"t{i}"), JobId("j"), b"y") for i in range(3)]
    for other in others:
        core.handle(arrived(*range(5), batch=other))
    runs = Counter[str]()
    for number in range(1, 5):
        orders = core.handle(SampleTimedOut(at_us=PATIENCE_US // 2, worker=WorkerId(number)))
        runs.update(o.request.batch.tenant for o in orders if isinstance(o, RunStage))
    assert runs == Counter({"t0": 1, "t1": 1, "t2": 1, "endless": 1})


TENANTS = st.lists(
    st.tuples(st.integers(0, 20), st.lists(st.integers(1, 4), min_size=1, max_size=30)),
    min_size=9,
    max_size=9,
)


@settings(max_examples=30, deadline=None)
@given(TENANTS, st.integers(1, 3))
def test_endless_programs_cost_nine_tenants_no_more_than_their_fair_share(
    tenants: list[tuple[int, list[int]]], each: int
) -> None:
    """Ten tenants with unequal batches. One takes all workers first, each for a long time.

    From its arrival a batch waits for a second at most, and then has a tenth of the workers.
    """
    pool = FixedPool(workers=10 * each)
    pool.at(0, batch_of("endless"), [30] * 40)
    for number, (begin_s, runs) in enumerate(tenants):
        pool.at(begin_s, batch_of(f"t{number}"), runs)
    ended = pool.play()
    for number, (begin_s, runs) in enumerate(tenants):
        with_its_share_s = -(-sum(runs) // each) + max(runs)
        assert ended[batch_of(f"t{number}")] <= begin_s + PATIENCE_US // S + with_its_share_s
    assert pool.answers == {
        RequestId(batch, sample): 1
        for batch, runs in pool.runs.items()
        for sample in range(len(runs))
    }


def test_what_was_stopped_for_others_runs_again_as_if_it_had_only_waited() -> None:
    pool = FixedPool(workers=4)
    pool.at(0, batch_of("first"), [10, 10, 10, 10])
    pool.at(5, batch_of("second"), [2, 2])
    ended = pool.play()
    assert ended == {batch_of("second"): 8, batch_of("first"): 18}
    assert pool.answers[RequestId(batch_of("first"), 3)] == 1
    (answer,) = (one for one in pool.answered if one.request == RequestId(batch_of("first"), 3))
    assert (answer.run_us, answer.queue_us) == (10 * S, 8 * S)


def test_nothing_is_stopped_for_who_has_its_share() -> None:
    pool = FixedPool(workers=4)
    pool.at(0, batch_of("first"), [10, 10])
    pool.at(0, batch_of("second"), [10, 10, 10, 10])
    pool.play()
    assert pool.stopped == 0


def test_nothing_is_stopped_for_who_may_wait_by_the_plan() -> None:
    core = core_with_a_worker()
    known_batch(core, b"b", samples=9, lasts_us=1000 * S)
    core.handle(planned(1, 1))
    other = BatchId(TenantId("other"), JobId("j"), b"o")
    core.handle(BatchesExpected(at_us=0, lasts_us={(other.tenant, other.job_id, "one"): 1000 * S}))
    core.handle(arrived(0, batch=other))
    assert not [o for o in core.handle(TimePassed(at_us=5 * S)) if isinstance(o, StopWorker)]


def batch_of(tenant: str) -> BatchId:
    return BatchId(TenantId(tenant), JobId("j"), b"b")


class FixedPool:
    """Workers that start at once, and samples that run as long as a test says, in seconds."""

    def __init__(self, *, workers: int) -> None:
        self.core = RewardCore(PoolLimits(min_workers=workers, max_workers=workers))
        self.core.handle(TimePassed(at_us=0))
        for number in range(workers):
            self.core.handle(WorkerReady(at_us=0, worker=WorkerId(number + 1)))
        self.runs: dict[BatchId, list[int]] = {}
        self.coming: list[tuple[int, BatchId]] = []
        self.busy: list[tuple[int, WorkerId]] = []
        self.ended: dict[BatchId, int] = {}
        self.answered: list[AnswerRequest] = []
        self.stopped = 0

    @property
    def answers(self) -> Counter[RequestId]:
        return Counter(answer.request for answer in self.answered)

    def at(self, at_s: int, batch: BatchId, runs: list[int]) -> None:
        self.runs[batch] = runs
        self.coming.append((at_s, batch))

    def play(self) -> dict[BatchId, int]:
        for now_s in range(10_000):
            for end_s, worker in sorted(self.busy):
                if end_s == now_s and (end_s, worker) in self.busy:
                    self.busy.remove((end_s, worker))
                    self.do(SampleScored(at_us=now_s * S, worker=worker, score=0.0), now_s)
            for at_s, batch in self.coming:
                if at_s == now_s:
                    self.do(
                        arrived(*range(len(self.runs[batch])), at_us=now_s * S, batch=batch), now_s
                    )
            due_us = self.core.next_deadline_us()
            if due_us is not None and due_us <= now_s * S:
                self.do(TimePassed(at_us=now_s * S), now_s)
            if len(self.ended) == len(self.runs):
                return self.ended
        raise AssertionError("a batch never ends")

    def do(self, fact: RewardEvent, now_s: int) -> None:
        for order in self.core.handle(fact):
            if isinstance(order, RunStage):
                run_s = self.runs[order.request.batch][order.request.sample]
                self.busy.append((now_s + run_s, order.worker))
            elif isinstance(order, StopWorker):
                self.stopped += 1
                self.busy = [one for one in self.busy if one[1] != order.worker]
                lost = WorkerLost(at_us=now_s * S, worker=order.worker, reason="killed")
                self.do(lost, now_s)
            elif isinstance(order, StartWorker):
                self.do(WorkerReady(at_us=now_s * S, worker=order.worker), now_s)
            elif isinstance(order, AnswerRequest):
                self.answered.append(order)
            elif isinstance(order, RememberBatch):
                self.ended[order.batch] = now_s


BIG = Resource(cpus=2, memory_bytes=1 << 30)
WIDE = ProgramSpec(name="wide", stages=(StageSpec(name="build", timeout_us=10 * S, resource=BIG),))


def planned(workers: int, held: int, *, until_us: int = 100 * S) -> PlanMade:
    return PlanMade(at_us=0, pools={LEAST: PoolPlan(workers=workers, held=held)}, until_us=until_us)


def test_a_plan_starts_the_workers_that_it_holds_before_there_is_work() -> None:
    core = core_with_a_worker(max_workers=8)
    assert core.handle(planned(4, 3)) == [StartWorker(worker=W2), StartWorker(worker=WorkerId(3))]


def known_batch(core: RewardCore, name: bytes, *, samples: int, lasts_us: int) -> list[Order]:
    """Let a batch come that is expected to take so long."""
    core.handle(BatchesExpected(at_us=0, lasts_us={(BATCH.tenant, BATCH.job_id, "one"): lasts_us}))
    return core.handle(arrived(*range(samples), batch=BatchId(BATCH.tenant, BATCH.job_id, name)))


def started(orders: list[Order]) -> int:
    return sum(isinstance(order, StartWorker) for order in orders)


def test_what_may_wait_by_the_plan_starts_no_worker() -> None:
    core = core_with_a_worker(max_workers=8)
    core.handle(planned(4, 1))
    assert started(known_batch(core, b"b2", samples=9, lasts_us=60 * S)) == 0


def test_what_may_end_too_late_takes_all_the_workers_that_were_planned() -> None:
    core = core_with_a_worker(max_workers=8)
    core.handle(planned(4, 1))
    assert started(known_batch(core, b"b2", samples=9, lasts_us=5 * S)) == 3


def test_without_a_plan_that_holds_the_pool_follows_its_queue() -> None:
    core = core_with_a_worker(max_workers=8)
    core.handle(planned(4, 1, until_us=S))
    known_batch(core, b"b2", samples=9, lasts_us=60 * S)
    assert started(core.handle(TimePassed(at_us=S))) == 7


def test_workers_beyond_the_plan_stop_soon() -> None:
    core = core_with_a_worker(max_workers=2)
    core.handle(planned(2, 2))
    core.handle(WorkerReady(at_us=0, worker=W2))
    assert core.next_deadline_us() is None
    core.handle(planned(1, 1))
    assert core.next_deadline_us() == PLANNED_IDLE_US


def test_each_stage_runs_on_a_worker_that_holds_what_it_asks_for() -> None:
    core = core_with_a_worker(max_workers=4)
    orders = core.handle(arrived(0, program=WIDE))
    assert orders == [StartWorker(worker=W2, resource=BIG)]
    (run,) = core.handle(WorkerReady(at_us=0, worker=W2))
    assert isinstance(run, RunStage)
    assert run.worker == W2


def test_an_idle_worker_makes_room_for_the_first_of_another_pool() -> None:
    core = core_with_a_worker(max_workers=2)
    assert core.handle(arrived(0, program=WIDE)) == [
        StopWorker(worker=W1),
        StartWorker(worker=W2, resource=BIG),
    ]


def test_a_pool_without_a_worker_gets_one_while_less_urgent_work_waits_elsewhere() -> None:
    core = RewardCore(PoolLimits(min_workers=2, max_workers=2))
    core.handle(TimePassed(at_us=0))
    for worker in (W1, W2):
        core.handle(WorkerReady(at_us=0, worker=worker))
    core.handle(arrived(*range(9)))
    wide = BatchId(BATCH.tenant, JobId("job-2"), b"w")
    core.handle(BatchesExpected(at_us=0, lasts_us={(wide.tenant, wide.job_id, "wide"): 5 * S}))
    assert core.handle(arrived(0, batch=wide, program=WIDE)) == []
    ended = core.handle(SampleScored(at_us=S, worker=W1, score=1.0))
    assert StopWorker(worker=W1) in ended
    ended = core.handle(SampleScored(at_us=S, worker=W2, score=1.0))
    assert started(ended) == 1
    assert StartWorker(worker=WorkerId(3), resource=BIG) in ended


def test_workers_start_where_there_is_most_room() -> None:
    core = RewardCore(PoolLimits(min_workers=0))
    small, large = Resource(cpus=2, memory_bytes=4 << 30), Resource(cpus=3, memory_bytes=4 << 30)
    core.handle(PlacesKnown(at_us=0, places={"a": small, "b": large}))
    orders = core.handle(arrived(*range(9)))
    places = [order.place for order in orders if isinstance(order, StartWorker)]
    assert places == ["b", "a", "b", "a", "b"]
    assert core.crew.has_room_for(BIG)
    assert not core.crew.has_room_for(Resource(cpus=4))


def core_on(places: dict[str, Resource]) -> RewardCore:
    core = RewardCore(PoolLimits(min_workers=0))
    core.handle(PlacesKnown(at_us=0, places=places))
    return core


def test_workers_of_a_node_that_takes_no_more_end_after_their_request() -> None:
    room = Resource(cpus=2, memory_bytes=4 << 30)
    core = core_on({"a": room})
    core.handle(arrived(0, 1))
    core.handle(WorkerReady(at_us=0, worker=W1))
    assert core.handle(PlacesKnown(at_us=1, places={})) == []
    assert core.handle(WorkerReady(at_us=2, worker=W2)) == [StopWorker(worker=W2)]
    ended = core.handle(SampleScored(at_us=S, worker=W1, score=1.0))
    assert [type(order) for order in ended] == [StopWorker, AnswerRequest]
    (start,) = core.handle(PlacesKnown(at_us=2 * S, places={"b": room}))
    assert isinstance(start, StartWorker)
    assert start.place == "b"
    core.handle(WorkerReady(at_us=2 * S, worker=start.worker))
    core.handle(SampleScored(at_us=3 * S, worker=start.worker, score=1.0))
    assert core.handle(PlacesKnown(at_us=4 * S, places={})) == [StopWorker(worker=start.worker)]


def test_workers_that_start_on_a_node_that_is_lost_are_no_failed_starts() -> None:
    room = Resource(cpus=9, memory_bytes=16 << 30)
    core = core_on({"a": room})
    assert started(core.handle(arrived(*range(9)))) == 9
    assert core.handle(PlacesKnown(at_us=1, places={})) == []
    for worker in list(core.workers):
        assert core.handle(WorkerLost(at_us=2, worker=worker, reason="node lost")) == []
    orders = core.handle(PlacesKnown(at_us=3, places={"b": room}))
    assert {order.place for order in orders if isinstance(order, StartWorker)} == {"b"}
    assert len(core.batches[BATCH].requests) == 9


def test_the_planner_is_told_what_waits_and_what_runs() -> None:
    core = core_with_a_worker()
    core.handle(arrived(0, 1, at_us=S))
    (batch,) = core.plan_facts(3 * S).batches
    assert batch.state == UnderWay(
        begun_us=S, size=2, arrived=2, queued=[(0, 2 * S)], running=[(0, 0, 2 * S)]
    )


STEPS = st.lists(st.tuples(st.integers(0, 7), st.integers(0, 3)), max_size=120)


@settings(max_examples=300)
@given(STEPS)
def test_whatever_happens_every_request_is_answered_once(steps: list[tuple[int, int]]) -> None:
    world = World()
    for kind, pick in steps:
        world.step(kind, pick)
    world.finish()
    assert world.answered == Counter(world.asked)


class World:
    """Workers that do what a test draws, and the count of the core's answers."""

    def __init__(self) -> None:
        self.core = RewardCore(PoolLimits(max_workers=3))
        self.now_us = 0
        self.starting: list[WorkerId] = []
        self.idle: list[WorkerId] = []
        self.busy: dict[WorkerId, RunStage] = {}
        self.asked: list[RequestId] = []
        self.answered: Counter[RequestId] = Counter()
        self.batches = 0
        self.post(TimePassed(at_us=0))

    def post(self, fact: RewardEvent) -> None:
        stopped: list[WorkerId] = []
        for order in self.core.handle(fact):
            self.perform(order, stopped)
        for worker in stopped:
            self.post(WorkerLost(at_us=self.now_us, worker=worker, reason="stopped"))

    def perform(self, order: Order, stopped: list[WorkerId]) -> None:
        match order:
            case StartWorker(worker=worker):
                self.starting.append(worker)
            case RunStage(worker=worker):
                self.idle.remove(worker)
                self.busy[worker] = order
            case StopWorker(worker=worker):
                self.forget(worker)
                stopped.append(worker)
            case AnswerRequest(request=request):
                self.answered[request] += 1
            case RememberBatch():
                pass  # the planner's

    def forget(self, worker: WorkerId) -> None:
        self.busy.pop(worker, None)
        for some in (self.starting, self.idle):
            if worker in some:
                some.remove(worker)

    def free(self, worker: WorkerId) -> RunStage:
        self.idle.append(worker)
        return self.busy.pop(worker)

    def step(self, kind: int, pick: int) -> None:
        self.now_us += S if kind else 40 * S
        busy = list(self.busy)
        if kind == 0:
            self.batches += 1
            batch = BatchId(TenantId(f"t{pick}"), JobId("j"), str(self.batches).encode())
            program = (ONE, TWO, WIDE)[pick % 3]
            self.asked += [RequestId(batch, sample) for sample in range(pick + 1)]
            self.post(arrived(*range(pick + 1), at_us=self.now_us, batch=batch, program=program))
        elif kind == 1 and self.starting:
            worker = self.starting.pop(0)
            self.idle.append(worker)
            self.post(WorkerReady(at_us=self.now_us, worker=worker))
        elif kind == 2 and pick:
            self.post(TimePassed(at_us=self.now_us))
        elif kind == 2:
            made = PoolPlan(workers=1 + len(busy), held=len(busy))
            until_us = self.now_us + 10 * S
            self.post(PlanMade(at_us=self.now_us, pools={LEAST: made}, until_us=until_us))
        elif kind == 3 and (workers := [*self.starting, *self.idle, *busy]):
            worker = workers[pick % len(workers)]
            self.forget(worker)
            self.post(WorkerLost(at_us=self.now_us, worker=worker, reason="died"))
        elif kind > 3 and busy:
            self.end(busy[pick % len(busy)], kind)

    def end(self, worker: WorkerId, kind: int) -> None:
        at_us = self.now_us
        run = self.free(worker)
        program = self.core.batches[run.request.batch].program
        match kind:
            case 4:
                self.post(SampleTimedOut(at_us=at_us, worker=worker))
            case 5:
                self.post(ProgramFailed(at_us=at_us, worker=worker, reason="bug"))
            case 6 if run.stage + 1 < len(program.stages):
                self.post(StagePassed(at_us=at_us, worker=worker))
            case _:
                self.post(SampleScored(at_us=at_us, worker=worker, score=1.0))

    def finish(self) -> None:
        while self.core.batches:
            self.now_us += 40 * S
            self.step(2, 1)
            self.step(1, 0)
            self.step(7, 0)


def test_what_no_node_can_run_waits_for_one_and_ends_with_the_cause() -> None:
    core = RewardCore(PoolLimits(max_workers=1, no_room_us=60 * S))
    core.handle(PlacesKnown(at_us=0, places={}))
    assert core.handle(arrived(0, 1, at_us=S)) == []
    core.handle(TimePassed(at_us=2 * S))
    assert core.next_deadline_us() == 61 * S
    assert core.handle(TimePassed(at_us=61 * S - 1)) == []
    orders = core.handle(TimePassed(at_us=61 * S))
    answers = [order for order in orders if isinstance(order, AnswerRequest)]
    assert [(one.verdict, one.queue_us) for one in answers] == [(Verdict.ERROR, 60 * S)] * 2
    assert "no node had room for a worker of cpu=1,mem=1GiB for 60 s" in answers[0].reason
    assert core.next_deadline_us() is None
    assert not core.batches


def test_a_node_that_is_back_ends_the_wait_for_one() -> None:
    core = RewardCore(PoolLimits(max_workers=1, no_room_us=60 * S))
    core.handle(PlacesKnown(at_us=0, places={}))
    core.handle(arrived(0, at_us=S))
    core.handle(PlacesKnown(at_us=50 * S, places={"a": LEAST}))
    assert list(core.workers) == [W1]
    core.handle(PlacesKnown(at_us=51 * S, places={}))
    core.handle(WorkerLost(at_us=52 * S, worker=W1, reason="its node is lost"))
    core.handle(TimePassed(at_us=53 * S))
    assert core.next_deadline_us() == 112 * S, "it waits anew"
    assert core.batches
