"""One simulated serving device with a guest that always has something to do, by policy and load.

    python -m benchmarks.lent_device [--traffic FILE.csv.gz] [--loads 1 2] [--seed 1]

The device is one of the 16 of `rose-8b-flow`; load 1 is a sixteenth of the traffic, which is
generated or that of a trace of the Azure or Mooncake kind. Prints a JSON line for each load.
`harvested` is the guest's part of the time in which serving did not step.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import replace
from pathlib import Path
from typing import Final

from benchmarks.rose.coserved import Sharing
from benchmarks.rose.settings import TRAFFIC_S, compare_lending, lent_json, rose
from benchmarks.rose.traffic import Traffic, faster, read_traffic

POLICIES: Final = tuple(one for one in Sharing if one is not Sharing.ALONE)


def main() -> None:
    """Play each load."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--traffic", type=Path)
    parser.add_argument("--loads", type=float, nargs="+", default=[1, 2])
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    path = options.traffic
    plain = read_traffic(path) if path else Traffic().draw(seconds=TRAFFIC_S, seed=options.seed)
    work = replace(rose("8b", "flow"), engines=0, lenders=1, batch=32, steps=1)
    for load in options.loads:
        traffic = faster(plain, load)
        found = compare_lending(work, seed=options.seed, traffic=traffic, policies=POLICIES)
        told = f"{path.name if path else 'generated'}, {load:g} times as fast"
        line = lent_json(found, preset=work.name, seed=options.seed, traffic=told)
        print(json.dumps(line), flush=True)


if __name__ == "__main__":
    main()
