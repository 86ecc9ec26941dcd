"""Staging memory: payloads that wait for their operation, results that wait for their reader."""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass

from plexclient.wire import tensors
from plexclient.wire.v1 import common_pb2, service_pb2
from plexsvc.batches import check_batch
from plexsvc.errors import bad_request, unavailable
from plexsvc.ids import JobId, TenantId
from plexsvc.statemanager.book import Book, BookEntry, Key
from plexsvc.statemanager.memfiles import MemoryFile, reserve, write
from plexsvc.statemanager.shelves import StagedEntry, StagingRoom, shown

MAX_ID_BYTES = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Bundle:
    """A staged bundle: what it holds and where."""

    specs: tuple[common_pb2.TensorSpec, ...]
    file: MemoryFile


class Staging:
    """Bundles by job and id. Bytes are reserved before they arrive; `lock` guards the counts.

    An id means something within its job alone: nobody reads, replaces or drops another job's.
    """

    def __init__(self, room: StagingRoom, *, lock: threading.Lock, book: Book) -> None:
        self._room = room
        self._lock = lock
        self._book = book
        self._bundles: dict[bytes, Bundle] = {}

    @contextmanager
    def uploading(self, header: service_pb2.StageHeader) -> Iterator[Upload | None]:
        """Yield an upload to fill and finish, or None when this bundle is here already.

        What the block does not finish is dropped. An unfinished upload of the same id is replaced:
        its client has come back.

        Raises:
            PlexError: `staging_full`, `payload_too_large`, `bad_request`, `bad_batch`.
        """
        upload = self._begin(header)
        try:
            yield upload
        finally:
            if upload is not None and not upload.is_finished:
                upload.abandon()

    def _begin(self, header: service_pb2.StageHeader) -> Upload | None:
        job_id = JobId(header.job_id)
        key = _key(job_id, header.operation_id)
        for spec in header.tensors:
            tensors.check_spec(spec, header.nbytes)
        with self._lock:
            known = self._room.find(key)
            if known is not None and known.is_sealed:
                return None
            if known is not None:
                self._drop(key)
            entry = StagedEntry(tenant=TenantId(header.tenant), job_id=job_id, nbytes=header.nbytes)
            bundle = self._admit(key, entry, specs=header.tensors)
            return Upload(self, header, bundle, fd=self._opened(key, bundle))

    def create(
        self,
        staging_id: bytes,
        specs: Sequence[common_pb2.TensorSpec],
        nbytes: int,
        *,
        tenant: TenantId,
        job_id: JobId,
        owner: int,
    ) -> int:
        """Return a descriptor of a new bundle for a client to fill and seal. Safe to repeat.

        Raises:
            PlexError: `staging_full`, `payload_too_large`, `bad_batch`; `bad_request` for an id in
                use by another; `no_room` when the machine itself lacks the memory.
        """
        key = _key(job_id, staging_id)
        for spec in specs:
            tensors.check_spec(spec, nbytes)
        entry = StagedEntry(tenant=tenant, job_id=job_id, nbytes=nbytes, owner=owner)
        with self._lock:
            if self._room.find(key) == entry:
                return self._bundles[key].file.duplicate()
            bundle = self._admit(key, entry, specs=specs)
            fd = self._opened(key, bundle)
        try:
            reserve(fd, nbytes)
        except BaseException:
            os.close(fd)
            self.drop([staging_id], job_id=job_id)
            raise
        return fd

    def seal(self, staging_id: bytes, *, job_id: JobId) -> None:
        """Make a bundle readable.

        Raises:
            PlexError: `not_found`.
        """
        with self._lock:
            self._seal(_key(job_id, staging_id))

    def adopt(self, entry: BookEntry) -> None:
        """Take over a bundle that a predecessor kept.

        Raises:
            PlexError: `no_room`, `internal`.
        """
        key, facts = bytes.fromhex(entry.key[1]), entry.facts
        specs = common_pb2.TensorBundle.FromString(entry.body).tensors
        staged = StagedEntry(**facts)
        self._room.adopt(key, staged)
        (fd,) = entry.fds
        file = MemoryFile("plexsvc-staged", staged.nbytes, fd=fd)
        self._bundles[key] = Bundle(specs=tuple(specs), file=file)

    def open(self, staging_id: bytes, *, job_id: JobId) -> tuple[int, Bundle]:
        """Return a descriptor of a sealed bundle, which the caller closes, and its description.

        Raises:
            PlexError: `not_found`; `unavailable` while it is still being written.
        """
        with self._lock:
            bundle = self._sealed(_key(job_id, staging_id))
            return bundle.file.duplicate(), bundle

    def read(self, staging_id: bytes, offset: int, *, job_id: JobId) -> bytes:
        """Return the chunk at `offset`, empty at the end.

        Raises:
            PlexError: `not_found`, also when it was dropped meanwhile; `unavailable`.
        """
        with self._lock:
            return self._sealed(_key(job_id, staging_id)).file.read(offset, tensors.CHUNK_BYTES)

    def drop(self, staging_ids: Sequence[bytes], *, job_id: JobId) -> int:
        """Drop bundles of a job by id, or all for no ids; return the freed bytes. Repeatable."""
        with self._lock:
            keys = [_key(job_id, staging_id) for staging_id in staging_ids]
            return sum(map(self._drop, keys or self._room.ids_of(job_id)))

    def drop_unsealed(self, owner: int) -> None:
        """Drop what a client that left had not sealed."""
        with self._lock:
            for staging_id in self._room.unsealed_of(owner):
                self._drop(staging_id)

    def usage(self) -> tuple[int, int]:
        """Return used and total bytes."""
        with self._lock:
            return self._room.budget.used, self._room.budget.total

    def close(self) -> None:
        """Let go of all bundles."""
        with self._lock:
            for bundle in self._bundles.values():
                bundle.file.close()
            self._bundles.clear()

    @contextmanager
    def holding(self, key: bytes, bundle: Bundle) -> Iterator[None]:
        """Keep an upload's bundle from being dropped meanwhile.

        Raises:
            PlexError: `unavailable` when the id stands for something else by now.
        """
        with self._lock:
            self.check_current(key, bundle)
            yield

    def check_current(self, key: bytes, bundle: Bundle) -> None:
        """Refuse an upload that was overtaken; it may still be while its next chunk is written.

        Raises:
            PlexError: `unavailable` when the id stands for something else by now.
        """
        if self._bundles.get(key) is not bundle:
            text = f"upload of {shown(key)} was dropped, or replaced by a newer one"
            raise unavailable(f"{text}; send it again")

    def seal_upload(self, key: bytes, bundle: Bundle) -> None:
        """Make an upload readable.

        Raises:
            PlexError: `unavailable`.
        """
        with self.holding(key, bundle):
            self._seal(key)

    def abandon(self, key: bytes, bundle: Bundle) -> None:
        """Drop a bundle unless another upload took its id."""
        with self._lock:
            if self._bundles.get(key) is bundle:
                self._drop(key)

    def _seal(self, key: bytes) -> None:
        entry = self._room.get(key)
        was_sealed, entry.is_sealed = entry.is_sealed, True
        try:
            self._write_down(key)
        except BaseException:
            entry.is_sealed = was_sealed
            raise

    def _write_down(self, key: bytes) -> None:
        """Note a bundle that outlives its sender; an upload's once it is sealed."""
        entry, bundle = self._room.get(key), self._bundles[key]
        body = common_pb2.TensorBundle(tensors=bundle.specs).SerializeToString()
        self._book.put(_record(key), asdict(entry), body=body, fds=(bundle.file.fd,))

    def _sealed(self, key: bytes) -> Bundle:
        if not self._room.get(key).is_sealed:
            raise unavailable(f"bundle {shown(key)} is still being written; try again")
        return self._bundles[key]

    def _admit(
        self, key: bytes, entry: StagedEntry, *, specs: Sequence[common_pb2.TensorSpec]
    ) -> Bundle:
        self._room.admit(key, entry)
        try:
            file = MemoryFile("plexsvc-staged", entry.nbytes)
        except BaseException:
            self._room.drop(key)
            raise
        bundle = Bundle(specs=tuple(specs), file=file)
        self._bundles[key] = bundle
        return bundle

    def _opened(self, key: bytes, bundle: Bundle) -> int:
        """Return a descriptor of a new bundle; one that a client fills is written down first."""
        try:
            if self._room.get(key).owner is not None:
                self._write_down(key)
            return bundle.file.duplicate()
        except BaseException:
            self._drop(key)
            raise

    def _drop(self, key: bytes) -> int:
        entry = self._room.find(key)
        if entry is not None and (entry.is_sealed or entry.owner is not None):
            self._book.drop(_record(key))
        if (bundle := self._bundles.pop(key, None)) is not None:
            bundle.file.close()
        return self._room.drop(key)


