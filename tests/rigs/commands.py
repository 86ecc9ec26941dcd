"""`plexctl` as a newcomer runs it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[2]


def plexctl(*arguments: str) -> str:
    """Return what a command prints."""
    command = [sys.executable, "-m", "plexsvc.cli.main", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=240)
    assert done.returncode == 0, done.stderr
    return done.stdout
