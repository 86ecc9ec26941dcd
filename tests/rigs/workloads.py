"""Deterministic work for system tests: fixed batches, fixed training programs, device sharing."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import numpy as np

import plexclient as plex
from plexclient.wire.v1 import service_pb2

VOCAB = 50
PPO_ARGS: Final[dict[str, Any]] = {"clip": 0.2}


def fixed_batch(
    seed: int, *, sequences: int = 6, longest: int = 24, vocab: int = VOCAB
) -> plex.Batch:
    """Return a packed batch of random tokens with PPO inputs; the same seed is the same batch."""
    rng = np.random.default_rng(seed)
    lengths = rng.integers(4, longest, sequences)
    total = int(lengths.sum())
    return plex.Batch(
        tokens=rng.integers(2, vocab, total).astype(np.int32),
        cu_seqlens=np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32),
        target_tokens=rng.integers(2, vocab, total).astype(np.int32),
        weights=np.full(total, 1 / total, np.float32),
        logprobs=rng.normal(-4, 0.3, total).astype(np.float32),
        advantages=(rng.normal(0, 1, total) / total).astype(np.float32),
        mask=np.ones(total, np.float32),
    )


@dataclass(slots=True)
class Program:
    """Fixed-data training of one deployment, advanced one operation at a time."""

    deployment: plex.Actor
    seed: int
    steps: int = 3
    lr: float = 1e-2
    sequences: int = 6
    longest: int = 24
    metrics: list[dict[str, float]] = field(default_factory=list)

    def operations(self) -> Iterator[None]:
        """Yield after each operation: two forward_backward, then a step, `steps` times."""
        for step in range(self.steps):
            for part in range(2):
                batch = fixed_batch(
                    1000 * self.seed + 2 * step + part,
                    sequences=self.sequences,
                    longest=self.longest,
                )
                self.metrics.append(
                    self.deployment.forward_backward(batch, loss="ppo", **PPO_ARGS).metrics
                )
                yield
            self.metrics.append(self.deployment.step(lr=self.lr).metrics)
            yield


def run_interleaved(programs: list[Program]) -> None:
    """Run the programs one operation each in turn, so that every one is switched out mid-window."""
    turns = [program.operations() for program in programs]
    while turns:
        turns = [turn for turn in turns if next(turn, StopIteration) is None]


def fill_other_devices(job: plex.Job, count: int, *, model: Path) -> None:
    """Occupy `count` free devices with no-op deployments, so that the next one must share."""
    for index in range(count):
        job.deploy(f"filler-{index}", model=str(model), backend="noop", role="actor")


def switches(status: service_pb2.ClusterStatus) -> int:
    """Return context switches of all devices since the service started."""
    return sum(device.switches for device in status.devices)
