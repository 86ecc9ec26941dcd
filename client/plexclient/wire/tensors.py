"""The codec of tensor bundles: named arrays to one aligned byte string and back, with a checksum.

Whoever makes a bundle puts its checksum beside it, and whoever uses the arrays compares: what lies
between them (messages, staging memory, files) need not be trusted.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

import numpy as np
import numpy.typing as npt
import xxhash

from plexclient.errors import ErrorCode, PlexError, bad_batch
from plexclient.wire.v1 import common_pb2

ALIGNMENT: Final = 64
"""Every array starts at a multiple of this many bytes."""

INLINE_PAYLOAD_BYTES: Final = 64 << 10
"""Payloads up to this size travel inside a message; larger ones are staged on the node."""

CHUNK_BYTES: Final = 256 << 10
"""Size of one streamed chunk: larger ones are slower over gRPC."""

DTYPES: Final[Mapping[str, np.dtype[np.generic]]] = {
    "F32": np.dtype("<f4"),
    "F64": np.dtype("<f8"),
    "F16": np.dtype("<f2"),
    "I32": np.dtype("<i4"),
    "I64": np.dtype("<i8"),
    "U8": np.dtype("u1"),
    "BOOL": np.dtype("bool"),
}
NAMES: Final = {dtype: name for name, dtype in DTYPES.items()}


def layout(
    arrays: Mapping[str, npt.NDArray[np.generic]],
) -> tuple[list[common_pb2.TensorSpec], int]:
    """Return the specs of `arrays` in order and the bundle's total bytes.

    Raises:
        PlexError: `bad_batch` for a dtype the wire does not carry.
    """
    specs, offset = [], 0
    for name, array in arrays.items():
        if array.dtype not in NAMES:
            raise bad_batch(
                f"array {name!r} has dtype {array.dtype}; "
                f"the wire carries {', '.join(map(str, NAMES))}",
                array=name,
            )
        nbytes = int(array.nbytes)
        specs.append(
            common_pb2.TensorSpec(
                name=name, dtype=NAMES[array.dtype], shape=array.shape, offset=offset, nbytes=nbytes
            )
        )
        offset += -(-nbytes // ALIGNMENT) * ALIGNMENT
    return specs, offset


def encode(arrays: Mapping[str, npt.NDArray[np.generic]]) -> common_pb2.TensorBundle:
    """Return `arrays` as an inline bundle."""
    specs, nbytes = layout(arrays)
    data = bytearray(nbytes)
    for spec, array in zip(specs, arrays.values(), strict=True):
        data[spec.offset : spec.offset + spec.nbytes] = np.ascontiguousarray(array).tobytes()
    return common_pb2.TensorBundle(tensors=specs, data=bytes(data))


def checksum(parts: Iterable[bytes | bytearray | memoryview]) -> bytes:
    """Return xxh3-128 of the bytes of `parts`, laid end to end. Reads some 20 GB/s."""
    state = xxhash.xxh3_128()
    for part in parts:
        state.update(part)
    return state.digest()


def inline(arrays: Mapping[str, npt.NDArray[np.generic]]) -> common_pb2.Payload:
    """Return `arrays` as a payload that travels inside a message."""
    bundle = encode(arrays)
    return common_pb2.Payload(inline=bundle, checksum=checksum([bundle.data]))


def verify(payload: common_pb2.Payload, data: bytes | bytearray | memoryview, *, what: str) -> None:
    """Refuse bytes that are not what the payload's maker saw.

    Raises:
        PlexError: `checksum_mismatch`.
    """
    if payload.checksum and checksum([data]) != payload.checksum:
        raise PlexError(
            ErrorCode.CHECKSUM_MISMATCH,
            f"the {len(data)} bytes of {what} are not those that were sent: a transfer or a memory "
            "failed, or the arrays were changed after the call. They were not used; send it again",
        )


def views(
    specs: Iterable[common_pb2.TensorSpec], data: bytes | bytearray | memoryview
) -> dict[str, npt.NDArray[np.generic]]:
    """Return named views over `data`; read-only when `data` is. Nothing is copied.

    Raises:
        PlexError: `bad_batch` when a spec does not fit its bytes.
    """
    found: dict[str, npt.NDArray[np.generic]] = {}
    for spec in specs:
        check_spec(spec, len(data))
        count = spec.nbytes // DTYPES[spec.dtype].itemsize
        flat = np.frombuffer(data, dtype=DTYPES[spec.dtype], count=count, offset=spec.offset)
        found[spec.name] = flat.reshape(tuple(spec.shape))
    return found


def decode(bundle: common_pb2.TensorBundle) -> dict[str, npt.NDArray[np.generic]]:
    """Return the arrays of an inline bundle as read-only views."""
    return views(bundle.tensors, bundle.data)


def check_spec(spec: common_pb2.TensorSpec, total_bytes: int) -> None:
    """Refuse a spec whose dtype, shape and byte range contradict each other or the bundle.

    Raises:
        PlexError: `bad_batch`.
    """
    itemsize = DTYPES[spec.dtype].itemsize if spec.dtype in DTYPES else 0
    count = int(np.prod([int(n) for n in spec.shape], dtype=object)) if spec.shape else 1
    fits = (
        itemsize > 0
        and all(n >= 0 for n in spec.shape)
        and count * itemsize == spec.nbytes
        and spec.offset % ALIGNMENT == 0
        and spec.offset + spec.nbytes <= total_bytes
    )
    if not fits:
        raise bad_batch(
            f"array {spec.name!r}: dtype {spec.dtype!r}, shape {list(spec.shape)}, offset "
            f"{spec.offset}, {spec.nbytes} bytes do not describe a part of {total_bytes} bytes",
            array=spec.name,
        )


def chunks(parts: Sequence[memoryview], *, start: int = 0) -> Iterable[common_pb2.Chunk]:
    """Yield the bytes of `parts` laid end to end, from `start` on, in `CHUNK_BYTES` pieces."""
    position = 0
    for part in parts:
        for low in range(0, len(part), CHUNK_BYTES):
            piece = part[low : low + CHUNK_BYTES]
            if position + len(piece) > start:
                skip = max(0, start - position)
                yield common_pb2.Chunk(offset=position + skip, data=bytes(piece[skip:]))
            position += len(piece)
