"""A rank's or instance's side of the data plane: device memory, staged payloads, versions.

Blocking and thread-safe. The state manager creates all device memory and grants it as descriptors;
a rank maps a region at one address for life. The client opens two connections: `call`, on which it
asks under a lock, and `data`, answered by a daemon thread, on which the state manager asks for the
steps of a move:

    offload   export (what is dirty, the scalars) -> the state manager copies -> release (park)
    load      the state manager copies -> ready (map again, `restored`)

Handlers run on that thread while the rank is between operations; they must not call the client.
When the state manager goes away, mapped memory stays valid, no move arrives any more, and every
call raises `unavailable`: the node agent ends the ranks of a node whose state manager died. When
the client goes away, its regions are freed and its unfinished staged results dropped.
"""

from __future__ import annotations

import mmap
import os
import socket
import threading
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Protocol

from plexclient.wire.v1 import common_pb2, statemanager_pb2
from plexsvc.errors import ErrorCode, PlexError
from plexsvc.log import Log
from plexsvc.transport import dataplane
from plexsvc.transport.dataplane import Message
from plexsvc.transport.mapping import Extent
from plexsvc.transport.regions import RegionMemory, open_memory

if TYPE_CHECKING:
    import torch

log = Log(__name__)

CALL_TIMEOUT_S: Final = 120.0
"""Longest wait for an answer of the state manager; fresh memory costs up to 0.6 s per GiB."""

Scalars = dict[str, int | float | str]


@dataclass(frozen=True, slots=True, kw_only=True)
class RegionSpec:
    """A region to allocate: `droppable` ones (gradients) are dropped when clean, never copied."""

    name: str
    nbytes: int
    droppable: bool = False


class Region:
    """Device memory at one address for life; accessible while the rank is on its device."""

    def __init__(self, spec: RegionSpec, memory: RegionMemory) -> None:
        self.name = spec.name
        self.nbytes = spec.nbytes
        self.memory = memory

    def tensor(self) -> torch.Tensor:
        """Return the region as a flat uint8 tensor, 64-byte aligned, valid across moves."""
        return self.memory.tensor(self.nbytes)


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportReport:
    """What a rank says before it is parked: regions that are not zero, scalars, progress."""

    dirty: frozenset[str]
    scalars: Scalars
    applied_seq: int


class MoveHandlers(Protocol):
    """What a rank does at the edges of a move; called on the client's data thread."""

    def export(self) -> ExportReport:
        """Return what must survive; the rank is between operations. Publish and save ask too."""
        ...

    def restored(self, scalars: Scalars) -> None:
        """Take the scalars back; regions are mapped again. The move returns after this."""
        ...


class _NoHandlers:
    """A client without state of its own: nothing dirty, nothing to restore."""

    def export(self) -> ExportReport:
        return ExportReport(dirty=frozenset(), scalars={}, applied_seq=0)

    def restored(self, scalars: Scalars) -> None:
        del scalars


