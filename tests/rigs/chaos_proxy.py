"""A TCP proxy that injects faults: it cuts, delays and duplicates connections at random bytes.

Each connection draws its fate from the proxy's seed and its own number: after how many bytes it is
cut (in whichever direction gets there), which pieces wait, and after how many bytes of the client
everything the client has sent so far is sent again on a second connection, whose answers nobody
reads. The seed is printed; the same seed and traffic give the same faults.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import threading
from collections.abc import Coroutine, Iterator
from dataclasses import dataclass
from types import TracebackType
from typing import Self

PIECE_BYTES = 16 << 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Faults:
    """How badly the line behaves. A mean of 0 turns a fault off."""

    cut_mean_bytes: int = 0
    duplicate_mean_bytes: int = 0
    delay_share: float = 0.0
    delay_max_s: float = 0.01
    max_replay_bytes: int = 8 << 20


@dataclass(slots=True)
class Counts:
    """What the proxy did."""

    connections: int = 0
    cuts: int = 0
    duplicates: int = 0
    delays: int = 0


class ChaosProxy:
    """`async with ChaosProxy(target, seed=1, faults=...) as proxy:` connect to `proxy.address`."""

    def __init__(self, target: str, *, seed: int, faults: Faults) -> None:
        self._host, _, port = target.rpartition(":")
        self._port = int(port)
        self._seed = seed
        self._faults = faults
        self.counts = Counts()
        self.is_calm = False
        """Set to let everything through: faults that already happened stay."""
        self.address = ""
        self._tasks: set[asyncio.Task[None]] = set()
        self._lines: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> Self:
        self._loop = asyncio.get_running_loop()
        self._group = asyncio.TaskGroup()
        await self._group.__aenter__()
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        self.address = f"127.0.0.1:{self._server.sockets[0].getsockname()[1]}"
        print(f"chaos proxy seed={self._seed} faults={self._faults}")  # noqa: T201 - to replay it
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._server.close()
        print(f"chaos proxy seed={self._seed} {self.counts}")  # noqa: T201 - to judge it
        for task in list(self._tasks):
            task.cancel()
        await self._group.__aexit__(kind, error, trace)

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.counts.connections += 1
        link = _Link(self, random.Random(f"{self._seed}/{self.counts.connections}"))
        line = self._start(self._carry(link, reader, writer))
        self._lines.add(line)
        line.add_done_callback(self._lines.discard)

    def _start(self, work: Coroutine[None, None, None]) -> asyncio.Task[None]:
        task = self._group.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _carry(
        self, link: _Link, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        up_writer: asyncio.StreamWriter | None = None
        try:
            up_reader, up_writer = await asyncio.open_connection(self._host, self._port)
            async with asyncio.TaskGroup() as group:
                group.create_task(link.pump(reader, up_writer, is_client=True))
                group.create_task(link.pump(up_reader, writer, is_client=False))
        except* (_CutError, OSError, EOFError):
            pass
        finally:
            for end in (writer, up_writer):
                if end is not None:
                    end.transport.abort()

    async def replay(self, data: bytes) -> None:
        """Send `data` on a connection of its own, give it time to act, and hang up."""
        with contextlib.suppress(OSError, TimeoutError):
            reader, writer = await asyncio.open_connection(self._host, self._port)
            try:
                writer.write(data)
                async with asyncio.timeout(1.0):
                    while await reader.read(PIECE_BYTES):
                        pass
            finally:
                writer.transport.abort()

    def start_replay(self, data: bytes) -> None:
        """Replay in the background, for at most a second."""
        self.counts.duplicates += 1
        _ = self._start(self.replay(data))

    def turn(self, faults: Faults) -> None:
        """Cut all lines; new ones behave as `faults` says. For threads beside the proxy's."""

        def now() -> None:
            self._faults = faults
            self.counts.cuts += len(self._lines)
            for line in self._lines:
                line.cancel()

        self._loop.call_soon_threadsafe(now)

    @property
    def faults(self) -> Faults:
        """Return how badly the line behaves."""
        return self._faults


@contextlib.contextmanager
def running_proxy(target: str, *, seed: int, faults: Faults) -> Iterator[ChaosProxy]:
    """Run a proxy on a thread and loop of its own, for clients that block."""
    started, stopping = threading.Event(), threading.Event()
    found: list[ChaosProxy] = []

    async def serve() -> None:
        async with ChaosProxy(target, seed=seed, faults=faults) as proxy:
            found.append(proxy)
            started.set()
            await asyncio.to_thread(stopping.wait)

    thread = threading.Thread(target=lambda: asyncio.run(serve()))
    thread.start()
    started.wait(timeout=10)
    try:
        yield found[0]
    finally:
        stopping.set()
        thread.join()


class _CutError(Exception):
    """The line was cut, or one end hung up."""


class _Link:
    """The fate of one connection."""

    def __init__(self, proxy: ChaosProxy, dice: random.Random) -> None:
        self._proxy = proxy
        self._dice = dice
        self._until_cut = _draw(dice, proxy.faults.cut_mean_bytes)
        self._until_duplicate = _draw(dice, proxy.faults.duplicate_mean_bytes)
        self._sent = bytearray()

    async def pump(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, is_client: bool
    ) -> None:
        while piece := await reader.read(PIECE_BYTES):
            await self._delay()
            cut_at = self._count(len(piece))
            piece = piece if cut_at is None else piece[:cut_at]
            if is_client:
                self._record(piece)
            writer.write(piece)
            await writer.drain()
            if cut_at is not None:
                self._proxy.counts.cuts += 1
                raise _CutError
        raise _CutError

    async def _delay(self) -> None:
        faults = self._proxy.faults
        if not self._proxy.is_calm and self._dice.random() < faults.delay_share:
            self._proxy.counts.delays += 1
            await asyncio.sleep(self._dice.random() * faults.delay_max_s)

    def _count(self, size: int) -> int | None:
        """Return where in the next `size` bytes the line is cut."""
        if self._until_cut is None or self._proxy.is_calm:
            return None
        left, self._until_cut = self._until_cut, self._until_cut - size
        return left if left < size else None

    def _record(self, piece: bytes) -> None:
        if self._until_duplicate is None or self._proxy.is_calm:
            return
        self._sent += piece
        if len(self._sent) > self._proxy.faults.max_replay_bytes:
            self._until_duplicate = None
            self._sent.clear()
        elif len(self._sent) >= self._until_duplicate:
            self._proxy.start_replay(bytes(self._sent))
            self._until_duplicate += _draw(self._dice, self._proxy.faults.duplicate_mean_bytes) or 0


def _draw(dice: random.Random, mean: int) -> int | None:
    return int(dice.expovariate(1 / mean)) + 1 if mean else None
