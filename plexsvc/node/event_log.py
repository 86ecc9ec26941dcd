"""The node's event log: ordered, bounded, replayable from any index it still holds."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator

from plexclient.wire.v1 import node_pb2


class EventLog:
    """Events in order of their numbers. A reader that fell behind the bound sees a gap in them.

    An agent numbers from its start time, so that numbers grow over restarts too and a reader goes
    on where it was, whichever agent answers.
    """

    def __init__(self, *, limit: int, first_index: int = 1) -> None:
        self._events: deque[node_pb2.NodeEvent] = deque(maxlen=limit)
        self._next_index = first_index
        self._grown = asyncio.Event()

    @property
    def next_index(self) -> int:
        """Return the index that the next event will have."""
        return self._next_index

    def append(self, event: node_pb2.NodeEvent) -> None:
        """Number `event` and hand it to every reader."""
        event.index = self._next_index
        self._next_index += 1
        self._events.append(event)
        self._grown.set()
        self._grown = asyncio.Event()  # those who come later wait for the next

    def after(self, index: int) -> list[node_pb2.NodeEvent]:
        """Return the held events with a number above `index`, oldest first. `O(answer)`."""
        wanted = min(self._next_index - 1 - index, len(self._events))
        return [self._events[place] for place in range(-wanted, 0)]

    async def follow(self, index: int) -> AsyncIterator[node_pb2.NodeEvent]:
        """Yield the events above `index`, then each new one as it comes, without end."""
        while True:
            grown = self._grown
            for event in self.after(index):
                index = event.index
                yield event
            await grown.wait()
