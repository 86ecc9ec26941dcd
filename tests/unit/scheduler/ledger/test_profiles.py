"""Stored cycles: read back as kept; what is none does not keep the service down."""

from __future__ import annotations

from dataclasses import replace

import pytest

from plexsvc.ids import TenantId
from plexsvc.scheduler.core.planning.profile import Profile, Segment
from plexsvc.scheduler.core.planning.profiler import KeptProfile, ProfileKey
from plexsvc.scheduler.ledger.profiles import from_row, to_row

KEPT = KeptProfile(
    key=ProfileKey(tenant=TenantId("lab"), model="m", layout="tp1", name="a/actor"),
    profile=Profile(period_us=100, segments=(Segment(phase="step", offset_us=10, duration_us=20),)),
    at_us=7,
    device_bytes=5,
)


def test_a_cycle_comes_back_as_it_was_kept() -> None:
    assert from_row(to_row(KEPT)) == KEPT


@pytest.mark.parametrize(
    ("found", "instead"),
    [
        ('"period_us":100', '"period_us":0'),
        ('"period_us":100', '"period_us":"x"'),
        ('"period_us":100', '"period_us":25'),
        ('"duration_us":20', '"duration_us":-20'),
        ('"offset_us":10', '"offset_us":-10'),
        ('"device_bytes":5', '"device_bytes":-5'),
        ('"profile":', '"other":'),
        ("{", ""),
    ],
)
def test_a_row_that_is_no_cycle_is_ignored(found: str, instead: str) -> None:
    row = to_row(KEPT)
    assert found in row.body
    assert from_row(replace(row, body=row.body.replace(found, instead, 1))) is None


def test_a_cycle_without_segments_is_ignored() -> None:
    assert from_row(to_row(replace(KEPT, profile=Profile(period_us=9, segments=())))) is None
