"""Frames on a byte stream: length, number, checksum, body.

Orders travel to ranks as frames, because a call of gRPC for each would cost more than the message.
A stream that was cut, doubled or garbled shows as a bad frame, never as a message nobody sent.
"""

from __future__ import annotations

import struct
from typing import Final

import xxhash

from plexclient.wire.channels import MAX_MESSAGE_BYTES
from plexsvc.errors import ErrorCode, PlexError, payload_too_large

_HEADER: Final = struct.Struct("<IQQ")
HEADER_BYTES: Final = _HEADER.size


def encode(number: int, body: bytes) -> bytes:
    """Return the frame of `body`.

    Raises:
        PlexError: `payload_too_large`.
    """
    if len(body) > MAX_MESSAGE_BYTES:
        raise payload_too_large(
            f"a message of {len(body)} bytes was not sent; at most {MAX_MESSAGE_BYTES} are taken",
            limit=MAX_MESSAGE_BYTES,
        )
    return _HEADER.pack(len(body), number, _checksum(number, body)) + body


class FrameReader:
    """Cuts what a stream brings into (number, body); keeps at most one unfinished frame.

    >>> reader = FrameReader()
    >>> frame = encode(7, b"noop")
    >>> reader.feed(frame[:9]), reader.feed(frame[9:])
    ([], [(7, b'noop')])
    """

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, data: bytes) -> list[tuple[int, bytes]]:
        """Return the frames that `data` completes, in order.

        Raises:
            PlexError: `checksum_mismatch` or `payload_too_large`; the stream is of no use any more.
        """
        data = self._rest + data if self._rest else data
        found: list[tuple[int, bytes]] = []
        start, end = 0, len(data)
        while end - start >= HEADER_BYTES:
            nbytes, number, checksum = _HEADER.unpack_from(data, start)
            _check_size(nbytes)
            begin = start + HEADER_BYTES
            if end - begin < nbytes:
                break
            start = begin + nbytes
            body = data[begin:start]
            _check_sum(number, body, checksum)
            found.append((number, body))
        self._rest = data[start:]
        return found


def _checksum(number: int, body: bytes) -> int:
    return xxhash.xxh3_64_intdigest(body, seed=number)


def _check_size(nbytes: int) -> None:
    if nbytes > MAX_MESSAGE_BYTES:
        raise payload_too_large(
            f"a frame says it has {nbytes} bytes; at most {MAX_MESSAGE_BYTES} are taken: the line "
            "is broken, or a stranger speaks on it",
            limit=MAX_MESSAGE_BYTES,
        )


def _check_sum(number: int, body: bytes, checksum: int) -> None:
    if _checksum(number, body) != checksum:
        raise PlexError(
            ErrorCode.CHECKSUM_MISMATCH,
            f"frame {number} of {len(body)} bytes does not match its checksum; the line is broken",
        )
