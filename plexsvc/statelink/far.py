"""Reader of published versions on other hosts: each block is verified as it comes.

What breaks off goes on at the first block that is not verified, with whoever answers for that node
then. A reader that has an older version asks for deltas to it; where one of them does not give what
was published, it reads the rest without. The first reader of a site gets a version from its holder,
and the others from the first, block by block.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Final

import grpc

from plexclient.wire.v1.statemanager_pb2 import (
    GetManifestRequest,
    PublishedVersion,
    ReadVersionRequest,
    VersionChunk,
    VersionHolder,
    VersionManifest,
)
from plexclient.wire.v1.statemanager_pb2 import VersionId as WireVersionId
from plexclient.wire.v1.statemanager_pb2_grpc import StateManagerStub
from plexsvc import progress
from plexsvc.errors import PlexError, unavailable
from plexsvc.ids import VersionId
from plexsvc.log import Log
from plexsvc.rpc.channels import open_blocking_channel
from plexsvc.rpc.keys import ClusterKeys
from plexsvc.statelink.client import READER_PATIENCE_S
from plexsvc.weights import deltas
from plexsvc.weights.checksums import BLOCK_BYTES, verify_block
from plexsvc.weights.reading import OpenedPart

log = Log(__name__)

Put = Callable[[int, memoryview], None]
"""Takes a block and the byte where it begins."""

READ_TIMEOUT_S: Final = 120.0
"""Longest time that a manifest may take to arrive from another host."""

SLOWEST_BYTES_PER_S: Final = 1 << 20
"""A version that arrives more slowly than this is given up; what hangs, its operation's watch."""

STALL_S: Final = 20.0
"""A stream that brings nothing for so long is broken off, within twice the time."""

MAX_NEIGHBOURS: Final = 2
"""Neighbours that are asked before the holder is asked for all of the rest."""

MAX_READS: Final = 2
"""Times that a version is asked for in vain: its holder may die and be replaced."""


def _advance(nbytes: int) -> None:
    del nbytes
    progress.advance()


class Incoming:
    """The blocks of a version that arrive in turn; each is verified and `put` in its place."""

    def __init__(
        self,
        manifest: VersionManifest,
        put: Put,
        *,
        base: OpenedPart | None,
        lows: Sequence[int] | None = None,
    ) -> None:
        self.manifest = manifest
        self.base = base
        self._lows = lows
        self.without = ""
        """The neighbour that last failed to give it."""
        self.neighbours = 0
        """How many were asked."""
        self._left = deque(range(0, manifest.nbytes, BLOCK_BYTES) if lows is None else lows)
        self._put = put
        self._block = memoryview(bytearray(min(BLOCK_BYTES, manifest.nbytes)))
        self._filled = self.done

    @property
    def done(self) -> int:
        """Where the block begins that comes next."""
        return self._left[0] if self._left else self.manifest.nbytes

    @property
    def is_whole(self) -> bool:
        """Whether all has come that is wanted."""
        return not self._left

    @property
    def lows(self) -> Sequence[int]:
        """Where the blocks begin that are still to come; nothing if that is all of the rest."""
        return () if self._lows is None else self._left

    def rewind(self) -> None:
        """Begin again after what is verified."""
        self._filled = self.done

    def take(self, chunk: VersionChunk) -> int:
        """Take what came, and return its bytes; a block is put in its place once it is verified.

        Raises:
            PlexError: `checksum_mismatch`, `bad_request`, `unavailable`: it is not what was
                published; what `put` raises.
        """
        low, block = chunk.offset, min(self.done + BLOCK_BYTES, self.manifest.nbytes)
        data = chunk.data  # copied at each look
        end = block if chunk.width else low + len(data)
        if low != self._filled or end > block or (chunk.width and self.base is None):
            raise unavailable(f"{VersionId.of(self.manifest)}: bytes from {low} came out of turn")
        if chunk.width and self.base is not None:
            into, base = self._block[: end - low], self.base.data[low:end]
            deltas.decode(into, base=base, delta=data, width=chunk.width)
        else:
            self._block[low - self.done : end - self.done] = data
        self._filled = end
        if end == block:
            whole = self._block[: end - self.done]
            verify_block(self.manifest, whole, at=self.done)
            self._put(self.done, whole)
            self._left.popleft()
            self._filled = self.done
        return len(data)