class StateClient:
    """A connection to the node's state manager; `close` frees everything it allocated."""

    def __init__(
        self,
        socket_path: str,
        *,
        wpg_id: str,
        rank: int,
        incarnation: int,
        device_index: int,
        job_id: str,
        handlers: MoveHandlers | None,
    ) -> None:
        self._lock = threading.Lock()
        self._regions: dict[str, Region] = {}
        self._handlers = handlers if handlers is not None else _NoHandlers()
        self._closed_versions: deque[dict[str, Any]] = deque()
        self._is_closed = False
        hello = {
            "op": "hello",
            "wpg_id": wpg_id,
            "rank": rank,
            "incarnation": incarnation,
            "device_index": device_index,
            "job_id": job_id,
        }
        self._call_sock = _connect(socket_path)
        reply = self._call(hello)
        self._device_index = device_index
        self._kind = str(reply.header["kind"])
        self._data_sock = _connect(socket_path)
        dataplane.send(
            self._data_sock,
            Message(header={"op": "attach", "client_id": reply.header["client_id"]}),
        )
        dataplane.raise_if_failure(dataplane.receive(self._data_sock))
        self._data_sock.settimeout(None)
        self._thread = threading.Thread(target=self._serve_moves, name="state-moves", daemon=True)
        self._thread.start()

    def allocate(self, regions: Sequence[RegionSpec]) -> dict[str, Region]:
        """Return zeroed device memory for all of `regions`, or none of them.

        Raises:
            PlexError: `no_room` with `need` and `free` when the device or the host tier lacks it.
        """
        wanted = [{"name": r.name, "nbytes": r.nbytes, "droppable": r.droppable} for r in regions]
        reply = self._call({"op": "allocate", "regions": wanted})
        for spec in regions:
            memory = open_memory(self._kind, spec.nbytes, device_index=self._device_index)
            self._regions[spec.name] = Region(spec, memory)
        self._map(reply)
        return {spec.name: self._regions[spec.name] for spec in regions}

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
        return list(bundle.tensors), memoryview(_map_file(reply, is_writable=False))

    def create_staged(
        self, specs: Sequence[common_pb2.TensorSpec], nbytes: int
    ) -> tuple[bytes, memoryview]:
        """Return a new staging id and writable memory for a result; readable once sealed.

        Raises:
            PlexError: `staging_full`, `payload_too_large`.
        """
        body = common_pb2.TensorBundle(tensors=specs).SerializeToString()
        reply = self._call({"op": "create_staged", "nbytes": nbytes}, body=body)
        view = memoryview(_map_file(reply, is_writable=True))[:nbytes]
        return bytes.fromhex(reply.header["staging_id"]), view

    def seal_staged(self, staging_id: bytes) -> None:
        """Finish a result made with `create_staged`; others may read it from now on.

        Raises:
            PlexError: `not_found`.
        """
        self._call({"op": "seal_staged", "staging_id": staging_id.hex()})

    def open_version(self, manifest: statemanager_pb2.VersionManifest) -> memoryview:
        """Return a published version's region, read-only and not copied, alive as long as the view.

        Check `manifest.block_checksums` before serving from it.

        Raises:
            PlexError: `not_found` when this node does not hold it (any more).
        """
        key = {"deployment_id": manifest.deployment_id, "version": manifest.version}
        reply = self._call({"op": "open_version", **key})
        mapped = _map_file(reply, is_writable=False)
        finalizer = weakref.finalize(mapped, self._closed_versions.append, key)
        finalizer.atexit = False
        return memoryview(mapped)[: manifest.nbytes]

    def close(self) -> None:
        """Leave: the regions are freed, and touching them from now on ends the process."""
        with self._lock:
            if self._is_closed:
                return
            self._is_closed = True
            for region in self._regions.values():
                region.memory.park()
            for sock in (self._data_sock, self._call_sock):
                _shut(sock)
        if threading.current_thread() is not self._thread:
            self._thread.join(timeout=5)

    def _call(self, header: dict[str, Any], body: bytes = b"") -> Message:
        with self._lock:
            if self._is_closed:
                raise PlexError(ErrorCode.UNAVAILABLE, f"{header['op']}: this client was closed")
            try:
                self._tell_closed_versions()
                return self._exchange(header, body)
            except (OSError, EOFError) as error:
                raise PlexError(
                    ErrorCode.UNAVAILABLE,
                    f"{header['op']}: the state manager does not answer ({error}); the node agent "
                    "restarts it and the ranks of this node",
                ) from error

    def _exchange(self, header: dict[str, Any], body: bytes = b"") -> Message:
        dataplane.send(self._call_sock, Message(header=header, body=body))
        return dataplane.raise_if_failure(dataplane.receive(self._call_sock))

    def _tell_closed_versions(self) -> None:
        while self._closed_versions:
            self._exchange({"op": "close_version", **self._closed_versions.popleft()})

    def _map(self, message: Message) -> None:
        """Map the granted regions and close the descriptors that came with them."""
        try:
            for name, grant in message.header["regions"].items():
                extents = [Extent(offset=at, nbytes=nbytes) for at, nbytes in grant["extents"]]
                self._regions[name].memory.attach(message.fds[grant["fd"]], extents)
        finally:
            dataplane.close_all(message.fds)

    def _serve_moves(self) -> None:
        steps = {"export": self._export, "release": self._release, "ready": self._ready}
        try:
            while True:
                request = dataplane.receive(self._data_sock)
                dataplane.send(self._data_sock, _answer(steps[request.header["op"]], request))
        except (OSError, EOFError) as error:
            if not self._is_closed:
                log.warning("state manager left", error=error)

    def _export(self, request: Message) -> Message:
        del request
        report = self._handlers.export()
        for region in self._regions.values():
            region.memory.settle()
        header = {
            "dirty": sorted(report.dirty),
            "scalars": report.scalars,
            "applied_seq": report.applied_seq,
        }
        return Message(header=header)

    def _release(self, request: Message) -> Message:
        del request
        for region in self._regions.values():
            region.memory.park()
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
        log.error("move step failed", step=request.header["op"])  # noqa: TRY400 - adds the traceback
        text = f"{request.header['op']} failed on the rank: {type(error).__name__}: {error}"
        return dataplane.failure(PlexError(ErrorCode.INTERNAL, text))


def _connect(path: str) -> socket.socket:
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    sock.settimeout(CALL_TIMEOUT_S)
    try:
        sock.connect(path)
    except OSError as error:
        sock.close()
        raise PlexError(
            ErrorCode.UNAVAILABLE, f"no state manager listens at {path}: {error}"
        ) from error
    return sock


def _shut(sock: socket.socket) -> None:
    try:
        sock.shutdown(socket.SHUT_RDWR)
    except OSError:
        pass  # the state manager left first
    finally:
        sock.close()


def _map_file(reply: Message, *, is_writable: bool) -> mmap.mmap:
    """Map the file that came with `reply` and close its descriptor."""
    (fd,) = reply.fds
    nbytes = max(1, int(reply.header["nbytes"]))
    try:
        if is_writable:
            return mmap.mmap(fd, nbytes)
        return mmap.mmap(fd, nbytes, flags=mmap.MAP_PRIVATE, prot=mmap.PROT_READ)
    finally:
        os.close(fd)
