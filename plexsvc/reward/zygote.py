"""Zygote of workers: it has imported what they need, and forks one whenever it is asked.

`python -m plexsvc.reward.zygote FD PARENT` takes `Start`, with the worker's end of its line, and
`KillWorker` on the socket FD. It tells of each worker's process and of its end. It has one thread.
Its workers die with it, and it dies with its parent.
"""

from __future__ import annotations

import gc
import os
import selectors
import signal
import socket
import sys
from collections.abc import Iterable
from contextlib import closing
from typing import Final, NoReturn

import msgspec

from plexsvc.reward import worker
from plexsvc.reward.sandbox.opening import open_sandbox
from plexsvc.tether import die_before_parent, die_with_parent, set_process_name

MAX_MESSAGE_BYTES: Final = 1 << 16
FAILED: Final = 71
"""Exit code of a worker that could not be forked."""

_LINE_FD: Final = 3
_MAX_DESCRIPTORS: Final = 1 << 16


class Start(msgspec.Struct, frozen=True, tag=True):
    """Fork a worker. The descriptor that comes along is its line."""

    worker: int
    modules: tuple[str, ...]
    gpus: tuple[str, ...] = ()
    """That it sees, by the names that CUDA knows them by."""


class KillWorker(msgspec.Struct, frozen=True, tag=True):
    """Kill a worker, if it lives."""

    worker: int


class Started(msgspec.Struct, frozen=True, tag=True):
    """A worker was forked."""

    worker: int
    pid: int


class WorkerEnded(msgspec.Struct, frozen=True, tag=True):
    """A worker's process has ended."""

    worker: int
    exit_code: int


decode_order: Final = msgspec.msgpack.Decoder(Start | KillWorker).decode
decode_report: Final = msgspec.msgpack.Decoder(Started | WorkerEnded).decode


class WorkerZygote:
    """The loop that takes orders, forks workers and reaps them."""

    def __init__(self, line: socket.socket, *, is_sandbox_known: bool) -> None:
        self._line = line
        self._is_sandbox_known = is_sandbox_known
        self._pids: dict[int, int] = {}

    def serve(self) -> None:
        """Serve until the line is closed."""
        with selectors.DefaultSelector() as selector:
            selector.register(self._line, selectors.EVENT_READ)
            while True:
                for key, _ in selector.select():
                    if key.data is not None:
                        selector.unregister(key.fd)
                        os.close(key.fd)
                        self._reap(key.data)
                    elif not self._obey(selector):
                        return

    def _obey(self, selector: selectors.BaseSelector) -> bool:
        body, descriptors, _, _ = socket.recv_fds(self._line, MAX_MESSAGE_BYTES, 1)
        if not body:
            return False
        match decode_order(body):
            case Start(worker=number, modules=modules, gpus=gpus):
                worker.import_all(modules)  # for all that are forked from now on
                try:
                    pid = self._fork(descriptors[0], gpus)
                except OSError:
                    self._say(WorkerEnded(number, FAILED))
                else:
                    self._pids[number] = pid
                    selector.register(os.pidfd_open(pid), selectors.EVENT_READ, number)
                    self._say(Started(number, pid))
                finally:
                    os.close(descriptors[0])
            case KillWorker(worker=number) if number in self._pids:
                os.kill(self._pids[number], signal.SIGKILL)
        return True

    def _fork(self, descriptor: int, gpus: tuple[str, ...]) -> int:
        zygote = os.getpid()
        pid = os.fork()
        if pid == 0:
            known = self._is_sandbox_known
            _become_worker(descriptor, zygote=zygote, gpus=gpus, is_sandbox_known=known)
        return pid

    def _reap(self, number: int) -> None:
        _, status = os.waitpid(self._pids.pop(number), 0)
        self._say(WorkerEnded(number, os.waitstatus_to_exitcode(status)))

    def _say(self, report: Started | WorkerEnded) -> None:
        self._line.send(msgspec.msgpack.encode(report))


def _become_worker(
    descriptor: int, *, zygote: int, gpus: tuple[str, ...], is_sandbox_known: bool
) -> NoReturn:
    code = 1
    try:
        die_with_parent(zygote)
        os.setsid()
        os.environ["CUDA_VISIBLE_DEVICES"] = ",".join(gpus)  # noqa: TID251 - no exec carries it
        os.dup2(descriptor, _LINE_FD)
        os.closerange(_LINE_FD + 1, _MAX_DESCRIPTORS)
        worker.serve(socket.socket(fileno=_LINE_FD), is_sandbox_known=is_sandbox_known)
        code = 0
    except BaseException as error:  # noqa: BLE001 - the outermost frame of a process
        sys.excepthook(type(error), error, error.__traceback__)
    finally:
        sys.stderr.flush()
        os._exit(code)


def main(arguments: Iterable[str]) -> None:
    """Import what workers need, then serve."""
    descriptor, parent = map(int, arguments)
    die_with_parent(parent)
    die_before_parent()
    set_process_name("reward-zygote")
    with closing(open_sandbox()) as sandbox:
        is_sandbox_known = sandbox.is_available()
    gc.collect()
    gc.freeze()  # keeps the collector from touching, and so copying, the shared pages
    with socket.socket(fileno=descriptor) as line:
        WorkerZygote(line, is_sandbox_known=is_sandbox_known).serve()


if __name__ == "__main__":
    main(sys.argv[1:])
