"""Messages with file descriptors over a Unix stream socket: the synchronous data plane.

A message is a fixed prefix (sizes of header and body), a JSON header, and an optional body of
bytes. Descriptors travel with the prefix. Each connection carries requests in one direction only,
one at a time: the answer to a request is the next message the other way, after any that say how
much of a long work is done. A client opens two:
`call`, on which it asks, and `data`, on which it is asked (export, release, ready).
"""

from __future__ import annotations

import array
import json
import os
import resource
import socket
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from plexclient.wire import errors as wire_errors
from plexclient.wire.v1 import common_pb2
from plexsvc.errors import PlexError, bad_request

MAX_HEADER_BYTES: Final = 4 << 20
MAX_BODY_BYTES: Final = 256 << 20
MAX_FDS: Final = 64

_PREFIX: Final = struct.Struct("<4sII")
_MAGIC: Final = b"PXD1"

Header = Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """One message; its receiver owns `fds`."""

    header: Header
    body: bytes = b""
    fds: tuple[int, ...] = field(default=())


def send(sock: socket.socket, message: Message) -> None:
    """Send `message`; the sender keeps its descriptors.

    Raises:
        OSError: the connection is gone or its timeout passed.
    """
    head = _head(message)
    sent = sock.sendmsg([head], rights(message.fds))
    # The descriptors went with the first byte; what did not fit follows without.
    for left in (head[sent:], message.body):
        if left:  # sending nothing fails too when the peer, done with what it wanted, is gone
            sock.sendall(left)


def encode(message: Message) -> bytes:
    """Return the bytes of a message; its descriptors go with the first."""
    return _head(message) + message.body


def rights(fds: Sequence[int]) -> list[tuple[int, int, array.array[int]]]:
    """Return the ancillary data that carries descriptors."""
    return [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))] if fds else []


def receive(sock: socket.socket) -> Message:
    """Return the next message.

    Raises:
        EOFError: the peer closed the connection.
        PlexError: `bad_request`: what came is not this protocol; close the connection.
        OSError: the connection broke or its timeout passed.
    """
    prefix, fds = _receive_prefix(sock)
    try:
        header_bytes, body_bytes = _sizes(prefix)
        header = json.loads(_exactly(sock, header_bytes))
        return Message(header=header, body=bytes(_exactly(sock, body_bytes)), fds=fds)
    except (ValueError, PlexError) as error:
        close_all(fds)
        raise bad_request(f"not a data-plane message: {error}") from error
    except BaseException:
        close_all(fds)
        raise


def close_all(fds: tuple[int, ...]) -> None:
    """Close received descriptors."""
    for fd in fds:
        os.close(fd)


def allow_many_files() -> None:
    """Let this process hold as many descriptors as it may: each memory file takes one."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


def failure(error: PlexError) -> Message:
    """Return the answer that carries `error`."""
    return Message(header={"error": True}, body=wire_errors.to_wire(error).SerializeToString())


def raise_if_failure(message: Message) -> Message:
    """Return `message`, unless it carries an error.

    Raises:
        PlexError: what the other side raised.
    """
    if message.header.get("error"):
        close_all(message.fds)
        raise wire_errors.from_wire(common_pb2.Error.FromString(message.body))
    return message


def _head(message: Message) -> bytes:
    header = json.dumps(message.header).encode()
    assert len(header) <= MAX_HEADER_BYTES, len(header)
    assert len(message.body) <= MAX_BODY_BYTES, len(message.body)
    return _PREFIX.pack(_MAGIC, len(header), len(message.body)) + header


def _receive_prefix(sock: socket.socket) -> tuple[bytes, tuple[int, ...]]:
    room = socket.CMSG_SPACE(MAX_FDS * array.array("i").itemsize)
    data, ancillary, flags, _ = sock.recvmsg(_PREFIX.size, room, socket.MSG_CMSG_CLOEXEC)
    received = array.array("i")
    for level, kind, payload in ancillary:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            # What did not fit may end inside a number.
            received.frombytes(payload[: len(payload) - len(payload) % received.itemsize])
    try:
        return data + _rest(sock, data, has_all=not flags & socket.MSG_CTRUNC), tuple(received)
    except BaseException:
        close_all(tuple(received))
        raise


def _rest(sock: socket.socket, data: bytes, *, has_all: bool) -> bytearray:
    """Return what follows the beginning of a prefix."""
    if not data:
        raise EOFError("the peer closed the data connection")
    if not has_all:
        text = f"descriptors were lost: more than {MAX_FDS}, or more than this process may have"
        raise bad_request(f"not a data-plane message: {text}")
    return _exactly(sock, _PREFIX.size - len(data))


def _sizes(prefix: bytes) -> tuple[int, int]:
    magic, header_bytes, body_bytes = _PREFIX.unpack(prefix)
    if magic != _MAGIC or header_bytes > MAX_HEADER_BYTES or body_bytes > MAX_BODY_BYTES:
        raise bad_request(f"prefix {prefix.hex()}")
    return header_bytes, body_bytes


def _exactly(sock: socket.socket, nbytes: int) -> bytearray:
    data = bytearray(nbytes)
    view, got = memoryview(data), 0
    while got < nbytes:
        count = sock.recv_into(view[got:])
        if count == 0:
            raise EOFError("the peer closed the data connection inside a message")
        got += count
    return data
