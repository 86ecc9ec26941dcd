"""The book: what a successor of this state manager must know, written before it is acted on.

Records go to the node agent's vault (`plexsvc.node.vault`), which outlives this process. A record
is a JSON line of facts and, after it, bytes; it travels with its checksum and with descriptors of
the memory it speaks of. No record is answered: what was sent before a kill arrives.

Theory of operation. Writing a record never waits, so it may be done under any lock: what the socket
does not take stays here, in order. A caller that is about to act on a record or to answer for it
waits, under no lock that others need, until all is sent (`settle`), but not for ever: a node agent
that stands still reads nothing, and only those who must write are held up.
"""

from __future__ import annotations

import json
import os
import select
import socket
import threading
import time
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import xxhash

from plexsvc.errors import ErrorCode, PlexError, unavailable
from plexsvc.statelink import dataplane
from plexsvc.statelink.dataplane import Message

Key = tuple[str, ...]
Facts = Mapping[str, Any]

READ_TIMEOUT_S: Final = 30.0
"""Longest wait for the next record of a predecessor."""

SETTLE_S: Final = 20.0
"""Longest wait for the node agent to take what is written."""

MAX_WAITING: Final = 4096
"""Records that may wait for the node agent; a further one is refused."""

BEAT: Final = Message(header={"op": "beat"})


@dataclass(frozen=True, slots=True, kw_only=True)
class BookEntry:
    """A predecessor's record; its reader owns `fds`."""

    key: Key
    facts: Facts
    body: bytes = b""
    fds: tuple[int, ...] = ()


class Book:
    """Writes records to a vault; without one it writes nothing. Thread-safe."""

    def __init__(self, sock: socket.socket | None = None) -> None:
        self._sock = sock
        self._lock = threading.Lock()
        self._waiting: deque[_Outgoing] = deque()
        self._asking = threading.Lock()
        self._asked = 0

    def read(self) -> list[BookEntry]:
        """Return a predecessor's records; comes once, before anything is written.

        Raises:
            PlexError: `checksum_mismatch` for a record that is not what was written.
            OSError: the vault is gone.
        """
        found: list[BookEntry] = []
        if self._sock is None:
            return found
        self._sock.settimeout(READ_TIMEOUT_S)
        while (message := dataplane.receive(self._sock)).header["op"] != "end":
            found.append(_entry(message))
        self._sock.settimeout(None)
        return found

    def put(self, key: Key, facts: Facts, *, body: bytes = b"", fds: Sequence[int] = ()) -> None:
        """Write a record, in place of an older one of the same key; `settle` before acting on it.

        Raises:
            PlexError: `unavailable` when the vault is gone, with which this process ends, or takes
                nothing any more.
        """
        text = json.dumps(facts).encode() + b"\n" + body
        header = {"op": "put", "key": key, "sum": _sum(text), "fds": len(fds)}
        if len(self._waiting) >= MAX_WAITING:
            raise _unavailable(f"{MAX_WAITING} records wait to be read")
        self._write(Message(header=header, body=text, fds=tuple(fds)))

    def drop(self, key: Key) -> None:
        """Take a record back, if there is one.

        Raises:
            PlexError: `unavailable` when the vault is gone.
        """
        self._write(Message(header={"op": "drop", "key": key}))

    def settle(self) -> None:
        """Return when everything written is sent; the caller holds no lock that others need.

        Raises:
            PlexError: `unavailable` when the node agent reads nothing for too long.
        """
        deadline_s = time.monotonic() + SETTLE_S
        while (sock := self._blocked()) is not None:
            left_s = deadline_s - time.monotonic()
            if left_s <= 0:
                raise _unavailable(f"it has read nothing for {SETTLE_S:.0f} s")
            poll = select.poll()
            poll.register(sock, select.POLLOUT)
            poll.poll(left_s * 1000)

    def let_go(self) -> None:
        """Return when the vault has let go of all that records no longer name.

        Raises:
            PlexError: `unavailable` when the vault is gone, or answers nothing for too long.
        """
        with self._asking:
            sock = self._sock
            if sock is None:
                return
            self._asked += 1
            self._write(Message(header={"op": "ask", "number": self._asked}))
            self.settle()
            poll = select.poll()
            poll.register(sock, select.POLLIN)
            answered = 0
            while answered != self._asked:  # an answer to one that was given up may come first
                if not poll.poll(SETTLE_S * 1000):
                    raise _unavailable(f"it has answered nothing for {SETTLE_S:.0f} s")
                try:
                    answered = dataplane.receive(sock).header["number"]
                except (OSError, EOFError) as error:
                    raise _unavailable(f"it is gone ({error})") from error

    def beat(self) -> None:
        """Show that this process gets on, unless the node agent does not read.

        Raises:
            PlexError: `unavailable` when the vault is gone.
        """
        if self._blocked() is None:
            self._write(BEAT)

    def close(self) -> None:
        """Write no more: what is written stays for a successor."""
        with self._lock:
            if self._sock is not None:
                self._sock.close()
                self._sock = None
            while self._waiting:
                dataplane.close_all(self._waiting.popleft().fds)

    def _write(self, message: Message) -> None:
        with self._lock:
            if self._sock is None:
                return
            fds = tuple(os.dup(fd) for fd in message.fds)  # they may be closed before they are sent
            self._waiting.append(_Outgoing(memoryview(dataplane.encode(message)), fds))
            self._push(self._sock)

    def _blocked(self) -> socket.socket | None:
        """Send what can be sent now; return the socket if something is left."""
        with self._lock:
            if self._sock is not None:
                self._push(self._sock)
            return self._sock if self._waiting else None

    def _push(self, sock: socket.socket) -> None:
        while self._waiting:
            data, fds = self._waiting[0]
            try:
                sent = sock.sendmsg([data], dataplane.rights(fds), socket.MSG_DONTWAIT)
            except BlockingIOError:
                return
            except OSError as error:
                raise _unavailable(f"it is gone ({error})") from error
            dataplane.close_all(fds)
            self._waiting.popleft()
            if sent < len(data):
                # The descriptors went with the first byte.
                self._waiting.appendleft(_Outgoing(data[sent:], ()))


class _Outgoing(NamedTuple):
    """What is left of a message to send."""

    data: memoryview
    fds: tuple[int, ...]


def _unavailable(found: str) -> PlexError:
    text = f"a record could not be written, because the node agent does not read it: {found}"
    return unavailable(f"{text}; try again")


def _entry(message: Message) -> BookEntry:
    key = tuple(message.header["key"])
    if message.header["sum"] != _sum(message.body) or message.header["fds"] != len(message.fds):
        raise PlexError(
            ErrorCode.CHECKSUM_MISMATCH,
            f"record {'/'.join(key)} of the last state manager is not what it wrote; nothing of it "
            "is adopted, start without its records",
        )
    facts, _, body = message.body.partition(b"\n")
    return BookEntry(key=key, facts=json.loads(facts), body=body, fds=message.fds)


def _sum(data: bytes) -> str:
    return xxhash.xxh3_128_hexdigest(data)
