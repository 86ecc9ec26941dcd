"""Published weight versions: parameters in an immutable memory file, checksummed by block.

A *complete* copy holds the optimizer's tensors too: all that another WPG needs to go on from here,
or a checkpoint. A version is copied while its WPG stands still (`draft`) and enters once it is
checksummed and still wanted (`enter`), both within `making`, which takes back what did not enter.

New memory costs several times the copy. So it is taken ahead of the next version, unless something
else needs it. Copies of each step (`recurs`) are not sealed: the next one takes the memory of the
one before the last.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Final

import numpy as np

from plexclient.wire.v1.statemanager_pb2 import CanonicalPiece, VersionManifest
from plexsvc import lora
from plexsvc.errors import PlexError, bad_request, not_found
from plexsvc.ids import JobId, VersionId
from plexsvc.statemanager.book import Book, BookEntry, Key
from plexsvc.statemanager.caller import Tell, WaitingCaller, tell_nobody
from plexsvc.statemanager.entries import Budget
from plexsvc.statemanager.memfiles import MemoryFile, fill
from plexsvc.statemanager.shelves import VersionShelf
from plexsvc.weights import pieces
from plexsvc.weights.checksums import BLOCK_BYTES, block_checksums
from plexsvc.weights.pieces import RegionBytes
from plexsvc.weights.reading import OpenedPart

Line = tuple[str, bool]
"""Versions of a deployment, or its copies of each step."""

Placed = tuple[CanonicalPiece, CanonicalPiece]
"""A piece where it is, and where it goes."""

PUBLISHED_REGION: Final = "published"
PUBLISHED_KINDS: Final = frozenset({"param", lora.SCALE_KIND})
COMPLETE_KINDS: Final = PUBLISHED_KINDS | {"master", "exp_avg", "exp_avg_sq"}

AHEAD_BYTES: Final = 64 << 20
"""Smaller versions take new memory when they are made."""

MAKER: Final = -1
"""Holder of a version that is not entered yet: it may be released meanwhile, and is freed then."""


class Space:
    """Memory for a version: of its own until it is filled and sealed."""

    def __init__(self, nbytes: int) -> None:
        self.file = MemoryFile("plexsvc-version", nbytes)
        self.mapped = self.file.map(is_writable=True)
        self._lock = threading.Lock()
        self._is_filled = False

    def fill(self) -> None:
        """Have the machine's memory for all of it.

        Raises:
            PlexError: `no_room`.
        """
        with self._lock:
            if not self._is_filled:
                fill(self.mapped)
            self._is_filled = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Version:
    """A published version and its bytes, or one that nobody sees yet."""

    manifest: VersionManifest
    file: MemoryFile
    space: Space | None = None
    """Of a copy that recurs: a later one may lie there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """What a complete copy holds beside tensors: the scalars of each rank, and how far it is."""

    scalars_json: str
    applied_seq: int


