"""Reports of instances that sleep while the generate goes on without them."""

from __future__ import annotations

from plexsvc.ids import OperationId, WpgId
from plexsvc.scheduler.core.events import InstanceLeft
from plexsvc.scheduler.orders.reach import Reach


def report(reach: Reach, wpg_id: str, address: str, operation_id: bytes) -> None:
    """Tell the core that the device of an instance is free; what it knows changes nothing.

    The manager says so when the instance sleeps, and with the generate's answer for all that do.
    """
    for rank, instance in enumerate(reach.ranks.of(WpgId(wpg_id))):
        if instance.address == address:
            reach.post(
                InstanceLeft(
                    wpg_id=WpgId(wpg_id),
                    rank=rank,
                    incarnation=instance.incarnation,
                    operation_id=OperationId(operation_id),
                )
            )
