"""Those who wait for something to be known of an id: an answer, an end."""

from __future__ import annotations

import asyncio
from collections.abc import Hashable
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class Waiters(Generic[K, V]):
    """Futures by id; any number may wait for one. Nothing is kept of an id nobody waits for."""

    def __init__(self) -> None:
        self.waiting: dict[K, list[asyncio.Future[V]]] = {}

    async def wait(self, key: K) -> V:
        """Return what is told of `key` next."""
        future: asyncio.Future[V] = asyncio.get_running_loop().create_future()
        waiting = self.waiting.setdefault(key, [])
        waiting.append(future)
        try:
            return await future
        finally:
            waiting.remove(future)
            if not waiting and self.waiting.get(key) is waiting:
                del self.waiting[key]

    def tell(self, key: K, value: V) -> None:
        """Wake whoever waits for `key`."""
        for future in self.waiting.get(key, ()):
            if not future.done():
                future.set_result(value)
