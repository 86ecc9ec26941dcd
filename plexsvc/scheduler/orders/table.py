"""Table of all action handlers, merged from the families that define them."""

from __future__ import annotations

from typing import Any

from plexsvc.scheduler.handler import Handler
from plexsvc.scheduler.ledger.recorder import Recorder
from plexsvc.scheduler.orders import carry, move, release, run, spawn
from plexsvc.scheduler.orders.reach import Reach
from plexsvc.scheduler.orders.timers import Timers

Table = dict[type[Any], Handler[Any]]


def table(reach: Reach, *, recorder: Recorder, timers: Timers) -> Table:
    """Return the handler of every action, by the action's type."""
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
