"""Watch over work under way: what hangs is found by its progress, not by how long it takes.

Theory of operation. Work names the processes that carry it. Every `LOOK_US` the watch looks whether
their connections, which ping, are alive; a process that was silent for `SILENT_LOOKS` looks in a
row is given up. Work that lasts is asked how far it is (micro-batches done, tensors filled, tokens
recorded, bytes moved), and is given up when that has not grown for `progress_timeout_us`.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Final, Protocol

import grpc.aio

from plexsvc.clock import Clock
from plexsvc.errors import ErrorCode, PlexError

LOOK_US: Final = 1_000_000
"""How often work under way is looked at."""

SILENT_LOOKS: Final = 3
"""Looks in a row that find a process silent before it is given up."""

ASKS: Final = 4
"""Times that work is asked for its progress in the time after which it is given up."""


class Carrier(Protocol):
    """A process that carries work."""

    @property
    def name(self) -> str:
        """What errors call it."""

    def is_alive(self) -> bool:
        """Return whether its connection is up; connect if it is not."""

    async def progress(self) -> int:
        """Return a count that grows while work gets on.

        Raises:
            AioRpcError, OSError: it did not say.
        """


class HungError(PlexError):
    """The verdict on work that hangs."""


@dataclass(eq=False, slots=True, kw_only=True)
class _WatchedWork:
    what: str
    carriers: Sequence[Carrier]
    stuck: ErrorCode
    limit: asyncio.Timeout
    since_us: int
    """When it began, or was last seen to get on."""
    asked_us: int
    count: int = -1
    silent_looks: int = 0
    verdict: HungError | None = None

    def give_up(self, message: str, *, carrier: Carrier, code: ErrorCode) -> None:
        """End the wait for it, with this error."""
        if self.verdict is None:
            self.verdict = HungError(code, message, worker=carrier.name)
            self.limit.reschedule(asyncio.get_running_loop().time())


class Watch:
    """All work under way in other processes; `run` must be running."""

    def __init__(self, clock: Clock, *, progress_timeout_us: int) -> None:
        self._clock = clock
        self._timeout_us = progress_timeout_us
        self._works: set[_WatchedWork] = set()

    @asynccontextmanager
    async def over(
        self, what: str, carriers: Sequence[Carrier], *, stuck: ErrorCode = ErrorCode.WORKER_DIED
    ) -> AsyncIterator[None]:
        """Watch the calls in the body, which are cancelled when one of `carriers` hangs.

        Raises:
            HungError: `worker_died` when one does not answer any more, `stuck` when they answer
                and the work does not get on.
        """
        now_us = self._clock.monotonic_us()
        work = None
        try:
            async with asyncio.timeout(None) as limit:
                work = _WatchedWork(
                    what=what,
                    carriers=carriers,
                    stuck=stuck,
                    limit=limit,
                    since_us=now_us,
                    asked_us=now_us,
                )
                self._works.add(work)
                yield
        except TimeoutError:
            if work is None or work.verdict is None:
                raise
            raise work.verdict from None
        finally:
            if work is not None:
                self._works.discard(work)

    async def run(self) -> None:
        """Watch until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            while True:
                await self._clock.sleep(LOOK_US)
                now_us = self._clock.monotonic_us()
                for work in tuple(self._works):
                    _look(work)
                    if now_us - work.asked_us >= self._timeout_us // ASKS:
                        work.asked_us = now_us
                        tasks.create_task(self._ask(work))

    async def _ask(self, work: _WatchedWork) -> None:
        """Give up work that has not got on for too long; one who does not say has not."""
        found = await asyncio.gather(
            *(carrier.progress() for carrier in work.carriers), return_exceptions=True
        )
        told = [count for count in found if isinstance(count, int)]
        for failure in found:
            if not isinstance(failure, int | grpc.aio.AioRpcError | OSError | PlexError):
                raise failure
        now_us = self._clock.monotonic_us()
        if sum(told) > work.count:
            work.count, work.since_us = sum(told), now_us
        elif now_us - work.since_us >= self._timeout_us:
            work.give_up(
                f"{work.what} made no progress for {self._timeout_us // 1_000_000} s "
                "(scheduler.progress_timeout_us) and was given up",
                carrier=work.carriers[0],
                code=work.stuck,
            )


def _look(work: _WatchedWork) -> None:
    silent = next((c for c in work.carriers if not c.is_alive()), None)
    work.silent_looks = 0 if silent is None else work.silent_looks + 1
    if silent is not None and work.silent_looks >= SILENT_LOOKS:
        work.give_up(
            f"{silent.name} stopped answering during {work.what}; deploy again to go on",
            carrier=silent,
            code=ErrorCode.WORKER_DIED,
        )
