"""Worker time of planned reward pools against zero-queue pools of each task, in virtual time.

`python -m benchmarks.reward_pools [--ways published,finer] [--rollouts colocated]` prints one JSON
line for each way, and one with all. The proxy's core and the planner's are those that run live:
facts go in, orders are carried out by a clock of events. Six tasks share the pools, each with its
own tenant. A worker takes 5 s to start, which counts as held.

The workload is drawn (seed 1), not recorded, and its distributions decide: rollouts end by lengths
that are lognormal (median 6,000 tokens, sigma 0.5, at most 16,384, of 330 s); 15 % of the samples
have no code to compile; a compilation takes lognormally about 50 s (sigma 0.25), 2 % take all of
120 s, and 20 % of the others fail; a run takes about 3 s (sigma 0.5), 3 % (`--late`) take all of
60 s. Colocated tasks begin a rollout every 600 s, disaggregated ones every 345 s; the tasks' first
rollouts begin within two minutes.
"""

from __future__ import annotations

import argparse
import heapq
import itertools
import json
import math
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from statistics import fmean
from typing import Any, NamedTuple

from plexsvc.ids import JobId, TenantId
from plexsvc.reward.core.dealing import Dealer
from plexsvc.reward.core.machine import RewardCore
from plexsvc.reward.core.planner import Aims, PlannerCore, cost_of
from plexsvc.reward.core.planning import (
    BatchLoad,
    ExpectedRequest,
    Floor,
    History,
    PoolCosts,
    Route,
    plan,
)
from plexsvc.reward.core.queues import Urgency
from plexsvc.reward.core.state import PoolLimits, Request
from plexsvc.reward.core.vocabulary import (
    AnswerRequest,
    BatchesExpected,
    BatchId,
    PlacesKnown,
    PlanMade,
    PoolPlan,
    ProgramSpec,
    RememberBatch,
    RequestId,
    Resource,
    RewardEvent,
    RunStage,
    SamplesArrived,
    SampleScored,
    StagePassed,
    StageSpec,
    StartWorker,
    StopWorker,
    TimePassed,
    WorkerId,
    WorkerLost,
    WorkerReady,
)

S = 1_000_000
START_US = 5 * S
CPU, GPU = Resource(), Resource(cpus=0, memory_bytes=0, gpus=1)
POOLS = (CPU, GPU)
PROGRAM = ProgramSpec(
    name="kernel",
    stages=(
        StageSpec(name="compile", timeout_us=120 * S, resource=CPU),
        StageSpec(name="run", timeout_us=60 * S, resource=GPU),
    ),
)
PERIODS_S = {"colocated": 600, "disaggregated": 345}
LONG_US = 1 << 50
LATE = 0.03
"""Share of runs that take their timeout, unless asked otherwise."""
STAGGERS_S = (50, 100, 150, 200, 250)


class Sample(NamedTuple):
    """One request: when it comes, from its batch's begin, and how long its stages run."""

    arrive_us: int
    runs_us: tuple[int, int]


def drawn(dice: random.Random, size: int, *, late: float = LATE) -> list[Sample]:
    """Return what one rollout of `size` samples has to be scored, by arrival."""
    made = [
        Sample(_rollout_us(dice), runs) for _ in range(size) if (runs := _runs_us(dice, late))[0]
    ]
    return sorted(made)


def _rollout_us(dice: random.Random) -> int:
    tokens = min(16_384.0, 6000 * dice.lognormvariate(0, 0.5))
    return int(330 * S * tokens / 16_384)


def _runs_us(dice: random.Random, late: float) -> tuple[int, int]:
    if dice.random() < 0.15:
        return (0, 0)
    compiled = 120.0 if dice.random() < 0.02 else min(119.0, 50 * dice.lognormvariate(0, 0.25))
    if compiled == 120.0 or dice.random() < 0.2:
        return (int(compiled * S), 0)
    run = 60.0 if dice.random() < late else min(59.0, 3 * dice.lognormvariate(0, 0.5))
    return (int(compiled * S), int(run * S))


def end_us(batch: Sequence[Sample]) -> int:
    """Return when a batch ends from its begin if nothing ever waits."""
    return max(one.arrive_us + sum(one.runs_us) for one in batch)


class FirstCome(Dealer):
    """The order of arrival in place of Earliest Batch First: the baseline."""

    def urgency(self, found: RequestId, request: Request) -> Urgency:
        """Return the place of a request, whatever its batch."""
        return super().urgency(found, request)._replace(expected_end_us=0)


