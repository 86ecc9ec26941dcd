"""Each finding at its bounds, and the command that prints them."""

from __future__ import annotations

import json
import resource
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from plexsvc.cli.main import app
from plexsvc.cluster import doctor
from plexsvc.cluster.doctor import GIB, Finding, Grade
from plexsvc.reward.sandbox.opening import NoSandbox


@pytest.mark.parametrize(
    ("finding", "grade"),
    [
        (doctor.python((3, 10)), Grade.FAILED),
        (doctor.python((3, 11)), Grade.OK),
        (doctor.package("pytest", why="x"), Grade.OK),
        (doctor.package("no-such-package", why="x"), Grade.LIMITED),
        (doctor.memory(3 * GIB), Grade.LIMITED),
        (doctor.memory(4 * GIB), Grade.OK),
        (doctor.descriptors(511), Grade.FAILED),
        (doctor.descriptors(512), Grade.LIMITED),
        (doctor.descriptors(4096), Grade.OK),
        (doctor.descriptors(resource.RLIM_INFINITY), Grade.OK),
        (doctor.program("sh", why="x", todo="y"), Grade.OK),
        (doctor.program("no-such-command", why="x", todo="y"), Grade.LIMITED),
    ],
)
def test_what_is_not_all_right_says_what_to_do(finding: Finding, grade: Grade) -> None:
    assert finding.grade is grade
    assert bool(finding.todo) == (grade is not Grade.OK)


def test_a_port_that_is_taken_is_found() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        listen = f"127.0.0.1:{server.getsockname()[1]}"
        assert doctor.port(listen).found == f"{listen} is taken"
    assert doctor.port("127.0.0.1:0").grade is Grade.OK


def test_a_state_directory_that_is_not_there_is_judged_by_what_is_above_it(tmp_path: Path) -> None:
    assert f"free below {tmp_path}" in doctor.disk(tmp_path / "a" / "b").found


def test_without_a_sandbox_the_cause_and_the_remedy_are_told_apart() -> None:
    finding = doctor.sandbox(NoSandbox("no sandbox: libseccomp cannot be loaded; install it"))
    assert finding.grade is Grade.LIMITED
    assert finding.found == "no sandbox: libseccomp cannot be loaded"
    assert finding.todo.startswith("install it; until then")


def test_the_command_prints_all_and_fails_where_the_service_cannot_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    named = ["doctor", "--json", "--state-dir", str(tmp_path)]
    found = CliRunner().invoke(app, named)
    findings = json.loads(found.stdout)["findings"]
    assert {"python", "sandbox", "open files"} <= {one["name"] for one in findings}
    is_failed = any(one["grade"] == "failed" for one in findings)
    assert found.exit_code == int(is_failed), findings

    def broken(_: Path) -> Iterator[Finding]:
        yield Finding(name="memory", grade=Grade.FAILED, found="none", todo="buy some")

    monkeypatch.setattr(doctor, "examine", broken)
    failed = CliRunner().invoke(app, named[:1])
    assert failed.exit_code == 1
    assert "buy some" in failed.stdout
    assert "cannot run here" in failed.stderr
