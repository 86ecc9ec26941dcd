"""A whole service for benchmarks: `plexctl up` as its own process, stopped at the end."""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import plexclient as plex

BOOT_S = 120
TETHERED = [sys.executable, "-m", "plexsvc.tether", str(os.getpid()), sys.executable]
"""What starts a Python that dies with this process."""


@contextlib.contextmanager
def running(config: str) -> Iterator[plex.Cluster]:
    """Start `plexctl up` with a TOML configuration (state_dir and listen are added); connect."""
    with tempfile.TemporaryDirectory(prefix="plex-bench-", dir="/var/tmp") as scratch:
        home = Path(scratch)
        path = home / "cluster.toml"
        path.write_text(f'state_dir = "{home / "state"}"\nlisten = "127.0.0.1:0"\n' + config)
        log = home / "up.log"
        models = ["--root", tempfile.gettempdir()]
        command = [*TETHERED, "-m", "plexsvc.cli.main", "up", "--config", str(path), *models]
        with log.open("wb") as output:
            process = subprocess.Popen(command, stdout=output, stderr=output)
        try:
            card = _card(home / "state" / "cluster.json", process, log=log)
            with plex.connect(card["address"], token=card["token"]) as cluster:
                yield cluster
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(timeout=30)


def _card(path: Path, process: subprocess.Popen[bytes], *, log: Path) -> dict[str, str]:
    deadline = time.monotonic() + BOOT_S
    while not path.exists():
        if process.poll() is not None or time.monotonic() > deadline:
            sys.exit(f"plexctl up did not come up:\n{log.read_text()[-3000:]}")
        time.sleep(0.1)  # noqa: TID251 - waits for another process
    card: dict[str, str] = json.loads(path.read_text())
    return card


def command() -> str:
    """Return the command that started this benchmark."""
    return shlex.join(["python", "-m", f"benchmarks.{Path(sys.argv[0]).stem}", *sys.argv[1:]])


def report(**figures: object) -> None:
    """Print the benchmark's one JSON line, with the command that made it."""
    print(json.dumps({**figures, "command": command()}))
