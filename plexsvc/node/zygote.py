"""A zygote: one thread, no gRPC, the slow imports done; it forks a process whenever the agent asks.

Theory of operation. The agent starts `python -m plexsvc.node.zygote` by exec, with one end of a
socket pair. The zygote imports its preload module, says `Preloaded`, then waits for orders and for
its children. A child is a zombie until the zygote has killed the rest of its process group, so no
group is signalled after its number could have been reused. The zygote dies with the agent, every
child with the zygote; when the socket closes it leaves.
"""

from __future__ import annotations

import argparse
import ast
import gc
import importlib
import importlib.util
import os
import selectors
import signal
import socket
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from plexsvc.node import child, messages
from plexsvc.node.messages import Exited, Forked, ForkOrder, Preloaded, Ready, Refused, Report
from plexsvc.node.tether import die_with_parent, set_process_name

_READ_BYTES: Final = 1 << 16
_MAX_READY_BYTES: Final = 4096


@dataclass(slots=True, kw_only=True)
class _Child:
    token: int
    pid: int
    pidfd: int
    ready_fd: int
    """Read end of the pipe that `ready` writes to; -1 once closed."""
    said: bytearray = field(default_factory=bytearray)


class Zygote:
    """The loop that forks, listens and reaps."""

    def __init__(self, control: socket.socket, *, kept_fds: frozenset[int]) -> None:
        self._control = control
        self._kept_fds = kept_fds
        self._selector = selectors.DefaultSelector()
        self._selector.register(control, selectors.EVENT_READ, None)
        self._orders = bytearray()
        self._is_open = True

    def serve(self) -> None:
        """Serve orders until the agent closes the socket."""
        while self._is_open:
            for key, _ in self._selector.select():
                if key.data is None:
                    self._read_orders()
                elif key.fd == key.data.pidfd:
                    self._reap(key.data)
                elif key.fd == key.data.ready_fd:
                    self._read_ready(key.data)

    def _read_orders(self) -> None:
        data = self._control.recv(_READ_BYTES)
        self._is_open = bool(data)
        self._orders += data
        assert len(self._orders) <= 2 * messages.MAX_LINE_BYTES, "the agent sent an endless line"
        *lines, rest = self._orders.split(b"\n")
        self._orders = rest
        for line in lines:
            self._fork(messages.decode_order(bytes(line)))

    def _fork(self, order: ForkOrder) -> None:
        threads = threading.active_count()
        if threads != 1:
            self._say(Refused(token=order.token, reason=f"the zygote has {threads} threads"))
            return
        try:
            log_fd = os.open(order.log_path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        except OSError as error:
            self._say(Refused(token=order.token, reason=f"cannot open its log: {error}"))
            return
        ready_read, ready_write = os.pipe()
        zygote_pid = os.getpid()
        try:
            pid = os.fork()
        except OSError as error:
            for fd in (log_fd, ready_read, ready_write):
                os.close(fd)
            self._say(Refused(token=order.token, reason=f"cannot fork: {error}"))
            return
        if pid == 0:
            child.run(
                order,
                zygote_pid=zygote_pid,
                log_fd=log_fd,
                ready_fd=ready_write,
                kept_fds=self._kept_fds,
            )
        os.close(log_fd)
        os.close(ready_write)
        self._adopt(
            _Child(token=order.token, pid=pid, pidfd=os.pidfd_open(pid), ready_fd=ready_read)
        )

    def _adopt(self, born: _Child) -> None:
        os.set_blocking(born.ready_fd, False)
        self._selector.register(born.pidfd, selectors.EVENT_READ, born)
        self._selector.register(born.ready_fd, selectors.EVENT_READ, born)
        self._say(Forked(token=born.token, pid=born.pid))

    def _read_ready(self, living: _Child) -> None:
        try:
            data = os.read(living.ready_fd, _MAX_READY_BYTES)
        except BlockingIOError:
            return
        living.said += data
        if b"\n" in living.said:
            address = bytes(living.said).split(b"\n", 1)[0].decode()
            self._say(Ready(token=living.token, address=address))
        elif data and len(living.said) < _MAX_READY_BYTES:
            return
        self._selector.unregister(living.ready_fd)
        os.close(living.ready_fd)
        living.ready_fd = -1

    def _reap(self, dead: _Child) -> None:
        if dead.ready_fd >= 0:
            self._read_ready(dead)
        if dead.ready_fd >= 0:
            self._selector.unregister(dead.ready_fd)
            os.close(dead.ready_fd)
        _kill_group(dead.pid)
        _, status = os.waitpid(dead.pid, 0)
        self._selector.unregister(dead.pidfd)
        os.close(dead.pidfd)
        code = os.waitstatus_to_exitcode(status)
        self._say(Exited(token=dead.token, exit_code=max(code, 0), signal=max(-code, 0)))

    def _say(self, report: Report) -> None:
        self._control.sendall(messages.encode_report(report))


def _kill_group(pid: int) -> None:
    """Kill what is left of the group of `pid`, a zombie: its number cannot have been reused."""
    try:
        os.killpg(pid, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        return  # it died before it had made its own group, or alone


def zygote_environment(module: str) -> Mapping[str, str]:
    """Return the `ZYGOTE_ENV` literal of `module` without importing it (and what it imports)."""
    spec = importlib.util.find_spec(module)
    if spec is None or spec.origin is None:
        raise ModuleNotFoundError(f"no module named {module}")
    for statement in ast.parse(Path(spec.origin).read_text()).body:
        match statement:
            case ast.Assign(targets=[ast.Name(id="ZYGOTE_ENV")], value=value):
                return dict(ast.literal_eval(value))
            case ast.AnnAssign(target=ast.Name(id="ZYGOTE_ENV"), value=ast.expr() as value):
                return dict(ast.literal_eval(value))
            case _:
                continue
    return {}


def _preload(module: str) -> Preloaded:
    started_us = time.monotonic_ns() // 1000
    child.set_environment(zygote_environment(module))
    loaded = importlib.import_module(module)
    preload = getattr(loaded, "preload", None)
    if callable(preload):
        preload()
    gc.collect()
    gc.freeze()  # keeps the collector from touching, and so copying, the shared pages
    return Preloaded(
        threads=threading.active_count(),
        native_threads=sum(1 for _ in Path("/proc/self/task").iterdir()),
        took_us=time.monotonic_ns() // 1000 - started_us,
    )


def main() -> None:
    """Preload, then serve the agent on the other end of `--control-fd`."""
    parser = argparse.ArgumentParser(prog="plexsvc.node.zygote", description=__doc__)
    parser.add_argument("--preload", required=True, help="module to import before the first fork")
    parser.add_argument("--control-fd", required=True, type=int, help="socket to the node agent")
    parser.add_argument("--parent", required=True, type=int, help="pid of the node agent")
    options = parser.parse_args()
    die_with_parent(options.parent)
    set_process_name("plex-zygote")
    with socket.socket(fileno=options.control_fd) as control:
        control.set_inheritable(False)
        preloaded = _preload(options.preload)
        kept_fds = child.open_fds() - {control.fileno()}
        control.sendall(messages.encode_report(preloaded))
        Zygote(control, kept_fds=kept_fds).serve()


if __name__ == "__main__":
    main()