@dataclass(frozen=True, slots=True)
class Far:
    """A holder of a version whose bytes must be asked for; calls raise `unavailable`."""

    holder: VersionHolder
    keys: Callable[[], ClusterKeys]
    tell: Callable[[int], None] = _advance
    """Takes the bytes of each chunk that came."""
    site: str = ""
    """Where the reader is, whose neighbours may get versions from it; empty: it has none."""
    reader: str = ""
    """Where they reach it."""
    stub: StateManagerStub | None = None
    """Of a channel to the holder that is open."""

    @contextmanager
    def connected(self) -> Iterator[Far]:
        """Return it with one channel for all its calls: each costs a handshake."""
        with self._state() as state:
            yield replace(self, stub=state)

    def read_manifest(self, version: PublishedVersion) -> VersionManifest:
        """Return the manifest of its part, asked of its state manager or the successor."""
        request = GetManifestRequest(**VersionId.of(version)._asdict())
        with self._state() as state:
            cause: Exception | None = None
            for _ in range(MAX_READS):
                try:
                    return state.GetManifest(request, timeout=READ_TIMEOUT_S)
                except grpc.RpcError as error:
                    cause = error
                    if not _has_successor(state, request):
                        break
        raise self._unread(version, cause)

    def read_whole(self, manifest: VersionManifest) -> OpenedPart:
        """Return its part, verified, streamed from its state manager or the successor.

        Raises:
            PlexError: `checksum_mismatch`.
        """
        data = memoryview(bytearray(manifest.nbytes))

        def put(at: int, block: memoryview) -> None:
            data[at : at + len(block)] = block

        self.read_into(put, manifest)
        return OpenedPart(manifest=manifest, data=data.toreadonly())

    def read_into(
        self,
        put: Put,
        manifest: VersionManifest,
        *,
        base: OpenedPart | None = None,
        bytes_per_s: int = 0,
        lows: Sequence[int] | None = None,
    ) -> bool:
        """Have its part put in its place, verified; as deltas to `base` where that is sooner.

        With `lows`, only the blocks that begin there. Returns whether all came from its holder.

        Raises:
            PlexError: `checksum_mismatch`.
        """
        incoming, in_vain = Incoming(manifest, put, base=base, lows=lows), 0
        with self._state() as state:
            while not incoming.is_whole:
                before = incoming.done
                error = self._try(state, incoming, bytes_per_s)
                # Only a try that brought nothing counts: a long version may break off often.
                in_vain = in_vain + 1 if error is not None and incoming.done == before else 0
                if error is not None and in_vain == MAX_READS:
                    raise error
        return not incoming.neighbours

    def _try(
        self, state: StateManagerStub, incoming: Incoming, bytes_per_s: int
    ) -> PlexError | None:
        """Read on; return why that ended early, unless the rest may come without deltas."""
        manifest = incoming.manifest
        try:
            relay = self._stream(state, incoming, bytes_per_s)
        except PlexError as error:
            if incoming.base is None:
                return error
            log.warning("deltas given up", node=manifest.node_id, error=error)
            incoming.base = None
        except grpc.RpcError as error:
            unread = self._unread(manifest, error)
            version = GetManifestRequest(**VersionId.of(manifest)._asdict())
            if not _has_successor(state, version):
                raise unread from error
            return unread
        else:
            if relay:
                self._read_near(relay, incoming)
            elif not incoming.is_whole:
                return self._unread(manifest, None)
        return None

    def _read_near(self, relay: str, incoming: Incoming) -> None:
        """Read on from a neighbour; what it does not give comes from the holder."""
        incoming.neighbours += 1
        incoming.without = relay
        try:
            with open_blocking_channel(relay, self.keys()) as channel:
                self._stream(StateManagerStub(channel), incoming, is_near=True)
        except (PlexError, grpc.RpcError) as error:
            log.warning("neighbour given up", address=relay, error=error)

    def _stream(
        self,
        state: StateManagerStub,
        incoming: Incoming,
        bytes_per_s: int = 0,
        *,
        is_near: bool = False,
    ) -> str:
        """Read on; return whom to ask instead, if anybody."""
        manifest = incoming.manifest
        incoming.rewind()
        request = ReadVersionRequest(
            **VersionId.of(manifest)._asdict(),
            offset=incoming.done,
            bytes_per_s=bytes_per_s,
            lows=incoming.lows,
        )
        if is_near:
            request.part = self.holder.part or self.holder.node_id
        elif self.site and incoming.neighbours < MAX_NEIGHBOURS:
            request.site, request.reader = self.site, self.reader
            request.without = incoming.without
        if incoming.base is not None and not is_near:
            base = VersionId.of(incoming.base.manifest)
            request.base.CopyFrom(WireVersionId(**base._asdict()))
        timeout_s = READ_TIMEOUT_S + manifest.nbytes / SLOWEST_BYTES_PER_S
        call = state.ReadVersion(request, timeout=timeout_s)
        try:
            with _watched(call, lambda: incoming.done):
                for chunk in call:
                    if chunk.relay:
                        return chunk.relay
                    self.tell(incoming.take(chunk))
                    if incoming.is_whole:
                        break
        finally:
            call.cancel()
        return ""

    @contextmanager
    def _state(self) -> Iterator[StateManagerStub]:
        if self.stub is not None:
            yield self.stub
            return
        with open_blocking_channel(self.holder.state_manager, self.keys()) as channel:
            yield StateManagerStub(channel)

    def _unread(
        self, version: PublishedVersion | VersionManifest, cause: Exception | None
    ) -> PlexError:
        return unavailable(
            f"{VersionId.of(version)} could not be read from {self.holder.state_manager}: {cause}"
        )


def _has_successor(state: StateManagerStub, version: GetManifestRequest) -> bool:
    """Return whether the node's state manager, or its successor, has the version; waits for one."""
    try:
        state.GetManifest(version, timeout=READER_PATIENCE_S, wait_for_ready=True)
    except grpc.RpcError:
        return False
    return True


@contextmanager
def _watched(call: grpc.RpcContext, count: Callable[[], int]) -> Iterator[None]:
    """Cancel a call of the block once `count` stays the same for too long."""
    over = threading.Event()

    def watch() -> None:
        seen = -1
        while not over.wait(STALL_S):
            if (now := count()) == seen:
                call.cancel()
                return
            seen = now

    thread = threading.Thread(target=watch, name="stall", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
