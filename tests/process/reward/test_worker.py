"""A worker as a process: what it is told to import, it has imported before its next task."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from plexsvc.reward import messages
from plexsvc.reward.messages import Done, Ready, Task, Warm

pytestmark = [pytest.mark.process, pytest.mark.timeout(60)]


def read(line: socket.socket) -> Any:  # noqa: ANN401 - the next message
    head = line.recv(messages.LENGTH.size, socket.MSG_WAITALL)
    return messages.decode(line.recv(messages.LENGTH.unpack(head)[0], socket.MSG_WAITALL))


def test_a_worker_is_warmed_while_it_is_idle(tmp_path: Path) -> None:
    (tmp_path / "slow_library.py").write_text("from pathlib import Path; Path('here').touch()")
    ours, theirs = socket.socketpair()
    fd = theirs.fileno()
    argv = [sys.executable, "-m", "plexsvc.reward.worker", str(fd), str(os.getpid())]
    environment = {"PYTHONPATH": os.pathsep.join([str(tmp_path), *sys.path])}
    with (
        ours,
        subprocess.Popen(argv, pass_fds=(fd,), cwd=tmp_path, env=environment) as worker,
    ):
        theirs.close()
        assert isinstance(read(ours), Ready)
        assert not (tmp_path / "here").exists()
        ours.sendall(messages.encode(Warm(("no_such_library", "slow_library"))))
        task = Task("exact", 0, text="4", reference='"4"', settings="", files={})
        ours.sendall(messages.encode(task))
        assert read(ours) == Done("scored", 1.0)
        assert (tmp_path / "here").exists()
        worker.kill()
