"""Presets under policies and seeds: one JSON line a run; with --table, the worst seed of each."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from dataclasses import asdict, replace

from plexsvc.scheduler.core.planning.policies import policy_named
from plexsvc.scheduler.core.planning.profile import PPM
from plexsvc.sim.presets import preset_named
from plexsvc.sim.run import compare, play

BASELINES = ["isolated_backfill", "pack", "spread", "spread_backfill", "plex"]
ORDERS = ["fcfs", "sjf", "hrrs", "torn", "no_prefetch"]
RUNS: dict[str, list[str]] = {
    **{
        f"{count}-job-{model}{sync}": ["plex", "plex_fcfs"]
        for count in ("two", "k")
        for model in ("7b", "30b", "235b")
        for sync in ("", "-boundary")
    },
    "order-3": ["plex", *(f"plex_{part}" for part in ORDERS)],
    "churn": ["plex"],
    "steady": ["spread_backfill", "plex"],
    "cluster-256": [*BASELINES, "plex_cold"],
    "no-gain": ["isolated_backfill", "plex"],
}
LOW_IS_WORSE = {"gpu_hours_reduction", "prefetch_hits", "utilisation"}
COLUMNS = (
    "drain_ratio",
    "lower_bound_ratio",
    "gpu_hours_reduction",
    "inflation",
    "slowdown_mean",
    "slowdown_p95",
    "wait_p99_of_isolated",
    "switches",
    "prefetch_hit_rate",
    "drain_h",
)


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--presets", nargs="*", default=list(RUNS), choices=list(RUNS))
    options.add_argument("--seeds", nargs="*", type=int, default=[1, 2, 3])
    options.add_argument(
        "--critical-target", type=float, help="predicted slowdown of critical jobs"
    )
    options.add_argument("--table", metavar="JSONL", help="print the table of an earlier output")
    asked = options.parse_args()
    if asked.table:
        with open(asked.table, encoding="utf-8") as lines:  # noqa: PTH123 - a path as given
            print(table([json.loads(line) for line in lines]))
        return
    for line in runs(asked.presets, asked.seeds, critical_target=asked.critical_target):
        print(json.dumps(line), flush=True)


def runs(
    presets: list[str], seeds: list[int], *, critical_target: float | None
) -> Iterator[dict[str, object]]:
    for preset in presets:
        for seed in seeds:
            workload = preset_named(preset, seed=seed)
            isolated = play(workload, policy=policy_named("isolated"), seed=seed)
            for name in RUNS[preset]:
                print(f"{preset} {name} seed {seed}", file=sys.stderr)
                is_cold = name == "plex_cold"
                policy = policy_named("plex" if is_cold else name)
                if critical_target is not None:
                    policy = replace(policy, critical_target_ppm=round(critical_target * PPM))
                summary, _ = compare(
                    workload, policy=policy, seed=seed, isolated=isolated, is_cold=is_cold
                )
                prefetches = summary.prefetch_hits + summary.prefetch_wasted
                hit_rate = summary.prefetch_hits / prefetches if prefetches else None
                yield {
                    "preset": preset,
                    **asdict(summary),
                    "policy": name,
                    "prefetch_hit_rate": hit_rate,
                    "drain_h": summary.drain_s / 3600,
                }


def table(lines: list[dict[str, object]]) -> str:
    """Return Markdown: a row a preset and policy, each value the worst over the seeds."""
    grouped: dict[tuple[str, str], list[dict[str, object]]] = {}
    for line in lines:
        grouped.setdefault((str(line["preset"]), str(line["policy"])), []).append(line)
    rows = [f"| preset | policy | {' | '.join(COLUMNS)} |", "|---" * (len(COLUMNS) + 2) + "|"]
    for (preset, policy), same in grouped.items():
        cells = " | ".join(_worst(same, column) for column in COLUMNS)
        rows.append(f"| {preset} | {policy} | {cells} |")
    return "\n".join(rows)


def _worst(lines: list[dict[str, object]], column: str) -> str:
    values = [float(str(line[column])) for line in lines if line[column] is not None]
    if not values:
        return "-"
    is_low = column in LOW_IS_WORSE or column == "prefetch_hit_rate"
    return f"{min(values) if is_low else max(values):.4g}"


if __name__ == "__main__":
    main()
