"""The one thread that talks to the store: calls run there in order, the loop awaits each."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from queue import SimpleQueue
from threading import Thread
from typing import Any, TypeVar

Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class _Call:
    work: Callable[[], Any]
    answer: asyncio.Future[Any]

    def run(self) -> None:
        loop = self.answer.get_loop()
        try:
            result = self.work()
        except BaseException as error:  # noqa: BLE001 - whoever awaits it raises it
            loop.call_soon_threadsafe(self._fail, error)
        else:
            loop.call_soon_threadsafe(self._succeed, result)

    def _succeed(self, result: object) -> None:
        if not self.answer.done():
            self.answer.set_result(result)

    def _fail(self, error: BaseException) -> None:
        if not self.answer.done():
            self.answer.set_exception(error)


class StoreThread:
    """A thread with a queue; an executor's futures, locks and wakers cost as much as a commit.

    Who calls awaits the answer before calling again: as many calls wait as there are tasks.
    """

    def __init__(self) -> None:
        self._calls: SimpleQueue[_Call | None] = SimpleQueue()
        self._thread = Thread(target=self._run, name="store", daemon=True)
        self._thread.start()

    async def run(self, work: Callable[[], Result]) -> Result:
        """Return what `work()` returns on the thread, or raise what it raises.

        A call that is cancelled runs all the same.
        """
        answer: asyncio.Future[Result] = asyncio.get_running_loop().create_future()
        self._calls.put(_Call(work, answer))
        return await answer

    def close(self) -> None:
        """Return when every call has run. No call may follow."""
        self._calls.put(None)
        self._thread.join()

    def _run(self) -> None:
        while (call := self._calls.get()) is not None:
            call.run()
