"""Table of all action handlers, merged from the families that define them."""

from __future__ import annotations

from plexsvc.scheduler.handler import Handlers
from plexsvc.scheduler.orders import carry, durable, move, release, run, spawn
from plexsvc.scheduler.orders.reach import Reach
from plexsvc.scheduler.orders.timers import Timers


def table(reach: Reach, timers: Timers) -> Handlers:
    """Return the handlers of all actions."""
    handlers = [
        *reach.recorder.handlers(),
        *timers.handlers(),
        *spawn.handlers(reach),
        *move.handlers(reach),
        *carry.handlers(reach),
        *durable.handlers(reach),
        *run.handlers(reach),
        *release.handlers(reach),
    ]
    merged = {handler.action: handler for handler in handlers}
    assert len(merged) == len(handlers), "an action has two handlers"
    return merged
