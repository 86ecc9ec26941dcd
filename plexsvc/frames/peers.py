"""Peer of a Unix socket, as the kernel knows it."""

from __future__ import annotations

import os
import socket
import struct
from typing import Final

_CREDENTIALS: Final = struct.Struct("3i")
"""pid, uid, gid."""


def stranger_on(sock: socket.socket) -> int | None:
    """Return the user at the other end, None when it is this process's own."""
    data = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    uid: int = _CREDENTIALS.unpack(data)[1]
    return None if uid == os.geteuid() else uid
