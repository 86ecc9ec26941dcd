"""What the pictures of a run show, before it is drawn."""

from __future__ import annotations

import numpy as np
import pytest

from plexsvc.scheduler.core.planning.profile import SECOND_US
from plexsvc.sim.pictures import busy_share, lived, waits
from tests.rigs.records import moved_record


def test_a_span_counts_in_each_bucket_by_what_it_covers() -> None:
    share = busy_share([(5, 25), (12, 14)], first_us=0, end_us=40, buckets=4)
    assert share == pytest.approx([0.5, 1.2, 0.5, 0])


def test_no_time_of_any_span_is_lost() -> None:
    dice = np.random.default_rng(1)
    starts = dice.integers(100, 900, 50)
    spans = [(int(start), int(start + dice.integers(0, 100))) for start in starts]
    share = busy_share(spans, first_us=100, end_us=1100, buckets=7)
    assert share.sum() * 1000 / 7 == pytest.approx(sum(end - start for start, end in spans))


def test_what_lies_outside_is_cut_off() -> None:
    assert busy_share([(0, 100)], first_us=40, end_us=60, buckets=2) == pytest.approx([1, 1])


def test_a_stay_ends_with_the_loss_of_a_node() -> None:
    record = moved_record()
    ends = [until_us // SECOND_US for _, (_, until_us) in lived(record.stays, record)]
    assert ends == [100, 140, 310]
    assert [(s // SECOND_US, e // SECOND_US) for s, e in waits(record)] == [(0, 10), (140, 290)]
