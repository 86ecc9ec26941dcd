"""Costs of actions fitted to a part of a live run: lines over tokens and bytes, and their noise.

The part is the first `share` of each class of samples, so what comes after is predicted and not
copied. Noise is drawn by seed from the part's own residuals: where jobs queue, its mean alone would
promise too much. The first operation of a kind on a deployment is a class of its own: it compiles
and warms.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Final, TypeVar

import numpy as np

from plexsvc.errors import ErrorCode
from plexsvc.ids import DeploymentId, NodeId
from plexsvc.residency import Residency
from plexsvc.scheduler.core.vocabulary import OperationKind, Place
from plexsvc.sim.costs import Moved, Spawned, Took, Work
from plexsvc.sim.observed import MoveSample, Observed, OperationSample

_Sample = TypeVar("_Sample")

MIN_FOR_LINE: Final = 6
"""Samples a line needs; fewer give their mean."""
MIN_EXPLAINED: Final = 0.3
"""Share of the variance a line must explain to be preferred to the mean."""
UNKNOWN_US: Final = 1_000
"""What is assumed of an action the run never made."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """A cost as `base + slope * size`, never below `least`."""

    base: float
    slope: float = 0.0
    least: float = 0.0

    def at(self, size: float) -> int:
        """Return the cost of a size."""
        return round(max(self.least, self.base + self.slope * size))


def fit(sizes: Sequence[float], costs: Sequence[float]) -> Line:
    """Return the line through samples if sizes explain costs, else the mean.

    >>> fit([1, 2, 3, 4, 5, 6], [12, 14, 16, 18, 20, 22]).at(10)
    30
    >>> fit([1, 2], [10, 20]).at(100)
    15
    """
    x, y = np.asarray(sizes, float), np.asarray(costs, float)
    mean = Line(base=float(y.mean()))
    if len(x) < MIN_FOR_LINE or x.std() == 0 or y.std() == 0:
        return mean
    correlation = float(np.corrcoef(x, y)[0, 1])
    slope = correlation * float(y.std() / x.std())
    if slope <= 0 or correlation**2 < MIN_EXPLAINED:
        return mean
    return Line(base=float(y.mean() - slope * x.mean()), slope=slope, least=float(y.min()) / 2)


@dataclass(frozen=True, slots=True, kw_only=True)
class Noisy:
    """A line and what its samples differed from it."""

    line: Line
    residuals: tuple[float, ...]

    def draw(self, size: float, dice: np.random.Generator) -> int:
        """Return the cost of a size with one sample's luck; at least a microsecond."""
        luck = self.residuals[int(dice.integers(len(self.residuals)))]
        return max(1, round(self.line.at(size) + luck))


def noisy(sizes: Sequence[float], costs: Sequence[float]) -> Noisy:
    """Return the fit of samples with their noise."""
    line = fit(sizes, costs)
    residuals = (cost - line.at(size) for size, cost in zip(sizes, costs, strict=True))
    return Noisy(line=line, residuals=tuple(residuals))


@dataclass(frozen=True, slots=True, kw_only=True)
class _OperationCost:
    elapsed: Noisy
    run_share: float

    def draw(self, num_tokens: int, dice: np.random.Generator) -> Took:
        elapsed_us = self.elapsed.draw(num_tokens, dice)
        return Took(elapsed_us=elapsed_us, run_us=max(1, round(elapsed_us * self.run_share)))


