"""The trace that the demo of spot instances ships."""

from __future__ import annotations

from plexsvc.demo.presets import find_preset
from plexsvc.demo.spot import SCALE, TRACE
from plexsvc.rollout.providers.trace import NodeChange, read_trace


def test_the_trace_kills_often_enough_and_its_nodes_fit_the_devices() -> None:
    there, most, kills = 0, 0, 0
    for change in read_trace(TRACE):
        assert isinstance(change, NodeChange)
        there += 1 if change.is_add else -1
        most = max(most, there)
        kills += not change.is_add and change.at_us / SCALE < 120_000_000
    assert most == find_preset("spot").spot_devices
    assert kills >= 6
