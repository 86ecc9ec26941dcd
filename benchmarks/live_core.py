"""Agreement of the simulator with the live core: one trace through both.

    python -m benchmarks.live_core [--seeds 1 2 3] [--policy plex]

40 jobs arrive at load 5 on 16 devices; cycles as in `cluster-256` (one step of staleness, rollout
CV 0.15), 10-40 of them, switches of 3-13 s. `single`: gangs of one device; `gangs`: of 1, 2, 4. The
simulator asks planning and the groups' runtime alone (`planning`); the whole core plays warm (the
trace's profiles are known) or cold. Ratios are against the simulator's `isolated` run.
`events_per_min` is of the whole run on one core.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import replace

import numpy as np

from plexsvc.scheduler.core.planning.policies import policy_named
from plexsvc.sim.cluster import SimCluster
from plexsvc.sim.presets import Workload, cluster_256
from plexsvc.sim.run import compare, play
from plexsvc.sim.summary import Summary
from plexsvc.sim.trace_run import play_live

JOBS = 40
DEVICES = 16
LOAD = 5.0


def workload(*, seed: int, gangs: tuple[int, ...]) -> Workload:
    """Return the trace of a seed."""
    dice = np.random.default_rng([seed, DEVICES])
    jobs = [
        replace(
            job,
            cycles=int(dice.integers(10, 40)),
            demand=replace(job.demand, num_units=int(dice.choice(gangs))),
        )
        for job in cluster_256(seed=seed, num_jobs=JOBS).jobs
    ]
    work_us = sum(j.demand.num_units * j.cycles * j.demand.profile.period_us for j in jobs)
    arrivals_us = np.sort(dice.uniform(0, work_us / (LOAD * DEVICES), JOBS))
    placed = [
        replace(
            job,
            demand=replace(
                job.demand,
                arrived_us=int(at_us),
                expected_us=job.cycles * job.demand.profile.period_us,
            ),
        )
        for job, at_us in zip(jobs, arrivals_us, strict=True)
    ]
    cluster = SimCluster(nodes=DEVICES, devices_per_node=1)
    return Workload(jobs=tuple(placed), cluster=cluster)


def row(name: str, core: str, found: Summary) -> dict[str, object]:
    """Return what one run came to."""
    return {
        "trace": name,
        "core": core,
        "seed": found.seed,
        "drain_ratio": found.drain_ratio,
        "slowdown_mean": found.slowdown_mean,
        "slowdown_p95": found.slowdown_p95,
        "slowdown_max": found.slowdown_max,
        "gpu_hours_reduction": found.gpu_hours_reduction,
        "switches": found.switches,
        "prefetch_hits": found.prefetch_hits,
        "prefetch_wasted": found.prefetch_wasted,
        "events": found.events,
        "events_per_min": round(60 * found.events / max(found.wall_s, 1e-3), -3),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--policy", default="plex")
    args = parser.parse_args()
    policy = policy_named(args.policy)
    for name, gangs in (("single", (1,)), ("gangs", (1, 2, 4))):
        for seed in args.seeds:
            made = workload(seed=seed, gangs=gangs)
            isolated = play(made, policy=policy_named("isolated"), seed=seed)
            planned, _ = compare(made, policy=policy, seed=seed, isolated=isolated)
            print(json.dumps(row(name, "planning", planned)), flush=True)
            for is_cold in (False, True):
                live, _ = compare(
                    made, policy=policy, seed=seed, isolated=isolated, is_cold=is_cold, by=play_live
                )
                core = "live cold" if is_cold else "live warm"
                print(json.dumps(row(name, core, live)), flush=True)


if __name__ == "__main__":
    main()
