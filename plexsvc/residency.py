"""Residency of a WPG's state: the states, what changes them, and the legal changes.

The scheduler follows a WPG as a whole along `TRANSITIONS`. The state manager of a node follows the
WPG's ranks on that node along `NODE_TRANSITIONS`: there, ranks also come, allocate and leave by
themselves, and ranks that hold nothing yet may be moved. A change that a table lacks is a bug.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Final


class Residency(StrEnum):
    """Tier that holds a WPG's state, or the way that the state goes."""

    NONE = "none"
    BUILDING = "building"
    DEVICE = "device"
    OFFLOADING = "offloading"
    HOST = "host"
    LOADING = "loading"


class Home(StrEnum):
    """Memory that a region of a rank has for life."""

    DEVICE = "device"
    """Device memory while its WPG is there, and a place to be parked."""
    LENT = "lent"
    """The same, but it is parked in host memory alone, where the rank may use it, too."""
    HOST = "host"
    """Host memory alone, which the rank maps wherever its WPG is."""


class ResidencyTrigger(StrEnum):
    """Cause of a change of residency."""

    BUILD_ORDERED = "build_ordered"
    BUILT = "built"
    OFFLOAD_ORDERED = "offload_ordered"
    OFFLOADED = "offloaded"
    LOAD_ORDERED = "load_ordered"
    LOADED = "loaded"
    MOVE_FAILED = "move_failed"
    ALLOCATED = "allocated"
    EMPTIED = "emptied"


Transitions = Mapping[tuple[Residency, ResidencyTrigger], Residency]

TRANSITIONS: Final[Transitions] = {
    (Residency.NONE, ResidencyTrigger.BUILD_ORDERED): Residency.BUILDING,
    (Residency.BUILDING, ResidencyTrigger.BUILT): Residency.DEVICE,
    (Residency.DEVICE, ResidencyTrigger.OFFLOAD_ORDERED): Residency.OFFLOADING,
    (Residency.OFFLOADING, ResidencyTrigger.OFFLOADED): Residency.HOST,
    (Residency.OFFLOADING, ResidencyTrigger.MOVE_FAILED): Residency.DEVICE,
    (Residency.HOST, ResidencyTrigger.LOAD_ORDERED): Residency.LOADING,
    (Residency.LOADING, ResidencyTrigger.LOADED): Residency.DEVICE,
    (Residency.LOADING, ResidencyTrigger.MOVE_FAILED): Residency.HOST,
}
"""Changes of a WPG as a whole."""

NODE_TRANSITIONS: Final[Transitions] = {
    **TRANSITIONS,
    (Residency.NONE, ResidencyTrigger.ALLOCATED): Residency.DEVICE,
    (Residency.DEVICE, ResidencyTrigger.ALLOCATED): Residency.DEVICE,
    (Residency.NONE, ResidencyTrigger.OFFLOAD_ORDERED): Residency.OFFLOADING,
    (Residency.NONE, ResidencyTrigger.LOAD_ORDERED): Residency.LOADING,
    (Residency.NONE, ResidencyTrigger.EMPTIED): Residency.NONE,
    (Residency.DEVICE, ResidencyTrigger.EMPTIED): Residency.NONE,
    (Residency.HOST, ResidencyTrigger.EMPTIED): Residency.NONE,
}
"""Changes of a WPG's ranks on one node."""

ON_DEVICE: Final = frozenset(
    {Residency.BUILDING, Residency.DEVICE, Residency.OFFLOADING, Residency.LOADING}
)
"""Residencies that count against the device's bytes."""

MOVING: Final = frozenset({Residency.OFFLOADING, Residency.LOADING})
"""Residencies between two tiers."""
