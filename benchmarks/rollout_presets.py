"""Simulated rollouts of all presets, one JSON line each.

    python -m benchmarks.rollout_presets [--seed 1] [--only rlboost-a] [--traffic FILE] [--load 2]

Serving engines get the requests of a trace of the Azure or Mooncake kind (`.csv.gz`), or generated
ones, `--load` times as fast. A line is that of `plexctl simulate --rollout PRESET --json`, without
its runs.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from benchmarks.rose.settings import LENT, TRAFFIC_S, compare_lending, lent_json
from benchmarks.rose.traffic import Traffic, faster, read_traffic
from plexsvc.sim.rollout.presets import PRESETS, rollout_preset
from plexsvc.sim.rollout.report import compare_rollouts


def main() -> None:
    """Play the presets whose names begin as asked."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", default="")
    parser.add_argument("--traffic", type=Path)
    parser.add_argument("--load", type=float, default=1.0)
    options = parser.parse_args()
    for name in filter(lambda one: one.startswith(options.only), [*PRESETS, *LENT]):
        if name in LENT:
            line = _lent(name, seed=options.seed, path=options.traffic, load=options.load)
        else:
            line, _ = compare_rollouts(
                rollout_preset(name), seed=options.seed, told=lambda _policy, _step: None
            )
            line.pop("runs")
        print(json.dumps(line), flush=True)


def _lent(name: str, *, seed: int, path: Path | None, load: float) -> dict[str, object]:
    plain = read_traffic(path) if path else Traffic().draw(seconds=TRAFFIC_S, seed=seed)
    found = compare_lending(LENT[name](), seed=seed, traffic=faster(plain, load))
    told = f"{path.name if path else 'generated'}, {load:g} times as fast"
    return lent_json(found, preset=name, seed=seed, traffic=told)


if __name__ == "__main__":
    main()
