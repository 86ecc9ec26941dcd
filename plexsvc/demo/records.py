"""Records of the controllers (examples/recorder.py), read back into values."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from plexsvc.errors import not_found


@dataclass(frozen=True, slots=True, kw_only=True)
class StepRecord:
    """One GRPO step as its controller saw it."""

    reward: float
    device_s: float
    gap_mean: float
    gap_max: float
    wait_s: float
    wall_s: float
    tokens: float
    """Generated."""
    complete: float
    """Samples that ended by themselves or at their longest."""
    instances_lost: float
    """By samples while they were generated."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ControllerRecord:
    """A controller's whole run."""

    steps: tuple[StepRecord, ...]
    held_out_before: float
    held_out_after: float
    cpu_s: float
    hostile_sent: int = 0
    """Hostile programs that were scored beside the job's own samples."""
    hostile_failed: int = 0

    @property
    def rewards(self) -> list[float]:
        """Return the mean reward of each step."""
        return [step.reward for step in self.steps]

    def a_second(self, name: str) -> float:
        """Return the sum of a field of all steps, a second of them."""
        wall_s = sum(step.wall_s for step in self.steps)
        return float(sum(getattr(step, name) for step in self.steps) / max(1e-9, wall_s))


def read_record(path: Path) -> ControllerRecord:
    """Return the record in a JSON-lines file.

    Raises:
        PlexError: `not_found` when the file is not there or lacks a part of the run.
    """
    try:
        lines = [json.loads(line) for line in path.read_text().splitlines()]
        held_out = {line["when"]: line["accuracy"] for line in lines if line["kind"] == "held_out"}
        last = {line["kind"]: line for line in lines}
        steps = [line for line in lines if line["kind"] == "step"]
        return ControllerRecord(
            steps=tuple(
                StepRecord(**{name: one[name] for name in StepRecord.__slots__}) for one in steps
            ),
            held_out_before=held_out["before"],
            held_out_after=held_out["after"],
            cpu_s=last["end"]["cpu_s"],
            hostile_sent=last["hostile"]["sent"],
            hostile_failed=last["hostile"]["failed"],
        )
    except (OSError, KeyError, json.JSONDecodeError) as error:
        raise not_found(
            f"no whole record of a job in {path}: {error!r}; read the job's log"
        ) from error
