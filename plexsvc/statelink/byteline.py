"""Line that carries the bytes of versions between nodes: TCP, or a Unix socket on one host.

A reader connects and sends one `ReadVersionRequest`. `VersionChunk`s come back, each followed by
the bytes that it tells of. A message is preceded by its length. Between hosts both ends show a
certificate (TLS). Over a Unix socket the host's secret precedes the request, and the kernel sends
what lies in files.
"""

from __future__ import annotations

import os
import socket
import ssl
import struct
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from typing import Final, TypeVar

from google.protobuf.message import DecodeError, Message

from plexclient.wire import errors as wire_errors
from plexclient.wire.v1.statemanager_pb2 import VersionChunk
from plexsvc.errors import PlexError, bad_request
from plexsvc.rpc.addresses import socket_path
from plexsvc.rpc.certificates import TLS_NAME
from plexsvc.rpc.keys import SECRET_KEY, ClusterKeys, renewed
from plexsvc.rpc.tls import client_context, server_context

M = TypeVar("M", bound=Message)

STALL_S: Final = 20.0
"""A line on which no message, or `PIECE_BYTES` of bytes, come for so long is broken off, within
twice the time."""

PIECE_BYTES: Final = 1 << 20
"""Bytes that are told of as they come."""

SHAKE_S: Final = 10.0
"""Longest time until who connects has said who it is and what it wants."""

LINGER_S: Final = 60.0
"""How long a reader may take nothing of what is sent."""

MAX_MESSAGE_BYTES: Final = 1 << 20
"""A request names fewer than 300,000 blocks."""

_LENGTH: Final = struct.Struct("<I")
_ENCRYPTED_BYTES: Final = 256 << 10
"""Of a file that is encrypted at once: they fit the caches."""


class LineBrokenError(Exception):
    """The other end cannot be reached, refused, hung up or brought nothing for long."""


