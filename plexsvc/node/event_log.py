"""The node's event log: ordered, bounded, replayable from any index it still holds."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator

from plexclient.wire.v1 import node_pb2


class EventLog:
    """Events numbered from 1. A reader that fell behind the bound sees a gap in the numbers."""

    def __init__(self, *, limit: int) -> None:
        self._events: deque[node_pb2.NodeEvent] = deque(maxlen=limit)
        self._next_index = 1
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
        self._grown = asyncio.Event()

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
