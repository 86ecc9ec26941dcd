"""Published weight versions: parameters in an immutable memory file, checksummed by block.

A *complete* copy holds the optimizer's tensors too: all that another WPG needs to go on from here.
"""

from __future__ import annotations

import mmap
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from plexclient.wire.tensors import CHUNK_BYTES
from plexclient.wire.v1.statemanager_pb2 import CanonicalPiece, VersionManifest
from plexsvc.errors import ErrorCode, PlexError
from plexsvc.ids import DeploymentId, JobId
from plexsvc.statemanager.book import Book, Entry, Key
from plexsvc.statemanager.memfiles import MemoryFile
from plexsvc.statemanager.shelves import VersionKey, VersionShelf
from plexsvc.weights import pieces
from plexsvc.weights.checksums import block_checksums
from plexsvc.weights.pieces import Array, RegionBytes

PUBLISHED_REGION: Final = "published"
PUBLISHED_KINDS: Final = frozenset({"param"})
COMPLETE_KINDS: Final = frozenset({"param", "master", "exp_avg", "exp_avg_sq"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Version:
    """A published version and its bytes."""

    manifest: VersionManifest
    file: MemoryFile


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """What a complete copy holds beside tensors: the scalars of each rank, and how far it is."""

    scalars_json: str
    applied_seq: int


class Publisher:
    """Keeps published versions; `lock` guards the shelf's counts."""

    def __init__(
        self, shelf: VersionShelf, *, node_id: str, lock: threading.Lock, book: Book
    ) -> None:
        self._shelf = shelf
        self._node_id = node_id
        self._lock = lock
        self._book = book
        self._versions: dict[VersionKey, Version] = {}

    def find(self, key: VersionKey) -> VersionManifest | None:
        """Return the manifest of a version published before, or None."""
        with self._lock:
            found = self._versions.get(key)
            is_open = found is not None and not self._shelf.is_released(key)
        return found.manifest if found is not None and is_open else None

    def publish(
        self,
        key: VersionKey,
        index: Sequence[CanonicalPiece],
        *,
        job_id: JobId,
        region: RegionBytes,
        progress: Progress | None = None,
    ) -> VersionManifest:
        """Freeze the parameters in `index`, whose bytes `region` returns: one copy, then checksums.

        With `progress` the copy is complete: the optimizer's tensors too, and what the ranks know.

        Raises:
            PlexError: `no_room`; `bad_request` when there are no parameters to publish.
        """
        kinds = PUBLISHED_KINDS if progress is None else COMPLETE_KINDS
        placed, nbytes = pieces.pack(
            (piece for piece in index if piece.kind in kinds), region=PUBLISHED_REGION
        )
        if not placed and progress is None:
            text = f"{key.deployment_id} has no parameters on this node; initialize it first"
            raise PlexError(ErrorCode.BAD_REQUEST, text)
        with self._lock:
            if key in self._shelf:
                text = f"version {key.version} of {key.deployment_id} was released already"
                raise PlexError(ErrorCode.BAD_REQUEST, f"{text}; publish a newer one")
            self._shelf.admit(key, job_id=job_id, nbytes=nbytes)
        try:
            file, checksums = _write(placed, nbytes, region=region)
        except BaseException:
            with self._lock:
                self._shelf.withdraw(key)
            raise
        manifest = VersionManifest(
            deployment_id=key.deployment_id,
            version=key.version,
            nbytes=nbytes,
            pieces=[target for _, target in placed],
            block_checksums=checksums,
            node_id=self._node_id,
        )
        if progress is not None:
            manifest.scalars_json = progress.scalars_json
            manifest.applied_seq = progress.applied_seq
        with self._lock:
            self._versions[key] = Version(manifest=manifest, file=file)
            self._write_down(key)
        return manifest

    def adopt(self, entry: Entry) -> None:
        """Take over a version that a predecessor kept.

        Raises:
            PlexError: `no_room`, `internal`.
        """
        _, deployment_id, number = entry.key
        key = VersionKey(DeploymentId(deployment_id), int(number))
        manifest = VersionManifest.FromString(entry.body)
        (fd,) = entry.fds
        self._shelf.adopt(
            key,
            job_id=JobId(entry.facts["job_id"]),
            nbytes=manifest.nbytes,
            is_released=entry.facts["is_released"],
        )
        file = MemoryFile("plexsvc-version", manifest.nbytes, fd=fd)
        self._versions[key] = Version(manifest=manifest, file=file)

    def hold_all(self, held: Mapping[VersionKey, int], *, holder: int) -> None:
        """Count what a client maps that a predecessor had known."""
        with self._lock:
            for key, count in held.items():
                if key in self._shelf:
                    self._shelf.hold(key, holder, count=count)

    def free_unneeded(self) -> None:
        """Free released versions, now that everyone has said what it holds."""
        with self._lock:
            self._let_go(self._shelf.free_unneeded())

    def manifest(self, key: VersionKey) -> VersionManifest:
        """Return the manifest of a version.

        Raises:
            PlexError: `not_found`.
        """
        with self._lock:
            self._shelf.get(key)
            return self._versions[key].manifest

    def open(self, key: VersionKey, *, job_id: JobId, holder: int) -> tuple[int, VersionManifest]:
        """Return a descriptor of a version's file and its manifest for a client of its job.

        The client holds the version from now on.

        Raises:
            PlexError: `not_found`.
        """
        with self._lock:
            self._shelf.get(key, job_id=job_id)
            self._shelf.hold(key, holder)
            version = self._versions[key]
            return version.file.duplicate(), version.manifest

    def unhold(self, key: VersionKey, holder: int) -> None:
        """Count a client's mapping less."""
        with self._lock:
            if self._shelf.unhold(key, holder):
                self._let_go([key])

    def unhold_all(self, holder: int) -> None:
        """Forget a client that left."""
        with self._lock:
            self._let_go(self._shelf.unhold_all(holder))

    def release(self, key: VersionKey) -> None:
        """End the scheduler's hold: no new mapping, gone with the last. Safe to repeat."""
        with self._lock:
            if self._shelf.release(key):
                self._let_go([key])
            elif key in self._shelf:
                self._write_down(key)

    def read(self, key: VersionKey, wanted: Sequence[CanonicalPiece]) -> Iterator[Array]:
        """Yield the bytes of each wanted box (name, start, size), or of the whole region for none.

        Raises:
            PlexError: `not_found` for a version or box that is not here.
        """
        with self._lock:
            self._shelf.get(key)
            version = self._versions[key]
            bytes_of = np.frombuffer(version.file.map(is_writable=False), dtype=np.uint8)
        if not wanted:
            yield bytes_of[: version.manifest.nbytes]
        tensors = {
            (tensor.kind, tensor.name): tensor
            for tensor in pieces.tensors(version.manifest.pieces if wanted else ())
        }
        for piece in wanted:
            tensor = tensors.get((piece.kind or "param", piece.name))
            if tensor is None:
                text = f"version {key.version} of {key.deployment_id} has no {piece.name!r}"
                raise PlexError(ErrorCode.NOT_FOUND, text)
            yield pieces.assemble(
                tensor, pieces.box_of(piece), region=lambda _rank, _name: bytes_of
            )

    def close(self) -> None:
        """Let go of all versions."""
        with self._lock:
            for version in self._versions.values():
                version.file.close()
            self._versions.clear()

    def _write_down(self, key: VersionKey) -> None:
        version = self._versions[key]
        facts = {"job_id": self._shelf.job_of(key), "is_released": self._shelf.is_released(key)}
        body = version.manifest.SerializeToString()
        self._book.put(_record(key), facts, body=body, fds=(version.file.fd,))

    def _let_go(self, keys: Iterable[VersionKey]) -> None:
        for key in keys:
            self._book.drop(_record(key))
            self._versions.pop(key).file.close()


def _record(key: VersionKey) -> Key:
    return ("version", key.deployment_id, str(key.version))


def chunked(array: Array) -> Iterator[bytes]:
    """Yield an array's bytes in stream-sized pieces."""
    flat = array.reshape(-1).view(np.uint8)
    for low in range(0, flat.size, CHUNK_BYTES):
        yield flat[low : low + CHUNK_BYTES].tobytes()


def _write(
    placed: Sequence[tuple[CanonicalPiece, CanonicalPiece]], nbytes: int, *, region: RegionBytes
) -> tuple[MemoryFile, list[bytes]]:
    file = MemoryFile("plexsvc-version", nbytes)
    try:
        mapped = file.map(is_writable=True)
        checksums = _fill(mapped, placed, region=region, nbytes=nbytes)
        mapped.close()
        file.freeze()
    except BaseException:
        file.close()
        raise
    return file, checksums


def _fill(
    mapped: mmap.mmap,
    placed: Sequence[tuple[CanonicalPiece, CanonicalPiece]],
    *,
    region: RegionBytes,
    nbytes: int,
) -> list[bytes]:
    target_bytes = np.frombuffer(mapped, dtype=np.uint8)
    for source, target in placed:
        view = pieces.piece_view(region(source.rank, source.region), source)
        np.copyto(pieces.piece_view(target_bytes, target), view)
    return list(block_checksums(target_bytes[:nbytes].data))
