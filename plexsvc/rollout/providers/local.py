"""Spot devices of this cluster's own nodes: they are there while their node is up and open."""

from __future__ import annotations

from typing import Final

from plexsvc.clock import Clock
from plexsvc.rollout.core.pool import SlotCame, SlotGone, SlotId, SlotNoticed
from plexsvc.rollout.providers.base import Hosts, Tell

LOOK_US: Final = 200_000


class LocalProvider:
    """Every device of kind `spot`; cordoning or draining its node is the notice."""

    def __init__(self, hosts: Hosts, clock: Clock, *, price: float) -> None:
        self._hosts, self._clock, self._price = hosts, clock, price

    async def run(self, tell: Tell) -> None:
        """Tell what comes, is noticed and goes, until cancelled."""
        known: dict[SlotId, bool] = {}
        while True:
            found = dict(self._hosts.slots())
            for slot_id in known.keys() - found.keys():
                tell(SlotGone(slot_id=slot_id))
            for slot_id, is_open in found.items():
                if is_open and not known.get(slot_id):
                    tell(SlotCame(slot_id=slot_id, price=self._price))
                elif known.get(slot_id) and not is_open:
                    tell(SlotNoticed(slot_id=slot_id))
            known = found
            await self._clock.sleep(LOOK_US)
