"""A worker as a process: what it is told to import, it has imported before its next task."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from plexsvc.reward import messages, worker
from plexsvc.reward.messages import Ready, StageDone, Task, Warm
from plexsvc.reward.sandbox.opening import NoSandbox
from plexsvc.reward.zygote import (
    MAX_MESSAGE_BYTES,
    KillWorker,
    Start,
    Started,
    WorkerEnded,
    decode_report,
)

pytestmark = pytest.mark.process


def read(line: socket.socket) -> Any:
    head = line.recv(messages.LENGTH.size, socket.MSG_WAITALL)
    return messages.decode(line.recv(messages.LENGTH.unpack(head)[0], socket.MSG_WAITALL))


@pytest.fixture
def zygote(tmp_path: Path) -> Iterator[socket.socket]:
    """Yield the line of a zygote of workers."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    argv = [sys.executable, "-m", "plexsvc.reward.zygote", str(theirs.fileno()), str(os.getpid())]
    environment = {"PYTHONPATH": os.pathsep.join([str(tmp_path), *sys.path])}
    with (
        ours,
        subprocess.Popen(
            argv, pass_fds=(theirs.fileno(),), cwd=tmp_path, env=environment
        ) as process,
    ):
        theirs.close()
        yield ours
        process.kill()


def start(zygote: socket.socket, *modules: str) -> tuple[socket.socket, int]:
    """Return the line of a worker that is ready, and its process."""
    ours, theirs = socket.socketpair()
    with theirs:
        order = msgspec.msgpack.encode(Start(1, modules))
        socket.send_fds(zygote, [order], [theirs.fileno()])
    started = decode_report(zygote.recv(MAX_MESSAGE_BYTES))
    assert isinstance(started, Started)
    assert isinstance(read(ours), Ready)
    return ours, started.pid


def test_a_worker_is_warmed_while_it_is_idle(zygote: socket.socket, tmp_path: Path) -> None:
    (tmp_path / "slow_library.py").write_text("from pathlib import Path; Path('here').touch()")
    ours, _ = start(zygote)
    with ours:
        assert not (tmp_path / "here").exists()
        ours.sendall(messages.encode(Warm(("no_such_library", "slow_library"))))
        task = Task("exact", 0, text="4", reference='"4"', settings="", files={})
        ours.sendall(messages.encode(task))
        assert read(ours) == StageDone("scored", 1.0)
        assert (tmp_path / "here").exists()


def test_a_worker_reads_numbers_of_any_length(zygote: socket.socket) -> None:
    ours, _ = start(zygote)
    digits = "9" * 6000
    with ours:
        for program, text in (("numeric", digits), ("math", f"\\boxed{{{digits}}}")):
            for reference in (digits, f'"{digits}"'):
                ours.sendall(messages.encode(Task(program, 0, text, reference, "", {})))
                done = read(ours)
                assert (done.how, done.score) == ("scored", 1.0), done
        test = f'[{{"call": "f()", "equals": {digits}}}]'
        code = "def f(): return 10**6000 - 1"
        ours.sendall(messages.encode(Task("code_python", 0, code, test, "", {})))
        assert read(ours).score == 1.0


def test_what_one_worker_needs_is_imported_once_for_all(
    zygote: socket.socket, tmp_path: Path
) -> None:
    (tmp_path / "slow_library.py").write_text("import os; open(str(os.getpid()), 'w')")
    for _ in range(2):
        start(zygote, "slow_library")[0].close()
        assert decode_report(zygote.recv(MAX_MESSAGE_BYTES)) == WorkerEnded(1, 0)
    (importer,) = (int(path.name) for path in tmp_path.iterdir() if path.name.isdigit())
    assert Path(f"/proc/{importer}/comm").read_text() == "reward-zygote\n"


def test_a_worker_is_killed_when_it_is_told_and_its_end_is_reported(zygote: socket.socket) -> None:
    ours, pid = start(zygote)
    with ours:
        zygote.send(msgspec.msgpack.encode(KillWorker(1)))
        assert decode_report(zygote.recv(MAX_MESSAGE_BYTES)) == WorkerEnded(1, -signal.SIGKILL)
        assert not Path(f"/proc/{pid}").exists()
        assert not ours.recv(1)


def test_a_worker_holds_no_descriptor_but_its_own(zygote: socket.socket) -> None:
    first, _ = start(zygote)
    second, pid = start(zygote)
    with first, second:
        sockets = [
            entry
            for entry in Path(f"/proc/{pid}/fd").iterdir()
            if "socket" in str(entry.readlink())
        ]
        assert len(sockets) == 2, "its line, and that of its sandbox"


@pytest.mark.parametrize("text", ["[" * 100_000 + "]" * 100_000, "{", "9" * 5000])
def test_a_reference_that_cannot_be_read_is_refused_without_a_traceback(
    text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    task = Task("exact", 0, "4", reference=text, settings="", files={})
    done = worker.run(task, sandbox=NoSandbox("not needed"))
    assert done.how == "refused"
    assert done.detail.startswith("the reference cannot be read as JSON")
    assert capsys.readouterr().err == ""
