"""Opener of published versions: maps their bytes on this host, streams them from another."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeVar

import grpc

from plexclient.wire.v1.statemanager_pb2 import (
    GetManifestRequest,
    PublishedVersion,
    ReadVersionRequest,
    VersionHolder,
    VersionManifest,
)
from plexclient.wire.v1.statemanager_pb2_grpc import StateManagerStub
from plexsvc import progress
from plexsvc.errors import ErrorCode, PlexError, not_found, unavailable
from plexsvc.ids import VersionId
from plexsvc.log import Log
from plexsvc.rpc.addresses import host_of
from plexsvc.rpc.channels import open_blocking_channel
from plexsvc.rpc.keys import ClusterKeys, read_keys
from plexsvc.statelink.client import READER_PATIENCE_S, StateClient
from plexsvc.statelink.member import Member
from plexsvc.weights.manifests import adds_pieces
from plexsvc.weights.reading import OpenedVersion, Published

log = Log(__name__)

T = TypeVar("T")

OpenHere = Callable[[VersionId], Published]
"""Opens a version of this node."""

READ_TIMEOUT_S: Final = 120.0
"""Longest time that a manifest may take to arrive from another host."""

SLOWEST_BYTES_PER_S: Final = 1 << 20
"""A version that arrives more slowly than this is given up; what hangs, its operation's watch."""

MAX_READS: Final = 2
"""Times a version is asked for: its holder may die and be replaced."""


class VersionOpener:
    """Opens published versions for one process; every call blocks. Used from one thread at a time.

    With `here`, the process has a client of its own node's state manager already.
    """

    def __init__(self, config: Member, *, here: OpenHere | None = None) -> None:
        self._config = config
        self._here = here
        self._clients: dict[str, StateClient] = {}

    def open(self, version: PublishedVersion) -> OpenedVersion:
        """Return each part's manifest, and the bytes of this node's part and of those that add.

        One holder of each part is asked, and another if that is out of reach.

        Raises:
            PlexError: `not_found` when the version was released or its holder is out of reach.
        """
        opened, done = OpenedVersion(), set[str]()
        holders = sorted(version.holders, key=lambda holder: not self._is_here(holder))
        for at, holder in enumerate(holders):
            if holder.part and holder.part in done:
                continue
            try:
                self._add(opened, version, holder)
            except PlexError as error:
                others = [other.node_id for other in holders[at + 1 :] if other.part == holder.part]
                if not (holder.part and others):
                    raise
                log.warning("part read elsewhere", node=holder.node_id, others=others, error=error)
            else:
                done.add(holder.part)
        return opened

    def close(self) -> None:
        """Leave the data planes."""
        for client in self._clients.values():
            client.close()

    def _add(self, opened: OpenedVersion, version: PublishedVersion, holder: VersionHolder) -> None:
        """Add a holder's manifest, and its bytes if they add to what is there."""
        part = self._mapped(version, holder)
        far = Far(holder, lambda: read_keys(self._config.keys_file))
        manifest = part.manifest if part is not None else far.read_manifest(version)
        if not opened.parts or adds_pieces(manifest, opened.manifests):
            opened.parts.append(part or far.read_whole(manifest))
        opened.manifests.append(manifest)

    def _is_here(self, holder: VersionHolder) -> bool:
        return holder.node_id in {"", self._config.node_id}

    def _mapped(self, version: PublishedVersion, holder: VersionHolder) -> Published | None:
        """Return a holder's part as this host maps it, None when it must be streamed."""
        config = self._config
        if not config.job_id:
            return None  # of no job, and a state manager maps a job's versions for that job alone
        if self._is_here(holder):
            if self._here is not None:
                return self._here(VersionId.of(version))
            return self._map(version, config.data_socket, device_index=config.device_index)
        is_near = host_of(holder.state_manager) == host_of(config.listen)
        if is_near and holder.data_socket and Path(holder.data_socket).exists():  # one host
            return self._map(version, holder.data_socket, device_index=0)
        if host_of(holder.state_manager):
            return None
        raise not_found(
            f"{VersionId.of(version)} lies on node "
            f"{holder.node_id}, which {config.node_id} cannot map and which has no address for "
            "other hosts (its `address` in the cluster's file, `listen` of its agent)",
            node_id=holder.node_id,
        )

    def _map(self, version: PublishedVersion, socket: str, *, device_index: int) -> Published:
        if socket not in self._clients:
            self._clients[socket] = StateClient(
                socket, self._config, device_index=device_index, handlers=None
            )
        try:
            return self._clients[socket].open_version(VersionId.of(version))
        except PlexError as error:
            if error.code is ErrorCode.UNAVAILABLE:
                self._clients.pop(socket).close()  # its state manager may have a successor
            raise


def _advance(nbytes: int) -> None:
    del nbytes
    progress.advance()


@dataclass(frozen=True, slots=True)
class Far:
    """A holder of a version whose bytes must be asked for; calls raise `unavailable`."""

    holder: VersionHolder
    keys: Callable[[], ClusterKeys]
    tell: Callable[[int], None] = _advance
    """Takes the bytes of each chunk that came."""

    def read_manifest(self, version: PublishedVersion) -> VersionManifest:
        """Return the manifest of its part, asked of its state manager or the successor."""
        request = GetManifestRequest(**VersionId.of(version)._asdict())
        return self._ask(request, lambda state: state.GetManifest(request, timeout=READ_TIMEOUT_S))

    def read_whole(self, manifest: VersionManifest) -> Published:
        """Return its part, streamed from its state manager or the successor."""
        version = GetManifestRequest(**VersionId.of(manifest)._asdict())
        wanted = ReadVersionRequest(**VersionId.of(manifest)._asdict())
        timeout_s = READ_TIMEOUT_S + manifest.nbytes / SLOWEST_BYTES_PER_S

        def stream(state: StateManagerStub) -> bytearray:
            data = bytearray(manifest.nbytes)
            for chunk in state.ReadVersion(wanted, timeout=timeout_s):
                end = chunk.offset + len(chunk.data)
                if end > len(data):
                    break  # longer than its manifest: the checksums will say so
                data[chunk.offset : end] = chunk.data
                self.tell(len(chunk.data))
            return data

        data = memoryview(self._ask(version, stream)).toreadonly()
        return Published(manifest=manifest, data=data)

    def _ask(self, version: GetManifestRequest, call: Callable[[StateManagerStub], T]) -> T:
        """Return what it answers; if it breaks off, its successor is awaited and asked."""
        cause: Exception | None = None
        with open_blocking_channel(self.holder.state_manager, self.keys()) as channel:
            state = StateManagerStub(channel)
            for _ in range(MAX_READS):
                try:
                    return call(state)
                except grpc.RpcError as error:
                    cause = error
                try:
                    state.GetManifest(version, timeout=READER_PATIENCE_S, wait_for_ready=True)
                except grpc.RpcError:
                    break
        raise unavailable(
            f"{VersionId.of(version)} could not be read from {self.holder.state_manager}: {cause}"
        ) from cause
