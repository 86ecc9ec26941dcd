"""Messages between the proxy, its hosts and workers: length-prefixed msgpack.

A worker speaks with its host on a socket pair; a host with the proxy in parcels of the call `Work`.
"""

from __future__ import annotations

import struct
from typing import Any, Final

import msgspec

LENGTH: Final = struct.Struct("<I")
MAX_BYTES: Final = 256 << 20
"""Bytes of one message: an input, or the files that a stage leaves to the next."""


class Ready(msgspec.Struct, frozen=True, tag=True):
    """The worker takes tasks."""

    sandbox: str
    """What isolates untrusted code there, or why nothing does."""


class Warm(msgspec.Struct, frozen=True, tag=True):
    """Import these modules: a program in use needs them."""

    modules: tuple[str, ...]


class Task(msgspec.Struct, frozen=True, tag=True):
    """Run one stage of one request. `reference` and `settings` are JSON."""

    program: str
    stage: int
    text: str
    reference: str
    settings: str
    files: dict[str, bytes]
    definition: bytes = b""
    """Of a tenant's own program; empty: it is a shipped one."""


class StageDone(msgspec.Struct, frozen=True, tag=True):
    """How a stage ended: scored, passed, timed_out, refused or failed."""

    how: str
    score: float = 0.0
    output: str = ""
    detail: str = ""
    files: dict[str, bytes] = {}


class Begin(msgspec.Struct, frozen=True, tag=True):
    """Start a worker that imports `modules` and sees so many of the node's GPUs."""

    worker: int
    modules: tuple[str, ...]
    gpus: int = 0


class Give(msgspec.Struct, frozen=True, tag=True):
    """Have a worker of the host run a task."""

    worker: int
    task: Task


class Halt(msgspec.Struct, frozen=True, tag=True):
    """Kill a worker of the host."""

    worker: int


class Said(msgspec.Struct, frozen=True, tag=True):
    """What a worker of the host said, or, as a text, how it ended."""

    worker: int
    what: Ready | StageDone | str


Message = Ready | Warm | Task | StageDone | Begin | Give | Halt | Said

_decode: Final = msgspec.msgpack.Decoder(Message).decode


def encode(message: Message) -> bytes:
    """Return a message with its length before it."""
    body = msgspec.msgpack.encode(message)
    return LENGTH.pack(len(body)) + body


def decode(body: bytes) -> Any:
    """Return the message in a body.

    Raises:
        msgspec.DecodeError: for a body that is none.
    """
    return _decode(body)
