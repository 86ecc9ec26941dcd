"""The node's lease: while the scheduler renews it ranks may run; when it runs out they are killed.

Theory of operation. NONE until the first renewal: an agent nobody leads yet has nothing to fence.
HELD from a renewal until `arrival + ttl`. EXPIRED after that: `on_expired` has been called and new
processes are refused until the next renewal.

The `ttl` outlasts a scheduler that is stopped for a while. A host that is cut off must not wait so
long, because its work soon goes on elsewhere: when `look_us` have passed without a renewal and it
reaches no other host either, the lease expires at once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from enum import StrEnum
from typing import Final

from plexsvc.clock import Clock
from plexsvc.errors import unavailable
from plexsvc.fencing import refuse_older
from plexsvc.log import Log
from plexsvc.node.reaching import reaches_any

log = Log(__name__)

LOOK_US: Final = 1_000_000
"""How often a node that nobody renews looks whether it is cut off."""


class LeaseState(StrEnum):
    """What the lease lets the node do."""

    NONE = "none"
    HELD = "held"
    EXPIRED = "expired"


class NodeLease:
    """The lease and the newest scheduler epoch this node has seen."""

    def __init__(
        self,
        clock: Clock,
        *,
        tasks: asyncio.TaskGroup,
        on_expired: Callable[[], Awaitable[None]],
        reaches_any: Callable[[Sequence[str]], Awaitable[bool]] = reaches_any,
    ) -> None:
        self._reaches_any = reaches_any
        self._clock = clock
        self._tasks = tasks
        self._on_expired = on_expired
        self._watch: asyncio.Task[None] | None = None
        self.state = LeaseState.NONE
        self.max_epoch = 0
        self._heard_us = clock.monotonic_us()

    def check_epoch(self, epoch: int, *, what: str) -> None:
        """Take note of the `epoch` that the command `what` carries.

        Raises:
            PlexError: `stale_fence` when a newer scheduler has spoken to this node.
        """
        refuse_older(what, "scheduler_epoch", given=epoch, seen=self.max_epoch)
        self.max_epoch = epoch

    def check_alive(self) -> None:
        """Do nothing while processes may be started.

        Raises:
            PlexError: `unavailable` when the lease ran out and was not renewed since.
        """
        if self.state is LeaseState.EXPIRED:
            raise unavailable(
                "process not started: the node's lease ran out and its ranks were killed; "
                "renew the lease and spawn again"
            )

    def renew(
        self,
        *,
        epoch: int,
        ttl_us: int,
        arrived_us: int,
        look_us: int = 0,
        witnesses: Sequence[str] = (),
    ) -> None:
        """Hold the lease until `arrived_us + ttl_us`, after `look_us` only while a witness answers.

        Raises:
            PlexError: `stale_fence` for an older epoch; nothing changes then.
        """
        self.check_epoch(epoch, what="renewal of the lease")
        self._heard_us = arrived_us
        if self._watch is not None:
            self._watch.cancel()
        self.state = LeaseState.HELD
        until_us = arrived_us + ttl_us
        from_us = min(until_us, arrived_us + look_us) if witnesses else until_us
        self._watch = self._tasks.create_task(self._expire(from_us, until_us, witnesses))

    async def orphaned(self, orphan_us: int) -> None:
        """Return when nobody has renewed the lease for `orphan_us`."""
        while (left_us := self._heard_us + orphan_us - self._clock.monotonic_us()) > 0:
            await self._clock.sleep(left_us)

    async def _expire(self, from_us: int, until_us: int, witnesses: Sequence[str]) -> None:
        await self._sleep_until(from_us)
        while self._clock.monotonic_us() < until_us and await self._reaches_any(witnesses):
            await self._sleep_until(min(until_us, self._clock.monotonic_us() + LOOK_US))
        self._watch = None  # a renewal that comes now must not stop the killing
        self.state = LeaseState.EXPIRED
        log.warning("node lease expired", max_epoch=self.max_epoch)
        await self._on_expired()

    async def _sleep_until(self, deadline_us: int) -> None:
        while (left_us := deadline_us - self._clock.monotonic_us()) > 0:
            await self._clock.sleep(left_us)
