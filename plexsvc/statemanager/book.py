"""The book: what a successor of this state manager must know, written before it is acted on.

Records go to the node agent's vault (`plexsvc.node.vault`), which outlives this process. A record
is a JSON line of facts and, after it, bytes; it travels with its checksum and with descriptors of
the memory files it speaks of. Nothing is answered: what was sent before a kill arrives.
"""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import xxhash

from plexsvc.errors import ErrorCode, PlexError
from plexsvc.statelink import dataplane
from plexsvc.statelink.dataplane import Message

Key = tuple[str, ...]
Facts = Mapping[str, Any]

READ_TIMEOUT_S: Final = 30.0
"""Longest wait for the next record of a predecessor."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """A predecessor's record; whoever reads it owns `fds`."""

    key: Key
    facts: Facts
    body: bytes = b""
    fds: tuple[int, ...] = ()


class Book:
    """Writes records to a vault; without one it writes nothing. Thread-safe."""

    def __init__(self, sock: socket.socket | None = None) -> None:
        self._sock = sock
        self._lock = threading.Lock()

    def read(self) -> list[Entry]:
        """Return a predecessor's records; comes once, before anything is written.

        Raises:
            PlexError: `checksum_mismatch` for a record that is not what was written.
            OSError: the vault is gone.
        """
        found: list[Entry] = []
        if self._sock is None:
            return found
        self._sock.settimeout(READ_TIMEOUT_S)
        while (message := dataplane.receive(self._sock)).header["op"] != "end":
            found.append(_entry(message))
        self._sock.settimeout(None)
        return found

    def put(self, key: Key, facts: Facts, *, body: bytes = b"", fds: Sequence[int] = ()) -> None:
        """Write a record, in place of an older one of the same key.

        Raises:
            PlexError: `unavailable` when the vault is gone; this process ends with it.
        """
        text = json.dumps(facts).encode() + b"\n" + body
        header = {"op": "put", "key": key, "sum": _sum(text), "fds": len(fds)}
        self._send(Message(header=header, body=text, fds=tuple(fds)))

    def drop(self, key: Key) -> None:
        """Take a record back, if there is one."""
        self._send(Message(header={"op": "drop", "key": key}))

    def close(self) -> None:
        """Write no more: what is written stays for a successor."""
        with self._lock:
            if self._sock is not None:
                self._sock.close()
                self._sock = None

    def _send(self, message: Message) -> None:
        with self._lock:
            if self._sock is None:
                return
            try:
                dataplane.send(self._sock, message)
            except OSError as error:
                raise PlexError(
                    ErrorCode.UNAVAILABLE,
                    f"record {message.header['key']} not written: the node agent is gone ({error})",
                ) from error


def _entry(message: Message) -> Entry:
    key = tuple(message.header["key"])
    if message.header["sum"] != _sum(message.body) or message.header["fds"] != len(message.fds):
        raise PlexError(
            ErrorCode.CHECKSUM_MISMATCH,
            f"record {'/'.join(key)} of the last state manager is not what it wrote; nothing of it "
            "is adopted, start without its records",
        )
    facts, _, body = message.body.partition(b"\n")
    return Entry(key=key, facts=json.loads(facts), body=body, fds=message.fds)


def _sum(data: bytes) -> str:
    return xxhash.xxh3_128_hexdigest(data)
