"""Events keep their order and their numbers for every reader, within the bound."""

from __future__ import annotations

import asyncio

from hypothesis import given
from hypothesis import strategies as st

from plexclient.wire.v1 import node_pb2
from plexsvc.node.event_log import EventLog


def event(name: str) -> node_pb2.NodeEvent:
    return node_pb2.NodeEvent(ready=node_pb2.ProcReady(proc_id=name))


async def taken(log: EventLog, *, after: int, count: int) -> list[int]:
    indices: list[int] = []
    async for seen in log.follow(after):
        indices.append(seen.index)
        if len(indices) == count:
            break
    return indices


@given(limit=st.integers(1, 6), count=st.integers(0, 12), after=st.integers(0, 14))
def test_after_returns_the_newest_held_events_above_an_index(
    limit: int, count: int, after: int
) -> None:
    log = EventLog(limit=limit)
    for number in range(count):
        log.append(event(str(number)))
    held = range(max(1, count - limit + 1), count + 1)
    assert [seen.index for seen in log.after(after)] == [i for i in held if i > after]
    assert log.next_index == count + 1


async def test_a_reader_gets_old_events_then_new_ones() -> None:
    log = EventLog(limit=10)
    log.append(event("a"))
    log.append(event("b"))
    async with asyncio.TaskGroup() as tasks:
        reader = tasks.create_task(taken(log, after=1, count=3))
        await asyncio.sleep(0)
        log.append(event("c"))
        await asyncio.sleep(0)
        log.append(event("d"))
    assert reader.result() == [2, 3, 4]


async def test_a_reader_that_fell_behind_sees_the_gap() -> None:
    log = EventLog(limit=2)
    for name in "abcde":
        log.append(event(name))
    assert await taken(log, after=1, count=2) == [4, 5]
