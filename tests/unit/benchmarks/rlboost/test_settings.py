"""Presets: the segments are those of the paper's table, as far as they can be."""

from __future__ import annotations

import pytest

from benchmarks.rlboost.settings import PRESETS, SEGMENTS, rollout_preset
from plexsvc.errors import PlexError

TABLE_5 = {"a": (6.53, 13, 8), "b": (4.58, 8, 9), "c": (6.06, 6, 2)}


@pytest.mark.parametrize("segment", sorted(TABLE_5))
def test_a_segment_is_as_the_paper_says(segment: str) -> None:
    instances, comes, goes = TABLE_5[segment]
    changes = SEGMENTS[segment]
    later = [node for at_s, node in changes if at_s > 0]
    first = sum(node > 0 for at_s, node in changes if at_s == 0)
    assert sum(node > 0 for node in later) == comes
    assert sum(node < 0 for node in later) == goes
    held = 7200 * first + sum((7200 - at_s) * (1 if n > 0 else -1) for at_s, n in changes if at_s)
    assert held / 7200 == pytest.approx(instances, rel=0.05)


def test_every_preset_can_be_made() -> None:
    assert [rollout_preset(name).name for name in PRESETS] == list(PRESETS)


def test_an_unknown_preset_is_refused_with_the_names_there_are() -> None:
    with pytest.raises(PlexError, match="rlboost-a-14b"):
        rollout_preset("rlboost-d-14b")
