"""How long one placement decision takes (fit and commit), with what memory: one JSON line."""

from __future__ import annotations

import argparse
import json
import time
import tracemalloc

import numpy as np

from plexsvc.ids import ResidentId, UnitId
from plexsvc.scheduler.core.planning.board import Board
from plexsvc.scheduler.core.planning.planner import Planner
from plexsvc.scheduler.core.planning.policies import PLEX
from plexsvc.scheduler.core.planning.profile import SECOND_US, Demand, Mode, Profile, Segment
from plexsvc.scheduler.core.planning.rooms import UnitRoom


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--nodes", type=int, default=256)
    options.add_argument("--residents", type=int, default=600)
    options.add_argument("--decisions", type=int, default=500)
    options.add_argument("--memory", action="store_true", help="trace allocations; slower")
    asked = options.parse_args()
    dice = np.random.default_rng(1)
    if asked.memory:
        tracemalloc.start()
    planner = Planner(
        Board(UnitRoom(unit_id=UnitId(f"n{i:05d}")) for i in range(asked.nodes)), policy=PLEX
    )
    made = 0
    gang_sizes = _gang_sizes(asked.nodes, asked.residents)
    while len(planner.board.group_of) < asked.residents and made < 4 * asked.residents:
        made += 1
        planner.submit(_demand(made, dice, gang_sizes))
        planner.admit(made * SECOND_US)
        for waiting in list(planner.waiting):
            planner.withdraw(waiting)
    memory = tracemalloc.get_traced_memory()[0] if asked.memory else 0
    tracemalloc.stop()
    cpu, wall, placed = [], [], 0
    for _ in range(asked.decisions):
        made += 1
        jobs = list(planner.board.group_of)
        planner.remove(jobs[int(dice.integers(len(jobs)))])
        planner.admit(made * SECOND_US)
        planner.submit(_demand(made, dice, gang_sizes))
        began, began_cpu = time.perf_counter_ns(), time.thread_time_ns()
        placed += len(planner.admit(made * SECOND_US))
        cpu.append(time.thread_time_ns() - began_cpu)
        wall.append(time.perf_counter_ns() - began)
        for waiting in list(planner.waiting):
            planner.withdraw(waiting)
    report = {
        "nodes": asked.nodes,
        "residents": len(planner.board.group_of),
        "groups": len(planner.board.groups),
        "decisions": asked.decisions,
        "placed": placed,
        "memory_mb": round(memory / 1e6, 1) if asked.memory else None,
        "pruned_share": round(planner.fitter.pruned.share, 4),
        "pruned_by_free_nodes": round(planner.fitter.pruned.free_units_share, 4),
    }
    for name, values in (("cpu", cpu), ("wall", wall)):
        for q in (50, 99):
            report[f"{name}_p{q}_ms"] = round(float(np.percentile(values, q)) / 1e6, 3)
    print(json.dumps(report))


def _gang_sizes(nodes: int, residents: int) -> list[int]:
    """Return gang sizes so that about `residents` jobs fit at three a group."""
    mean = 3 * nodes / residents
    return [size for size in (1, 2, 4, 8, 16, 32) if size <= max(1, 2 * mean)]


def _demand(number: int, dice: np.random.Generator, gang_sizes: list[int]) -> Demand:
    period_us = round(dice.uniform(60, 900) * SECOND_US)
    weights = 1 / np.array(gang_sizes, dtype=float) ** 2
    size = int(dice.choice(gang_sizes, p=weights / weights.sum()))
    at, segments = 0, []
    duty = dice.uniform(0.15, 0.40)
    for phase, share in (("log_prob", 0.17), ("update", 0.66), ("sync", 0.17)):
        duration = round(period_us * duty * share)
        segments.append(Segment(phase=phase, offset_us=at, duration_us=duration))
        at += duration
    profile = Profile(
        period_us=period_us,
        segments=tuple(segments),
        mode=Mode.ASYNC1,
        switch_us=round(dice.uniform(3, 19) * SECOND_US),
        jitter_ppm=150_000,
    )
    return Demand(
        resident_id=ResidentId(f"job-{number}"),
        num_units=size,
        profile=profile,
        expected_us=3600 * SECOND_US,
    )


if __name__ == "__main__":
    main()
