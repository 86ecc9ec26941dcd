"""Worker time of planned reward pools against zero-queue pools of each task, in virtual time.

`python -m benchmarks.reward_pools [--batch 2048] [--soft]` prints one JSON line. Tasks share the
pools, each with its own tenant, through the proxy's queue; plans are made when a batch begins or
ends. The workload is drawn, not recorded: rollouts end by lengths that are lognormal (median 6,000
tokens, sigma 0.5, at most 16,384, of 330 s); 15 % of the samples are not compiled; a compilation
takes lognormally about 50 s (sigma 0.25), 2 % take all of 120 s, and 20 % of the others fail; a run
takes about 3 s (sigma 0.5), 3 % take all of 60 s.
"""

from __future__ import annotations

import argparse
import heapq
import itertools
import json
import random
import time
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from typing import Any

from plexsvc.ids import JobId, TenantId
from plexsvc.reward.core.planning import (
    ActiveBatch,
    Forecast,
    Plan,
    StageCosts,
    ends_of,
    expected,
    plan,
)
from plexsvc.reward.core.queues import PoolQueue, Urgency
from plexsvc.reward.core.vocabulary import BatchId, RequestId

S = 1_000_000
TIMEOUTS_US = (120 * S, 60 * S)
SOFT_US = (75 * S, 15 * S)
"""Of the softer rule: what all but the endless ones take."""
LATEST_US = {"soft": SOFT_US, "history": (0, 0), "ideal": (0, 0)}
"""The rule on timeouts of each way of planning; the rest take the published one."""
NUM_TASKS, NUM_BATCHES, PERIOD_S, MAX_DELAY_US = 6, 5, 600, S


def drawn(dice: random.Random, size: int) -> list[Forecast]:
    """Return one batch, arrivals from its begin."""
    return [
        Forecast(batch="", arrive_us=_rollout_us(dice), run_us=_runs_us(dice)) for _ in range(size)
    ]


def _rollout_us(dice: random.Random) -> int:
    tokens = min(16_384.0, 6000 * dice.lognormvariate(0, 0.5))
    return int(330 * S * tokens / 16_384)


def _runs_us(dice: random.Random) -> tuple[int, int]:
    if dice.random() < 0.15:
        return (0, 0)
    compiled = 120.0 if dice.random() < 0.02 else min(119.0, 50 * dice.lognormvariate(0, 0.25))
    if compiled == 120.0 or dice.random() < 0.2:
        return (int(compiled * S), 0)
    run = 60.0 if dice.random() < 0.03 else min(59.0, 3 * dice.lognormvariate(0, 0.5))
    return (int(compiled * S), int(run * S))


@dataclass
class Active:
    """A batch under way."""

    key: BatchId
    begun_us: int
    requests: list[Forecast]
    history: list[Forecast]
    expected_end_us: int
    left: int
    queued: dict[int, int] = field(default_factory=lambda: {0: 0, 1: 0})
    running: dict[int, tuple[int, int]] = field(default_factory=dict)


