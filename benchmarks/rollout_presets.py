"""Simulated rollouts of all presets, one JSON line each.

    python -m benchmarks.rollout_presets [--seed 1] [--only rlboost-a]

A line is that of `plexctl simulate --rollout PRESET --json`, without its runs.
"""

from __future__ import annotations

import argparse
import json

from plexsvc.sim.rollout.planned import as_json, compare_plans
from plexsvc.sim.rollout.presets import PLANNED, PRESETS, rollout_preset
from plexsvc.sim.rollout.report import compare_rollouts


def main() -> None:
    """Play the presets whose names begin as asked."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", default="")
    options = parser.parse_args()
    for name in filter(lambda one: one.startswith(options.only), [*PRESETS, *PLANNED]):
        if name in PLANNED:
            line = as_json(
                compare_plans(PLANNED[name](), seed=options.seed), preset=name, seed=options.seed
            )
        else:
            summary, _ = compare_rollouts(
                rollout_preset(name), seed=options.seed, told=lambda _policy, _step: None
            )
            line = summary.as_json()
            line.pop("runs")
        print(json.dumps(line), flush=True)


if __name__ == "__main__":
    main()
