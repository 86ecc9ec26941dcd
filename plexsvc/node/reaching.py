"""Reachability of other hosts from a node, and of their ports."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Final

PATIENCE_S: Final = 1.0
"""How long an answer may take."""


async def reaches_any(addresses: Sequence[str]) -> bool:
    """Whether a host of these `HOST:PORT` answers, if only to refuse."""
    return any(await asyncio.gather(*map(_reaches, addresses)))


async def serves(address: str) -> bool:
    """Whether somebody listens at `HOST:PORT`."""
    try:
        await _connect(address)
    except (OSError, ValueError):  # TimeoutError among them
        return False
    return True


async def _reaches(address: str) -> bool:
    try:
        await _connect(address)
    except ConnectionRefusedError:
        return True
    except (OSError, ValueError):
        return False
    return True


async def _connect(address: str) -> None:
    host, _, port = address.rpartition(":")
    async with asyncio.timeout(PATIENCE_S):
        _, line = await asyncio.open_connection(host, int(port))
    line.close()
