"""Residency on the wire: clients and nodes are told the tier that holds the state."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from plexclient.wire.v1 import common_pb2
from plexsvc.residency import Residency

ON_WIRE: Final[Mapping[Residency, common_pb2.Residency]] = {
    Residency.NONE: common_pb2.RESIDENCY_NONE,
    Residency.BUILDING: common_pb2.RESIDENCY_DEVICE,
    Residency.DEVICE: common_pb2.RESIDENCY_DEVICE,
    Residency.OFFLOADING: common_pb2.RESIDENCY_DEVICE,
    Residency.HOST: common_pb2.RESIDENCY_HOST,
    Residency.LOADING: common_pb2.RESIDENCY_HOST,
}
"""Until a move is done, the state counts as where it was."""

TARGETS: Final = {ON_WIRE[residency]: residency for residency in (Residency.DEVICE, Residency.HOST)}
"""Tiers that a move may be ordered to."""
