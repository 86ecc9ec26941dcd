"""Worth of each mechanism of the scheduler: presets with it and without it, in virtual time.

`python -m benchmarks.ablation [--presets order-3 steady] [--seeds 1 2 3 4 5] > runs.jsonl` prints
one JSON line for each run; `--table runs.jsonl` prints what each mechanism is worth. `none` is the
policy as it ships, `all` is without every mechanism that `--table` said to show nothing.

A mechanism is kept if a preset drains more than 2 % later without it, or has a p95 slowdown more
than 0.02 higher, for at least three of five seeds; or if a promise needs it (`PROMISES`), whatever
the figures say. A run is a process of its own, because a mechanism is switched off by replacing
what decides it.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import numpy as np

from plexsvc.scheduler.core.device import contest
from plexsvc.scheduler.core.place import placing
from plexsvc.scheduler.core.planning import (
    groups,
    places,
    planner,
    policies,
    profile,
    profiler,
    shares,
    waiting,
)
from plexsvc.scheduler.core.planning.policies import PLEX, Policy
from plexsvc.scheduler.core.planning.profile import PPM
from plexsvc.scheduler.core.planning.runtime_rules import Order
from plexsvc.scheduler.core.relocate import movers
from plexsvc.sim.cluster import SimCluster
from plexsvc.sim.workloads import Workload, cluster_job

MIN_DRAIN: Final = 0.02
MIN_P95: Final = 0.02
MIN_SEEDS: Final = 3
COLD: Final = "-cold"
"""Ending of a preset's name: no cycle is known before it was measured."""
FEWER: Final[dict[str, dict[str, Any]]] = {
    "drift-300": {"num_jobs": 300},
    "stale-300": {"factors": (0.5, 1.0, 2.0), "num_jobs": 300},
    "stale-random-600": {"factors": (0.5, 1.0, 2.0), "num_jobs": 600},
}
"""Presets with fewer jobs, which take a minute or two."""

ONE_MACHINE: Final = {"one-machine": False, "one-machine-long": True}
"""Names of `one_machine`, and whether the large jobs are long."""

PRESETS: Final = (
    *ONE_MACHINE,
    *("order-3", "two-job-7b-boundary", "k-job-30b-boundary", "steady", "one-cycle"),
    *("several-bursts", "bursty", "churn", "losses", "giant-gang", "tenants", "both-pools"),
    *("cluster-256", "cluster-256-cold", "stale-double", "stale-random", "drift"),
)
PROMISES: Final = {
    "reservations": "no starvation",
    "making room": "no starvation where idle devices lie apart: here all gangs are whole nodes",
    "parts": "small jobs do not wait until large ones have ended",
    "pressing": "granted priorities start soon",
    "fair turns": "tenants get devices by weight",
    "bounds": "a job's slowdown keeps to its bound",
}


def _off(owner: object, name: str, value: object) -> Callable[[Policy], Policy]:
    def switch(policy: Policy) -> Policy:
        setattr(owner, name, value)
        return policy

    return switch


def _still(cause: str) -> Callable[[Policy], Policy]:
    """Have nobody move for one cause."""
    return _off(movers, "MOVERS", tuple(one for one in movers.MOVERS if one.cause != cause))


def _policy(**parts: object) -> Callable[[Policy], Policy]:
    return lambda policy: replace(policy, **parts)  # type: ignore[arg-type]


def _no_return(policy: Policy) -> Policy:
    """Have a job that lost its place look for one as any other does, if before others."""
    for module in (places, waiting, planner):
        module.lived_with = lambda *_: False  # type: ignore[attr-defined]
    planner.Planner.lose = (  # type: ignore[method-assign]
        lambda self, resident_id, **_: self.group_of(resident_id).group_id
    )
    return policy


def _no_reservations(policy: Policy) -> Policy:
    """Have the longest job go first however long others wait, and nothing kept for anybody."""
    for module in (waiting, planner):
        module.may_reserve = lambda *_, **__: False  # type: ignore[attr-defined]
    return replace(policy, patience_ppm=1 << 62, patience_us=1 << 62)


