"""Runs of a workload under policies, compared with `isolated` on the same trace and seed."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Protocol

from plexsvc.scheduler.core.planning.policies import Policy, policy_named
from plexsvc.sim.presets import Workload
from plexsvc.sim.records import Outcome
from plexsvc.sim.simulator import Simulator
from plexsvc.sim.summary import Summary, summarise


@dataclass(frozen=True, slots=True, kw_only=True)
class Timed:
    """An outcome and the seconds it took to compute."""

    outcome: Outcome
    wall_s: float


class Play(Protocol):
    """A way to play a workload: planning and the groups' runtime alone, or the whole core."""

    def __call__(
        self, workload: Workload, *, policy: Policy, seed: int, is_cold: bool = False
    ) -> Timed:
        """Return what a policy makes of a workload; `is_cold`: no cycle is known before."""
        ...


def play(workload: Workload, *, policy: Policy, seed: int, is_cold: bool = False) -> Timed:
    """Return what one policy makes of a workload; `is_cold`: no job's cycle is known before."""
    began = time.perf_counter()
    simulator = Simulator(
        workload.jobs,
        cluster=workload.cluster,
        policy=workload.within_target(policy),
        seed=seed,
        is_cold=is_cold,
    )
    outcome = simulator.run()
    return Timed(outcome=outcome, wall_s=time.perf_counter() - began)


def compare(
    workload: Workload,
    *,
    policy: Policy,
    seed: int,
    isolated: Timed | None = None,
    is_cold: bool = False,
    by: Play = play,
) -> tuple[Summary, Outcome]:
    """Return the summary of one policy against the simulator's `isolated`, and its outcome."""
    base = isolated or play(workload, policy=policy_named("isolated"), seed=seed)
    timed = base
    if by is not play or policy.name != "isolated":
        timed = by(workload, policy=policy, seed=seed, is_cold=is_cold)
    summary = summarise(
        timed.outcome,
        isolated=base.outcome,
        cluster=workload.cluster,
        seed=seed,
        wall_s=timed.wall_s,
    )
    return summary, timed.outcome
