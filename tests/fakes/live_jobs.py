"""Several jobs at once on a live cluster: paced training loops, each in a thread of its own."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from threading import Event

import numpy as np

import plexclient as plex
from tests.fakes.live_cluster import LiveCluster
from tests.fakes.workloads import PPO_ARGS, fixed_batch


@dataclass(frozen=True, slots=True, kw_only=True)
class PacedJob:
    """One training deployment that waits for its rollouts, trains, and waits again."""

    name: str
    backend: str = "fsdp"
    cycles: int = 10
    gap_s: float = 0.4
    """Time its rollouts and tools take; lognormal with `jitter`."""
    jitter: float = 0.15
    passes: int = 2
    sequences: int = 8
    longest: int = 48
    seed: int = 0
    start_s: float = 0.0

    def run(self, connection: plex.Cluster, *, model: Path) -> int:
        """Run it to its end; return the trained cycles."""
        rng = np.random.default_rng(self.seed)
        _pause(self.start_s)
        with connection.job(self.name) as job:
            actor = job.deploy(
                "actor",
                model=str(model),
                backend=self.backend,
                optimizer=plex.AdamW(lr=1e-3),
                seed=self.seed,
            )
            for cycle in range(self.cycles):
                _pause(self.gap_s * float(rng.lognormal(0, self.jitter)))
                self._train(actor, cycle)
        return self.cycles

    def _train(self, actor: plex.Deployment, cycle: int) -> None:
        for part in range(self.passes):
            seed = 10_000 * self.seed + self.passes * cycle + part
            batch = fixed_batch(seed, sequences=self.sequences, longest=self.longest)
            actor.forward_backward(batch, loss="ppo", **PPO_ARGS)
        actor.step(lr=1e-3)


def run_together(cluster: LiveCluster, jobs: Sequence[PacedJob], *, model: Path) -> list[int]:
    """Run all jobs at once, each over a connection of its own; return what each returned."""

    def one(job: PacedJob) -> int:
        with cluster.connect() as connection:
            return job.run(connection, model=model)

    with ThreadPoolExecutor(len(jobs)) as pool:
        return list(pool.map(one, jobs))


def _pause(seconds: float) -> None:
    """Wait as a job waits for its tools."""
    Event().wait(seconds)
