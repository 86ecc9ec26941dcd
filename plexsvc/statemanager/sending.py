"""Blocks of a published version for a reader on another host: whole, or as deltas.

A delta costs the time to make it, and saves time on the line. Both are predicted by those before:
where whole blocks would arrive sooner they are sent, and a delta is tried once in a while.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Final

from plexclient.wire.v1 import statemanager_pb2 as pb
from plexsvc.errors import PlexError, bad_request
from plexsvc.ids import VersionId
from plexsvc.statelink.byteline import ByteLine
from plexsvc.statemanager.arrivals import Arrival, Arrivals
from plexsvc.statemanager.publishing import Publisher, Version
from plexsvc.weights import deltas
from plexsvc.weights.checksums import BLOCK_BYTES
from plexsvc.weights.dtypes import DTYPES
from plexsvc.weights.manifests import is_alike
from plexsvc.weights.reading import OpenedPart

LOOK_S: Final = 0.01
"""How often it is looked whether a block has come that a neighbour waits for."""

TRY_EVERY: Final = 16
"""A delta is tried for one block in so many where none is expected to pay."""


MAX_RELAYS: Final = 1024
"""Versions, each at a site, whose first reader is known; the oldest are forgotten."""


class VersionStream:
    """Sends a version that is here, block by block."""

    def __init__(self, version: Version, base: OpenedPart | None, *, bytes_per_s: int) -> None:
        self.nbytes = version.manifest.nbytes
        self._fd = version.file.fd
        self._data = version.file.map(is_writable=False) if base is not None else memoryview(b"")
        self._base = base
        self._bytes_per_s = bytes_per_s
        self._width = _width(version.manifest)
        self._encode_s = 0.0
        self._share = 0.0
        """Of a block's bytes, that its delta has."""
        self._skipped = 0

    def wait_until_at(self, end: int) -> None:
        """Return at once: it is here."""

    def send(self, line: ByteLine, low: int, nbytes: int) -> None:
        """Send the block that begins at `low`."""
        delta = self._delta(low, nbytes)
        if delta is None:
            line.send(pb.VersionChunk(offset=low, nbytes=nbytes))
            line.send_file(self._fd, offset=low, nbytes=nbytes)
            return
        line.send(pb.VersionChunk(offset=low, nbytes=len(delta), width=self._width))
        line.send_bytes(delta)

    def _delta(self, low: int, nbytes: int) -> bytes | None:
        if self._base is None or not self._is_sooner(nbytes):
            return None
        data = self._data[low : low + nbytes]
        started_s = time.thread_time()  # a busy machine slows the line's ends alike
        base = self._base.data[low : low + nbytes]
        delta = deltas.encode(base, data, width=self._width, most=nbytes // 2)
        share = 1.0 if delta is None else len(delta) / nbytes
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
    """Sends a neighbour a part that may still come."""

    def __init__(self, arrival: Arrival) -> None:
        self._arrival = arrival

    @property
    def nbytes(self) -> int:
        """Its size, once that is known.

        Raises:
            PlexError: why it does not come.
        """
        self.wait_until_at(0)
        return self._arrival.manifest.nbytes

    def wait_until_at(self, end: int) -> None:
        """Return once all before `end` is here.

        Raises:
            PlexError: why it does not come.
        """
        arrival = self._arrival
        while arrival.file is None or arrival.verified_bytes < end:
            if arrival.over.wait(LOOK_S) and arrival.error is not None:
                raise arrival.error

    def send(self, line: ByteLine, low: int, nbytes: int) -> None:
        """Send the block that begins at `low`, which is here."""
        file = self._arrival.file
        assert file is not None
        line.send(pb.VersionChunk(offset=low, nbytes=nbytes))
        line.send_file(file.fd, offset=low, nbytes=nbytes)


class Relays:
    """The reader of each remote site that gets a version from here, and gives it to the others."""

    def __init__(self, site: str) -> None:
        self._site = site
        self._lock = threading.Lock()
        self._readers: dict[tuple[VersionId, str], str] = {}

    def instead(self, request: pb.ReadVersionRequest) -> str:
        """Return whom a reader is to ask; empty: it gets the version from here."""
        if request.site in {"", self._site}:
            return ""
        key = VersionId.of(request), request.site
        with self._lock:
            known = self._readers.pop(key, "")
            is_relay = known in {"", request.reader, request.without}
            self._readers[key] = request.reader if is_relay else known
            if len(self._readers) > MAX_RELAYS:
                del self._readers[next(iter(self._readers))]
        return "" if is_relay else known


def answer(
    line: ByteLine,
    request: pb.ReadVersionRequest,
    *,
    publisher: Publisher,
    arrivals: Arrivals,
    relays: Relays,
) -> None:
    """Send what a reader asks for, or whom it is to ask, and hold it until the reader hangs up.

    Raises:
        PlexError: `not_found`; `bad_request` for a byte that begins no block; why a part does not
            come that a neighbour waits for.
        OSError: the line broke.
    """
    if relay := relays.instead(request):
        line.send(pb.VersionChunk(relay=relay))
        return
    with _streaming(publisher, arrivals, request) as stream:
        nbytes = stream.nbytes
        for low in request.lows or range(request.offset, nbytes, BLOCK_BYTES):
            if low % BLOCK_BYTES or low >= nbytes:
                text = f"byte {low} of {nbytes} begins no block of {BLOCK_BYTES} bytes"
                raise bad_request(text)
            end = min(low + BLOCK_BYTES, nbytes)
            stream.wait_until_at(end)
            stream.send(line, low, end - low)
        line.wait_for_end()


@contextmanager
def _streaming(
    publisher: Publisher, arrivals: Arrivals, request: pb.ReadVersionRequest
) -> Iterator[VersionStream | ArrivalStream]:
    """Hold a version, and the reader's base if it is here and has the same pieces."""
    if request.part:
        with arrivals.lent(VersionId.of(request), request.part) as arrival:
            yield ArrivalStream(arrival)
        return
    with ExitStack() as held:
        version = held.enter_context(publisher.lent(VersionId.of(request)))
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


def _width(manifest: pb.VersionManifest) -> int:
    sizes = {DTYPES[piece.dtype].carrier.itemsize for piece in manifest.pieces}
    return min(sizes & set(deltas.WIDTHS), default=deltas.WIDTHS[-1])
