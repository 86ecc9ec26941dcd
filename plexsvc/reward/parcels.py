"""Parcels: pieces of the streams of messages between the proxy and a host of workers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterator
from typing import Any, Final

from google.protobuf.message import DecodeError

from plexclient.wire.v1 import reward_pb2 as pb
from plexsvc.reward import messages

PARCEL_BYTES: Final = 1 << 20


class ParcelReader:
    """Cuts the bytes of parcels into messages."""

    def __init__(self) -> None:
        self._data = bytearray()

    def take(self, parcel: bytes) -> Iterator[Any]:
        """Yield the messages that a parcel completes.

        Raises:
            ValueError: what came is no message.
        """
        try:
            self._data += pb.RewardParcel.FromString(parcel).data
        except DecodeError as error:
            raise ValueError(f"{len(parcel)} bytes that are no parcel: {error}") from error
        while len(self._data) >= messages.LENGTH.size:
            (nbytes,) = messages.LENGTH.unpack_from(self._data)
            if nbytes > messages.MAX_BYTES:
                raise ValueError(
                    f"a message of {nbytes} bytes; at most {messages.MAX_BYTES} are taken"
                )
            end = messages.LENGTH.size + nbytes
            if len(self._data) < end:
                return
            body = bytes(self._data[messages.LENGTH.size : end])
            del self._data[:end]
            yield messages.decode(body)


class Outbox:
    """Messages that wait to be sent, in parcels of what is there."""

    def __init__(self) -> None:
        self._data = bytearray()
        self._has_any = asyncio.Event()

    def put(self, message: messages.Message) -> None:
        """Send a message with the next parcel."""
        self._data += messages.encode(message)
        self._has_any.set()

    async def parcels(self) -> AsyncGenerator[bytes]:
        """Yield parcels, serialised; the first one at once, so that the peer knows of the line."""
        yield b""
        while True:
            await self._has_any.wait()
            data = bytes(self._data[:PARCEL_BYTES])
            del self._data[:PARCEL_BYTES]
            if not self._data:
                self._has_any.clear()
            yield pb.RewardParcel(data=data).SerializeToString()
