"""The event loop of every process that serves gRPC."""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any, TypeVar

import uvloop

Result = TypeVar("Result")


def run(main: Coroutine[Any, Any, Result]) -> Result:
    """Run `main` to its end on a new uvloop."""
    return uvloop.run(main)
