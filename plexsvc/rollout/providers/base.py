"""Protocols of spot capacity: a provider of devices, and the hosts that start instances there."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol, TypeAlias

from plexsvc.ids import DeploymentId
from plexsvc.rollout.core.pool import Fact, SlotId

Tell: TypeAlias = Callable[[Fact], None]


class Hosts(Protocol):
    """The nodes with spot devices."""

    def slots(self) -> Mapping[SlotId, bool]:
        """Return the spot devices of nodes that are up, and whether each may be used."""

    async def start(self, slot_id: SlotId, *, number: int, deployment_id: DeploymentId) -> str:
        """Start an instance of a deployment on a device; return its address once it serves.

        Raises:
            PlexError: why it did not come up.
        """

    async def stop(self, slot_id: SlotId, *, number: int, deployment_id: DeploymentId) -> None:
        """Kill an instance; return once it is gone, or its node is."""


class Provider(Protocol):
    """Says which spot devices there are."""

    async def run(self, tell: Tell) -> None:
        """Tell what comes, is noticed and goes, until cancelled."""
