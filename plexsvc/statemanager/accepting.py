"""Acceptor of connections: a thread for each, and no more than a bound of them."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Final

from plexsvc.log import Log

log = Log(__name__)

BACKLOG: Final = 128

ACCEPT_PAUSE_S: Final = 0.1
"""Pause after a connection could not be accepted: the descriptors that lack may be given back."""


class Acceptor:
    """Has each connection of a listener served, which closes it, until it is closed itself."""

    def __init__(
        self,
        listener: socket.socket,
        serve: Callable[[socket.socket], None],
        *,
        most: int,
        name: str,
    ) -> None:
        self._listener = listener
        self._serve = serve
        self._most = most
        self._name = name
        self._slots = threading.BoundedSemaphore(most)
        self._closed = threading.Event()
        threading.Thread(target=self._accept, name=f"{name}-accept", daemon=True).start()

    def close(self) -> None:
        """Stop accepting."""
        self._closed.set()
        # Closing it alone would not wake a thread that waits in `accept`.
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def _accept(self) -> None:
        is_failing = False
        while not self._closed.is_set():
            try:
                self._admit(self._listener.accept()[0])
            except (OSError, RuntimeError) as error:
                # Closed, out of descriptors or threads, or the client left the queue.
                if not is_failing and not self._closed.is_set():
                    log.warning("no client accepted, tried again", of=self._name, error=error)
                is_failing = True
                self._closed.wait(ACCEPT_PAUSE_S)
                continue
            is_failing = False

    def _admit(self, sock: socket.socket) -> None:
        if not self._slots.acquire(blocking=False):
            log.warning("client refused", of=self._name, limit=self._most)
            sock.close()
            return
        try:
            threading.Thread(target=self._held, args=(sock,), name=self._name, daemon=True).start()
        except RuntimeError:
            self._slots.release()
            sock.close()
            raise

    def _held(self, sock: socket.socket) -> None:
        try:
            self._serve(sock)
        finally:
            self._slots.release()


def listen_at(path: Path) -> socket.socket:
    """Return a listener at `path`, which always leads to a state manager's, dead or alive."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    new = path.with_suffix(".new")
    new.unlink(missing_ok=True)
    listener.bind(str(new))
    new.chmod(0o600)
    listener.listen(BACKLOG)
    new.rename(path)
    return listener
