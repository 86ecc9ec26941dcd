"""A newcomer's first hour: the commands of the README, in order, and a model that learns."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.process, pytest.mark.slow, pytest.mark.timeout(300)]

ROOT = Path(__file__).parents[2]
LOOP = ROOT / "examples" / "first_loop.py"


def plexctl(*arguments: str) -> str:
    command = [sys.executable, "-m", "plexsvc.cli.main", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=240)
    assert done.returncode == 0, done.stderr
    return done.stdout


def any_port(place: Path) -> Path:
    """Return a configuration that differs from none by its port: others may run beside this."""
    config = place / "cluster.toml"
    config.write_text('listen = "127.0.0.1:0"\n')
    return config


def test_the_first_loop_learns_with_the_commands_of_the_readme(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PLEX_STATE_DIR", str(tmp_path / "state"))
    model = tmp_path / "state" / "models" / "tiny"
    plexctl("up", "--detach", "--config", str(any_port(tmp_path)))
    try:
        plexctl("model", "new", "tiny-qwen3", str(model))
        told = plexctl("submit", "--attach", str(LOOP), str(model))
    finally:
        plexctl("down")
    shares = [int(share) for share in re.findall(r"step +\d+: (\d+)%", told)]
    assert len(shares) == 20
    assert shares[0] < 50, "random weights write few digits"
    assert shares[-1] > 80


def test_the_first_loop_fits_on_a_page() -> None:
    assert len(LOOP.read_text().splitlines()) <= 40
