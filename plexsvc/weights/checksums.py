"""Checksums of published weight versions: xxh3-128 of each 4 MiB block."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import xxhash

from plexclient.wire.v1 import statemanager_pb2
from plexsvc.errors import ErrorCode, PlexError
from plexsvc.ids import VersionId

BLOCK_BYTES: Final = 4 << 20
"""Bytes that one checksum covers; the last block may be shorter."""


def block_checksums(data: memoryview) -> Iterator[bytes]:
    """Yield the checksum of each block of `data`. Reads 28 GB/s."""
    for low in range(0, len(data), BLOCK_BYTES):
        yield xxhash.xxh3_128_digest(data[low : low + BLOCK_BYTES])


def verify(manifest: statemanager_pb2.VersionManifest, data: memoryview) -> str:
    """Return the checksum of the whole version once every block's has been compared.

    Raises:
        PlexError: `checksum_mismatch`, naming the version and the block.
    """
    if len(data) < manifest.nbytes:
        raise _mismatch(manifest, f"{len(data)} bytes are mapped of {manifest.nbytes} published")
    expected = list(manifest.block_checksums)
    count = -(-manifest.nbytes // BLOCK_BYTES)
    if len(expected) != count:
        raise _mismatch(manifest, f"the manifest has {len(expected)} checksums for {count} blocks")
    for low in range(0, manifest.nbytes, BLOCK_BYTES):
        verify_block(manifest, data[low : min(low + BLOCK_BYTES, manifest.nbytes)], at=low)
    return xxhash.xxh3_128_hexdigest(b"".join(expected))


def verify_block(manifest: statemanager_pb2.VersionManifest, data: memoryview, *, at: int) -> None:
    """Compare the block that begins `at` so many bytes.

    Raises:
        PlexError: `checksum_mismatch`, naming the version and the block.
    """
    block = at // BLOCK_BYTES
    if manifest.block_checksums[block : block + 1] != [xxhash.xxh3_128_digest(data)]:
        text = f"block {block} (bytes {at} on) has another checksum"
        raise _mismatch(manifest, text, block=block)


def _mismatch(manifest: statemanager_pb2.VersionManifest, found: str, **facts: int) -> PlexError:
    return PlexError(
        ErrorCode.CHECKSUM_MISMATCH,
        f"{VersionId.of(manifest)} from node {manifest.node_id} is "
        f"not what was published: {found}; it was not loaded, sync again",
        deployment_id=manifest.deployment_id,
        version=manifest.version,
        **facts,
    )
