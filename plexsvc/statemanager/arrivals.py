"""Versions of other hosts, brought to this node once for all of a job that read them here.

The newest part of each deployment stays, in memory that nobody else needs: the next one comes as
deltas to it. It is dropped when a newer one is here, the job's last process on this node leaves, or
something else needs the memory. A successor of the state manager fetches anew.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final, NamedTuple

from plexclient.wire.v1.statemanager_pb2 import PublishedVersion, VersionHolder, VersionManifest
from plexsvc.errors import PlexError, internal, not_found
from plexsvc.ids import JobId, VersionId
from plexsvc.log import Log
from plexsvc.rpc.keys import ClusterKeys
from plexsvc.statelink.far import Far
from plexsvc.statemanager.caller import Tell
from plexsvc.statemanager.entries import Budget
from plexsvc.statemanager.memfiles import MemoryFile
from plexsvc.weights.checksums import BLOCK_BYTES
from plexsvc.weights.manifests import is_alike
from plexsvc.weights.reading import OpenedPart

log = Log(__name__)

TELL_S: Final = 0.5
"""How often who waits is told how far it is."""


class PartKey(NamedTuple):
    """Whose part of which version it is."""

    job_id: JobId
    version: VersionId
    part: str
    """Its name, or the node that holds it where it has none."""


class Arrival:
    """A part that comes, or is here."""

    def __init__(self) -> None:
        self.over = threading.Event()
        self.error: PlexError | None = None
        self.manifest = VersionManifest()
        self.file: MemoryFile | None = None
        self.verified_bytes = 0
        """How much of its beginning is in `file`."""
        self.done_bytes = 0
        self.pins = 0
        """How many arrivals are made from it, or readers wait to open it."""

    def advance(self, nbytes: int) -> None:
        """Count bytes that came."""
        self.done_bytes += nbytes

    @property
    def is_idle(self) -> bool:
        """Whether it may be dropped."""
        return self.over.is_set() and not self.pins


class Arrivals:
    """Fetches parts; `lock` guards `host`, which takes back from here what it lacks."""

    def __init__(
        self,
        host: Budget,
        *,
        lock: threading.Lock,
        keys: Callable[[], ClusterKeys],
        site: str = "",
    ) -> None:
        self._host = host
        self._lock = lock
        self._keys = keys
        self._site = site
        self.address = ""
        """Where neighbours of the site reach this node."""
        self._arrivals: dict[PartKey, Arrival] = {}
        self._bytes_per_s: dict[str, int] = {}
        """Of the line to a state manager, as the last whole part came."""
        self._arrived_bytes = 0
        host.spares.append(self._spare)

    def open(
        self, version: PublishedVersion, holder: VersionHolder, *, job_id: JobId, tell: Tell
    ) -> tuple[int, VersionManifest]:
        """Return a descriptor of a part's bytes and its manifest once it is here, verified.

        Raises:
            PlexError: `no_room`, `unavailable`, `checksum_mismatch`.
            OSError: what `tell` raises: who waits has left.
        """
        key = PartKey(job_id, VersionId.of(version), holder.part or holder.node_id)
        with self._lock:
            arrival = self._arrivals.get(key)
            if arrival is None:
                arrival = self._arrivals[key] = Arrival()
                arguments = (key, arrival, version, holder)
                threading.Thread(
                    target=self._fetch, args=arguments, name="arrival", daemon=True
                ).start()
            arrival.pins += 1  # else others may take its memory between its arrival and the opening
        try:
            self._wait(arrival, tell)
            with self._lock:
                assert arrival.file is not None
                return arrival.file.duplicate(), arrival.manifest
        finally:
            with self._lock:
                arrival.pins -= 1

    @contextmanager
    def lent(self, version: VersionId, part: str) -> Iterator[Arrival]:
        """Hold a part that comes, or is here, for a neighbour to read.

        Raises:
            PlexError: `not_found`.
        """
        with self._lock:
            found = [key for key in self._arrivals if key[1:] == (version, part)]
            if not found:
                raise not_found(f"{version}: its part {part} does not come here")
            arrival = self._arrivals[found[0]]
            arrival.pins += 1
        try:
            yield arrival
        finally:
            with self._lock:
                arrival.pins -= 1

    @staticmethod
    def _wait(arrival: Arrival, tell: Tell) -> None:
        told = 0
        while not arrival.over.wait(TELL_S):
            if (done := arrival.done_bytes) > told:
                tell(done - told)
                told = done
        if arrival.error is not None:
            raise arrival.error

    @property
    def arrived_bytes(self) -> int:
        """Bytes that came so far; the caller holds the lock."""
        coming = (one.done_bytes for one in self._arrivals.values() if not one.over.is_set())
        return self._arrived_bytes + sum(coming)

    def count(self, nbytes: int) -> None:
        """Count bytes that came for something else."""
        with self._lock:
            self._arrived_bytes += nbytes

    def forget(self, job_id: JobId) -> None:
        """Drop what a job has here; the caller holds the lock."""
        for key in [key for key, one in self._arrivals.items() if one.is_idle]:
            if key.job_id == job_id:
                self._drop(key)

    def _fetch(
        self, key: PartKey, arrival: Arrival, version: PublishedVersion, holder: VersionHolder
    ) -> None:
        caller = Far(holder, self._keys, arrival.advance, self._site, self.address)
        base: Arrival | None = None
        try:
            with caller.connected() as far:
                manifest = far.read_manifest(version)
                with self._lock:
                    base = self._base(key, manifest)
                    self._host.take(manifest.nbytes)
                    arrival.manifest = manifest
                self._receive(far, arrival, base)
        except Exception as error:  # noqa: BLE001 - all who wait are told, whatever it is
            arrival.error = error if isinstance(error, PlexError) else internal(repr(error))
            log.warning("version not brought", version=key.version, error=error)
        with self._lock:
            if base is not None:
                base.pins -= 1
            self._arrived_bytes += arrival.done_bytes
            arrival.over.set()
            if arrival.error is not None:
                self._drop(key)
                return
            for older in self._of(key):
                if older != key and self._arrivals[older].is_idle:
                    self._drop(older)

    def _receive(self, far: Far, arrival: Arrival, base: Arrival | None) -> None:
        """Have a part's bytes come, immutable then, and note how fast whole ones came."""
        manifest = arrival.manifest
        file = arrival.file = MemoryFile("plexsvc-arrival", manifest.nbytes)
        address, started_s = far.holder.state_manager, time.monotonic()
        block = memoryview(bytearray(min(BLOCK_BYTES, manifest.nbytes)))

        def put(low: int, verified: memoryview) -> None:
            # Mapped instead, new memory would be zeroed first, which takes longer than the copy.
            file.write(low, verified)
            arrival.verified_bytes = low + len(verified)

        is_from_holder = far.read_into(
            lambda _, nbytes: block[:nbytes],
            manifest,
            base=None if base is None else _published(base),
            bytes_per_s=self._bytes_per_s.get(address, 0),
            put=put,
        )
        if base is None and is_from_holder:
            took_s = time.monotonic() - started_s
            self._bytes_per_s[address] = int(manifest.nbytes / max(took_s, 1e-6))
        file.freeze()

    def _base(self, key: PartKey, manifest: VersionManifest) -> Arrival | None:
        """Pin and return the newest part here with the same pieces, if any."""
        # The newest differs in the fewest elements, so that deltas to it are the smallest.
        for older in sorted(self._of(key), reverse=True):
            found = self._arrivals[older]
            if older != key and found.over.is_set() and is_alike(found.manifest, manifest):
                found.pins += 1
                return found
        return None

    def _of(self, key: PartKey) -> list[PartKey]:
        """Return the same part of all versions of a deployment."""
        return [
            one
            for one in self._arrivals
            if (one.job_id, one.part) == (key.job_id, key.part)
            and one.version.deployment_id == key.version.deployment_id
        ]

    def _spare(self, nbytes: int) -> None:
        """Give back memory, the oldest first; the caller holds the lock."""
        for key in [key for key, one in self._arrivals.items() if one.is_idle]:
            if nbytes <= 0:
                return
            nbytes -= self._arrivals[key].manifest.nbytes
            self._drop(key)

    def _drop(self, key: PartKey) -> None:
        arrival = self._arrivals.pop(key)
        self._host.give(arrival.manifest.nbytes)
        if arrival.file is not None and not arrival.pins:  # else it goes with who reads it
            arrival.file.close()


def _published(arrival: Arrival) -> OpenedPart:
    assert arrival.file is not None
    return OpenedPart(manifest=arrival.manifest, data=arrival.file.map(is_writable=False))