@dataclass(frozen=True, kw_only=True)
class Way:
    """A way of planning."""

    every_us: int = 0
    """How often a plan is made beside begins and ends of batches; 0: never."""
    is_finer: bool = False
    """Whether only what is busy soon is held, not all that is planned."""
    timeout_share: float = 1.0
    max_delay_us: int = S
    is_ideal: bool = False
    """Whether the planner knows what each request will do."""
    fixed: tuple[int, int] | None = None
    """Workers that are held all the time, in place of a plan."""
    is_one_tenant: bool = False
    dealer: type[Dealer] = Dealer
    """Who says what runs next."""


WAYS = {
    "published": Way(),
    "history": Way(timeout_share=0),
    "fcfs": Way(dealer=FirstCome),
    "ideal_published": Way(is_ideal=True, timeout_share=0),
    "finer": Way(every_us=10 * S, is_finer=True),
    "softer": Way(every_us=10 * S, is_finer=True, timeout_share=0.75),
    "softest": Way(every_us=10 * S, is_finer=True, timeout_share=0.5),
    "ideal": Way(every_us=10 * S, is_finer=True, is_ideal=True, timeout_share=0),
}


@dataclass
class World:
    """Tasks, the proxy's core, the planner's, and workers in virtual time."""

    way: Way
    batches: Sequence[Sequence[list[Sample]]]
    """Of each task; its first is only history."""
    starts_us: Sequence[Sequence[int]]
    """When each batch's rollout begins."""
    events: list[tuple[int, int, Callable[..., None], tuple[Any, ...]]] = field(
        default_factory=list
    )
    begun_us: dict[BatchId, int] = field(default_factory=dict)
    samples: dict[BatchId, list[Sample]] = field(default_factory=dict)
    running: dict[int, int] = field(default_factory=dict)
    """When each busy worker is done."""
    of_worker: dict[int, int] = field(default_factory=dict)
    """The pool of each worker, by its number."""
    worker_us: list[int] = field(default_factory=lambda: [0, 0])
    peak: list[int] = field(default_factory=lambda: [0, 0])
    late_us: dict[BatchId, int] = field(default_factory=dict)
    """How much later than without any waiting each batch ended."""
    plans_s: list[float] = field(default_factory=list)
    at_us: int = 0
    number: int = 0
    is_due: bool = False

    def __post_init__(self) -> None:
        """Tell core and planner what there is, and what was."""
        self.core = RewardCore(PoolLimits(min_workers=0), dealer=self.way.dealer)
        self.planner = PlannerCore(
            Aims(max_delay_us=self.way.max_delay_us, timeout_share=self.way.timeout_share)
        )
        room = Resource(cpus=1 << 20, memory_bytes=1 << 62, gpus=1 << 20)
        self.core.handle(PlacesKnown(at_us=0, places={"all": room}))
        for task, batches in enumerate(self.batches):
            key = (*self.job(task), PROGRAM.name)
            self.planner.remember(key, history_of(batches[0]))
            lasts_us = end_us(batches[0]) - batches[0][0].arrive_us
            self.core.handle(BatchesExpected(at_us=0, lasts_us={key: lasts_us}))

    def run(self) -> World:
        """Play every batch but each task's first."""
        for task, starts in enumerate(self.starts_us):
            for number, at_us in enumerate(starts, 1):
                key = BatchId(*self.job(task), str(number).encode())
                self.samples[key] = self.batches[task][number]
                self.begun_us[key] = at_us
                for index, sample in enumerate(self.samples[key]):
                    self.at(at_us + sample.arrive_us, self.arrive, key, index)
        self.at(0, self.tick)
        if self.way.every_us:
            self.at(0, self.replan_again)
        while self.events:
            now_us, _, act, what = heapq.heappop(self.events)
            for index, resource in enumerate(POOLS):
                pool = self.core.pools.get(resource)
                working = pool.working if pool is not None else 0
                self.worker_us[index] += working * (now_us - self.at_us)
                self.peak[index] = max(self.peak[index], working)
            self.at_us = now_us
            act(*what)
            if self.is_due:
                self.is_due = False
                self.replan()
        return self

    def job(self, task: int) -> tuple[TenantId, JobId]:
        """Return whose a task is."""
        tenant = "one" if self.way.is_one_tenant else f"t{task}"
        return TenantId(tenant), JobId(f"j{task}")

    def at(self, at_us: int, act: Callable[..., None], *what: object) -> None:
        """Have something happen."""
        self.number += 1
        heapq.heappush(self.events, (at_us, self.number, act, what))

    def post(self, fact: RewardEvent) -> None:
        """Tell the core, and do what it orders."""
        for order in self.core.handle(fact):
            match order:
                case StartWorker(worker=worker, resource=resource):
                    self.of_worker[worker] = POOLS.index(resource)
                    self.at(self.at_us + START_US, self.ready, worker)
                case RunStage(worker=worker, request=request, stage=stage):
                    run_us = self.samples[request.batch][request.sample].runs_us[stage]
                    self.running[worker] = self.at_us + run_us
                    self.at(self.at_us + run_us, self.done, worker, request, stage)
                case StopWorker(worker=worker):
                    self.at(self.at_us, self.lost, worker)
                case RememberBatch():
                    self.end(order)
                case AnswerRequest():
                    pass  # how a sample was judged changes nothing here

    def arrive(self, key: BatchId, index: int) -> None:
        """Bring one sample; the first of a batch has the pools planned anew."""
        self.is_due |= key not in self.core.batches
        self.post(
            SamplesArrived(
                at_us=self.at_us,
                batch=key,
                program=PROGRAM,
                size=len(self.samples[key]),
                samples=(index,),
            )
        )

    def ready(self, worker: WorkerId) -> None:
        """Have a worker take requests, unless it was stopped meanwhile."""
        if worker in self.core.workers:
            self.post(WorkerReady(at_us=self.at_us, worker=worker))

    def lost(self, worker: WorkerId) -> None:
        """Tell that a worker that was stopped is gone."""
        self.post(WorkerLost(at_us=self.at_us, worker=worker, reason="stopped"))

    def done(self, worker: WorkerId, request: RequestId, stage: int) -> None:
        """End a stage, and with the last the request."""
        del self.running[worker]
        if stage == 0 and self.samples[request.batch][request.sample].runs_us[1]:
            self.post(StagePassed(at_us=self.at_us, worker=worker))
        else:
            self.post(SampleScored(at_us=self.at_us, worker=worker, score=1.0))

    def end(self, order: RememberBatch) -> None:
        """Note how late a batch is, and have the pools planned anew."""
        samples = self.samples[order.batch]
        self.late_us[order.batch] = self.at_us - self.begun_us[order.batch] - end_us(samples)
        key = (order.batch.tenant, order.batch.job_id, order.program)
        self.planner.remember(key, History(samples=order.samples))
        self.is_due = True

    def tick(self) -> None:
        """Let time pass while there is something to do."""
        self.post(TimePassed(at_us=self.at_us))
        if self.events:
            self.at(self.at_us + 2 * S, self.tick)

    def replan_again(self) -> None:
        """Plan while there is something to do."""
        self.is_due = True
        if len(self.events) > 1:
            self.at(self.at_us + self.way.every_us, self.replan_again)

    def replan(self) -> None:
        """Plan the pools anew."""
        begun_s = time.process_time()
        found = self.planned()
        self.plans_s.append(time.process_time() - begun_s)
        for resource in POOLS:
            made = found.get(resource, PoolPlan(workers=0, held=0))
            held = made.held if self.way.is_finer else made.workers
            found[resource] = PoolPlan(workers=made.workers, held=held)
        until_us = LONG_US
        self.post(PlanMade(at_us=self.at_us, pools=found, until_us=until_us))

    def planned(self) -> dict[Resource, PoolPlan]:
        """Return the plan of the pools."""
        if self.way.fixed is not None:
            return {
                resource: PoolPlan(workers=count, held=count)
                for resource, count in zip(POOLS, self.way.fixed, strict=True)
            }
        facts = self.core.plan_facts(self.at_us)
        return self.planner.plan(facts) if not self.way.is_ideal else self.known()

    def known(self) -> dict[Resource, PoolPlan]:
        """Return the plan that knows what each request will do."""
        route = Route(pools=(0, 1), latest_us=(0, 0))
        loads = []
        for key, batch in self.core.batches.items():
            samples, begun_us = self.samples[key], self.begun_us[key]
            requests = [
                ExpectedRequest(begun_us + one.arrive_us, one.runs_us)
                for one in samples
                if begun_us + one.arrive_us > self.at_us
            ]
            for index, request in batch.requests.items():
                runs = list(samples[index].runs_us)
                waited_us = request.queue_us
                if request.worker is not None:
                    runs[request.stage] = self.running[request.worker] - self.at_us
                else:
                    waited_us += self.at_us - request.since_us
                requests.append(ExpectedRequest(self.at_us, tuple(runs), request.stage, waited_us))
            loads.append(BatchLoad(route=route, requests=requests))
        floor = Floor(
            loads,
            max_delay_us=self.way.max_delay_us,
            held_until_us=self.at_us + Aims().held_us,
        )
        found = plan(floor, PoolCosts(cost=tuple(map(cost_of, POOLS)), most=(1 << 20, 1 << 20)))
        pairs = zip(POOLS, found.workers, found.held, strict=True)
        return {pool: PoolPlan(workers=count, held=held) for pool, count, held in pairs}


