"""Vault of the state manager: its records and memory files, kept for its successor.

Theory of operation. The state manager writes each thing that a successor must know as a record
under a key, before it acts on it: `put` replaces, `drop` lets go. Records come over a Unix socket,
in order and unanswered; what was sent before a kill still arrives. A new state manager is handed
all of them first, oldest first, then `end`. The vault understands no record: their number is
bounded by what the state manager admits, and they vanish with this process. Between its records a
state manager that gets on sends beats, which are counted. It may ask whether all it said was heard.
"""

from __future__ import annotations

import socket
from contextlib import suppress
from typing import Final

from plexsvc.errors import PlexError
from plexsvc.log import Log
from plexsvc.statelink import dataplane
from plexsvc.statelink.dataplane import Message

log = Log(__name__)

END: Final = Message(header={"op": "end"})


class Vault:
    """Records by key, with their descriptors; one state manager is served at a time."""

    def __init__(self) -> None:
        self._kept: dict[tuple[str, ...], Message] = {}
        self.beats = 0
        """Times that state managers have shown that they get on."""

    def __len__(self) -> int:
        """Return the number of records."""
        return len(self._kept)

    def serve(self, sock: socket.socket) -> None:
        """Hand over what is kept, then keep what comes, until the other side is gone; blocks."""
        with sock:
            with suppress(OSError):  # it may leave early, and what it said is still to be read
                for kept in self._kept.values():
                    dataplane.send(sock, kept)
                dataplane.send(sock, END)
            try:
                while True:
                    self._hear(dataplane.receive(sock), sock)
            except (OSError, EOFError) as error:
                log.debug("state manager left", error=error)
            except (PlexError, KeyError, TypeError) as error:
                log.warning("state manager said what is no record", error=error)

    def clear(self) -> None:
        """Let go of everything."""
        for key in list(self._kept):
            self._drop(key)

    def _hear(self, message: Message, sock: socket.socket) -> None:
        if message.header["op"] == "beat":
            self.beats += 1
        elif message.header["op"] == "ask":
            with suppress(OSError):  # it is gone, and what it said after that is still to be read
                dataplane.send(sock, message)
        else:
            self._take(message)

    def _take(self, message: Message) -> None:
        key = tuple(message.header["key"])
        self._drop(key)
        if message.header["op"] == "put":
            self._kept[key] = message

    def _drop(self, key: tuple[str, ...]) -> None:
        dropped = self._kept.pop(key, None)
        if dropped is not None:
            dataplane.close_all(dropped.fds)
