"""What the sandbox's zygote shows of the machine's devices."""

from __future__ import annotations

from pathlib import Path

import pytest

from plexsvc.reward.sandbox import zygote


@pytest.mark.parametrize(
    ("held", "shown"),
    [
        ("", []),
        ("1", ["nvidia10", "nvidia-uvm", "nvidiactl"]),
        ("0,1", ["nvidia10", "nvidia4", "nvidia-uvm", "nvidiactl"]),
        ("7", []),
    ],
)
def test_a_command_has_the_device_files_of_its_gpus_and_no_others(
    held: str, shown: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "dev").mkdir()
    for name in ("null", "nvidia4", "nvidia10", "nvidiactl", "nvidia-uvm", "nvidia-modeset"):
        (tmp_path / "dev" / name).touch()
    monkeypatch.setattr(zygote, "_OLD", str(tmp_path))
    monkeypatch.setitem(zygote.ENVIRONMENT, zygote.GPUS, held)
    assert sorted(zygote._gpu_devices()) == sorted(shown)
