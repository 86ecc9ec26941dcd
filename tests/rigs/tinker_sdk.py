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


def start(
    live: live_cluster.LiveCluster, program: str, *, key: str, version: str = "", **given: Any
) -> Any:
    """Start a program of `tinker_programs`, or a file, as whoever has the key.

    It has the newest SDK unless a `version` is named.
    """
    environment = os.environ | {  # noqa: TID251 - of a user's process
        "TINKER_BASE_URL": f"http://{live.http}",
        "TINKER_API_KEY": key,
        "HF_HUB_OFFLINE": "1",
        "PYTHONWARNINGS": "ignore",
        "PYTHONPATH": str(PYTHON.parents[1] / f"sdk-{version}") if version else "",
    }
    command = [str(PYTHON), str(PROGRAMS), program, json.dumps(given)]
    if Path(program).is_file():
        options = [part for name, value in given.items() for part in (f"--{name}", str(value))]
        command = [str(PYTHON), program, *options]
    return subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def answer(started: Any, *, timeout_s: float = 120) -> Any:
    """Return what a program that was started returns."""
    return json.loads(output(started, timeout_s=timeout_s).splitlines()[-1])


def output(started: Any, *, timeout_s: float = 120) -> str:
    """Return what a process that was started prints."""
    try:
        out, err = started.communicate(timeout=timeout_s)
    finally:
        started.kill()  # what hangs would hang for ever
    assert started.returncode == 0, err[-6000:]
    return str(out)


def run(live: live_cluster.LiveCluster, program: str, **given: Any) -> Any:
    """Return what a program returns."""
    return answer(start(live, program, **given))