class Publisher:
    """Keeps published versions; `lock` guards the shelf's counts."""

    def __init__(
        self,
        shelf: VersionShelf,
        *,
        host: Budget,
        node_id: str,
        lock: threading.Lock,
        book: Book,
    ) -> None:
        self._shelf = shelf
        self._host = host
        host.spares.append(self._spare)
        self._node_id = node_id
        self._lock = lock
        self._book = book
        self._versions: dict[VersionId, Version] = {}
        self._left: dict[Line, Space] = {}
        """What the next version or copy takes; counted as used."""
        # Below the maker's, because clients count from 1 on.
        self._readers = itertools.count(MAKER - 1, -1)

    def find(self, key: VersionId) -> VersionManifest | None:
        """Return the manifest of a version published before, or None."""
        with self._lock:
            found = self._versions.get(key)
            is_open = found is not None and not self._shelf.is_released(key)
        return found.manifest if found is not None and is_open else None

    def known(self) -> list[VersionId]:
        """Return the versions that are not released; the caller holds the lock."""
        return [key for key in self._versions if not self._shelf.is_released(key)]

    @contextmanager
    def making(self, key: VersionId) -> Iterator[None]:
        """Keep what the block drafts of a version only if it enters; one block at a time a key."""
        try:
            yield
        finally:
            with self._lock:
                if key in self._shelf and key not in self._versions:
                    self._shelf.withdraw(key)

    def draft(
        self,
        key: VersionId,
        index: Sequence[CanonicalPiece],
        *,
        job_id: JobId,
        region: RegionBytes,
        progress: Progress | None,
        recurs: bool = False,
        bring: Callable[[memoryview], None] | None = None,
        tell: Tell = tell_nobody,
    ) -> Version:
        """Copy the pieces in `index`, whose bytes `region` returns, at the speed of memory.

        Of pieces that are packed already `bring` puts all bytes there instead.

        Raises:
            PlexError: `no_room`; `bad_request` for a version that is no new one.
        """
        placed, nbytes = pieces.pack(pieces.distinct(index), region=PUBLISHED_REGION)
        with self._lock:
            if key in self._shelf:
                text = f"{key} was released already"
                raise bad_request(f"{text}; publish a newer one")
            space = self._taken((key.deployment_id, recurs))
            self._shelf.admit(key, job_id=job_id, nbytes=nbytes)
            # Held by its maker, since a release may come before the copy is done.
            self._shelf.hold(key, MAKER)
        manifest = VersionManifest(
            **key._asdict(),
            nbytes=nbytes,
            pieces=[target for _, target in placed],
            node_id=self._node_id,
        )
        if progress is not None:
            manifest.scalars_json = progress.scalars_json
            manifest.applied_seq = progress.applied_seq
        if space is None or space.file.nbytes != nbytes:
            space = Space(nbytes)
        space.fill()
        if bring is None:
            _copy(placed, space.mapped, region=region, tell=tell)
        else:
            bring(space.mapped)
        if recurs:
            return Version(manifest=manifest, file=space.file, space=space)
        space.mapped.release()  # a file with a writable mapping cannot be sealed
        space.file.freeze()
        return Version(manifest=manifest, file=space.file)

    def enter(self, draft: Version, caller: WaitingCaller) -> VersionManifest:
        """Checksum a draft and let everyone see it, unless its caller gave up.

        Raises:
            PlexError: `cancelled`; `not_found` when it was released meanwhile.
        """
        manifest = draft.manifest
        key = VersionId.of(manifest)
        with draft.file.map(is_writable=False) as data:
            for checksum in block_checksums(data[: manifest.nbytes]):
                manifest.block_checksums.append(checksum)
                caller.advance(BLOCK_BYTES)
        if self._entered(key, draft, caller):
            raise not_found(f"version {key.version} of {key.deployment_id} was released meanwhile")
        if draft.space is None and manifest.nbytes >= AHEAD_BYTES:
            ahead = threading.Thread(
                target=self._take_ahead, args=(key, manifest.nbytes), name="ahead", daemon=True
            )
            ahead.start()
        return manifest

    def adopt(self, entry: BookEntry) -> None:
        """Take over a version that a predecessor kept.

        Raises:
            PlexError: `no_room`, `internal`.
        """
        manifest = VersionManifest.FromString(entry.body)
        key = VersionId.of(manifest)
        (fd,) = entry.fds
        self._shelf.adopt(
            key,
            job_id=JobId(entry.facts["job_id"]),
            nbytes=manifest.nbytes,
            is_released=entry.facts["is_released"],
        )
        file = MemoryFile("plexsvc-version", manifest.nbytes, fd=fd)
        self._versions[key] = Version(manifest=manifest, file=file)

    def hold_all(self, held: Mapping[VersionId, int], *, holder: int) -> None:
        """Take a client's word for what it maps of a predecessor's versions."""
        with self._lock:
            for key, count in held.items():
                if key in self._shelf:
                    self._shelf.set_held(key, holder, count=count)

    def manifest(self, key: VersionId) -> VersionManifest:
        """Return the manifest of a version.

        Raises:
            PlexError: `not_found`.
        """
        with self._lock:
            return self._visible(key).manifest

    def open(self, key: VersionId, *, job_id: JobId, holder: int) -> tuple[int, VersionManifest]:
        """Return a descriptor of a version's file and its manifest for a client of its job.

        The client holds the version from now on.

        Raises:
            PlexError: `not_found`.
        """
        with self._lock:
            version = self._visible(key, job_id=job_id)
            fd = version.file.open_to_read()
            self._shelf.hold(key, holder)
            return fd, version.manifest

    def unhold(self, key: VersionId, holder: int) -> None:
        """Count a client's mapping less."""
        with self._lock:
            if self._shelf.unhold(key, holder):
                self._let_go([key])

    def unhold_all(self, holder: int) -> None:
        """Forget a client that left, or `UNHEARD` once every client was heard."""
        with self._lock:
            self._let_go(self._shelf.unhold_all(holder))

    def release(self, key: VersionId) -> None:
        """End the scheduler's hold: no new mapping, gone with the last. Safe to repeat."""
        with self._lock:
            if self._shelf.release(key):
                self._let_go([key])
            elif key in self._versions:
                self._write_down(key)

    @contextmanager
    def lent(self, key: VersionId) -> Iterator[Version]:
        """Hold a version for the block.

        Raises:
            PlexError: `not_found`.
        """
        holder = next(self._readers)
        with self._lock:
            version = self._visible(key)
            self._shelf.hold(key, holder)
        try:
            yield version
        finally:
            self.unhold(key, holder)

    @contextmanager
    def reading(self, key: VersionId) -> Iterator[OpenedPart]:
        """Hold a version for the block, and return it, opened.

        Raises:
            PlexError: `not_found`.
        """
        with self.lent(key) as version:
            data = version.file.map(is_writable=False)[: version.manifest.nbytes]
            yield OpenedPart(manifest=version.manifest, data=data)

    def close(self) -> None:
        """Let go of all versions."""
        with self._lock:
            kept = [version.file for version in self._versions.values()]
            for file in [*kept, *(space.file for space in self._left.values())]:
                file.close()
            self._versions.clear()
            self._left.clear()

    def _visible(self, key: VersionId, *, job_id: JobId | None = None) -> Version:
        """Return a version that may be opened: it has entered, and is not released."""
        self._shelf.get(key, job_id=job_id)
        if key not in self._versions:
            raise not_found(f"{key} is not on this node yet; publish it")
        return self._versions[key]

    def _entered(self, key: VersionId, version: Version, caller: WaitingCaller) -> bool:
        """Enter a version all see from here on; return whether it was released meanwhile."""
        with self._lock:
            caller.check()
            self._versions[key] = version
            try:
                self._write_down(key)
            except PlexError:
                del self._versions[key]
                raise
            is_gone = self._shelf.unhold(key, MAKER)
            if is_gone:
                self._let_go([key])
        return is_gone

    def _write_down(self, key: VersionId) -> None:
        version = self._versions[key]
        facts = {"job_id": self._shelf.job_of(key), "is_released": self._shelf.is_released(key)}
        body = version.manifest.SerializeToString()
        self._book.put(_record(key), facts, body=body, fds=(version.file.fd,))

    def _let_go(self, keys: Iterable[VersionId]) -> None:
        for key in keys:
            self._book.drop(_record(key))
            version = self._versions.pop(key)
            space, line = version.space, (key.deployment_id, version.space is not None)
            # Where no other of them is here there will be no further one.
            lines = [(k.deployment_id, v.space is not None) for k, v in self._versions.items()]
            if space is not None or line not in lines:
                self._discard(line)
            if space is None or line not in lines:
                version.file.close()
                continue
            self._host.take(version.manifest.nbytes)  # which the shelf has just given back
            self._left[line] = space

    def _take_ahead(self, key: VersionId, nbytes: int) -> None:
        """Take memory for the version after `key`, if nobody needs it."""
        with self._lock:
            line = (key.deployment_id, False)
            if key not in self._versions or line in self._left or self._host.free < nbytes:
                return
            space = self._left[line] = Space(nbytes)
            self._host.take(nbytes)
        with suppress(PlexError):  # whoever takes it will tell
            space.fill()

    def _taken(self, line: Line) -> Space | None:
        """Return memory that is left for the next of a line, which takes no room any more."""
        left = self._left.pop(line, None)
        if left is not None:
            self._host.give(left.file.nbytes)
        return left

    def _discard(self, line: Line) -> None:
        left = self._taken(line)
        if left is not None:
            left.file.close()

    def _spare(self, nbytes: int) -> None:
        """Give back memory; the caller holds the lock."""
        for line, left in list(self._left.items()):
            if nbytes <= 0:
                return
            nbytes -= left.file.nbytes
            self._discard(line)


def _record(key: VersionId) -> Key:
    return ("version", key.deployment_id, f"{key.incarnation}.{key.version}")


def _copy(placed: Sequence[Placed], mapped: memoryview, *, region: RegionBytes, tell: Tell) -> None:
    target_bytes = np.frombuffer(mapped, dtype=np.uint8)
    for source, target in placed:
        view = pieces.piece_view(region(source.rank, source.region), source)
        np.copyto(pieces.piece_view(target_bytes, target), view)
        tell(view.nbytes)
