"""Payload transfer: arrays inline when small, else staged in chunks that can start over."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import aclosing
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from plexclient.errors import PlexError, internal, unavailable
from plexclient.link import Link, messages
from plexclient.options import ClientOptions
from plexclient.retry import Retry, persist
from plexclient.wire import tensors
from plexclient.wire.v1 import common_pb2, operations_pb2, service_pb2

MAX_FILE_BYTES: Final = 256 << 20
"""Most that is fetched of a file whose size is not known."""

MAX_FETCHES: Final = 3
"""Times a result is fetched whose bytes are not what they should be."""

Arrays = Mapping[str, npt.NDArray[np.generic]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Inputs:
    """An operation's arrays, in the order they have in the bundle."""

    arrays: Arrays
    specs: tuple[common_pb2.TensorSpec, ...]
    nbytes: int

    @property
    def is_inline(self) -> bool:
        """Whether they travel inside the operation's message."""
        return self.nbytes <= tensors.INLINE_PAYLOAD_BYTES

    def payload(self, operation_id: bytes) -> common_pb2.Payload:
        """Return what the operation carries: the arrays, or their specs."""
        if self.is_inline:
            return tensors.inline(self.arrays)
        staged = common_pb2.StagedBundle(
            tensors=self.specs, nbytes=self.nbytes, staging_id=operation_id
        )
        return common_pb2.Payload(staged=staged, checksum=tensors.checksum(self.parts()))

    def parts(self) -> list[memoryview]:
        """Return the bundle's bytes as views of the arrays with padding between them."""
        found: list[memoryview] = []
        for spec, array in zip(self.specs, self.arrays.values(), strict=True):
            flat = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
            found.append(flat.data)
            found.append(memoryview(bytes(-spec.nbytes % tensors.ALIGNMENT)))
        return found


def inputs(arrays: Arrays) -> Inputs:
    """Return `arrays` laid out as a bundle. Nothing is copied: they must not change any more."""
    specs, nbytes = tensors.layout(arrays)
    return Inputs(arrays=arrays, specs=tuple(specs), nbytes=nbytes)


def stage_requests(
    operation: operations_pb2.Operation, given: Inputs
) -> Iterator[service_pb2.StageRequest]:
    """Yield the upload of an operation's payload: the header, then its chunks."""
    yield service_pb2.StageRequest(
        header=service_pb2.StageHeader(
            operation_id=operation.operation_id,
            job_id=operation.job_id,
            deployment_id=operation.deployment_id,
            tensors=given.specs,
            nbytes=given.nbytes,
        )
    )
    for chunk in tensors.chunks(given.parts()):
        yield service_pb2.StageRequest(chunk=chunk)


async def arrays_of(
    link: Link,
    request: service_pb2.FetchResultRequest,
    *,
    payload: common_pb2.Payload,
    retry: Retry,
    options: ClientOptions,
) -> dict[str, npt.NDArray[np.generic]]:
    """Return a result shard's arrays, fetched from staging memory when they are not inline.

    Raises:
        PlexError: as `fetch`; `checksum_mismatch` when they are not what the rank answered.
    """
    if payload.WhichOneof("form") != "staged":
        tensors.verify(payload, payload.inline.data, what="a result")
        return tensors.decode(payload.inline)
    nbytes = payload.staged.nbytes
    timeout_s = transfer_timeout_s(nbytes, options=options)
    tries_left = MAX_FETCHES
    while True:
        tries_left -= 1
        data = await fetch(
            link, "FetchResult", request, nbytes=nbytes, retry=retry, timeout_s=timeout_s
        )
        try:
            tensors.verify(payload, data, what="a fetched result")
        except PlexError:
            # The bytes lie on the node unharmed, perhaps: it was the way that failed.
            if tries_left:
                continue
            raise
        return tensors.views(payload.staged.tensors, memoryview(data).toreadonly())


async def fetch(
    link: Link,
    method: str,
    request: service_pb2.FetchResultRequest | service_pb2.FetchModelFileRequest,
    *,
    nbytes: int | None = None,
    retry: Retry,
    timeout_s: float,
) -> bytearray:
    """Return the bytes that a method streams in chunks; goes on where the line was cut.

    `nbytes` is how many they are, where that is known; else the stream's end is theirs.

    Raises:
        PlexError: the service's refusal, what retries did not overcome, or `internal`.
    """
    data = bytearray()

    async def attempt() -> None:
        request.offset = len(data)
        call = link.open_stream(method, request, timeout_s=timeout_s)
        async with aclosing(messages(call)) as stream:
            async for chunk in stream:
                add_chunk(data, chunk, most=MAX_FILE_BYTES if nbytes is None else nbytes)
                retry.progress()
        if nbytes is not None and len(data) < nbytes:
            raise unavailable(f"result stream ended at byte {len(data)} of {nbytes}")

    await persist(attempt, retry=retry)
    return data


def add_chunk(data: bytearray, chunk: common_pb2.Chunk, *, most: int) -> None:
    """Append what `chunk` adds to `data`.

    >>> data = bytearray(b"a")
    >>> add_chunk(data, common_pb2.Chunk(offset=0, data=b"abc"), most=4)
    >>> data
    bytearray(b'abc')

    Raises:
        PlexError: `internal` when bytes are missing before the chunk or it passes `most`.
    """
    end = chunk.offset + len(chunk.data)
    if chunk.offset > len(data) or end > most:
        raise internal(
            f"a chunk of bytes [{chunk.offset}, {end}) came after byte {len(data)} of {most}"
        )
    data.extend(memoryview(chunk.data)[len(data) - chunk.offset :])


def transfer_timeout_s(nbytes: int, *, options: ClientOptions) -> float:
    """Return the deadline of one attempt to move `nbytes`."""
    return options.attempt_timeout_s + nbytes / options.staging_bytes_per_s
