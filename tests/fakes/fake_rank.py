"""Entrypoints for zygote drills: processes that serve, exit, crash or hang as they are told."""

# ruff: noqa: T201, ARG001 - output goes to a log; entrypoints share one signature

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from typing import Any

Ready = Callable[[str], None]


def main(config: dict[str, Any], ready: Ready) -> None:
    """Do what the configuration names."""
    globals()[config["function"]](config, ready)


def serve(config: dict[str, Any], ready: Ready) -> None:
    """Be ready, then wait to be killed."""
    print("serving", config.get("name", ""), flush=True)
    ready(f"fake:{os.getpid()}")
    signal.pause()


def exit_early(config: dict[str, Any], ready: Ready) -> None:
    """Leave with the code that was asked for, before being ready."""
    print("leaving early")
    sys.exit(config["code"])


def crash(config: dict[str, Any], ready: Ready) -> None:
    """Be ready, then fail with a traceback."""
    ready("fake:crash")
    raise RuntimeError(config["message"])


def stay_silent(config: dict[str, Any], ready: Ready) -> None:
    """Never be ready."""
    signal.pause()


def ignore_term(config: dict[str, Any], ready: Ready) -> None:
    """Be ready and ignore TERM."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    ready("fake:stubborn")
    while True:
        signal.pause()


def with_child(config: dict[str, Any], ready: Ready) -> None:
    """Start a process in the same group, report its pid, wait to be killed."""
    child = subprocess.Popen(["sleep", "600"])
    ready(str(child.pid))
    signal.pause()


def report_inside(config: dict[str, Any], ready: Ready) -> None:
    """Report the facts a test asks about, then wait."""
    facts = {
        "fds": sorted(int(name) for name in os.listdir("/proc/self/fd")),
        "own_group": os.getpgid(0) == os.getpid(),
        "config": config,
        "zygote_env": os.environ.get("FAKE_ZYGOTE_ENV", ""),  # noqa: TID251 - what the test looks at
    }
    ready(repr(facts))
    signal.pause()
