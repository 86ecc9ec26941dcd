"""Blocks of a published version for a reader on another host: whole, or as deltas.

A delta costs the time to make it, and saves time on the line. Both are predicted by those before:
where whole blocks would arrive sooner they are sent, and a delta is tried once in a while.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Final

from plexclient.wire.v1 import statemanager_pb2 as pb
from plexsvc.errors import PlexError, bad_request
from plexsvc.ids import VersionId
from plexsvc.statemanager.publishing import Publisher
from plexsvc.weights import deltas
from plexsvc.weights.checksums import BLOCK_BYTES
from plexsvc.weights.dtypes import DTYPES
from plexsvc.weights.manifests import is_alike
from plexsvc.weights.reading import OpenedPart

MESSAGE_BYTES: Final = 1 << 20
"""Of a block that is sent whole. Smaller messages cost a third more of both ends' processors."""

AHEAD: Final = 2
"""Blocks that are made ready while others are sent."""

TRY_EVERY: Final = 16
"""A delta is tried for one block in so many where none is expected to pay."""


class VersionStream:
    """Makes the messages of one stream, block by block."""

    def __init__(self, version: OpenedPart, base: OpenedPart | None, *, bytes_per_s: int) -> None:
        self._version = version
        self._base = base
        self._bytes_per_s = bytes_per_s
        self._width = _width(version)
        self._encode_s = 0.0
        self._share = 0.0
        """Of a block's bytes, that its delta has."""
        self._skipped = 0

    def lows(self, offset: int) -> range:
        """Return where the blocks begin, from `offset` on."""
        return range(offset, self._version.manifest.nbytes, BLOCK_BYTES)

    def block(self, low: int) -> list[pb.VersionChunk]:
        """Return the messages of the block that begins at `low`."""
        data = self._version.data[low : low + BLOCK_BYTES]
        delta = self._delta(low, data)
        if delta is not None:
            return [pb.VersionChunk(offset=low, data=delta, width=self._width)]
        return [
            pb.VersionChunk(offset=low + at, data=bytes(data[at : at + MESSAGE_BYTES]))
            for at in range(0, len(data), MESSAGE_BYTES)
        ]

    def _delta(self, low: int, data: memoryview) -> bytes | None:
        if self._base is None or not self._is_sooner(len(data)):
            return None
        started_s = time.thread_time()  # a busy machine slows the line's ends alike
        base = self._base.data[low : low + BLOCK_BYTES]
        delta = deltas.encode(base, data, width=self._width, most=len(data) // 2)
        share = 1.0 if delta is None else len(delta) / len(data)
        # Means in which the last few blocks count most: what changes in a model is uneven.
        self._encode_s += (time.thread_time() - started_s - self._encode_s) / 4
        self._share += (share - self._share) / 4
        return delta

    def _is_sooner(self, nbytes: int) -> bool:
        """Return whether a delta is expected to arrive before the block, or must be tried."""
        whole_s = nbytes / self._bytes_per_s if self._bytes_per_s else float("inf")
        if max(self._encode_s, self._share * whole_s) < whole_s / 2:
            return True
        self._skipped = (self._skipped + 1) % TRY_EVERY
        return self._skipped == 0


@contextmanager
def streaming(publisher: Publisher, request: pb.ReadVersionRequest) -> Iterator[VersionStream]:
    """Hold a version, and the reader's base if it is here and has the same pieces.

    Raises:
        PlexError: `not_found`; `bad_request` for an offset inside a block.
    """
    for low in (request.offset, *request.lows):
        if low % BLOCK_BYTES:
            raise bad_request(f"byte {low} begins no block of {BLOCK_BYTES} bytes")
    with ExitStack() as held:
        version = held.enter_context(publisher.reading(VersionId.of(request)))
        base = None
        if request.HasField("base"):
            base = _held(publisher, VersionId.of(request.base), held)
            if base is not None and not is_alike(base.manifest, version.manifest):
                base = None
        yield VersionStream(version, base, bytes_per_s=request.bytes_per_s)


def _held(publisher: Publisher, key: VersionId, held: ExitStack) -> OpenedPart | None:
    try:
        return held.enter_context(publisher.reading(key))
    except PlexError:
        return None  # released: the version is sent whole


def _width(version: OpenedPart) -> int:
    sizes = {DTYPES[piece.dtype].carrier.itemsize for piece in version.manifest.pieces}
    return min(sizes & set(deltas.WIDTHS), default=deltas.WIDTHS[-1])