class ByteLine:
    """One end of a line. Calls block, and raise OSError and EOFError when it breaks."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self._is_encrypted = isinstance(sock, ssl.SSLSocket)
        self._buffer: memoryview | None = None

    def wait_at_most(self, seconds: float) -> None:
        """Have a call of the kernel that gets nowhere for so long fail."""
        if self._is_encrypted:
            self.sock.settimeout(seconds)
            return
        # Python's own timeouts would make two calls of each.
        self.sock.settimeout(None)
        for option in (socket.SO_RCVTIMEO, socket.SO_SNDTIMEO):
            self.sock.setsockopt(socket.SOL_SOCKET, option, struct.pack("ll", int(seconds), 0))

    def send(self, message: Message) -> None:
        """Send a message."""
        self.send_text(message.SerializeToString())

    def send_text(self, data: bytes) -> None:
        """Send the bytes of a message."""
        self.sock.sendall(_LENGTH.pack(len(data)) + data)

    def send_bytes(self, data: bytes | bytearray) -> None:
        """Send bytes that a message told of."""
        self.sock.sendall(data)

    def send_file(self, fd: int, *, offset: int, nbytes: int) -> None:
        """Send bytes of a file; they must not change before the other end has hung up."""
        at, end = offset, offset + nbytes
        while at < end and not self._is_encrypted:
            at += os.sendfile(self.sock.fileno(), fd, at, end - at)
        while at < end:
            if self._buffer is None:
                self._buffer = memoryview(bytearray(_ENCRYPTED_BYTES))
            part = self._buffer[: min(_ENCRYPTED_BYTES, end - at)]
            os.preadv(fd, [part], at)
            self.sock.sendall(part)
            at += len(part)

    def receive(self, into: type[M]) -> M:
        """Return the next message.

        Raises:
            PlexError: `bad_request`: what came is no such message.
        """
        try:
            return into.FromString(self.receive_text())
        except DecodeError as error:
            name = into.DESCRIPTOR.name
            raise bad_request(f"what came on the line for bytes is no {name}: {error}") from error

    def receive_text(self) -> bytes:
        """Return the bytes of the next message.

        Raises:
            PlexError: `bad_request` where it is too long.
        """
        length = bytearray(_LENGTH.size)
        self.receive_into(memoryview(length))
        (nbytes,) = _LENGTH.unpack(length)
        if nbytes > MAX_MESSAGE_BYTES:
            raise bad_request(f"a message of {nbytes} bytes came, {MAX_MESSAGE_BYTES} are allowed")
        data = bytearray(nbytes)
        self.receive_into(memoryview(data))
        return bytes(data)

    def receive_into(self, view: memoryview, tell: Callable[[int], None] | None = None) -> None:
        """Fill a view with what comes, and tell of it piece by piece."""
        flags = 0 if self._is_encrypted else socket.MSG_WAITALL
        for low in range(0, len(view), PIECE_BYTES):
            piece = view[low : low + PIECE_BYTES]
            until_s, got = time.monotonic() + STALL_S, 0
            while got < len(piece):
                with suppress(BlockingIOError):  # nothing came for too long
                    count = self.sock.recv_into(piece[got:], 0, flags)
                    if not count:
                        raise EOFError("the other end hung up")
                    got += count
                if got < len(piece) and time.monotonic() > until_s:
                    raise TimeoutError(f"{got} bytes came in {STALL_S} s")
            if tell is not None:
                tell(len(piece))

    def wait_for_end(self) -> None:
        """Return when the other end has hung up: it has all that was sent, or wants no more."""
        self.sock.recv_into(bytearray(1))

    def hang_up(self) -> None:
        """Say no more, and drop what comes until the other end has hung up, too, for a while.

        Closing a line before all that came is read resets it, and what was said last is lost.
        """
        self.sock.shutdown(socket.SHUT_WR)
        until_s, scrap = time.monotonic() + SHAKE_S, bytearray(1 << 16)
        while time.monotonic() < until_s and self.sock.recv_into(scrap):
            pass


@contextmanager
def dial(address: str, keys: ClusterKeys) -> Iterator[ByteLine]:
    """Connect to where a node gives bytes, for the block.

    Raises:
        LineBrokenError: the line, or the block's use of it, broke.
    """
    try:
        with ExitStack() as stack:
            line = ByteLine(_connected(address, keys, stack))
            line.wait_at_most(STALL_S)
            if socket_path(address) is not None:
                line.send_text(keys.secret.encode())
            yield line
    except (OSError, EOFError) as error:
        raise LineBrokenError(f"{address or 'no address'}: {error!r}") from error


def checked(chunk: VersionChunk) -> VersionChunk:
    """Return a chunk that carries no error.

    Raises:
        LineBrokenError: it carries one.
    """
    if chunk.HasField("error"):
        raise LineBrokenError(str(wire_errors.from_wire(chunk.error)))
    return chunk


@contextmanager
def accepted(sock: socket.socket, keys: ClusterKeys) -> Iterator[ByteLine]:
    """Let in a member that connected, for the block, and tell it of an error that this raises.

    Who is no member is told so, and nothing that it sends is decoded.

    Raises:
        PlexError: it is refused.
        OSError: it is no member, or the line broke; so does EOFError tell.
    """
    with ExitStack() as stack:
        stack.enter_context(sock)
        with _hurried(sock):
            line = _shaken(sock, keys, stack)
            refusal = _refusal(line, keys)
        try:
            if refusal is not None:
                raise refusal
            line.wait_at_most(LINGER_S)
            yield line
        except PlexError as error:
            with suppress(OSError):
                line.wait_at_most(SHAKE_S)
                line.send(VersionChunk(error=wire_errors.to_wire(error)))
                line.hang_up()
            raise


def _connected(address: str, keys: ClusterKeys, stack: ExitStack) -> socket.socket:
    path = socket_path(address)
    if path is not None:
        sock = stack.enter_context(socket.socket(socket.AF_UNIX))
        sock.settimeout(SHAKE_S)
        sock.connect(str(path))
        return sock
    host, _, port = address.rpartition(":")
    if not port.isdecimal():
        raise ConnectionError("it serves no bytes")
    plain = socket.create_connection((host.strip("[]"), int(port)), SHAKE_S)
    stack.enter_context(plain)
    plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    context = client_context(keys)
    return stack.enter_context(context.wrap_socket(plain, server_hostname=TLS_NAME))


def _shaken(sock: socket.socket, keys: ClusterKeys, stack: ExitStack) -> ByteLine:
    if sock.family == socket.AF_UNIX:
        return ByteLine(sock)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    context = server_context(renewed(keys))
    return ByteLine(stack.enter_context(context.wrap_socket(sock, server_side=True)))


def _refusal(line: ByteLine, keys: ClusterKeys) -> PlexError | None:
    """Return why who connected is refused, None for a member."""
    if not isinstance(line.sock, ssl.SSLSocket):
        return keys.refusal([(SECRET_KEY, line.receive_text().decode(errors="replace"))])
    shown = line.sock.getpeercert(binary_form=True)
    assert shown is not None, "asked for in the handshake"
    certificate = ssl.DER_cert_to_PEM_cert(shown).encode()
    return keys.refusal_of_peer({"x509_pem_cert": [certificate]}, takes_nodes=True)


@contextmanager
def _hurried(sock: socket.socket) -> Iterator[None]:
    """Hang up on who takes too long: one that sends a byte now and then would hold its thread."""
    with sock.dup() as same:  # TLS takes the first one's descriptor
        late = threading.Timer(SHAKE_S, _hang_up, (same,))
        late.daemon = True
        late.start()
        try:
            yield
        finally:
            late.cancel()


def _hang_up(sock: socket.socket) -> None:
    with suppress(OSError):  # it is over
        sock.shutdown(socket.SHUT_RDWR)
