"""The Tinker SDK, unmodified, in a process of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any, Final

from tests.rigs import live_cluster

PYTHON: Final = Path(sys.prefix) / "tinker" / "bin" / "python"
PROGRAMS: Final = Path(__file__).with_name("tinker_programs.py")


def start(live: live_cluster.LiveCluster, program: str, *, key: str, **given: Any) -> Any:
    """Start a program of `tinker_programs` as whoever has the key."""
    environment = os.environ | {  # noqa: TID251 - of a user's process
        "TINKER_BASE_URL": f"http://{live.http}",
        "TINKER_API_KEY": key,
        "HF_HUB_OFFLINE": "1",
        "PYTHONWARNINGS": "ignore",
    }
    command = [str(PYTHON), str(PROGRAMS), program, json.dumps(given)]
    return subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def answer(started: Any, *, timeout_s: float = 120) -> Any:
    """Return what a program that was started returns."""
    out, err = started.communicate(timeout=timeout_s)
    assert started.returncode == 0, err[-6000:]
    return json.loads(out.splitlines()[-1])


def run(live: live_cluster.LiveCluster, program: str, *, key: str, **given: Any) -> Any:
    """Return what a program returns."""
    return answer(start(live, program, key=key, **given))
