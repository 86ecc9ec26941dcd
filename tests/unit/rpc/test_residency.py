"""Every residency has a tier on the wire, and a move may be ordered to two of them."""

from __future__ import annotations

from plexclient.wire.v1 import common_pb2
from plexsvc.residency import MOVING, TRANSITIONS, Residency, ResidencyTrigger
from plexsvc.rpc.residency import ON_WIRE, TARGETS


def test_a_move_shows_as_where_the_state_was() -> None:
    assert ON_WIRE.keys() == set(Residency)
    for residency in MOVING:
        before = TRANSITIONS[residency, ResidencyTrigger.MOVE_FAILED]
        assert ON_WIRE[residency] == ON_WIRE[before]


def test_a_move_goes_to_a_device_or_to_the_host() -> None:
    assert TARGETS == {
        common_pb2.RESIDENCY_DEVICE: Residency.DEVICE,
        common_pb2.RESIDENCY_HOST: Residency.HOST,
    }
