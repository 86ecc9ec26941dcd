"""Workloads of rollouts: engines, a trainer, samples, and instances that come and go."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Final, TypeAlias

import numpy as np
from msgspec import Meta

from benchmarks.rlboost.engine import EngineProfile
from plexsvc.sim.files import Count, Source, text_of

Amount: TypeAlias = Annotated[float, Meta(ge=0, le=1e15)]
Time: TypeAlias = Annotated[int, Meta(ge=0, le=10**15)]
Sigma: TypeAlias = Annotated[float, Meta(ge=0, le=10)]

FILE: Final = "rollout.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class LengthModel:
    """Lengths of answers: lognormal, with a part that all samples of a prompt share."""

    median: Annotated[float, Meta(ge=1, le=1e9)]
    prompt_sigma: Sigma
    """Of the logarithm, between prompts."""
    sample_sigma: Sigma
    """Of the logarithm, between samples of a prompt."""
    most: Count
    """The job's `max_tokens`."""

    def draw(self, *, prompts: int, samples: int, seed: tuple[int, ...]) -> list[list[int]]:
        """Return the length of each sample of each prompt, from 1 to `most`."""
        dice = np.random.default_rng(seed)
        shared = dice.normal(0, self.prompt_sigma, (prompts, 1))
        own = dice.normal(0, self.sample_sigma, (prompts, samples))
        lengths = np.exp(np.log(self.median) + shared + own).round()
        found: list[list[int]] = np.clip(lengths, 1, self.most).astype(int).tolist()
        return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Trainer:
    """The training devices: what a step takes on them, and the engines they may be."""

    engines: Count
    """Engines that they hold in the seeding window."""
    token_us: Amount
    """Training one token, with the passes for its logprobs."""
    update_us: Time
    """The optimizer's step and publishing the weights."""
    wake_us: Time
    """From training to generating."""
    price: Amount
    """Of all of them, an hour."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SpotChange:
    """A spot device that comes or goes."""

    at_us: Time
    slot: str
    is_add: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Spot:
    """Spot devices, and what starting on one takes."""

    changes: tuple[SpotChange, ...]
    price: Amount
    """Of one, an hour."""
    start_us: Time
    """Until the process of an instance is up."""
    pull_us: Time
    """Pulling a version."""
    notice_us: Time = 0
    """How long before a device goes its instance is drained."""
    most: Count | None = None
    """Instances the job may have; None: as many as the seeding window says are worth having."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutWorkload:
    """A synchronous job on training devices and spot instances."""

    name: str
    profile: EngineProfile
    trainer: Trainer
    spot: Spot
    lengths: LengthModel
    prompts: Count
    samples: Count
    """Of each prompt."""
    prompt_tokens: Count
    micro_batch: Count
    """Samples that the trainer waits for."""
    first_window_us: Time
    duration_us: Time
    """Steps that begin before are played."""
    max_pending: Count = 64
    balance_us: Annotated[int, Meta(ge=1_000, le=10**12)] = 500_000


def write_workload(out: Path, workload: RolloutWorkload) -> Path:
    """Write a workload to `rollout.json` in a directory that is there; return its path."""
    path = out / FILE
    path.write_text(json.dumps(asdict(workload), indent=1) + "\n", encoding="utf-8")
    return path


def read_workload(path: Path) -> RolloutWorkload:
    """Return the workload of a file as `write_workload` writes it.

    Raises:
        PlexError: `bad_request` with file, line and field.
    """
    source = Source(path=path, text=text_of(path))
    workload = source.read(source.data(), RolloutWorkload)
    there: set[str] = set()
    last_us = 0
    for number, change in enumerate(workload.spot.changes):
        where = f"spot.changes[{number}]"
        if change.at_us < last_us:
            source.refuse(f"{where}.at_us", change.at_us, "not before the change above it")
        if (change.slot in there) == change.is_add:
            wanted = "one that is not there" if change.is_add else "one that is there"
            source.refuse(f"{where}.slot", change.slot, wanted)
        there ^= {change.slot}
        last_us = change.at_us
    return workload
