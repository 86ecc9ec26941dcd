"""Simulated rollouts of all presets, one JSON line each.

    python -m benchmarks.rollout_presets [--seed 1] [--only rlboost-a] [--traffic FILE] [--load 2]
    python -m benchmarks.rollout_presets --only spot-2-8b --export DIR
    python -m benchmarks.rollout_presets --file DIR/rollout.json

Serving engines get the requests of a trace of the Azure or Mooncake kind (`.csv.gz`), or generated
ones, `--load` times as fast. `--export` writes the first preset of those as a file, which may be
changed and played with `--file`.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from benchmarks.rlboost.report import compare_rollouts
from benchmarks.rlboost.settings import PRESETS, rollout_preset
from benchmarks.rlboost.workload import RolloutWorkload, read_workload, write_workload
from benchmarks.rose.settings import LENT, TRAFFIC_S, compare_lending, lent_json
from benchmarks.rose.traffic import Traffic, faster, read_traffic


def main() -> None:
    """Play the presets whose names begin as asked."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", default="")
    parser.add_argument("--traffic", type=Path)
    parser.add_argument("--load", type=float, default=1.0)
    parser.add_argument("--file", type=Path)
    parser.add_argument("--export", type=Path)
    options = parser.parse_args()
    if options.export:
        first = next(name for name in PRESETS if name.startswith(options.only))
        print(write_workload(options.export, rollout_preset(first)))
        return
    if options.file:
        print(json.dumps(_spot(read_workload(options.file), seed=options.seed)))
        return
    for name in filter(lambda one: one.startswith(options.only), [*PRESETS, *LENT]):
        if name in LENT:
            line = _lent(name, seed=options.seed, path=options.traffic, load=options.load)
        else:
            line = _spot(rollout_preset(name), seed=options.seed)
        print(json.dumps(line), flush=True)


def _spot(workload: RolloutWorkload, *, seed: int) -> dict[str, object]:
    line, _ = compare_rollouts(workload, seed=seed, told=lambda _policy, _step: None)
    line.pop("runs")
    return line


def _lent(name: str, *, seed: int, path: Path | None, load: float) -> dict[str, object]:
    plain = read_traffic(path) if path else Traffic().draw(seconds=TRAFFIC_S, seed=seed)
    found = compare_lending(LENT[name](), seed=seed, traffic=faster(plain, load))
    told = f"{path.name if path else 'generated'}, {load:g} times as fast"
    return lent_json(found, preset=name, seed=seed, traffic=told)


if __name__ == "__main__":
    main()
