"""Leadership of a state directory and of a database: one service leads, others wait or leave.

A standby waits for both. It ends a leader of this state directory that the database no longer
counts as one: that stands still, with processes below it that its successor is in the way of.
"""

from __future__ import annotations

import asyncio
import os
import signal
import socket
from contextlib import AsyncExitStack, suppress
from pathlib import Path
from typing import Final

from plexsvc.clock import Clock
from plexsvc.cluster.places import held, holder
from plexsvc.errors import PlexError, unavailable
from plexsvc.log import Log
from plexsvc.store.leadership import Leadership

LOOK_US: Final = 50_000
"""How often a standby looks."""

LEAVE_US: Final = 1_000_000
"""How long a leader that lost its database has to let go of the state directory."""

log = Log(__name__)


async def hold(
    state_dir: Path,
    stack: AsyncExitStack,
    *,
    waits: bool,
    clock: Clock,
    database: Path | None = None,
) -> None:
    """Hold the state directory, or a file as database; with `waits`, once nobody else does.

    Raises:
        PlexError: `unavailable` when another service holds it.
    """
    while True:
        try:
            stack.enter_context(held(state_dir, database=database))
        except PlexError:
            if not waits:
                raise
            await clock.sleep(LOOK_US)
        else:
            return


async def lead(leadership: Leadership, *, waits: bool, clock: Clock) -> None:
    """Take the lead of a database; with `waits`, once nobody else has it.

    A leader that may have died with the database's server is waited for a few seconds.

    Raises:
        PlexError: `unavailable` when another service leads, or the database does not answer.
    """
    told = ""
    while True:
        try:
            leader = await asyncio.to_thread(leadership.try_take)
        except PlexError as error:
            if not waits:
                raise
            leader = error.message
        if leader is None:
            return
        if not waits and not leadership.is_awaited:
            raise unavailable(
                f"{leader} leads the cluster of this database already; stop it, name another "
                "database, or have this one wait for its end: `plexctl up --standby`"
            )
        if leader != told:
            told = leader
            log.info("standby", leader=leader)
        await clock.sleep(LOOK_US)


async def take_from_former(state_dir: Path, stack: AsyncExitStack, *, clock: Clock) -> None:
    """Hold the state directory of a leader that lost its database, and end that if it stays."""
    try:
        async with asyncio.timeout(LEAVE_US / 1e6):
            await hold(state_dir, stack, waits=True, clock=clock)
    except TimeoutError:
        # It lost its database a while ago, and has not let go: it stands still.
        former = holder(state_dir)
        if former is not None:
            log.warning("the former leader stands still and is ended", pid=former)
            with suppress(ProcessLookupError):
                os.kill(former, signal.SIGKILL)
        await hold(state_dir, stack, waits=True, clock=clock)


def name() -> str:
    """Return what others call this service."""
    return f"the service on {socket.gethostname()} (pid {os.getpid()})"