def one_machine(*, seed: int, is_long: bool) -> Workload:
    """Return one machine of 8 devices and 40 jobs of 8, 4 and 2 of them.

    They come every 20 minutes and take one to three hours; or every hour, and the large ones, of
    which the first is one, take four times as long as those of two devices.
    """
    dice = np.random.default_rng([seed, 8421 + is_long])
    cluster, jobs, at_s = SimCluster(nodes=8), [], 0.0
    for at in range(40):
        period_s = float(dice.uniform(120, 360))
        gang = int(dice.choice([8, 4, 2])) if at or not is_long else 8
        hours = dice.uniform(0.75, 1.5) * gang / 2 if is_long else dice.uniform(1, 3)
        job = cluster_job(
            f"job-{at:02d}",
            cluster=cluster,
            arrival_s=at_s,
            gang=gang,
            cycles=max(1, round(float(hours) * 3600 / period_s)),
            period_s=period_s,
            duty=float(dice.uniform(0.15, 0.40)),
        )
        jobs.append(job)
        at_s += float(dice.exponential(3600 if is_long else 1200))
    return Workload(jobs=tuple(jobs), cluster=cluster)


def _no_bounds(policy: Policy) -> Policy:
    """Have nobody refused a place, or moved, for what sharing is predicted to cost."""
    ends_late = places.Search._ends_late

    def costs(*asked: Any, **given: Any) -> bool:
        ends_late(*asked, **given)
        return False

    _off(places.Search, "_ends_late", costs)(policy)
    _off(places.Search, "is_over", lambda *_: False)(policy)
    _off(places, "_is_beyond", lambda *_, **__: False)(policy)
    return _still("keeping apart")(policy)


def _no_slack(policy: Policy) -> Policy:
    """Have every wait count as one that lengthens its job's cycle."""
    weigh = contest._weigh

    def critical(devices: Any, wpg: Any, entry: Any) -> None:
        weigh(devices, wpg, entry)
        entry.is_critical = True

    return _off(contest, "_weigh", critical)(policy)


def _no_judgement(policy: Policy) -> Policy:
    """Have records of earlier runs believed as they are, however wrong others were."""
    _off(profiler.ProfileBook, "believed", lambda _, kept: kept.profile)(policy)
    return _off(profiler.ProfileBook, "has_shifted", lambda _: False)(policy)


MECHANISMS: Final[dict[str, Callable[[Policy], Policy]]] = {
    "none": lambda policy: policy,
    "rounds played": _off(profile, "is_sharp", lambda _: False),
    "bounds": _no_bounds,
    "duty cap": _policy(duty_cap_ppm=PPM),
    "repacking": _still("repacking"),
    "reservations": _no_reservations,
    "longest first": _off(waiting, "_key", lambda demand, *_: (demand.arrived_us,)),
    "making room": _still("making room"),
    "pressing": _off(waiting.Kept, "may_press", lambda *_: False),
    "fair turns": _off(shares.Shares, "in_turn", lambda _, ordered, **__: iter(ordered)),
    "relief": _still("relief"),
    "last bursts": _off(places.Search, "_ends_late", lambda *_, **__: False),
    "parts": _off(places.Search, "larger_groups", lambda *_: []),
    "merges": _off(places.Search, "merging", lambda *_, **__: []),
    "keeping apart": _still("keeping apart"),
    "return": _no_return,
    "lingering": _off(contest, "linger_us", lambda **_: 0),
    "bursts kept": _off(contest, "_continues_burst", lambda *_: False),
    "prefetch": _off(contest, "expected_next", lambda *_: None),
    "slack": _no_slack,
    "order of plex": _policy(order=Order.HRRS),
    "records judged": _no_judgement,
    "kept left": _off(waiting.Kept, "keep_left", lambda *_, **__: None),
    "growth": _off(groups.Resident, "grew_ppm", 0),
    "renewing": _off(placing, "renew", lambda _: None),
    "devices kept for instances": _off(
        placing._IdleKept,
        "passed_by",
        lambda *_, **__: True,
    ),
}


