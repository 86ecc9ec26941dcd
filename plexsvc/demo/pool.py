"""Workers of the reward service during a demo: what was there, what ran, and what would have been.

A zero-queue pool has a worker for each request at once, and each job has its own, since that is how
rewards run without a pool that jobs share: it holds what the job needed at its peak.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

from plexclient.wire.v1 import reward_pb2
from plexsvc.demo.spans import Window


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolPoint:
    """The pool at one moment."""

    at_us: int
    held: int
    """Workers that are there, starting ones among them."""
    busy: int
    needed: Mapping[str, int]
    """Requests of each job that run or wait, by its id."""
    planned: int | None = None
    """Workers at most by the plan in force; None where there is none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolFigures:
    """The pool over a while."""

    mean_held: float
    mean_busy: float
    mean_planned: float | None
    """While a plan was in force; None if none was."""
    zero_queue: int
    """Workers of pools of their own in which no request of the jobs waits."""


def pool_point(reply: reward_pb2.RewardsReply, *, at_us: int) -> PoolPoint:
    """Return what the reward service says of its pools."""
    needed: dict[str, int] = {}
    for batch in reply.batches:
        needed[batch.job_id] = needed.get(batch.job_id, 0) + batch.queued + batch.running
    planned = [pool.planned for pool in reply.pools if pool.HasField("planned")]
    return PoolPoint(
        at_us=at_us,
        planned=sum(planned) if planned else None,
        held=sum(pool.busy + pool.idle + pool.starting for pool in reply.pools),
        busy=sum(pool.busy for pool in reply.pools),
        needed=needed,
    )


def pool_figures(points: Sequence[PoolPoint], *, window: Window) -> PoolFigures:
    """Return the figures of the window; zeros where no point lies in it."""
    inside = within(points, window)
    planned = [point.planned for point in inside if point.planned is not None]
    return PoolFigures(
        mean_held=fmean(point.held for point in inside) if inside else 0.0,
        mean_busy=fmean(point.busy for point in inside) if inside else 0.0,
        mean_planned=fmean(planned) if planned else None,
        zero_queue=sum(zero_queue(inside).values()),
    )


def within(points: Sequence[PoolPoint], window: Window) -> list[PoolPoint]:
    """Return the points that lie in a window."""
    return [point for point in points if window.start_us <= point.at_us <= window.end_us]


def zero_queue(points: Sequence[PoolPoint]) -> dict[str, int]:
    """Return the workers that each job's own pool would have held."""
    peaks: dict[str, int] = {}
    for point in points:
        for job_id, needed in point.needed.items():
            peaks[job_id] = max(peaks.get(job_id, 0), needed)
    return peaks
