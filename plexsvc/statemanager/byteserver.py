"""Server of versions' bytes to other nodes: a thread for each reader (`statelink.byteline`)."""

from __future__ import annotations

import socket
from collections.abc import Callable
from typing import Final

from plexclient.wire.v1.statemanager_pb2 import ReadVersionRequest
from plexsvc.errors import PlexError, internal
from plexsvc.log import Log, Quota
from plexsvc.rpc.addresses import UNIX, host_of, socket_path
from plexsvc.rpc.keys import ClusterKeys
from plexsvc.statelink.byteline import ByteLine, accepted
from plexsvc.statemanager.accepting import BACKLOG, Acceptor, listen_at

log = Log(__name__)

Answer = Callable[[ByteLine, ReadVersionRequest], None]
"""Sends what is asked for; raises PlexError, and OSError and EOFError where the line breaks."""

MAX_READERS: Final = 256
"""Connections that are open at once; the next is closed."""


class ByteServer:
    """Has members of a cluster answered until closed."""

    def __init__(self, answer: Answer, *, keys: ClusterKeys, address: str) -> None:
        """Serve where `address` is, of gRPC: on another port of its host, or beside its socket."""
        self._answer = answer
        self._keys = keys
        self._lines = Quota(lines=10, window_s=10.0)
        beside = socket_path(address)
        self._path = None if beside is None else beside.with_name("bytes.sock")
        if self._path is not None:
            self.address, listener = f"{UNIX}{self._path}", listen_at(self._path)
        else:
            host = host_of(address)
            listener = _listen_on(host.strip("[]"))
            self.address = f"{host}:{listener.getsockname()[1]}"
        self._acceptor = Acceptor(listener, self._serve, most=MAX_READERS, name="bytes")

    def close(self) -> None:
        """Stop accepting and remove the socket."""
        self._acceptor.close()
        if self._path is not None:
            self._path.unlink(missing_ok=True)

    def _serve(self, sock: socket.socket) -> None:
        try:
            with accepted(sock, self._keys) as line:
                self._asked(line, line.receive(ReadVersionRequest))
        except (PlexError, OSError, EOFError) as error:
            left_out = self._lines.take()
            if left_out is not None:
                log.warning("bytes not given", error=error, left_out=left_out)

    def _asked(self, line: ByteLine, request: ReadVersionRequest) -> None:
        try:
            self._answer(line, request)
        except (PlexError, OSError, EOFError):
            raise
        except Exception as error:
            log.error("giving bytes failed")
            text = f"the state manager failed to give bytes: {error!r}; its log says where"
            raise internal(text) from error


def _listen_on(host: str) -> socket.socket:
    (family, *_), *_ = socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM)
    return socket.create_server((host, 0), family=family, backlog=BACKLOG)
