"""How long picking the next of 10,000 pending operations takes: one JSON line."""

from __future__ import annotations

import json
import time

import numpy as np

from plexsvc.ids import JobId
from plexsvc.scheduler.core.planning.pending import PendingTable

PENDING = 10_000
ROUNDS = 5_000


def main() -> None:
    dice = np.random.default_rng(1)
    table: PendingTable[int] = PendingTable()
    for key in range(PENDING):
        _add(table, key, dice, now_us=0)
    cpu, wall = [], []
    now_us, key = 10**8, PENDING
    for _ in range(ROUNDS):
        now_us += 10**5
        began, began_cpu = time.perf_counter_ns(), time.thread_time_ns()
        picked = table.pick(now_us=now_us)
        cpu.append(time.thread_time_ns() - began_cpu)
        wall.append(time.perf_counter_ns() - began)
        table.remove(picked)
        _add(table, key, dice, now_us=now_us)
        key += 1
    report = {"pending": PENDING, "rounds": ROUNDS}
    for name, values in (("cpu", cpu), ("wall", wall)):
        for q in (50, 99):
            report[f"{name}_p{q}_us"] = round(float(np.percentile(values, q)) / 1000, 1)
    print(json.dumps(report))


def _add(table: PendingTable[int], key: int, dice: np.random.Generator, *, now_us: int) -> None:
    table.add(
        key,
        job_id=JobId(f"job-{key % 300}"),
        since_us=now_us - int(dice.integers(0, 10**8)),
        service_us=int(dice.integers(10**6, 10**8)),
        setup_us=int(dice.integers(3 * 10**6, 19 * 10**6)),
    )


if __name__ == "__main__":
    main()
