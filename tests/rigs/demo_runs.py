"""Runs of the demo made up for tests of its report, pictures and trace."""

from __future__ import annotations

from collections.abc import Sequence

from plexsvc.demo.records import ControllerRecord, StepRecord
from plexsvc.demo.report import JobRun
from plexsvc.demo.spans import DeviceSpan, Window

RISING = [0.2 + 0.02 * step + 0.01 * (step % 2) for step in range(30)]
"""Rewards of a job that learns."""
SAMPLES = 128 * len(RISING)


def make_run(
    task: str,
    *,
    rewards: Sequence[float],
    start_us: int = 0,
    end_us: int = 10_000_000,
    held_out: tuple[float, float] = (0.3, 0.6),
    gap_max: float = 1e-5,
    wait_s: float = 0.0,
    complete: float = 128,
    instances_lost: float = 0,
) -> JobRun:
    """Return a run whose steps have the given rewards and take a second each."""
    steps = tuple(
        StepRecord(
            reward=reward,
            device_s=0.2,
            gap_mean=gap_max / 10,
            gap_max=gap_max,
            wait_s=wait_s,
            wall_s=1.0,
            tokens=640,
            complete=complete,
            instances_lost=instances_lost,
        )
        for reward in rewards
    )
    return JobRun(
        task=task,
        job_id=f"job-{task}",
        record=ControllerRecord(
            steps=steps, held_out_before=held_out[0], held_out_after=held_out[1], cpu_s=1.0
        ),
        window=Window(start_us=start_us, end_us=end_us),
    )


def make_span(
    kind: str,
    start_us: int,
    end_us: int,
    *,
    job_id: str = "job-bits",
    device_kind: str = "train",
    index: int = 0,
) -> DeviceSpan:
    """Return a span of device `n:index`."""
    return DeviceSpan(
        device=f"n:{index}",
        device_kind=device_kind,
        kind=kind,
        job_id=job_id,
        start_us=start_us,
        end_us=end_us,
    )
