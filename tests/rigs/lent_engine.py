"""A serving engine that `plexctl serve` runs, and its owner's switches."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).parents[2]
PLEXCTL: Final = [sys.executable, "-m", "plexsvc.cli.main"]


@dataclass(frozen=True, slots=True)
class ServedEngine:
    """One that runs."""

    address: str
    """Of its OpenAI application."""
    process: subprocess.Popen[str]
    place: Path

    @property
    def socket(self) -> Path:
        """Return where its owner's switches are."""
        return self.place / "state" / "serving" / "chat.sock"

    def plexctl(self, *words: str) -> dict[str, Any]:
        """Return what a command about it prints."""
        return plexctl(self.place, *words)


def environment(place: Path) -> dict[str, str]:
    """Return the environment of commands whose state is in `place`."""
    added = {"PYTHONPATH": f"{ROOT}:{ROOT}/client", "PLEX_STATE_DIR": str(place / "state")}
    return os.environ | added  # noqa: TID251 - a child's environment


@contextmanager
def served(
    place: Path, *options: str, model: str = "chat", slo_s: tuple[str, str] = ("2", "0.5")
) -> Iterator[ServedEngine]:
    """Serve the model of that name in `place`; the engine ends with the block, and cleanly."""
    command = [*PLEXCTL, "serve", str(place / model), "--port", "0", "--json", *options]
    objectives = ["--slo-ttft", slo_s[0], "--slo-tpot", slo_s[1]]
    process = subprocess.Popen(
        [*command, *objectives], stdout=subprocess.PIPE, env=environment(place), text=True
    )
    assert process.stdout is not None
    try:
        address = json.loads(process.stdout.readline())["address"]
        yield ServedEngine(address, process, place)
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=120) in {0, -signal.SIGKILL}, "it ends in order"
    finally:
        process.kill()
        process.stdout.close()
        process.wait()


def plexctl(place: Path, *words: str) -> dict[str, Any]:
    """Return what a command prints as JSON."""
    done = subprocess.run(
        [*PLEXCTL, *words, "--json"],
        env=environment(place),
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    found: dict[str, Any] = json.loads(done.stdout)
    return found
