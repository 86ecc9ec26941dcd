"""The node's lease: while the scheduler renews it ranks may run; when it runs out they are killed.

Theory of operation. NONE until the first renewal: an agent nobody leads yet has nothing to fence.
HELD from a renewal until `arrival + ttl`. EXPIRED after that: `on_expired` has been called and new
processes are refused until the next renewal.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from enum import StrEnum

from plexsvc.clock import Clock
from plexsvc.errors import unavailable
from plexsvc.fencing import refuse_older
from plexsvc.log import Log

log = Log(__name__)


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
    ) -> None:
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

    def renew(self, *, epoch: int, ttl_us: int, arrived_us: int) -> None:
        """Hold the lease until `arrived_us + ttl_us`.

        Raises:
            PlexError: `stale_fence` for an older epoch; nothing changes then.
        """
        self.check_epoch(epoch, what="renewal of the lease")
        self._heard_us = arrived_us
        if self._watch is not None:
            self._watch.cancel()
        self.state = LeaseState.HELD
        self._watch = self._tasks.create_task(self._expire_at(arrived_us + ttl_us))

    async def orphaned(self, orphan_us: int) -> None:
        """Return when nobody has renewed the lease for `orphan_us`."""
        while (left_us := self._heard_us + orphan_us - self._clock.monotonic_us()) > 0:
            await self._clock.sleep(left_us)

    async def _expire_at(self, deadline_us: int) -> None:
        while (left_us := deadline_us - self._clock.monotonic_us()) > 0:
            await self._clock.sleep(left_us)
        self._watch = None  # a renewal that comes now must not stop the killing
        self.state = LeaseState.EXPIRED
        log.warning("node lease expired", max_epoch=self.max_epoch)
        await self._on_expired()
