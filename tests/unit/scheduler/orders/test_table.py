"""The table of handlers: every action has one."""

from __future__ import annotations

from plexsvc.scheduler.core.actions import KINDS
from tests.rigs.scheduler_rig import Rig


async def test_every_action_has_a_handler_of_its_own(rig: Rig) -> None:
    assert rig.driver.handlers.keys() == KINDS
    assert all(handler.action is action for action, handler in rig.driver.handlers.items())
