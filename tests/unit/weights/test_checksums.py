"""Checksums are compared block by block before anything is served."""

from __future__ import annotations

import pytest

from plexclient.errors import ErrorCode, PlexError
from plexclient.wire.v1.statemanager_pb2 import VersionManifest
from plexsvc.weights.checksums import BLOCK_BYTES, block_checksums, verify

DATA = bytes(range(256)) * (BLOCK_BYTES // 256 + 3)


def manifest_of(version: int, *, data: bytes) -> VersionManifest:
    return VersionManifest(
        deployment_id="actor",
        version=version,
        nbytes=len(data),
        block_checksums=block_checksums(memoryview(data)),
    )


def test_an_intact_version_has_a_checksum_of_its_own() -> None:
    first, second = manifest_of(1, data=DATA), manifest_of(2, data=DATA[::-1])
    assert verify(first, memoryview(DATA)) != verify(second, memoryview(DATA[::-1]))


@pytest.mark.parametrize("position", [0, BLOCK_BYTES - 1, BLOCK_BYTES, len(DATA) - 1])
def test_one_changed_byte_anywhere_is_found(position: int) -> None:
    manifest, damaged = manifest_of(1, data=DATA), bytearray(DATA)
    damaged[position] ^= 1
    with pytest.raises(PlexError, match=f"block {position // BLOCK_BYTES}") as caught:
        verify(manifest, memoryview(damaged))
    assert caught.value.code == ErrorCode.CHECKSUM_MISMATCH


def test_a_version_that_is_too_short_or_lacks_checksums_is_found() -> None:
    manifest = manifest_of(1, data=DATA)
    with pytest.raises(PlexError, match="bytes are mapped"):
        verify(manifest, memoryview(DATA)[:-1])
    del manifest.block_checksums[1]
    with pytest.raises(PlexError, match="1 checksums for 2 blocks"):
        verify(manifest, memoryview(DATA))