class FittedCosts:
    """Costs of a cluster as a live run showed them; one for each virtual run."""

    def __init__(self, observed: Observed, *, share: float, seed: int) -> None:
        self._share = share
        self._dice = np.random.default_rng(seed)
        self._begun: set[tuple[DeploymentId, OperationKind]] = set()
        self._backend = {o.deployment_id: o.backend for o in observed.operations}
        # Those that failed, whoever ran beside them; cancelling is the core's.
        self._failed = {
            s.operation_id: Took(
                elapsed_us=s.elapsed_us, run_us=s.run_us, fault=s.fault, is_refusal=s.is_refusal
            )
            for s in observed.operations
            if s.fault is not None and s.fault.code is not ErrorCode.CANCELLED
        }
        samples = observed.operations
        groups: dict[tuple[Hashable, ...], list[OperationSample]] = {}
        for sample in samples:
            if sample.fault is None:
                for key in _classes(sample):
                    groups.setdefault(key, []).append(sample)
        self._operations = {
            key: _operation_cost(self._part(group)) for key, group in groups.items()
        }
        self._bytes, self._moves = self._fit_moves(observed.moves)
        self._spawned = {s.deployment_id: s for s in observed.spawns}
        self._spawn_us, self._warm_us = _fit_spawns(observed)
        self._stop_us = _mean(observed.stops_us)
        self._forget_us = _mean(observed.forgets_us)

    def operation(self, work: Work) -> Took:
        """Return what an operation takes: as its kind on its deployment, else on its backend."""
        failed = self._failed.get(work.operation_id)
        if failed is not None:
            return failed
        known = (work.deployment_id, work.kind)
        is_first = known not in self._begun
        self._begun.add(known)
        backend = self._backend.get(work.deployment_id)
        for key in (
            ("first", backend, work.kind) if is_first else ("own", *known),
            ("own", *known),
            ("backend", backend, work.kind),
            ("first", backend, work.kind),
            ("kind", work.kind),
        ):
            cost = self._operations.get(key)
            if cost is not None:
                return cost.draw(work.num_tokens, self._dice)
        return Took(elapsed_us=UNKNOWN_US, run_us=UNKNOWN_US)

    def move(self, deployment_id: DeploymentId, *, to: Residency | None) -> Moved:
        """Return what a move takes, by the bytes that this deployment moved that way."""
        nbytes = self._bytes.get((deployment_id, to), 0)
        cost = self._moves.get(to)
        elapsed_us = UNKNOWN_US if cost is None else cost.draw(nbytes, self._dice)
        return Moved(elapsed_us=elapsed_us, nbytes=nbytes)

    def spawn(
        self, deployment_id: DeploymentId, *, places: Sequence[Place], now_us: int
    ) -> Spawned:
        """Return when ranks answer: after a spawn's time, and not before their nodes are warm."""
        sample = self._spawned.get(deployment_id)
        if sample is None:
            unknown = (0,) * len(places)
            return Spawned(ready_us=now_us + self._spawn_us, device_bytes=unknown)
        warm_us = max(
            (self._warm_us.get((p.node_id, sample.is_rollout), 0) for p in places), default=0
        )
        return Spawned(
            ready_us=max(now_us + self._spawn_us, warm_us),
            device_bytes=sample.device_bytes,
            fault=sample.fault,
        )

    def stop_us(self) -> int:
        """Return the mean time of a stop."""
        return self._stop_us

    def forget_us(self) -> int:
        """Return the mean time of a forget."""
        return self._forget_us

    def _fit_moves(
        self, samples: Sequence[MoveSample]
    ) -> tuple[dict[tuple[DeploymentId, Residency | None], int], dict[Residency | None, Noisy]]:
        by_deployment: dict[tuple[DeploymentId, Residency | None], list[int]] = {}
        by_way: dict[Residency | None, list[MoveSample]] = {}
        for sample in samples:
            by_deployment.setdefault((sample.deployment_id, sample.to), []).append(sample.nbytes)
            by_way.setdefault(sample.to, []).append(sample)
        nbytes = {key: _mean(self._part(values)) for key, values in by_deployment.items()}
        lines = {}
        for way, group in by_way.items():
            part = self._part(group)
            lines[way] = noisy([m.nbytes for m in part], [m.elapsed_us for m in part])
        return nbytes, lines

    def _part(self, samples: Sequence[_Sample]) -> Sequence[_Sample]:
        """Return the first `share` of samples, at least one."""
        return samples[: max(1, round(len(samples) * self._share))]


def _classes(sample: OperationSample) -> list[tuple[Hashable, ...]]:
    """Return the classes a sample tells of, most particular first."""
    if sample.is_first:
        return [("first", sample.backend, sample.kind), ("kind", sample.kind)]
    return [
        ("own", sample.deployment_id, sample.kind),
        ("backend", sample.backend, sample.kind),
        ("kind", sample.kind),
    ]


def _operation_cost(samples: Sequence[OperationSample]) -> _OperationCost:
    elapsed_us = [s.elapsed_us for s in samples]
    return _OperationCost(
        elapsed=noisy([s.num_tokens for s in samples], elapsed_us),
        run_share=sum(s.run_us for s in samples) / max(1, sum(elapsed_us)),
    )


def _fit_spawns(observed: Observed) -> tuple[int, dict[tuple[NodeId, bool], int]]:
    """Return what a spawn takes, and when each node was warm for trainers and for instances.

    A node that has just joined still loads its frameworks: what is spawned there before its first
    rank answered waits for that. Spawns after it tell what a spawn takes.
    """
    ready_us: dict[tuple[NodeId, bool], int] = {}
    for spawn in observed.spawns:
        for place in spawn.places:
            key = (place.node_id, spawn.is_rollout)
            at_us = spawn.ordered_us + spawn.elapsed_us
            ready_us[key] = min(at_us, ready_us.get(key, at_us))
    warm = [
        s.elapsed_us
        for s in observed.spawns
        if all(s.ordered_us >= ready_us[p.node_id, s.is_rollout] for p in s.places)
    ]
    if warm:
        return _mean(warm), ready_us
    return min((s.elapsed_us for s in observed.spawns), default=UNKNOWN_US), ready_us


def _mean(values: Sequence[int]) -> int:
    return round(sum(values) / len(values)) if values else UNKNOWN_US
