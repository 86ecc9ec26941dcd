"""Error of the ring: predicted against measured slowdown of each shared placement.

`python -m benchmarks.forecast_error [--preset cluster-256] [--seeds 1 2 3]` plays the preset as it
ships and prints one line for each way to predict. A *stay* is the time that a job spends with the
same company. What a way says when a stay begins is compared with the cycles that were measured in
it, over what they take alone. Stays of fewer than `MIN_CYCLES` cycles are left out: one late cycle
would decide them.

- `ring`: what placement asks (`planning/ring.py`).
- `at once`: the same with all ready at the start, not where they were last seen.
- `flat`: its closed form for every job, rounds never played.
- `device time`: the sum of everyone's device time over the period, as if nobody met by chance.
- `nothing`: sharing costs nothing.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Final

from plexsvc.ids import ResidentId
from plexsvc.scheduler.core.planning.planner import Planner
from plexsvc.scheduler.core.planning.policies import policy_named
from plexsvc.scheduler.core.planning.profile import PPM, Lodger
from plexsvc.scheduler.core.planning.ring import turned
from plexsvc.sim.presets import preset_named
from plexsvc.sim.run import play

MIN_CYCLES: Final = 10


def _ring(lodgers: Sequence[Lodger]) -> dict[ResidentId, int]:
    return turned(lodgers).slowdowns


def _at_once(lodgers: Sequence[Lodger]) -> dict[ResidentId, int]:
    return _ring([replace(one, since_us=0) for one in lodgers])


def _flat(lodgers: Sequence[Lodger]) -> dict[ResidentId, int]:
    return _ring([replace(one, load=replace(one.load, bursts=())) for one in lodgers])


def _device_time(lodgers: Sequence[Lodger]) -> dict[ResidentId, int]:
    def sum_ppm(one: Lodger) -> int:
        units = set(one.units)
        return sum(k.load.total_ppm for k in lodgers if not units.isdisjoint(k.units))

    return {one.resident_id: max(PPM, sum_ppm(one)) for one in lodgers}


WAYS: Final[dict[str, Callable[[Sequence[Lodger]], dict[ResidentId, int]]]] = {
    "ring": _ring,
    "at once": _at_once,
    "flat": _flat,
    "device time": _device_time,
    "nothing": lambda lodgers: {one.resident_id: PPM for one in lodgers},
}


@dataclass(slots=True, kw_only=True)
class Stay:
    """A job's cycles with the same company."""

    company: frozenset[ResidentId]
    said_ppm: dict[str, int]
    last_us: int
    took_us: int = 0
    alone_us: int = 0
    cycles: int = 0


@dataclass(slots=True)
class Watch:
    """The stays of a run, as cycles are seen to start."""

    stays: dict[ResidentId, Stay] = field(default_factory=dict)
    ended: list[Stay] = field(default_factory=list)

    def note(self, planner: Planner, resident_id: ResidentId, at_us: int, alone_us: int) -> None:
        """Count the cycle that ends now, or begin another stay."""
        group = planner.group_of(resident_id)
        mine = group.residents[resident_id]
        lodgers = [one.lodger() for one in group.residents.values()]
        company = frozenset(one.demand.resident_id for one in group.on(mine.units))
        stay = self.stays.get(resident_id)
        if stay is not None and stay.company == company:
            stay.took_us += at_us - stay.last_us
            stay.alone_us += alone_us or mine.demand.profile.period_us
            stay.cycles += 1
            stay.last_us = at_us
            return
        if stay is not None:
            self.ended.append(stay)
        said_ppm = {name: way(lodgers)[resident_id] for name, way in WAYS.items()}
        self.stays[resident_id] = Stay(company=company, said_ppm=said_ppm, last_us=at_us)

    def counted(self) -> list[Stay]:
        """Return the stays among others that lasted."""
        stays = [*self.ended, *self.stays.values()]
        return [s for s in stays if s.cycles >= MIN_CYCLES and len(s.company) > 1]


@contextmanager
def watching() -> Iterator[Watch]:
    """Note every cycle that a planner is told of."""
    watch, shipped = Watch(), Planner.note_phase

    def note(self: Planner, resident_id: ResidentId, at_us: int, *, alone_us: int = 0) -> None:
        shipped(self, resident_id, at_us, alone_us=alone_us)
        watch.note(self, resident_id, at_us, alone_us)

    Planner.note_phase = note  # type: ignore[method-assign]
    try:
        yield watch
    finally:
        Planner.note_phase = shipped  # type: ignore[method-assign]


def main() -> None:
    """Print the errors of each way."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--preset", default="cluster-256")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--policy", default="plex")
    parser.add_argument("--cold", action="store_true")
    args = parser.parse_args()
    stays: list[Stay] = []
    for seed in args.seeds:
        with watching() as watch:
            workload = preset_named(args.preset, seed=seed)
            play(workload, policy=policy_named(args.policy), seed=seed, is_cold=args.cold)
        stays.extend(watch.counted())
    assert stays, f"{args.preset}: no stay of {MIN_CYCLES} cycles among others"
    measured = [stay.took_us / stay.alone_us for stay in stays]
    print(
        f"{args.preset}, seeds {args.seeds}: {len(stays)} stays of {MIN_CYCLES} cycles and more, "
        f"measured slowdown {statistics.mean(measured):.3f} on average"
    )
    print("| way | median error | p95 error | mean of predicted - measured |\n|---|---|---|---|")
    for name in WAYS:
        errors = [s.said_ppm[name] / PPM - m for s, m in zip(stays, measured, strict=True)]
        sizes = sorted(map(abs, errors))
        p95 = sizes[min(len(sizes) - 1, len(sizes) * 95 // 100)]
        print(
            f"| {name} | {statistics.median(sizes):.3f} | {p95:.3f} | "
            f"{statistics.mean(errors):+.3f} |"
        )


if __name__ == "__main__":
    main()
