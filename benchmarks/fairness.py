"""Device time of two tenants that want the same nodes, one with ten times the jobs of the other.

    python -m benchmarks.fairness [--seeds 1 2 3] [--policies plex spread_backfill]

Plays the preset `tenants` and prints a JSON line a run: device time of `few` over that of `many`
up to the moment at which three quarters of the jobs of `few` have started. Until then both have
jobs that wait; at equal weights the ratio should be 1.
"""

from __future__ import annotations

import argparse
import json
from collections import Counter

from plexsvc.scheduler.core.planning.policies import policy_named
from plexsvc.sim.presets import preset_named
from plexsvc.sim.run import play
from plexsvc.sim.workloads import Workload


def few_over_many(workload: Workload, *, policy: str, seed: int) -> float:
    """Return the device time of `few` over that of `many` while both have jobs that wait."""
    records = play(workload, policy=policy_named(policy), seed=seed).outcome.records
    starts = sorted(r.start_us or 0 for r in records if r.job.demand.tenant == "few")
    until_us = starts[len(starts) * 3 // 4]
    used = Counter[str]()
    for record in records:
        spans = ((start, min(end, until_us)) for start, end in record.busy if start < until_us)
        used[record.job.demand.tenant] += sum(end - start for start, end in spans)
    return used["few"] / used["many"]


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--seeds", nargs="*", type=int, default=[1, 2, 3])
    options.add_argument("--policies", nargs="*", default=["plex", "spread_backfill"])
    asked = options.parse_args()
    for seed in asked.seeds:
        workload = preset_named("tenants", seed=seed)
        for policy in asked.policies:
            ratio = few_over_many(workload, policy=policy, seed=seed)
            found = {"policy": policy, "seed": seed, "few_over_many": round(ratio, 4)}
            print(json.dumps({"benchmark": "fairness", **found, "target": [0.95, 1.05]}))


if __name__ == "__main__":
    main()
