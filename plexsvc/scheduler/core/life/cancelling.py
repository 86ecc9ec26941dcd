"""Cancellation of one operation: what waits is refused, what can be ended without harm is ended.

That is a generate, a seed, and a save whose copy is being written. Other operations that run end by
themselves: they change state, and half a change is no state.
"""

from __future__ import annotations

from typing import Final

from plexsvc.errors import ErrorCode
from plexsvc.ids import show
from plexsvc.scheduler.core.cluster import Devices
from plexsvc.scheduler.core.device import switch
from plexsvc.scheduler.core.events import CancelRequested
from plexsvc.scheduler.core.life import wpgs
from plexsvc.scheduler.core.queues import lanes
from plexsvc.scheduler.core.transitions import TERMINAL
from plexsvc.scheduler.core.vocabulary import Fault, OperationKind, OperationState

ENDABLE: Final = frozenset({OperationKind.GENERATE, OperationKind.SEED})


def cancel(devices: Devices, event: CancelRequested) -> None:
    """End an operation that its client does not want any more; its number is used."""
    operation = devices.queues.operations.get(event.operation_id)
    if operation is None or operation.state in TERMINAL:
        return
    if operation.kind is OperationKind.INITIALIZE:
        return
    wpg = devices.wpg_of(devices.deployments[operation.deployment_id])
    if operation.state is OperationState.RUNNING:
        is_written = wpg is not None and event.operation_id in wpg.writing
        if operation.wpg_id is not None and (is_written or operation.kind in ENDABLE):
            wpgs.cancel(devices, event.operation_id, operation.wpg_id)
        return
    granted = None if wpg is None else wpg.switch
    if wpg is not None and granted is not None and granted.operation_id == event.operation_id:
        switch.withdraw(devices, wpg)
    fault = Fault(
        code=ErrorCode.CANCELLED,
        message=f"{show(event.operation_id)} was cancelled before it ran",
    )
    lanes.drop(devices.queues, operation, fault)
