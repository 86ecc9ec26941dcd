"""Several jobs at once on a live cluster: paced training loops, each in a thread of its own."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from threading import Event
from typing import Any

import numpy as np

import plexclient as plex
from tests.rigs.live_cluster import LiveCluster
from tests.rigs.workloads import PPO_ARGS, fixed_batch


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
    pipelines: bool = False
    """Submit a cycle's operations together and wait for the last."""
    samples: bool = False
    """Generate before each training and sync after, on a rollout deployment of its own."""

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
            rollout = self._rollout(job, actor)
            for cycle in range(self.cycles):
                _pause(self.gap_s * float(rng.lognormal(0, self.jitter)))
                if rollout is not None:
                    rollout.generate([[3, 4, 12], [7, 9, 16]], n=4, max_tokens=16, seed=cycle)
                self._train(actor, cycle)
                if rollout is not None:
                    rollout.sync(actor)
        return self.cycles

    def _rollout(self, job: plex.Job, actor: plex.Actor) -> plex.Rollout | None:
        if not self.samples:
            return None
        rollout = job.deploy("rollout", model=actor, backend="vllm", max_model_len=128)
        rollout.sync(actor)
        return rollout

    def _train(self, actor: plex.Actor, cycle: int) -> None:
        waiting: list[Future[Any]] = []
        for part in range(self.passes):
            seed = 10_000 * self.seed + self.passes * cycle + part
            batch = fixed_batch(seed, sequences=self.sequences, longest=self.longest)
            if self.pipelines:
                waiting.append(actor.forward_backward.submit(batch, loss="ppo", **PPO_ARGS))
            else:
                actor.forward_backward(batch, loss="ppo", **PPO_ARGS)
        if self.pipelines:
            waiting.append(actor.step.submit(lr=1e-3))
        else:
            actor.step(lr=1e-3)
        for call in waiting:
            call.result(120)


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
