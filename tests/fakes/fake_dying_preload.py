"""A preload module whose first zygote dies as it forks, before it can tell of the process."""

from __future__ import annotations

import os
import signal
import tempfile
from pathlib import Path

ZYGOTE = os.getpid()
MARK = Path(tempfile.gettempdir(), f"died-{os.getppid()}")
"""There once a zygote of this agent has died."""


def _die() -> None:
    if os.getpid() != ZYGOTE and not MARK.exists():  # in between: both forks are done
        MARK.touch()
        os.kill(ZYGOTE, signal.SIGKILL)


os.register_at_fork(after_in_parent=_die)
