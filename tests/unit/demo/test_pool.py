"""Figures of the reward workers, from what the service said of them now and then."""

from __future__ import annotations

from plexclient.wire.v1 import reward_pb2 as pb
from plexsvc.demo.pool import PoolFigures, PoolPoint, pool_figures, pool_point
from plexsvc.demo.spans import Window

WINDOW = Window(start_us=10, end_us=30)
POINTS = [
    PoolPoint(at_us=0, held=9, busy=9, needed={"a": 900}),
    PoolPoint(at_us=10, held=1, busy=0, needed={}),
    PoolPoint(at_us=20, held=2, busy=2, needed={"a": 30, "b": 5}),
    PoolPoint(at_us=30, held=3, busy=1, needed={"b": 8}),
]


def test_a_point_counts_the_workers_and_what_each_job_needs() -> None:
    reply = pb.RewardsReply(
        pools=[pb.RewardPool(busy=2, idle=1, starting=1, queued=5), pb.RewardPool()],
        batches=[
            pb.RewardBatch(job_id="a", queued=3, running=2),
            pb.RewardBatch(job_id="a", queued=1),
            pb.RewardBatch(job_id="b", queued=1),
        ],
    )
    assert pool_point(reply, at_us=7) == PoolPoint(at_us=7, held=4, busy=2, needed={"a": 6, "b": 1})


def test_zero_queue_pools_hold_each_jobs_peak_of_the_window() -> None:
    assert pool_figures(POINTS, window=WINDOW) == PoolFigures(
        mean_held=2.0, mean_busy=1.0, zero_queue=30 + 8
    )
    assert pool_figures([], window=WINDOW) == PoolFigures(mean_held=0, mean_busy=0, zero_queue=0)
