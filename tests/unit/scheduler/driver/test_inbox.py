"""The driver's inbox: stamps grow, batches are bounded, and nobody waits for ever."""

from __future__ import annotations

import pytest

from plexsvc.errors import ErrorCode, PlexError
from plexsvc.ids import NodeId
from plexsvc.scheduler.core.events import NodeCordoned
from plexsvc.scheduler.driver.inbox import Inbox

FACT = NodeCordoned(node_id=NodeId("n0"))


class FakeClock:
    """Time that stands still."""

    def wall_us(self) -> int:
        return 7

    def monotonic_us(self) -> int:
        return 7

    async def sleep(self, us: int) -> None:
        raise AssertionError(us)


def inbox() -> Inbox:
    return Inbox(FakeClock(), max_waiting=3, max_batch=2)


async def test_facts_of_one_instant_are_stamped_one_after_the_other() -> None:
    box = inbox()
    for _ in range(3):
        box.post(FACT)
    assert [event.at_us for event, _ in await box.take()] == [7, 8]
    assert [event.at_us for event, _ in await box.take()] == [9]
    assert box.last_us == 9


async def test_a_full_inbox_refuses_new_work() -> None:
    box = inbox()
    for _ in range(3):
        box.check_room()
        box.post(FACT)
    with pytest.raises(PlexError, match=r"3 events wait to be decided"):
        box.check_room()


async def test_whoever_waits_is_told_that_the_scheduler_stopped() -> None:
    box = inbox()
    decisions = [box.post(FACT).decision for _ in range(3)]
    await box.take()
    box.close()
    for decision in decisions:
        with pytest.raises(PlexError, match="the scheduler stopped") as raised:
            await decision
        assert raised.value.code is ErrorCode.UNAVAILABLE
