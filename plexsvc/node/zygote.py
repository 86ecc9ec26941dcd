"""A zygote: one thread, no gRPC, the slow imports done; it forks a process whenever the agent asks.

Theory of operation. The agent starts `python -m plexsvc.node.zygote` by exec, with one end of a
socket pair. The zygote imports its preload module, says `Preloaded`, then waits for orders. It
forks twice for each: the process in between ends at once, and its child is then the agent's, which
adopts orphans. So a process outlives its zygote, which is large and idle and so the first that the
kernel kills for memory. A new process waits until the agent was told of it, and leaves if the
zygote ends before. Process and zygote die with the agent; the zygote also leaves when the socket
closes.
"""

from __future__ import annotations

import argparse
import ast
import gc
import importlib
import importlib.util
import os
import socket
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Final, NoReturn

from plexsvc.node import child, messages
from plexsvc.node.messages import Forked, ForkOrder, Preloaded, Refused, Report
from plexsvc.tether import die_with_parent, set_process_name

_READ_BYTES: Final = 1 << 16
_PID_BYTES: Final = 32


class Zygote:
    """The loop that takes orders and forks."""

    def __init__(self, control: socket.socket, *, agent_pid: int, kept_fds: frozenset[int]) -> None:
        self._control = control
        self._agent_pid = agent_pid
        self._kept_fds = kept_fds

    def serve(self) -> None:
        """Serve orders until the agent closes the socket."""
        orders = bytearray()
        while data := self._control.recv(_READ_BYTES):
            orders += data
            assert len(orders) <= 2 * messages.MAX_LINE_BYTES, "the agent sent an endless line"
            *lines, rest = orders.split(b"\n")
            orders = rest
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
        go = os.pipe()
        try:
            pid = self._fork_for_agent(order, log_fd=log_fd, go=go)
            self._say(Forked(token=order.token, pid=pid))
            os.write(go[1], b"g")
        except OSError as error:
            self._say(Refused(token=order.token, reason=f"cannot fork: {error}"))
        finally:
            for fd in (log_fd, *go):
                os.close(fd)

    def _fork_for_agent(self, order: ForkOrder, *, log_fd: int, go: tuple[int, int]) -> int:
        """Return the pid of a new child of the agent.

        Raises:
            OSError: no process can be made.
        """
        pid_read, pid_write = os.pipe()
        with os.fdopen(pid_read, "rb") as told:
            try:
                between = os.fork()
            except OSError:
                os.close(pid_write)
                raise
            if between == 0:
                os.close(go[1])  # else it would wait for itself when the zygote ends
                self._run_between(order, pid_fd=pid_write, log_fd=log_fd, go_fd=go[0])
            os.close(pid_write)
            os.waitpid(between, 0)  # from here on the agent is the parent
            pid = told.read(_PID_BYTES)
        if not pid:
            raise OSError("the second fork failed")
        return int(pid)

    def _run_between(self, order: ForkOrder, *, pid_fd: int, log_fd: int, go_fd: int) -> NoReturn:
        """Fork the process itself and end."""
        try:
            pid = os.fork()
            if pid == 0:
                os.close(pid_fd)
                child.run(
                    order,
                    agent_pid=self._agent_pid,
                    log_fd=log_fd,
                    go_fd=go_fd,
                    kept_fds=self._kept_fds,
                )
            os.write(pid_fd, str(pid).encode())
        finally:
            os._exit(0)

    def _say(self, report: Report) -> None:
        self._control.sendall(messages.encode_report(report))


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
    gc.disable()  # a pass over a million objects of modules gives back no page; it took a quarter
    loaded = importlib.import_module(module)
    preload = getattr(loaded, "preload", None)
    if callable(preload):
        preload()
    gc.freeze()  # keeps the collector from touching, and so copying, the shared pages
    gc.enable()
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
        Zygote(control, agent_pid=options.parent, kept_fds=kept_fds).serve()


if __name__ == "__main__":
    main()
