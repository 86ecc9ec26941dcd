"""A client's two connections to the state manager of a node, and to its successors.

`call` carries what the client asks, `data` what it is asked. When a state manager dies its clients
*return* to the next one: they say what they have, and hear what they should have mapped.
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

from plexsvc import progress
from plexsvc.clock import SystemClock
from plexsvc.errors import PlexError, unavailable
from plexsvc.log import Log
from plexsvc.rpc.retry import Patience
from plexsvc.statelink import dataplane
from plexsvc.statelink.dataplane import Message

log = Log(__name__)

CALL_TIMEOUT_S: Final = 120.0
"""Longest wait for an answer of the state manager, or for the next part of what it does."""

RETRY_US: Final = 50_000

Facts = Mapping[str, Any]


class StateSession:
    """Joins a state manager and returns to its successors; the caller serialises access."""

    def __init__(
        self,
        path: str,
        identity: Facts,
        *,
        patience_s: float,
        on_granted: Callable[[Message], None],
    ) -> None:
        self._path = path
        self._identity = identity
        self._patience_s = patience_s
        self._on_granted = on_granted
        self._call_sock: socket.socket | None = None
        self._data_sock: socket.socket | None = None
        self._leaving = threading.Event()
        self._lost: PlexError | None = None
        self.kind = ""

    @property
    def is_over(self) -> bool:
        """Whether there is no state manager to go on with."""
        return self._lost is not None or self._leaving.is_set()

    @property
    def data(self) -> socket.socket:
        """The connection on which this client is asked."""
        assert self._data_sock is not None, "asked for before start"
        return self._data_sock

    def start(self) -> None:
        """Join the state manager, or the next one when it dies meanwhile.

        Raises:
            PlexError: `unavailable` when there is none; what it refuses.
        """
        try:
            self._join({})
        except (OSError, EOFError) as error:
            if not Path(self._path).exists():
                raise unavailable(f"no state manager listens at {self._path}: {error}") from error
            self.go_on(error, returning={"held": [], "has_regions": False})

    def exchange(self, header: Facts, body: bytes = b"") -> Message:
        """Ask and return the answer. Each part of long work that is done gives it more time.

        Raises:
            OSError: the connection broke; `go_on`, then ask again.
            EOFError: as above.
            PlexError: the state manager's refusal, or why there is none any more.
        """
        if self._lost is not None:
            raise self._lost
        assert self._call_sock is not None, "asked before start"
        dataplane.send(self._call_sock, Message(header=header, body=body))
        while "done_bytes" in (reply := dataplane.receive(self._call_sock)).header:
            progress.advance()
        return dataplane.raise_if_failure(reply)

    def go_on(self, cause: OSError | EOFError, *, returning: Facts) -> None:
        """Go on with the next state manager, telling it what this client has.

        Raises:
            PlexError: `unavailable`, now and for every later call: none took over in time, or it
                does not know this client.
        """
        log.warning("state manager left", error=cause)
        failure: Exception = cause
        patience = Patience(pause_us=RETRY_US, within_us=int(self._patience_s * 1e6))
        for pause_us in patience.pauses(SystemClock()):
            if self._leaving.is_set():
                break
            try:
                self._join({"resume": True, **returning})
            except (OSError, EOFError) as error:
                failure = error
                self._leaving.wait(pause_us / 1e6)
            except PlexError as error:
                failure = error
                break
            else:
                log.info("resumed with the next state manager")
                return
        self._lost = unavailable(
            f"the state manager at {self._path} is gone and none took over ({failure}); the node "
            "agent ends the ranks whose state is lost"
        )
        raise self._lost from failure

    def leave(self) -> None:
        """Stop waiting for a successor, now and later; any thread may call it."""
        self._leaving.set()

    def hang_up(self) -> None:
        """Close both connections."""
        for sock in (self._data_sock, self._call_sock):
            if sock is not None:
                try:
                    sock.shutdown(socket.SHUT_RDWR)
                except OSError:
                    pass  # the state manager left first
                finally:
                    sock.close()

    def _join(self, returning: Facts) -> None:
        self.hang_up()
        self._call_sock = _connect(self._path)
        reply = self.exchange({"op": "hello", **self._identity, **returning})
        self.kind = str(reply.header["kind"])
        self._on_granted(reply)
        self._data_sock = _connect(self._path)
        attach = {"op": "attach", "client_id": reply.header["client_id"]}
        dataplane.send(self._data_sock, Message(header=attach))
        dataplane.raise_if_failure(dataplane.receive(self._data_sock))
        self._data_sock.settimeout(None)  # it is asked when its WPG moves, perhaps in hours


def _connect(path: str) -> socket.socket:
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    sock.settimeout(CALL_TIMEOUT_S)
    try:
        sock.connect(path)
    except OSError:
        sock.close()
        raise
    return sock