def history_of(batch: Sequence[Sample]) -> History:
    """Return a batch as the planner remembers it: from its first sample on."""
    first_us = batch[0].arrive_us
    return History(samples=[(one.arrive_us - first_us, one.runs_us) for one in batch])


def zero_queue_us(batches: Sequence[Sequence[list[Sample]]]) -> list[int]:
    """Return the worker time of pools of each task that hold the last batch's peak."""
    total = [0, 0]
    for task in batches:
        for before, now in itertools.pairwise(task):
            lasts_us = end_us(now) - now[0].arrive_us
            for stage in range(2):
                total[stage] += _peak(before, stage) * lasts_us
    return total


def _peak(batch: Sequence[Sample], stage: int) -> int:
    """Return how many requests are in a stage at once when none ever waits."""
    steps: list[tuple[int, int]] = []
    for one in batch:
        if one.runs_us[stage]:
            begin_us = one.arrive_us + sum(one.runs_us[:stage])
            steps += [(begin_us, 1), (begin_us + one.runs_us[stage], -1)]
    return max(itertools.accumulate(step for _, step in sorted(steps)), default=0)


def figures(world: World) -> dict[str, Any]:
    """Return what a way came to."""
    delays = sorted(us / S for us in world.late_us.values())
    return {
        "mean_delay_s": round(fmean(delays), 2),
        "p99_delay_s": round(delays[math.ceil(0.99 * len(delays)) - 1], 2),
        "batches": len(delays),
        "worker_hours": [round(us / 3.6e9, 1) for us in world.worker_us],
        "peak_workers": world.peak,
        "plan_mean_s": round(fmean(world.plans_s), 3),
        "plan_worst_s": round(max(world.plans_s), 3),
    }


