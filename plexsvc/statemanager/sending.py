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
from plexsvc.statemanager.arrivals import Arrival, Arrivals
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


MAX_RELAYS: Final = 1024
"""Versions, each at a site, whose first reader is known; the oldest are forgotten."""


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

    @staticmethod
    def has(low: int) -> bool:
        """Return whether the block that begins at `low` is here."""
        del low
        return True

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
        # Of the time that the whole block takes on the line; on one of unknown speed bytes count.
        if max(self._encode_s * self._bytes_per_s / nbytes, self._share) < 1 / 2:
            return True
        self._skipped = (self._skipped + 1) % TRY_EVERY
        return self._skipped == 0


class ArrivalStream:
    """Makes the messages of one stream to a neighbour, of a part that may still come."""

    def __init__(self, arrival: Arrival) -> None:
        self._arrival = arrival

    def lows(self, offset: int) -> range:
        """Return where the blocks begin, from `offset` on."""
        return range(offset, self._arrival.manifest.nbytes, BLOCK_BYTES)

    def has(self, low: int) -> bool:
        """Return whether the block that begins at `low` is here.

        Raises:
            PlexError: why it does not come.
        """
        arrival = self._arrival
        if arrival.error is not None:
            raise arrival.error
        return arrival.verified_bytes >= min(low + BLOCK_BYTES, arrival.manifest.nbytes)

    def block(self, low: int) -> list[pb.VersionChunk]:
        """Return the messages of the block that begins at `low`, which is here."""
        file = self._arrival.file
        assert file is not None
        end = min(low + BLOCK_BYTES, self._arrival.manifest.nbytes)
        return [
            pb.VersionChunk(offset=at, data=file.read(at, min(MESSAGE_BYTES, end - at)))
            for at in range(low, end, MESSAGE_BYTES)
        ]


class Relays:
    """The reader of each remote site that gets a version from here, and gives it to the others."""

    def __init__(self, site: str) -> None:
        self._site = site
        self._readers: dict[tuple[VersionId, str], str] = {}

    def instead(self, request: pb.ReadVersionRequest) -> str:
        """Return whom a reader is to ask; empty: it gets the version from here."""
        if request.site in {"", self._site}:
            return ""
        key = VersionId.of(request), request.site
        known = self._readers.pop(key, "")
        is_relay = known in {"", request.reader, request.without}
        self._readers[key] = request.reader if is_relay else known
        if len(self._readers) > MAX_RELAYS:
            del self._readers[next(iter(self._readers))]
        return "" if is_relay else known


@contextmanager
def streaming(
    publisher: Publisher, arrivals: Arrivals, request: pb.ReadVersionRequest
) -> Iterator[VersionStream | ArrivalStream]:
    """Hold a version, and the reader's base if it is here and has the same pieces.

    Raises:
        PlexError: `not_found`; `bad_request` for an offset inside a block.
    """
    if request.part:
        with arrivals.lent(VersionId.of(request), request.part) as arrival:
            yield ArrivalStream(arrival)
        return
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
