"""The owner's switches of a serving engine: a Unix socket that only the owner can open.

They work without the service: the owner takes the engine back whatever else is down.
"""

from __future__ import annotations

import asyncio
import json
import os
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path
from typing import Any, Final

from plexsvc.errors import bad_request, not_found, unavailable
from plexsvc.rollout.core.lending import refuse
from plexsvc.rollout.serving.config import MAX_GUESTS

CALL_S: Final = 30.0
"""A switch is carried out between two steps; the engine does not answer in so long: it hangs."""

MAX_LINE: Final = 1 << 20
MAX_PATH_BYTES: Final = 107
"""Of a Unix socket, without the zero that ends it (`unix(7)`)."""

Switch = Callable[[], Awaitable[Mapping[str, Any]]]


def guest_socket(path: Path, place: int) -> Path:
    """Return where managers of this host reach a guest: beside the switches.

    >>> str(guest_socket(Path("/run/chat.sock"), 1))
    '/run/chat.guest1'
    """
    return path.absolute().with_suffix(f".guest{place}")


def check_free(path: Path) -> None:
    """Refuse a name whose switches cannot be offered, or are another engine's.

    Raises:
        PlexError: `bad_request`, field `name`.
    """
    longest = len(os.fsencode(guest_socket(path, MAX_GUESTS - 1)))
    if longest > MAX_PATH_BYTES:
        text = (
            f"makes a socket's path of {longest} bytes in {path.parent}, {MAX_PATH_BYTES} at most"
        )
        raise refuse("name", f"{text}; choose a shorter --name or --state-dir")
    with socket.socket(socket.AF_UNIX) as probe, suppress(FileNotFoundError, ConnectionError):
        probe.connect(str(path))
        raise refuse(
            "name", f"{path.stem} is served already, at {path}; end that engine, or choose a --name"
        )


@asynccontextmanager
async def switches(path: Path, offered: Mapping[str, Switch]) -> AsyncIterator[None]:
    """Answer one switch a connection: its name comes as a line, a line of JSON goes back."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with asyncio.timeout(CALL_S):
                name = (await reader.readline()).decode().strip()
                told = f"{name} is no switch of this engine; it has {', '.join(offered)}"
                reply = await offered[name]() if name in offered else {"error": told}
                writer.write(json.dumps(reply).encode() + b"\n")
                await writer.drain()
        finally:
            writer.close()

    with _listening(path) as listener:
        server = await asyncio.start_unix_server(answer, sock=listener, limit=MAX_LINE)
        try:
            yield
        finally:
            server.close()


@contextmanager
def _listening(path: Path) -> Iterator[socket.socket]:
    """Yield a socket in a directory that is the owner's alone.

    Raises:
        PlexError: `bad_request` when another engine took the name meanwhile.
    """
    check_free(path)
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    path.unlink(missing_ok=True)
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(path))
    path.chmod(0o600)
    try:
        yield listener
    finally:
        listener.close()
        path.unlink(missing_ok=True)


async def ask(path: Path, name: str) -> dict[str, Any]:
    """Return what the engine behind `path` answers to a switch.

    Raises:
        PlexError: `not_found` without an engine; `bad_request` for what it does not do;
            `unavailable` when it does not answer.
    """
    try:
        async with asyncio.timeout(CALL_S):
            reader, writer = await asyncio.open_unix_connection(path, limit=MAX_LINE)
            writer.write(f"{name}\n".encode())
            reply = json.loads(await reader.readline() or "{}")
            writer.close()
    except TimeoutError as error:
        raise unavailable(f"the engine at {path} did not answer in {CALL_S:.0f} s") from error
    except OSError as error:
        raise not_found(
            f"no engine serves at {path} ({error}); `plexctl serve MODEL` starts one"
        ) from error
    if "error" in reply:
        raise bad_request(reply["error"])
    return dict(reply)