def run(preset: str, seed: int, without: str, queue: Any) -> None:
    """Play a preset without some mechanisms, joined by `+`, and put its line into a queue."""
    policy = PLEX
    for name in without.split("+"):
        policy = MECHANISMS[name](policy)
    mine = replace(policy, name="mine")
    policies.POLICIES = {**policies.POLICIES, "mine": mine}  # type: ignore[misc] # limits name it
    from plexsvc.sim import presets
    from plexsvc.sim.run import compare

    if preset in ONE_MACHINE:
        workload = one_machine(seed=seed, is_long=ONE_MACHINE[preset])
    elif preset in FEWER:
        workload = getattr(presets, preset.split("-", maxsplit=1)[0])(seed=seed, **FEWER[preset])
    else:
        workload = presets.preset_named(preset.removesuffix(COLD), seed=seed)
    began_s = time.process_time()
    line: dict[str, Any] = {"preset": preset, "seed": seed, "without": without}
    try:
        summary, outcome = compare(workload, policy=mine, seed=seed, is_cold=preset.endswith(COLD))
    except Exception as error:  # noqa: BLE001 - a run that never ends is a result
        queue.put(line | {"error": str(error)[:200]})
        return
    names = ["drain_s", "drain_ratio", "slowdown_mean", "slowdown_p95", "slowdown_max"]
    names += ["wait_ratio_p99", "beyond_bound"]
    line |= {name: getattr(summary, name) for name in names}
    line |= {"events": outcome.events, "cpu_s": round(time.process_time() - began_s, 1)}
    queue.put(line)


def table(lines: Iterable[dict[str, Any]]) -> str:
    """Return a row for each mechanism: the preset that needs it most, with both figures."""
    found: dict[str, dict[str, dict[int, dict[str, Any]]]] = defaultdict(lambda: defaultdict(dict))
    for line in lines:
        found[line["without"]][line["preset"]][line["seed"]] = line
    rows = [
        "| without | preset | drain | p95 slowdown | seeds that need it | verdict |",
        "|---|---|---|---|---|---|",
    ]
    for name, presets in found.items():
        if name == "none":
            continue
        worth = [
            _worth(preset, with_it=found["none"][preset], without=seeds)
            for preset, seeds in presets.items()
        ]
        count, _, text = max(worth, default=(0, 0.0, "-"))
        is_kept = count >= MIN_SEEDS
        verdict = "kept" if is_kept else PROMISES.get(name, "**goes**")
        rows.append(f"| {name} | {text} | {count} | {verdict} |")
    return "\n".join(rows)


def _worth(
    preset: str, *, with_it: dict[int, dict[str, Any]], without: dict[int, dict[str, Any]]
) -> tuple[int, float, str]:
    """Return for how many seeds a preset needs a mechanism, the largest loss, and figures."""
    count, most, text = 0, -1.0, f"{preset} | - | -"
    for seed in sorted(with_it.keys() & without.keys()):
        a, b = with_it[seed], without[seed]
        if "error" in b or "error" in a:
            count += "error" in b and "error" not in a
            most, text = 9.0, f"{preset} | never ends | -"
            continue
        drain = b["drain_s"] / a["drain_s"] - 1
        p95 = b["slowdown_p95"] - a["slowdown_p95"]
        count += drain > MIN_DRAIN or p95 > MIN_P95
        if max(drain, p95) > most:
            most = max(drain, p95)
            figures = [f"{one['slowdown_p95']:.3f}" for one in (a, b)]
            hours = [f"{one['drain_s'] / 3600:.2f}" for one in (a, b)]
            text = f"{preset} | {' → '.join(hours)} h | {' → '.join(figures)}"
    return count, most, text


def main() -> None:
    """Play, or print the table of what was played."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--presets", nargs="*", default=list(PRESETS))
    parser.add_argument("--seeds", nargs="*", type=int, default=[1, 2, 3, 4, 5])
    parser.add_argument("--without", nargs="*", default=list(MECHANISMS), help="names, or a+b+c")
    parser.add_argument("--table", type=Path, help="print the table of an earlier output")
    asked = parser.parse_args()
    if asked.table:
        print(table(map(json.loads, asked.table.read_text().splitlines())))
        return
    context = multiprocessing.get_context("spawn")
    for preset in asked.presets:
        for without in asked.without:
            for seed in asked.seeds:
                queue = context.SimpleQueue()
                process = context.Process(target=run, args=(preset, seed, without, queue))
                process.start()
                process.join()
                line = queue.get() if not queue.empty() else {}
                print(json.dumps(line), flush=True)
                print(preset, without, seed, file=sys.stderr)


if __name__ == "__main__":
    main()
