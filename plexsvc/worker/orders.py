"""Order port of a rank: operations as frames on a Unix socket, run on the thread that reads them.

A frame holds an `ExecuteRequest`, its answer an `ExecuteReply` under the same number. A line that
breaks stops nothing: the operation that runs ends, and a repeat on another line is answered from
the record. Orders of one line run in the order in which they come; the others wait in the line.
Only processes of the rank's own user are heard: the kernel says whose the other end is.
"""

from __future__ import annotations

import contextlib
import os
import socket
import struct
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Final

from plexclient.wire.v1 import worker_pb2
from plexsvc.frames import framing
from plexsvc.log import Log, Quota
from plexsvc.worker.thread import RankThread

_CREDENTIALS: Final = struct.Struct("3i")
"""pid, uid, gid."""

log = Log(__name__)

Execute = Callable[[worker_pb2.ExecuteRequest, Callable[[worker_pb2.ExecuteReply], None]], None]
"""Runs an operation and hands its reply on, before anything that follows from it."""

MAX_LINES: Final = 8
"""Lines open at once: a scheduler's, its predecessor's, and some that nobody closed."""

SEND_TIMEOUT_S: Final = 10.0
"""How long a reply may wait for a sender of orders that does not read."""

_READ_BYTES: Final = 1 << 18


class OrderPort:
    """Accepts lines and runs what comes on them. Everything but `open` happens on the thread."""

    def __init__(self, thread: RankThread, execute: Execute) -> None:
        self._thread = thread
        self._execute = execute
        self._lines: dict[socket.socket, framing.FrameReader] = {}
        self._quota = Quota(lines=10, window_s=10.0)

    def open(self, path: Path) -> None:
        """Listen at `path`."""
        path.unlink(missing_ok=True)
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        listener.bind(str(path))
        path.chmod(0o600)
        listener.listen(MAX_LINES)
        listener.setblocking(False)
        accept = partial(self._accept, listener)
        self._thread.submit(self._thread.listen, listener, accept).result()

    def _accept(self, listener: socket.socket) -> None:
        try:
            line, _ = listener.accept()
        except OSError:
            return  # it left before it was let in
        data = line.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
        uid: int = _CREDENTIALS.unpack(data)[1]
        if uid != os.geteuid():
            self._say("line of orders refused", why=f"its other end is of user {uid}")
            line.close()
            return
        if len(self._lines) >= MAX_LINES:
            # The oldest, whose sender is the likeliest to be gone.
            self._close(next(iter(self._lines)), why="too many lines")
        line.setblocking(False)
        self._lines[line] = framing.FrameReader()
        self._thread.listen(line, partial(self._read, line))

    def _read(self, line: socket.socket) -> None:
        try:
            data = line.recv(_READ_BYTES)
        except BlockingIOError:
            return
        except OSError as error:
            self._close(line, why=str(error))
            return
        if not data:
            self._close(line, why="")
            return
        try:
            for number, body in self._lines[line].feed(data):
                request = worker_pb2.ExecuteRequest.FromString(body)
                self._execute(request, partial(self._reply, line, number))
        except Exception as error:  # noqa: BLE001 - who waits for a reply must not wait for ever
            self._close(line, why=f"{type(error).__name__}: {error}")

    def _reply(self, line: socket.socket, number: int, reply: worker_pb2.ExecuteReply) -> None:
        """Send a reply; one that cannot be sent waits in the record for the repeat."""
        if line not in self._lines:
            return  # broken by an earlier reply
        frame = framing.encode(number, reply.SerializeToString())
        try:
            _send(line, frame)
        except OSError as error:
            self._close(line, why=str(error))

    def _close(self, line: socket.socket, *, why: str) -> None:
        if self._lines.pop(line, None) is None:
            return
        if why:
            self._say("line of orders closed", why=why)
        self._thread.forget(line)
        line.close()

    def _say(self, phrase: str, *, why: str) -> None:
        left_out = self._quota.take()
        if left_out is not None:
            log.warning(phrase, why=why, left_out=left_out)


def _send(line: socket.socket, frame: bytes) -> None:
    sent = 0
    with contextlib.suppress(BlockingIOError):
        sent = line.send(frame)
    if sent == len(frame):
        return
    line.settimeout(SEND_TIMEOUT_S)
    try:
        line.sendall(memoryview(frame)[sent:])
    finally:
        line.setblocking(False)
