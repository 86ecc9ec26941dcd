"""Reader of published versions on other hosts: each block is verified as it comes.

What breaks off goes on at the first block that is not verified, with whoever answers for that node
then. A reader that has an older version asks for deltas to it; where one of them does not give what
was published, it reads the rest without. The first reader of a site gets a version from its holder,
and the others from the first, block by block.
"""

from __future__ import annotations

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
from plexsvc.statelink.byteline import ByteLine, LineBrokenError, checked, dial
from plexsvc.statelink.client import READER_PATIENCE_S
from plexsvc.weights import deltas
from plexsvc.weights.checksums import BLOCK_BYTES, verify_block
from plexsvc.weights.reading import OpenedPart

log = Log(__name__)

Room = Callable[[int, int], memoryview]
"""Returns where a block is to come, by its beginning and its bytes."""

Put = Callable[[int, memoryview], None]
"""Takes the beginning of a block, and the block, once it is verified."""

READ_TIMEOUT_S: Final = 120.0
"""Longest time that a manifest may take to arrive from another host."""

MAX_NEIGHBOURS: Final = 2
"""Neighbours that are asked before the holder is asked for all of the rest."""

MAX_READS: Final = 2
"""Times that a version is asked for in vain: its holder may die and be replaced."""


def _advance(nbytes: int) -> None:
    del nbytes
    progress.advance()


class Incoming:
    """The blocks of a version that arrive in turn, each where it stays, and are verified there."""

    def __init__(
        self,
        manifest: VersionManifest,
        room: Room,
        *,
        base: OpenedPart | None,
        lows: Sequence[int] | None = None,
        put: Put | None = None,
    ) -> None:
        self.manifest = manifest
        self.address = manifest.bytes_at
        """Where its holder gives bytes."""
        self.base = base
        self._lows = lows
        self.without = ""
        """The neighbour that last failed to give it."""
        self.neighbours = 0
        """How many were asked."""
        self._left = deque(range(0, manifest.nbytes, BLOCK_BYTES) if lows is None else lows)
        self._room = room
        self._put = put
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

    def take(self, chunk: VersionChunk, line: ByteLine, tell: Callable[[int], None]) -> None:
        """Take what a chunk tells of off the line, and verify the block that it ends.

        Raises:
            PlexError: `checksum_mismatch`, `bad_request`, `unavailable`: it is not what was
                published; what finding room raises.
            OSError: the line broke; so does EOFError tell.
        """
        low, end = chunk.offset, min(self.done + BLOCK_BYTES, self.manifest.nbytes)
        is_delta = chunk.width > 0
        until = end if is_delta else low + chunk.nbytes
        if low != self._filled or until > end or (is_delta and self.base is None):
            raise unavailable(f"{VersionId.of(self.manifest)}: bytes from {low} came out of turn")
        block = self._room(self.done, end - self.done)
        if is_delta and self.base is not None:
            delta = bytearray(min(chunk.nbytes, BLOCK_BYTES))
            line.receive_into(memoryview(delta), tell)
            base = self.base.data[low:end]
            deltas.decode(block, base=base, delta=delta, width=chunk.width)
        else:
            line.receive_into(block[low - self.done : until - self.done], tell)
        self._filled = until
        if until == end:
            verify_block(self.manifest, block, at=self.done)
            if self._put is not None:
                self._put(self.done, block)
            self._left.popleft()
            self._filled = self.done


@dataclass(frozen=True, slots=True)
class Far:
    """A holder of a version whose bytes must be asked for; calls raise `unavailable`."""

    holder: VersionHolder
    keys: Callable[[], ClusterKeys]
    tell: Callable[[int], None] = _advance
    """Takes the number of bytes that came."""
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
                    if _of_successor(state, request) is None:
                        break
        raise self._unread(version, cause)

    def read_whole(self, manifest: VersionManifest) -> OpenedPart:
        """Return its part, verified, got from its state manager or the successor.

        Raises:
            PlexError: `checksum_mismatch`.
        """
        data = memoryview(bytearray(manifest.nbytes))
        self.read_into(lambda low, nbytes: data[low : low + nbytes], manifest)
        return OpenedPart(manifest=manifest, data=data.toreadonly())

    def read_into(
        self,
        room: Room,
        manifest: VersionManifest,
        *,
        base: OpenedPart | None = None,
        bytes_per_s: int = 0,
        lows: Sequence[int] | None = None,
        put: Put | None = None,
    ) -> bool:
        """Have its part come to its place, verified; as deltas to `base` where that is sooner.

        With `lows`, only the blocks that begin there. Returns whether all came from its holder.

        Raises:
            PlexError: `checksum_mismatch`.
        """
        incoming = Incoming(manifest, room, base=base, lows=lows, put=put)
        in_vain = 0
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
            relay = self._stream(incoming.address, incoming, bytes_per_s)
        except PlexError as error:
            if incoming.base is None:
                return error
            log.warning("deltas given up", node=manifest.node_id, error=error)
            incoming.base = None
        except LineBrokenError as error:
            unread = self._unread(manifest, error)
            version = GetManifestRequest(**VersionId.of(manifest)._asdict())
            found = _of_successor(state, version)
            if found is None:
                raise unread from error
            incoming.address = found.bytes_at
            return unread
        else:
            if relay:
                self._read_near(relay, incoming)
        return None

    def _read_near(self, relay: str, incoming: Incoming) -> None:
        """Read on from a neighbour; what it does not give comes from the holder."""
        incoming.neighbours += 1
        incoming.without = relay
        try:
            self._stream(relay, incoming, is_near=True)
        except (PlexError, LineBrokenError) as error:
            log.warning("neighbour given up", address=relay, error=error)

    def _stream(
        self, address: str, incoming: Incoming, bytes_per_s: int = 0, *, is_near: bool = False
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
        with dial(address, self.keys()) as line:
            line.send(request)
            while not incoming.is_whole:
                chunk = checked(line.receive(VersionChunk))
                if chunk.relay:
                    return chunk.relay
                incoming.take(chunk, line, self.tell)
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


def _of_successor(state: StateManagerStub, version: GetManifestRequest) -> VersionManifest | None:
    """Return what the node's state manager, or its successor, has of it; waits for one."""
    try:
        return state.GetManifest(version, timeout=READER_PATIENCE_S, wait_for_ready=True)
    except grpc.RpcError:
        return None
