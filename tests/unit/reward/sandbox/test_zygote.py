"""The sandbox's zygote: what it shows of the machine's devices, and keeps of a command's files."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from plexsvc.reward.messages import StageDone, encode
from plexsvc.reward.sandbox import zygote
from plexsvc.reward.sandbox.base import StageLimits


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


def test_files_whose_names_are_no_text_are_left_out_and_end_no_worker(tmp_path: Path) -> None:
    for name in (b"kept", b"\xff", b"\xfe/inside"):
        place = os.path.join(os.fsencode(tmp_path), name)  # noqa: PTH118 - bytes
        os.makedirs(os.path.dirname(place), exist_ok=True)  # noqa: PTH103, PTH120 - bytes
        with open(place, "wb") as file:  # noqa: PTH123 - bytes
            file.write(b"x")
    found = dict(zygote._left_files(str(tmp_path), StageLimits()))
    assert found == {"kept": b"x"}
    encode(StageDone("passed", files=found))
