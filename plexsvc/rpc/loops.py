"""Event loop of every process that serves gRPC, and the main program of one that only serves."""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import signal
import sys
from collections.abc import Callable, Coroutine
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any, Final, TypeVar

import uvloop

from plexsvc import config as configuration
from plexsvc import log as logging
from plexsvc.errors import PlexError
from plexsvc.tether import die_with_parent

Result = TypeVar("Result")
Config = TypeVar("Config")

IDLE_PASS_US: Final = 60_000_000
BUSY_PASS_US: Final = 600_000_000
NEVER: Final = 1 << 30
SWITCH_S: Final = 0.001
"""How long another thread computes before the event loop gets its turn. Python's default is five
times as long, and the event loop asks for its turn many times in one answer."""


def run(main: Coroutine[Any, Any, Result]) -> Result:
    """Run `main` to its end on a new uvloop."""
    return uvloop.run(main)


def keep_what_is_there() -> None:
    """Take what a process loaded to start out of the garbage collector's sight: it stays anyway.

    A full pass over it would hold the event loop up for tens of milliseconds.
    """
    gc.collect()
    gc.freeze()


class FullPasses:
    """Full passes of the garbage collector, when a loop has time for them.

    One takes some milliseconds for each thousand samples or calls that a process holds, and the
    collector begins them in the middle of the busiest time. What is no cycle goes without them.
    """

    def __init__(self) -> None:
        self._last_us = 0

    @staticmethod
    def take_over() -> None:
        """Have the collector begin none by itself, in this process."""
        young, middle, _ = gc.get_threshold()
        gc.set_threshold(young, middle, NEVER)

    def look(self, now_us: int, *, is_idle: bool) -> bool:
        """Make one, and say so, if it is time: an idle loop's comes sooner."""
        is_due = now_us - self._last_us >= (IDLE_PASS_US if is_idle else BUSY_PASS_US)
        if is_due:
            gc.collect()
            self._last_us = now_us
        return is_due


def serve(into: type[Config], serving: Callable[[Config], AbstractAsyncContextManager[str]]) -> int:
    """Serve by the arguments of the command line until SIGTERM or SIGINT; return the exit status.

    `--config` names a TOML file of `into`; `--parent-death` a process to die with. When clients can
    connect, one JSON line says the address that `serving` yields. Status 2: it could not serve, and
    stderr says why.
    """
    parser = argparse.ArgumentParser()
    parser.add_argument("--config", type=Path, required=True, help=f"TOML file: {into.__name__}")
    parser.add_argument("--parent-death", type=int, metavar="PID", help="die when PID dies")
    arguments = parser.parse_args()
    if arguments.parent_death is not None:
        die_with_parent(arguments.parent_death)
    logging.setup()
    try:
        run(until_stopped(serving(configuration.load(arguments.config, into)), ready=_say))
    except PlexError as error:
        sys.stderr.write(f"{error}\n")
        return 2
    return 0


async def until_stopped(
    serving: AbstractAsyncContextManager[str], *, ready: Callable[[str], None]
) -> None:
    """Serve until SIGTERM or SIGINT; tell by `ready` where."""
    sys.setswitchinterval(SWITCH_S)
    stopped = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stopped.set)
    async with serving as address:
        keep_what_is_there()
        ready(address)
        await stopped.wait()


def _say(address: str) -> None:
    sys.stdout.write(json.dumps({"address": address}) + "\n")
    sys.stdout.flush()
