"""A rank's or instance's side of the data plane: device memory, staged payloads, versions.

Blocking and thread-safe. The state manager creates all device memory and grants it as descriptors;
a rank maps a region at one address for life. The client opens two connections: `call`, on which it
asks under a lock, and `data`, answered by a daemon thread, on which the state manager asks for the
steps of a move:

    offload   export (what is dirty, the scalars) -> the state manager copies -> release (park)
    load      the state manager copies -> ready (map again, `restored`)

Handlers run on that thread while the rank is between operations; they must not call the client.
When the client goes away, its regions are freed and its unfinished staged results dropped.

When the state manager goes away, mapped memory stays valid, and the client *resumes* with its
successor, from whichever thread notices first: it says what versions it maps, is told which regions
it should have mapped, and repeats the call that broke. A successor that does not know a client with
regions, or does not come in time, ends it: every call raises `unavailable` then.
"""

from __future__ import annotations

import os
import secrets
import socket
import threading
from collections import Counter, deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Protocol

from plexclient.wire.v1 import common_pb2, statemanager_pb2
from plexsvc.errors import PlexError, internal, unavailable
from plexsvc.ids import VersionId
from plexsvc.log import Log
from plexsvc.residency import Home
from plexsvc.statelink import dataplane, mapping
from plexsvc.statelink.dataplane import Header, Message
from plexsvc.statelink.mapping import Extent
from plexsvc.statelink.member import Member
from plexsvc.statelink.regions import MappedHostMemory, RegionMemory, on_host, open_memory
from plexsvc.statelink.session import StateSession
from plexsvc.weights.manifests import Scalars
from plexsvc.weights.reading import OpenedPart

if TYPE_CHECKING:
    import torch

log = Log(__name__)

PATIENCE_S: Final = 60.0
"""Longest wait of a rank for the successor of a state manager that died."""

READER_PATIENCE_S: Final = 15.0
"""The same of a client without state, which may find what it reads elsewhere."""

MAX_TRIES: Final = 8
"""Times a call is sent, to as many state managers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RegionSpec:
    """A region to allocate: `droppable` ones (gradients) are dropped when clean, never copied.

    One that is `shared` (a frozen model under adapters) is there once on a device for all who give
    it this name: the first that finds it empty fills and seals it.
    """

    name: str
    nbytes: int
    droppable: bool = False
    shared: str = ""
    home: Home = Home.DEVICE


class Region:
    """Device memory at one address for life; accessible while the rank is on its device."""

    def __init__(self, spec: RegionSpec, memory: RegionMemory) -> None:
        self.name = spec.name
        self.nbytes = spec.nbytes
        self.memory = memory
        self.is_read_only = False
        """Whether it is a shared region that was filled."""
        self._granted: list[Extent] = []

    def attach(self, fd: int, extents: list[Extent], *, is_read_only: bool) -> None:
        """Map what was granted, unless it is mapped already."""
        if self._granted != extents or self.is_read_only != is_read_only:
            self._granted = []
            self.memory.attach(fd, extents, is_read_only=is_read_only)
            self._granted, self.is_read_only = extents, is_read_only

    @property
    def is_mapped(self) -> bool:
        """Whether the memory is there."""
        return bool(self._granted)

    def park(self) -> None:
        """Let go of the memory; the addresses stay reserved and inaccessible."""
        self.memory.park()
        self._granted = []

    def tensor(self) -> torch.Tensor:
        """Return the region as a flat uint8 tensor, 64-byte aligned, valid across moves."""
        return self.memory.tensor(self.nbytes)


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportReport:
    """What a rank says before it is parked: regions that are not zero, scalars, progress."""

    dirty: frozenset[str] = frozenset()
    scalars: Scalars = field(default_factory=dict)
    applied_seq: int = 0
    writes: int = 0
    """Operations that may have written regions that are not droppable; 0: not known."""

    @classmethod
    def of(cls, header: Header) -> ExportReport:
        """Return what a message says."""
        return cls(
            dirty=frozenset(header["dirty"]),
            scalars=header["scalars"],
            applied_seq=int(header["applied_seq"]),
            writes=int(header["writes"]),
        )

    @property
    def facts(self) -> dict[str, Any]:
        """The message that says it."""
        return {**asdict(self), "dirty": sorted(self.dirty)}


class MoveHandlers(Protocol):
    """What a rank does at the edges of a move; called on the client's data thread."""

    def export(self, *, beside: bool) -> ExportReport:
        """Return what must survive; the rank is between operations. Publish and save ask too.

        `beside` an operation that runs: at once, as the last one left it that wrote weights.
        """

    def restored(self, scalars: Scalars) -> None:
        """Take the scalars back; regions are mapped again. The move returns after this."""


