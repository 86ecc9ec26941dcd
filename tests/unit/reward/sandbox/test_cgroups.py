"""Which control groups are taken for delegated, and how their controllers are given away."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from plexsvc.reward.sandbox.base import StageLimits
from plexsvc.reward.sandbox.cgroups import Groups


def fake_group(path: Path, *, controllers: str = "cpu io memory pids", processes: str = "") -> Path:
    """Make a directory with the files of a control group."""
    path.mkdir(parents=True, exist_ok=True)
    (path / "cgroup.controllers").write_text(controllers)
    (path / "cgroup.procs").write_text(processes)
    (path / "cgroup.subtree_control").write_text("")
    return path


def groups_of(root: Path, listing: str) -> Groups:
    file = root.parent / "listing"
    file.write_text(listing)
    return Groups(root, listing=file)


def test_where_there_is_no_second_version_none_is_made(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="there is no cgroup v2"):
        groups_of(tmp_path / "none", "8:pids:/\n0::/\n")


def test_a_controller_that_is_elsewhere_is_named(tmp_path: Path) -> None:
    root = fake_group(tmp_path / "root", controllers="hugetlb cpu")
    with pytest.raises(OSError, match="no controller of memory, pids"):
        groups_of(root, "0::/\n")


def test_a_group_is_left_alone_unless_it_is_marked_as_delegated(tmp_path: Path) -> None:
    root = fake_group(tmp_path / "root")
    service = fake_group(root / "system.slice" / "it.service")
    with pytest.raises(OSError, match="not delegated"):
        groups_of(root, "0::/system.slice/it.service\n")
    assert not (service / "cgroup.subtree_control").read_text()
    mark = "trusted.delegate" if os.geteuid() == 0 else "user.delegate"
    os.setxattr(service, mark, b"1")
    groups_of(root, "0::/system.slice/it.service\n")
    assert (service / "cgroup.subtree_control").read_text() == "+memory +pids +cpu"


def test_of_a_subgroup_the_group_above_may_be_delegated(tmp_path: Path) -> None:
    root = fake_group(tmp_path / "root")
    fake_group(root / "main")
    groups_of(root, "0::/main\n")
    assert (root / "cgroup.subtree_control").read_text() == "+memory +pids +cpu"


def test_a_group_has_the_limits_of_its_command(tmp_path: Path) -> None:
    root = fake_group(tmp_path / "root")
    limits = StageLimits(memory_bytes=100, disk_bytes=11, max_processes=7, cpus=2)
    groups_of(root, "0::/\n").make(limits)
    (made,) = (path for path in root.iterdir() if path.is_dir())
    found = {path.name: path.read_text() for path in made.iterdir()}
    assert found["memory.max"] == "111", "its files count as its memory"
    assert (found["memory.swap.max"], found["pids.max"]) == ("0", "7")
    assert found["cpu.max"] == "20000 10000"
