"""Count of the lines of Python that a call runs: its cost, the same on every machine."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

Trace = Callable[[FrameType, str, object], Any]


def lines_run(call: Callable[[], object]) -> int:
    """Return how many lines of Python `call` runs, those of all it calls included."""
    count = 0

    def trace(_frame: FrameType, event: str, _what: object) -> Trace:
        nonlocal count
        count += event == "line"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        call()
    finally:
        sys.settrace(before)
    return count