def shared(
    ways: Sequence[str], *, rollouts: str, size: int, batches: int, late: float
) -> dict[str, Any]:
    """Play six tasks under each way of planning."""
    dice = random.Random(1)
    drawn_batches = [[drawn(dice, size, late=late) for _ in range(batches + 1)] for _ in range(6)]
    period_us = PERIODS_S[rollouts] * S
    offsets = [dice.randrange(120 * S) for _ in drawn_batches]
    starts = [[offset + number * period_us for number in range(batches)] for offset in offsets]
    dedicated = zero_queue_us(drawn_batches)
    played = [one for task in drawn_batches for batch in task[1:] for one in batch]
    result: dict[str, Any] = {
        "zero_queue_hours": [round(us / 3.6e9, 1) for us in dedicated],
        "needed_hours": [round(sum(o.runs_us[s] for o in played) / 3.6e9, 1) for s in (0, 1)],
    }
    for name in ways:
        world = World(WAYS[name], drawn_batches, starts).run()
        saved = [round(dedicated[s] / world.worker_us[s], 2) for s in (0, 1)]
        result[name] = {"cpu_saving": saved[0], "gpu_saving": saved[1], **figures(world)}
        print(json.dumps({"rollouts": rollouts, name: result[name]}), flush=True)
    return result


def alone(*, size: int, batches: int) -> dict[str, Any]:
    """Play one task, planned as published and by history alone."""
    dice = random.Random(2)
    made = [[drawn(dice, size) for _ in range(batches + 1)]]
    starts = [[number * 600 * S for number in range(batches)]]
    return {
        name: figures(World(WAYS[name], made, starts).run())
        for name in ("published", "history", "finer")
    }


def by_order(*, size: int, most_delay_s: float, late: float) -> dict[str, Any]:
    """Return the fewest GPUs for a mean delay, by the queue's order and by the stagger.

    A tenant's two jobs have a batch each, the second so much later.
    """
    dice = random.Random(3)
    made = [[drawn(dice, size, late=late) for _ in range(2)] for _ in range(2)]
    found: dict[str, Any] = {"mean_delay_s": most_delay_s, "late": late}
    for stagger_s in STAGGERS_S:
        fewest = {
            name: _fewest(made, dealer, stagger_s=stagger_s, most_delay_s=most_delay_s)
            for name, dealer in (("ebf", Dealer), ("fcfs", FirstCome))
        }
        found[f"{stagger_s} s"] = {**fewest, "fewer": round(fewest["fcfs"] / fewest["ebf"], 2)}
        print(json.dumps({"order": found[f"{stagger_s} s"], "stagger_s": stagger_s}), flush=True)
    return found


