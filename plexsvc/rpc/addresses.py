"""Addresses of a cluster's processes: `unix:PATH` for those on one host, `HOST:PORT` for all."""

from __future__ import annotations

from pathlib import Path
from typing import Final

UNIX: Final = "unix:"


def socket_path(address: str) -> Path | None:
    """Return the path of a Unix socket's address, None for another.

    >>> socket_path("unix:/run/a.sock"), socket_path("10.0.0.7:50061")
    (PosixPath('/run/a.sock'), None)
    """
    return Path(address.removeprefix(UNIX)) if address.startswith(UNIX) else None


def host_of(address: str) -> str:
    """Return the host of an address; empty for a Unix socket.

    >>> host_of("10.0.0.7:50061"), host_of("unix:/run/a.sock")
    ('10.0.0.7', '')
    """
    return "" if address.startswith(UNIX) else address.rpartition(":")[0]