def _key(job_id: JobId, staging_id: bytes) -> bytes:
    """Return the key of a bundle; no job id has a slash.

    Raises:
        PlexError: `bad_request`.
    """
    if not job_id or not 0 < len(staging_id) <= MAX_ID_BYTES:
        text = f"staging id of {len(staging_id)} bytes, of job {job_id!r}"
        raise bad_request(f"{text}; it is 1 to {MAX_ID_BYTES} bytes, and belongs to a job")
    return job_id.encode() + b"/" + staging_id


def _record(key: bytes) -> Key:
    return ("staged", key.hex())


class Upload:
    """One stream of chunks into a bundle; finished by validation or abandoned.

    It writes by its own descriptor and under no lock: uploads do not wait for one another, and what
    is written into a bundle that was dropped meanwhile goes nowhere.
    """

    def __init__(
        self, staging: Staging, header: service_pb2.StageHeader, bundle: Bundle, *, fd: int
    ) -> None:
        self._staging = staging
        self._key = _key(JobId(header.job_id), header.operation_id)
        self._header = header
        self._bundle = bundle
        self._received = 0
        self.is_finished = False
        self._fd = fd
        weakref.finalize(self, os.close, fd)  # not before: a thread may still reserve its memory

    def reserve(self) -> None:
        """Have the machine's memory for all of it.

        Raises:
            PlexError: `no_room`.
        """
        reserve(self._fd, self._header.nbytes)

    def write(self, chunk: common_pb2.Chunk) -> None:
        """Take the next chunk.

        Raises:
            PlexError: `bad_request` for a gap or too many bytes; `unavailable` when another upload
                of the same id took over.
        """
        data = chunk.data  # each look makes a copy
        end = chunk.offset + len(data)
        if chunk.offset != self._received or end > self._header.nbytes:
            raise bad_request(
                f"chunk [{chunk.offset}, {end}) came where byte {self._received} of "
                f"{self._header.nbytes} was due; send chunks in order"
            )
        self._staging.check_current(self._key, self._bundle)
        write(self._fd, chunk.offset, data)
        self._received = end

    def finish(self) -> None:
        """Validate and seal. `O(bytes)`.

        Raises:
            PlexError: `bad_batch`; `bad_request` when bytes are missing.
        """
        if self._received < self._header.nbytes:
            found = f"stream ended after {self._received} of {self._header.nbytes} bytes"
            raise bad_request(f"{found}; send it again")
        if self._header.HasField("rules"):
            with self._staging.holding(self._key, self._bundle):
                # Dropped at this moment, its descriptor would be closed.
                mapped = self._bundle.file.map(is_writable=False)
            views = tensors.views(self._header.tensors, mapped[: self._header.nbytes])
            check_batch(self._header.tensors, views, self._header.rules)
        self._staging.seal_upload(self._key, self._bundle)
        self.is_finished = True

    def abandon(self) -> None:
        """Drop what came so far."""
        self._staging.abandon(self._key, self._bundle)