def _fewest(
    made: Sequence[Sequence[list[Sample]]],
    dealer: type[Dealer],
    *,
    stagger_s: int,
    most_delay_s: float,
) -> int:
    """Return the fewest GPUs with which two batches end late by no more than that on average."""
    low, high = 10, 150
    while low < high:
        middle = (low + high) // 2
        way = Way(fixed=(1500, middle), is_one_tenant=True, dealer=dealer)
        late_us = World(way, made, [[0], [stagger_s * S]]).run().late_us
        if fmean(late_us.values()) / S <= most_delay_s:
            high = middle
        else:
            low = middle + 1
    return low


def tenants() -> dict[str, Any]:
    """Return how late nine tenants' batches are on 40 workers, beside a tenth tenant's programs.

    Batches have 40 to 360 samples of about 2 s, three of each tenant; the tenth has 300 that take
    their timeouts. Compared are the tenth tenant with as much work in samples like the others',
    with as many such samples, and nobody in its place on 36 workers.
    """
    found: dict[str, Any] = {}
    for name, workers, number, each_s in (
        ("endless", 40, 300, 120),
        ("as_much_work", 40, 18_000, 2),
        ("ordinary", 40, 300, 2),
        ("share", 36, 0, 0),
    ):
        dice = random.Random(5)
        made = [
            [
                [
                    Sample(dice.randrange(20 * S), (int(S * dice.lognormvariate(0.7, 0.5)), 0))
                    for _ in r
                ]
                for r in [range(40 * (task + 1))] * 4
            ]
            for task in range(9)
        ]
        if number:
            made.append([[Sample(index, (each_s * S, 0)) for index in range(number)]] * 4)
        ordered = [[sorted(batch) for batch in task] for task in made]
        starts = [[dice.randrange(30 * S) + batch * 180 * S for batch in range(3)] for _ in made]
        world = World(Way(fixed=(workers, 0)), ordered, starts).run()
        mine = [us / S for key, us in world.late_us.items() if key.tenant != "t9"]
        found[name] = {"mean_s": round(fmean(mine), 1), "worst_s": round(max(mine), 1)}
    return found


def plan_time(requests: int) -> dict[str, Any]:
    """Return the processor time of one plan of eight batches that begin."""
    dice = random.Random(4)
    loads = []
    for _ in range(8):
        begin_us = dice.randrange(120 * S)
        samples = drawn(dice, int(requests / 8 / 0.85))
        expected = [ExpectedRequest(begin_us + one.arrive_us, one.runs_us) for one in samples]
        loads.append(
            BatchLoad(route=Route(pools=(0, 1), latest_us=(120 * S, 60 * S)), requests=expected)
        )
    begun_s = time.process_time()
    floor = Floor(loads, max_delay_us=S)
    found = plan(floor, PoolCosts(cost=tuple(map(cost_of, POOLS)), most=(1 << 20, 1 << 20)))
    took_s = time.process_time() - begun_s
    return {
        "requests": sum(len(load.requests) for load in loads),
        "processor_s": round(took_s, 3),
        "workers": found.workers,
    }


def main() -> None:
    """Play the workload under each way of planning."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batch", type=int, default=2048)
    parser.add_argument("--batches", type=int, default=8, help="of each task")
    parser.add_argument("--ways", default=",".join(WAYS))
    parser.add_argument("--rollouts", default="colocated,disaggregated")
    parser.add_argument("--late", type=float, default=LATE, help="share of runs that time out")
    parser.add_argument("--parts", default="shared,alone,order,tenants,time")
    arguments = parser.parse_args()
    result: dict[str, Any] = {"benchmark": "reward_pools", "batch": arguments.batch}
    parts, size = arguments.parts.split(","), arguments.batch
    if "time" in parts:
        result["plan_of_16000"] = plan_time(16_000)
    if "order" in parts:
        result["order"] = by_order(size=size, most_delay_s=3.0, late=arguments.late)
    if "tenants" in parts:
        result["tenants"] = tenants()
    if "alone" in parts:
        result["alone"] = alone(size=size, batches=2 * arguments.batches)
    for rollouts in arguments.rollouts.split(",") if "shared" in parts else ():
        ways = arguments.ways.split(",")
        result[rollouts] = shared(
            ways, rollouts=rollouts, size=size, batches=arguments.batches, late=arguments.late
        )
    print(json.dumps(result))


if __name__ == "__main__":
    main()
