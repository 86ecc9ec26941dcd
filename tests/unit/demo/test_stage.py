"""The demo's cluster: its state is its own, whatever the user's shell names."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from plexsvc.demo.stage import open_stage


class FakePopen:
    """A process that is not there: it keeps what was to be started, and refuses."""

    def __init__(self, argv: list[str], **_: object) -> None:
        raise OSError(" ".join(argv))


def test_a_demo_keeps_to_its_own_state_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(subprocess, "Popen", FakePopen)
    state_dir = tmp_path / "state"
    with (
        pytest.raises(OSError, match=f"--state-dir {state_dir}"),
        open_stage(tmp_path, device_bytes=1 << 30),
    ):
        pass
