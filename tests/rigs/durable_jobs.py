"""Jobs that train on fixed data step by step, while something befalls what they run on."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Final

import plexclient as plex
from tests.rigs.workloads import fixed_batch

PROMPTS: Final = [[3, 4, 12, 5, 16], [7, 8, 9]]


@dataclass(slots=True)
class Training:
    """A job that trains, and samples if it has a rollout, a step at a time."""

    job: plex.Job
    actor: plex.Actor
    seed: int
    rollout: plex.Rollout | None = None
    metrics: list[dict[str, float]] = field(default_factory=list)
    """Of each operation."""
    tokens: list[list[int]] = field(default_factory=list)
    """Of each sample."""
    answered_s: float = 0.0
    """When its last step was answered, by the monotonic clock."""

    def begin(self) -> list[Future[Any]]:
        """Submit the passes of a step, and what is sampled meanwhile."""
        number = len(self.metrics)
        passes = [fixed_batch(100 * self.seed + number + part) for part in range(2)]
        calls: list[Callable[[], Future[Any]]] = [
            partial(self.actor.forward_backward.submit, one, loss="ppo") for one in passes
        ]
        if self.rollout is not None:
            generate = partial(self.rollout.generate.submit, PROMPTS, n=2, temperature=1.0)
            calls.append(partial(generate, seed=number, max_tokens=24, ignore_eos=True))
        return [call() for call in calls]

    def end(self, operations: list[Future[Any]]) -> None:
        """Submit the step, wait for all, and have the next samples come from what it made."""
        operations.insert(2, self.actor.step.submit())
        self.metrics += [operation.result(240).metrics for operation in operations[:3]]
        for samples in (operation.result(240) for operation in operations[3:]):
            self.tokens += [list(sample.tokens) for sample in samples]
        if self.rollout is not None:
            self.rollout.sync(self.actor)
        self.answered_s = time.monotonic()

    def outcome(self) -> tuple[Any, ...]:
        """Return what has to be the same whatever happened."""
        return self.metrics, self.tokens, self.actor.digest()


def start(
    job: plex.Job, model: Path, *, seed: int, durability: str, pp: int, samples: bool = False
) -> Training:
    """Deploy what trains, and what samples its weights."""
    actor = job.deploy(
        "actor",
        model=str(model),
        backend="megatron",
        parallel=plex.Parallel(pp=pp),
        optimizer=plex.AdamW(lr=1e-2),
        durability=durability,
    )
    training = Training(job, actor, seed)
    if samples:
        training.rollout = job.deploy("rollout", model=actor, backend="vllm", max_model_len=64)
        training.rollout.sync(actor)
    return training


@contextmanager
def stepping(*trainings: Training) -> Iterator[None]:
    """Have each make a step, all at once; the block runs with their passes."""
    under_way = [training.begin() for training in trainings]
    yield
    for training, operations in zip(trainings, under_way, strict=True):
        training.end(operations)
