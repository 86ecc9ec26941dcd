"""Workers of the reward service during a demo: what was there, what ran, and what would have been.

A zero-queue pool has a worker for each request at once, and each job has its own, since that is how
rewards run without a pool that jobs share: it holds what the job needed at its peak.
"""

from __future__ import annotations

from collections import Counter
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


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolFigures:
    """The pool over a while."""

    mean_held: float
    mean_busy: float
    zero_queue: int
    """Workers of pools of their own in which no request of the jobs waits."""


def pool_point(reply: reward_pb2.RewardsReply, *, at_us: int) -> PoolPoint:
    """Return what the reward service says of its pools."""
    needed = Counter[str]()
    for batch in reply.batches:
        needed[batch.job_id] += batch.queued + batch.running
    return PoolPoint(
        at_us=at_us,
        held=sum(pool.busy + pool.idle + pool.starting for pool in reply.pools),
        busy=sum(pool.busy for pool in reply.pools),
        needed=needed,
    )


def pool_figures(points: Sequence[PoolPoint], *, window: Window) -> PoolFigures:
    """Return the figures of the window; zeros where no point lies in it."""
    inside = [point for point in points if window.start_us <= point.at_us <= window.end_us]
    peaks = Counter[str]()
    for point in inside:
        peaks |= Counter(point.needed)
    return PoolFigures(
        mean_held=fmean([point.held for point in inside] or [0]),
        mean_busy=fmean([point.busy for point in inside] or [0]),
        zero_queue=peaks.total(),
    )
