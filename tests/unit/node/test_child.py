"""A forked process that ends: what its log says."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from plexsvc.errors import ErrorCode, PlexError
from plexsvc.node import child
from plexsvc.node.messages import ForkOrder


def refuse(config: dict[str, object], ready: Callable[[str], None]) -> None:
    del ready
    raise PlexError(ErrorCode.BAD_REQUEST, f"vLLM cannot run {config['model']}")


def fail(config: dict[str, object], ready: Callable[[str], None]) -> None:
    del ready
    raise KeyError(config["model"])


@pytest.mark.parametrize(("name", "is_bug"), [("refuse", False), ("fail", True)])
def test_a_refusal_is_logged_without_a_traceback_and_a_bug_with_one(
    name: str, is_bug: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    order = ForkOrder(
        token=1,
        name=name,
        entrypoint=f"{__name__}:{name}",
        config={"model": "/m"},
        env={},
        log_path="",
        ready_path="",
    )
    assert child._call(order, ready_fd=-1) == 1
    said = capsys.readouterr().err
    assert ("Traceback" in said) == is_bug
    assert "/m" in said


def test_a_process_that_cannot_begin_says_why_in_its_log(tmp_path: Path) -> None:
    """A pipe that nobody reads any more, for instance: its agent gave it up meanwhile."""
    code = (
        "import os, sys\n"
        "from plexsvc.node import child\n"
        "from plexsvc.node.messages import ForkOrder\n"
        "log = os.open(sys.argv[1], os.O_WRONLY | os.O_CREAT)\n"
        "go = os.pipe()\n"
        "os.write(go[1], b'g')\n"
        "order = ForkOrder(token=1, name='a/0', entrypoint='m:f', config={}, env={},\n"
        "                  log_path='', ready_path=sys.argv[2])\n"
        "child.run(order, agent_pid=os.getppid(), log_fd=log, go_fd=go[0], kept_fds=frozenset())\n"
    )
    log, pipe = tmp_path / "rank.log", tmp_path / "ready"
    done = subprocess.run([sys.executable, "-c", code, str(log), str(pipe)], check=False)
    assert done.returncode == 1
    assert f"No such file or directory: '{pipe}'" in log.read_text()
