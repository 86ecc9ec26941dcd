"""A script written as for TRL: its model learns, and is exported."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from tests.system.test_first_loop import ROOT, any_port, plexctl

pytestmark = [pytest.mark.process, pytest.mark.slow, pytest.mark.timeout(300)]

SCRIPT = ROOT / "examples" / "trl_digits.py"


def test_a_script_for_trl_learns_and_leaves_a_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    state = tmp_path / "state"
    monkeypatch.setenv("PLEX_STATE_DIR", str(state))
    model, out = state / "models" / "tiny", state / "checkpoints" / "default" / "digits"
    plexctl("up", "--detach", "--config", str(any_port(tmp_path)))
    try:
        plexctl("model", "new", "tiny-qwen3", str(model))
        told = plexctl("submit", "--attach", str(SCRIPT), str(model), out.name)
    finally:
        plexctl("down")
    steps = [ast.literal_eval(line) for line in told.splitlines() if line.startswith("{")]
    assert [step["step"] for step in steps] == list(range(1, 21))
    assert steps[0]["reward"] < 0.5, "random weights write few digits"
    assert steps[-1]["reward"] > 0.8
    assert (out / "model.safetensors").is_file()
