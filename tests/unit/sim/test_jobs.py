"""Jobs of a trace by themselves: when their weights are published, and what they work."""

from __future__ import annotations

from dataclasses import replace

from plexsvc.scheduler.core.planning.profile import SECOND_US, SYNC_PHASE, Mode, Segment, SyncAt
from plexsvc.sim.jobs import SimJob
from tests.rigs.traces import job


def boundary_job(*, cycles: int, sync_s: tuple[int, ...]) -> SimJob:
    """Return a job of 20 s of training and some segments that publish, of a period of 100 s."""
    one = job("j", cycles=cycles, durations=(20,), mode=Mode.ASYNC1, sync_at=SyncAt.BOUNDARY)
    segments, at_s = [Segment(phase="update", offset_us=0, duration_us=20 * SECOND_US)], 20
    for duration_s in sync_s:
        segments.append(
            Segment(
                phase=SYNC_PHASE, offset_us=at_s * SECOND_US, duration_us=duration_s * SECOND_US
            )
        )
        at_s += duration_s
    profile = replace(one.demand.profile, segments=tuple(segments))
    return replace(one, demand=replace(one.demand, profile=profile))


def alone_s(one: SimJob) -> tuple[float, float]:
    alone = one.alone(one.rollout_us(1))
    return alone.took_us / SECOND_US, alone.busy_us / SECOND_US


def test_weights_are_published_once_all_that_publishes_is_done() -> None:
    whole, parts = (alone_s(boundary_job(cycles=8, sync_s=s)) for s in ((10,), (4, 6)))
    assert parts == whole


def test_the_last_two_cycles_of_a_boundary_job_publish_nothing() -> None:
    assert [alone_s(boundary_job(cycles=n, sync_s=(80,)))[1] for n in (1, 2, 3)] == [20, 40, 140]


def test_a_job_that_publishes_beside_its_rollouts_works_every_segment() -> None:
    one = job("j", cycles=7, durations=(10, 15), mode=Mode.ASYNC1)
    assert alone_s(one)[1] == 7 * 25
