"""Announcements of a lent guest to its cluster: a lease that is renewed while the guest may run."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final, TypeAlias

from plexclient.wire.v1 import service_pb2
from plexsvc.clock import Clock
from plexsvc.errors import PlexError
from plexsvc.log import Log
from plexsvc.rollout.serving.config import ServingConfig

log = Log(__name__)

LEASE_US: Final = 15_000_000
RENEW_US: Final = 5_000_000

LOOK_US: Final = 200_000
"""How often it is looked whether the owner lends."""

LAST_CALL_S: Final = 2.0
"""How long an engine that ends waits for its cluster to hear of it."""

Tell: TypeAlias = Callable[[service_pb2.LendInstanceRequest], object]
"""Tells the cluster; blocks. Raises a `PlexError` when it refuses or is not there."""


class Announcer:
    """Keeps the cluster's picture of one guest right: lent, or withdrawn."""

    def __init__(
        self,
        config: ServingConfig,
        place: int,
        address: str,
        tell: Tell,
        *,
        is_lent: Callable[[], bool],
    ) -> None:
        """Announce the guest at that place; `is_lent` says whether the owner lends now."""
        self._tell, self._is_lent = tell, is_lent
        self._request = service_pb2.LendInstanceRequest(
            name=config.guest_names[place],
            address=address,
            model=str(config.guests[place].resolve()),
            price=config.price,
            owner=config.owner,
            lend_to=config.lend_to,
        )
        self._told: bool | None = None
        """What the cluster heard last; None: nothing, or it refused."""
        self._because = ""

    async def run(self, clock: Clock) -> None:
        """Announce and renew until cancelled; withdraw then."""
        renewed_us = -RENEW_US
        try:
            while True:
                now_us, is_lent = clock.monotonic_us(), self._is_lent()
                is_due = is_lent and now_us - renewed_us >= RENEW_US
                is_late = self._told is None and now_us - renewed_us >= RENEW_US
                if is_due or is_late or self._told is (not is_lent):
                    renewed_us = now_us
                    await self._say(is_lent=is_lent)
                await clock.sleep(LOOK_US)
        finally:
            if self._told:
                try:
                    async with asyncio.timeout(LAST_CALL_S):
                        await self._say(is_lent=False)
                except TimeoutError:
                    log.warning("cluster not told that the guest goes; its lease ends soon")

    async def _say(self, *, is_lent: bool) -> None:
        request = service_pb2.LendInstanceRequest()
        request.CopyFrom(self._request)
        request.lease_us = LEASE_US if is_lent else 0
        try:
            await asyncio.to_thread(self._tell, request)
        except PlexError as error:
            if error.message != self._because:
                log.warning("cluster does not take the guest", because=error.message)
            self._told, self._because = None, error.message
        else:
            self._told, self._because = is_lent, ""