class World:
    """Tasks, queues and pools in virtual time."""

    def __init__(self, batches: Sequence[Sequence[list[Forecast]]], how: str) -> None:
        self.batches, self.how = batches, how
        self.costs = StageCosts(
            cost=(1.0, 20.0),
            latest_us=LATEST_US.get(how, TIMEOUTS_US),
            most=(1 << 20, 1 << 20),
        )
        self.events: list[tuple[int, int, str, Any]] = []
        self.number = 0
        self.queues = [PoolQueue(), PoolQueue()]
        self.workers, self.busy = [0, 0], [0, 0]
        self.worker_us, self.at_us = [0, 0], 0
        self.active: dict[Hashable, Active] = {}
        self.delays_us: list[int] = []
        self.planned_s: list[float] = []
        self.peak = [0, 0]

    def run(self) -> None:
        """Play every batch but each task's first, which is only history."""
        dice = random.Random(7)
        for task in range(len(self.batches)):
            offset_us = dice.randrange(120 * S)
            for number in range(1, len(self.batches[task])):
                self.post((number - 1) * PERIOD_S * S + offset_us, "begin", (task, number))
        while self.events:
            now_us, _, kind, what = heapq.heappop(self.events)
            for stage in range(2):
                held = max(self.workers[stage], self.busy[stage])
                self.worker_us[stage] += held * (now_us - self.at_us)
                self.peak[stage] = max(self.peak[stage], held)
            self.at_us = now_us
            getattr(self, f"on_{kind}")(*what)

    def post(self, at_us: int, kind: str, what: tuple[Any, ...]) -> None:
        """Have something happen."""
        self.number += 1
        heapq.heappush(self.events, (at_us, self.number, kind, what))

    def on_begin(self, task: int, number: int) -> None:
        """Begin a batch."""
        key = BatchId(TenantId(f"t{task}"), JobId("j"), str(number).encode())
        requests = self.batches[task][number]
        history = requests if self.how == "ideal" else self.batches[task][number - 1]
        lasts_us = max(ends_of(history).values())
        self.active[key] = Active(
            key, self.at_us, requests, history, self.at_us + lasts_us, len(requests)
        )
        self.replan()
        for index, request in enumerate(requests):
            self.post(self.at_us + request.arrive_us, "arrive", (key, index, 0))

    def on_arrive(self, key: BatchId, index: int, stage: int) -> None:
        """Let a request wait for its next stage, or end it."""
        batch = self.active[key]
        if stage == 2 or not batch.requests[index].run_us[stage]:
            batch.left -= 1
            if not batch.left:
                self.end(batch)
            return
        batch.queued[stage] += 1
        urgency = 0 if self.how == "fcfs" else batch.expected_end_us
        self.number += 1
        self.queues[stage].put(RequestId(key, index), Urgency(urgency, self.number))
        self.start(stage)

    def end(self, batch: Active) -> None:
        """Note how late a batch ended."""
        ideal_us = batch.begun_us + max(ends_of(batch.requests).values())
        self.delays_us.append(self.at_us - ideal_us)
        del self.active[batch.key]
        self.replan()

    def on_done(self, key: BatchId, index: int, stage: int) -> None:
        """Free a worker."""
        self.busy[stage] -= 1
        self.queues[stage].running[key.tenant] -= 1
        del self.active[key].running[index]
        self.on_arrive(key, index, stage + 1)
        self.start(stage)

    def start(self, stage: int) -> None:
        """Give free workers what waits."""
        queue = self.queues[stage]
        while self.busy[stage] < self.workers[stage]:
            found = queue.take(workers=self.workers[stage])
            if found is None:
                return
            batch = self.active[found.batch]
            batch.queued[stage] -= 1
            batch.running[found.sample] = (stage, self.at_us)
            self.busy[stage] += 1
            queue.running[found.batch.tenant] += 1
            run_us = batch.requests[found.sample].run_us[stage]
            self.post(self.at_us + run_us, "done", (found.batch, found.sample, stage))

    def replan(self) -> None:
        """Plan the pools anew."""
        known = [
            ActiveBatch(
                batch=batch.key,
                begun_us=batch.begun_us,
                history=batch.history,
                queued=batch.queued,
                running=[(stage, self.at_us - at) for stage, at in batch.running.values()],
            )
            for batch in self.active.values()
        ]
        requests = expected(known, now_us=self.at_us)
        begun = time.process_time()
        found = (
            plan(requests, self.costs, max_delay_us=MAX_DELAY_US)
            if requests
            else Plan(workers=(len(self.active) and 1,) * 2, is_met=True)
        )
        self.planned_s.append(time.process_time() - begun)
        self.workers = list(found.workers)
        for stage in range(2):
            self.start(stage)


def zero_queue_us(batches: Sequence[Sequence[list[Forecast]]]) -> list[int]:
    """Return the worker time of pools of each task that hold the last batch's peak."""
    total = [0, 0]
    for task in batches:
        for before, now in itertools.pairwise(task):
            lasts_us = max(ends_of(now).values()) - min(one.arrive_us for one in now)
            for stage in range(2):
                total[stage] += _peak(before, stage) * lasts_us
    return total


def _peak(batch: Sequence[Forecast], stage: int) -> int:
    """Return how many requests are in a stage at once when none ever waits."""
    steps: list[tuple[int, int]] = []
    for one in batch:
        if one.run_us[stage]:
            begin = one.arrive_us + sum(one.run_us[:stage])
            steps += [(begin, 1), (begin + one.run_us[stage], -1)]
    now = most = 0
    for _, step in sorted(steps):
        now += step
        most = max(most, now)
    return most


def main() -> None:
    """Play the workload under each way of planning."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batch", type=int, default=2048)
    parser.add_argument("--ways", default="published,soft,fcfs,history,ideal")
    arguments = parser.parse_args()
    dice = random.Random(1)
    batches = [[drawn(dice, arguments.batch) for _ in range(NUM_BATCHES)] for _ in range(NUM_TASKS)]
    dedicated = zero_queue_us(batches)
    work = [sum(r.run_us[s] for t in batches for b in t[1:] for r in b) for s in range(2)]
    result: dict[str, Any] = {"benchmark": "reward_pools", "batch": arguments.batch}
    result["zero_queue_hours"] = [round(us / 3.6e9, 1) for us in dedicated]
    result["needed_hours"] = [round(us / 3.6e9, 1) for us in work]
    for how in arguments.ways.split(","):
        world = World(batches, how)
        world.run()
        delays = sorted(world.delays_us)
        result[how] = {
            "cpu_saving": round(dedicated[0] / world.worker_us[0], 2),
            "gpu_saving": round(dedicated[1] / world.worker_us[1], 2),
            "mean_delay_s": round(sum(delays) / len(delays) / S, 2),
            "worst_delay_s": round(delays[-1] / S, 2),
            "peak_workers": world.peak,
            "plan_mean_s": round(sum(world.planned_s) / len(world.planned_s), 2),
        }
        print(json.dumps({how: result[how]}), flush=True)
    print(json.dumps(result))


if __name__ == "__main__":
    main()
