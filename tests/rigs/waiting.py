"""Waiting for another process to get somewhere, with a bound and a message."""

from __future__ import annotations

import time
from collections.abc import Callable


def wait_until(true: Callable[[], object], *, what: str, timeout_s: float = 240) -> None:
    """Return when `true()` holds; fail with `what` when it does not within `timeout_s`."""
    deadline = time.monotonic() + timeout_s
    while not true():
        assert time.monotonic() < deadline, f"after {timeout_s} s still waiting: {what}"
        time.sleep(0.05)  # noqa: TID251 - another process has to get somewhere
