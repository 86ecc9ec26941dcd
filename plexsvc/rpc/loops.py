"""The event loop of every process that serves gRPC."""

from __future__ import annotations

import gc
from collections.abc import Coroutine
from typing import Any, TypeVar

import uvloop

Result = TypeVar("Result")


def run(main: Coroutine[Any, Any, Result]) -> Result:
    """Run `main` to its end on a new uvloop."""
    return uvloop.run(main)


def keep_what_is_there() -> None:
    """Take what a process loaded to start out of the garbage collector's sight: it stays anyway.

    A full pass over it would hold the event loop up for tens of milliseconds.
    """
    gc.collect()
    gc.freeze()