class _NoHandlers:
    """A client without state of its own: nothing dirty, nothing to restore."""

    def export(self, *, beside: bool) -> ExportReport:
        del beside
        return ExportReport()

    def restored(self, scalars: Scalars) -> None:
        del scalars


class StateClient:
    """A connection to the node's state manager; `close` frees everything it allocated."""

    def __init__(
        self,
        socket_path: str,
        member: Member,
        *,
        handlers: MoveHandlers | None,
        device_index: int | None = None,
    ) -> None:
        """Connect as `member`; `device_index` where the node's devices are not its own."""
        self._lock = threading.Lock()
        self._regions: dict[str, Region] = {}
        self._handlers = handlers if handlers is not None else _NoHandlers()
        self._closed_versions: deque[VersionId] = deque()
        self._held_versions: Counter[VersionId] = Counter()
        self._is_closed = False
        self._tenant = member.tenant
        self._device_index = member.device_index if device_index is None else device_index
        identity = {
            "wpg_id": member.wpg_id,
            "rank": member.rank,
            "incarnation": member.incarnation,
            "device_index": self._device_index,
            "job_id": member.job_id,
        }
        self._session = StateSession(
            socket_path,
            identity,
            patience_s=PATIENCE_S if handlers is not None else READER_PATIENCE_S,
            on_granted=self._take_grants,
        )
        self._session.start()
        self._thread = threading.Thread(target=self._serve_moves, name="state-moves", daemon=True)
        self._thread.start()

    def allocate(self, regions: Sequence[RegionSpec]) -> dict[str, Region]:
        """Return zeroed device memory for all of `regions`, or none of them.

        Those at home on the host are there. Of a lent one, what it is parked in comes beside it, by
        the name `on_host`; it is what it was when it was parked.

        Raises:
            PlexError: `no_room` with `need` and `free` when the device or the host tier lacks it.
        """
        wanted = [asdict(region) for region in regions]
        reply = self._call({"op": "allocate", "regions": wanted})
        new: dict[str, Region] = {}
        for spec in regions:
            if spec.home is not Home.HOST:
                new[spec.name] = Region(spec, open_memory(self._session.kind, spec.nbytes))
            if spec.home is not Home.DEVICE:
                name = spec.name if spec.home is Home.HOST else on_host(spec.name)
                memory = MappedHostMemory(spec.nbytes, is_populated=spec.home is Home.HOST)
                new[name] = Region(replace(spec, name=name), memory)
        self._regions |= new
        self._map(reply)
        return new

    @property
    def is_parked(self) -> bool:
        """Whether this rank's device memory is taken away."""
        return not all(region.is_mapped for region in self._regions.values())

    @property
    def is_lost(self) -> bool:
        """Whether no state manager is left for it: every call raises `unavailable`."""
        return self._session.is_over

    def stepped(self, report: ExportReport) -> None:
        """Say what an operation left that ran on parked state, as in a move."""
        self._call({"op": "stepped", **report.facts})

    def seal(self, name: str) -> None:
        """Let others read a shared region that this rank has filled, and write it no more.

        Raises:
            PlexError: `no_room`.
        """
        self._regions[name].memory.settle()
        self._map(self._call({"op": "seal", "name": name}))

    def set_index(self, pieces: Sequence[statemanager_pb2.CanonicalPiece]) -> None:
        """Say where in this rank's regions each canonical piece lies; replaces what was said.

        Raises:
            PlexError: `bad_request` for a piece outside its region.
        """
        body = statemanager_pb2.VersionManifest(pieces=pieces).SerializeToString()
        self._call({"op": "set_index"}, body=body)

    def open_staged(self, staging_id: bytes) -> tuple[list[common_pb2.TensorSpec], memoryview]:
        """Return specs and bytes of a finished staged bundle of this job, read-only and not copied.

        Raises:
            PlexError: `not_found`.
        """
        reply = self._call({"op": "open_staged", "staging_id": staging_id.hex()})
        bundle = common_pb2.TensorBundle.FromString(reply.body)
        return list(bundle.tensors), _map_file(reply, is_writable=False)

    def create_staged(
        self, specs: Sequence[common_pb2.TensorSpec], nbytes: int
    ) -> tuple[bytes, memoryview]:
        """Return a new staging id and writable memory for a result; readable once sealed.

        Raises:
            PlexError: `staging_full`, `payload_too_large`.
        """
        staging_id = secrets.token_bytes(16)
        body = common_pb2.TensorBundle(tensors=specs).SerializeToString()
        header = {
            "op": "create_staged",
            "staging_id": staging_id.hex(),
            "nbytes": nbytes,
            "tenant": self._tenant,
        }
        reply = self._call(header, body=body)
        try:
            return staging_id, _map_file(reply, is_writable=True)[:nbytes]
        except OSError:
            self.drop_staged(staging_id)
            raise

    def seal_staged(self, staging_id: bytes) -> None:
        """Finish a result made with `create_staged`; others may read it from now on.

        Raises:
            PlexError: `not_found`.
        """
        self._call({"op": "seal_staged", "staging_id": staging_id.hex()})

    def drop_staged(self, staging_id: bytes) -> None:
        """Give a bundle's memory back: a result that nobody will read, or a damaged payload.

        An id that is not known here, or not this job's, changes nothing.
        """
        self._call({"op": "drop_staged", "staging_id": staging_id.hex()})

    def open_version(self, version: VersionId) -> OpenedPart:
        """Return a version's part on this node, not copied and held as long as a view of it lives.

        Check its checksums before serving from it.

        Raises:
            PlexError: `not_found` when this node does not hold it (any more).
        """
        reply = self._call({"op": "open_version", **version._asdict()})
        manifest = statemanager_pb2.VersionManifest.FromString(reply.body)
        # Told with the next call: views end on any thread, also on one that holds the lock.
        then = partial(self._closed_versions.append, version)
        data = _map_file(reply, is_writable=False, then=then)[: manifest.nbytes]
        return OpenedPart(manifest=manifest, data=data)

    def fetch_version(
        self, version: statemanager_pb2.PublishedVersion, holder: statemanager_pb2.VersionHolder
    ) -> OpenedPart:
        """Return a part that lies on another host, verified, once it was brought to this node.

        Raises:
            PlexError: `no_room`, `unavailable`, `checksum_mismatch`.
        """
        wanted = statemanager_pb2.PublishedVersion(
            **VersionId.of(version)._asdict(), holders=[holder]
        )
        reply = self._call({"op": "fetch_version"}, body=wanted.SerializeToString())
        manifest = statemanager_pb2.VersionManifest.FromString(reply.body)
        data = _map_file(reply, is_writable=False)[: manifest.nbytes]
        return OpenedPart(manifest=manifest, data=data)

    def close(self) -> None:
        """Leave: the regions are freed, and touching them from now on ends the process."""
        self._session.leave()
        with self._lock:
            if self._is_closed:
                return
            self._is_closed = True
            for region in self._regions.values():
                region.park()
            self._session.hang_up()
        if threading.current_thread() is not self._thread:
            self._thread.join(timeout=5)

    def _call(self, header: dict[str, Any], body: bytes = b"") -> Message:
        with self._lock:
            for _ in range(MAX_TRIES):
                if self._is_closed:
                    raise unavailable(f"{header['op']}: this client was closed")
                try:
                    self._tell_closed_versions()
                    reply = self._session.exchange(header, body)
                except (OSError, EOFError) as error:
                    self._session.go_on(error, returning=self._returning())
                    header = {**header, "repeat": True}
                else:
                    if header["op"] == "open_version":
                        name = VersionId(
                            header["deployment_id"], header["incarnation"], header["version"]
                        )
                        self._held_versions[name] += 1
                    return reply
            raise unavailable(
                f"{header['op']}: {MAX_TRIES} state managers in a row died before they answered"
            )

    def _tell_closed_versions(self) -> None:
        while self._closed_versions:
            # Before it is told: a successor hears of what is held from then on.
            name = self._forget_closed_version()
            self._session.exchange({"op": "close_version", **name._asdict()})

    def _forget_closed_version(self) -> VersionId:
        name = self._closed_versions.popleft()
        self._held_versions[name] -= 1
        return name

    def _returning(self) -> dict[str, Any]:
        """Return what the next state manager must know."""
        while self._closed_versions:
            self._forget_closed_version()
        held = [{**name._asdict(), "count": n} for name, n in self._held_versions.items() if n > 0]
        return {"held": held, "has_regions": bool(self._regions)}

    def _take_grants(self, message: Message) -> None:
        """Map what a state manager grants on joining it, and nothing else."""
        for name in self._regions.keys() - message.header["regions"].keys():
            self._regions[name].park()
        self._map(message)

    def _map(self, message: Message) -> None:
        """Map the granted regions and close the descriptors that came with them."""
        try:
            for name, grant in message.header["regions"].items():
                extents = [Extent(offset=at, nbytes=nbytes) for at, nbytes in grant["extents"]]
                if name in self._regions:  # else the answer that granted it was lost
                    self._regions[name].attach(
                        message.fds[grant["fd"]],
                        extents,
                        is_read_only=grant.get("read_only", False),
                    )
        finally:
            dataplane.close_all(message.fds)

    def _serve_moves(self) -> None:
        while not self._session.is_over:
            sock = self._session.data
            cause = self._serve_on(sock)
            with suppress(PlexError):  # told by every later call
                self._go_on_from(sock, cause)

    def _go_on_from(self, sock: socket.socket, cause: OSError | EOFError) -> None:
        """Go on with the next state manager, unless a call that broke has done so."""
        with self._lock:
            if not self._session.is_over and self._session.data is sock:
                self._session.go_on(cause, returning=self._returning())

    def _serve_on(self, sock: socket.socket) -> OSError | EOFError:
        """Answer one state manager; return why that ended."""
        steps = {"export": self._export, "release": self._release, "ready": self._ready}
        try:
            while True:
                request = dataplane.receive(sock)
                dataplane.send(sock, _answer(steps[request.header["op"]], request))
        except (OSError, EOFError) as error:
            return error

    def _export(self, request: Message) -> Message:
        report = self._handlers.export(beside=request.header["beside"])
        for region in self._regions.values():
            region.memory.settle()
        return Message(header=report.facts)

    def _release(self, request: Message) -> Message:
        del request
        for region in self._regions.values():
            # What is at home in host memory stays where it is.
            if not isinstance(region.memory, MappedHostMemory):
                region.park()
        return Message(header={})

    def _ready(self, request: Message) -> Message:
        self._map(request)
        self._handlers.restored(request.header["scalars"])
        return Message(header={})


def _answer(step: Callable[[Message], Message], request: Message) -> Message:
    try:
        return step(request)
    except PlexError as error:
        return dataplane.failure(error)
    except Exception as error:  # noqa: BLE001 - it fails the move, not the thread
        log.error("move step failed", step=request.header["op"])
        text = f"{request.header['op']} failed on the rank: {type(error).__name__}: {error}"
        return dataplane.failure(internal(text))


def _map_file(
    reply: Message, *, is_writable: bool, then: Callable[[], None] | None = None
) -> memoryview:
    """Map the file that came with `reply` and close its descriptor."""
    (fd,) = reply.fds
    nbytes = max(1, int(reply.header["nbytes"]))
    try:
        return mapping.map_file(fd, nbytes, is_writable=is_writable, then=then)
    finally:
        os.close(fd)
