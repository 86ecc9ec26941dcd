"""Takeover of the store from earlier schedulers: jobs that nobody adopted end, cycles stay."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, Final

from plexsvc.clock import Clock
from plexsvc.log import Log
from plexsvc.scheduler.config import SchedulerConfig
from plexsvc.scheduler.core.events import Post, ProfilesLoaded
from plexsvc.scheduler.ledger import profiles
from plexsvc.store.store import Store

log = Log(__name__)

DAY_US: Final = 86_400_000_000

MAX_PROFILES: Final = 1000
"""Measured cycles read back at the start, the latest; a job of a known kind starts warm."""


async def take_over(
    store: Store,
    config: SchedulerConfig,
    *,
    clock: Clock,
    run: Callable[[Callable[[], Any]], Awaitable[Any]],
    post: Post | None,
) -> None:
    """Fail the jobs of earlier schedulers, delete old history, tell the core of measured cycles.

    Jobs that were adopted are this scheduler's by now; nobody has the processes of others. `run`
    makes calls that block. Without `post` the core has its cycles already.

    Raises:
        PlexError: `stale_fence` when another scheduler has taken over meanwhile.
    """
    now_us = clock.wall_us()
    failed = await run(
        partial(store.fail_orphans, reason="the scheduler restarted", ended_us=now_us)
    )
    if failed:
        log.warning("jobs of an earlier scheduler failed", jobs=failed)
    deleted = await run(partial(store.forget, before_us=now_us - config.history_days * DAY_US))
    if deleted:
        log.info("history deleted", rows=deleted, older_than_days=config.history_days)
    if post is None:
        return
    rows = await run(partial(store.profiles, limit=MAX_PROFILES))
    kept = tuple(filter(None, map(profiles.from_row, rows)))
    if kept:
        post(ProfilesLoaded(profiles=kept))
