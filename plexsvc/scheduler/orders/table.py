"""Table of all action handlers, merged from the families that define them."""

from __future__ import annotations

from plexsvc.scheduler.handler import Handlers
from plexsvc.scheduler.ledger.recorder import Recorder
from plexsvc.scheduler.orders import carry, move, release, run, spawn
from plexsvc.scheduler.orders.reach import Reach
from plexsvc.scheduler.orders.timers import Timers


def table(reach: Reach, *, recorder: Recorder, timers: Timers) -> Handlers:
    """Return the handlers of all actions."""
    handlers = [
        *recorder.handlers(),
        *timers.handlers(),
        *spawn.handlers(reach, recorder),
        *move.handlers(reach),
        *carry.handlers(reach, recorder),
        *run.handlers(reach),
        *release.handlers(reach, recorder),
    ]
    merged = {handler.action: handler for handler in handlers}
    assert len(merged) == len(handlers), "an action has two handlers"
    return merged
