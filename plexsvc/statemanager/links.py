"""Connected clients as the state manager sees them: sockets, memory, index, last export."""

from __future__ import annotations

import secrets
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from plexclient.wire.v1 import statemanager_pb2
from plexsvc.errors import ErrorCode, PlexError
from plexsvc.ids import JobId, WpgId
from plexsvc.statelink import dataplane
from plexsvc.statelink.client import ExportReport
from plexsvc.statelink.dataplane import Message
from plexsvc.statemanager.memory import RankMemory


class RankLink:
    """One client: the holder of its WPG's lock may use its memory and its data connection."""

    def __init__(
        self,
        call_sock: socket.socket | None,
        *,
        client_id: int,
        wpg_id: WpgId,
        rank: int,
        job_id: JobId,
        memory: RankMemory,
    ) -> None:
        self.client_id = client_id
        self.wpg_id = wpg_id
        self.rank = rank
        self.job_id = job_id
        self.token = secrets.token_hex(16)
        self.pieces: tuple[statemanager_pb2.CanonicalPiece, ...] = ()
        self.memory = memory
        self.last_export = ExportReport()
        self.call_sock = call_sock
        """On which it asks; None until it resumes, if a predecessor knew it."""
        self._data_sock: socket.socket | None = None

    @property
    def name(self) -> str:
        """`<wpg id>/<rank>`."""
        return f"{self.wpg_id}/{self.rank}"

    def say_done(self, nbytes: int) -> None:
        """Tell the client, which waits for an answer, that a part of the work is done.

        Raises:
            OSError: it has left.
        """
        if self.call_sock is not None:
            dataplane.send(self.call_sock, Message(header={"done_bytes": nbytes}))

    def attach_data(self, sock: socket.socket, *, timeout_us: int) -> None:
        """Take the connection on which the client is asked."""
        sock.settimeout(timeout_us / 1e6)
        self._data_sock = sock

    def export(self, *, beside: bool = False) -> ExportReport:
        """Ask what must survive; `beside` an operation, what it was before that.

        Raises:
            PlexError: `worker_died`, or what the rank's handler raised.
        """
        answer = self._ask(Message(header={"op": "export", "beside": beside}))
        found = ExportReport.of(answer.header)
        if not beside:
            self.last_export = found
        return found

    def release(self) -> None:
        """Have the client park its regions.

        Raises:
            PlexError: `worker_died`.
        """
        self._ask(Message(header={"op": "release"}))

    def ready(self) -> None:
        """Have the client map its spans and take its scalars back.

        Raises:
            PlexError: `worker_died`, or what the rank's handler raised.
        """
        granted = self.memory.grant()
        header = {"op": "ready", "scalars": dict(self.last_export.scalars), **granted.header}
        self._ask(Message(header=header, fds=granted.fds))

    def cut(self) -> None:
        """Break both connections; the server of `call` frees the client's memory."""
        for sock in (self.call_sock, self._data_sock):
            if sock is not None:
                _shut(sock)

    def close(self) -> None:
        """Close the data connection; the call connection belongs to its thread."""
        if self._data_sock is not None:
            _shut(self._data_sock)
            self._data_sock.close()
            self._data_sock = None

    def _ask(self, request: Message) -> Message:
        try:
            return self._exchange(request)
        except (OSError, EOFError) as error:
            self.cut()
            raise PlexError(
                ErrorCode.WORKER_DIED,
                f"{self.name} did not answer {request.header['op']} ({error}); it was cut off, "
                "its state is lost: deploy again to go on",
                worker=self.name,
            ) from error

    def _exchange(self, request: Message) -> Message:
        if self._data_sock is None:
            raise EOFError("it has no data connection")
        dataplane.send(self._data_sock, request)
        return dataplane.raise_if_failure(dataplane.receive(self._data_sock))


class KeyedLocks:
    """One lock a key, made when first wanted and gone when nobody wants it."""

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._locks: dict[str, tuple[threading.Lock, int]] = {}

    @contextmanager
    def try_hold(self, key: str) -> Iterator[bool]:
        """Hold the lock of `key` if nobody does or waits for it; say whether."""
        lock = threading.Lock()
        with self._guard:
            is_free = self._locks.setdefault(key, (lock, 1))[0] is lock
            if is_free:
                lock.acquire()  # nobody else knows it yet, so this does not wait under the guard
        try:
            yield is_free
        finally:
            if is_free:
                lock.release()
                self._leave(key)

    @contextmanager
    def hold(self, key: str) -> Iterator[None]:
        """Hold the lock of `key`."""
        with self._guard:
            lock, users = self._locks.get(key, (threading.Lock(), 0))
            self._locks[key] = (lock, users + 1)
        try:
            with lock:
                yield
        finally:
            self._leave(key)

    def _leave(self, key: str) -> None:
        with self._guard:
            lock, users = self._locks.pop(key)
            if users > 1:
                self._locks[key] = (lock, users - 1)


def _shut(sock: socket.socket) -> None:
    with suppress(OSError):  # the client may have left first
        sock.shutdown(socket.SHUT_RDWR)
