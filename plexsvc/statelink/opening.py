"""Opener of published versions: maps their bytes on this host, streams them from another."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final, Protocol

import grpc

from plexclient.wire.channels import CHANNEL_OPTIONS
from plexclient.wire.v1 import statemanager_pb2, statemanager_pb2_grpc
from plexsvc.errors import ErrorCode, PlexError
from plexsvc.statelink.client import READER_PATIENCE_S, StateClient
from plexsvc.weights.manifests import adds_pieces
from plexsvc.weights.reading import Published

OpenHere = Callable[[statemanager_pb2.VersionManifest], memoryview]

READ_TIMEOUT_S: Final = 120.0
"""Longest time a version may take to arrive from another host."""


MAX_READS: Final = 2
"""Times a version is asked for: its holder may die and be replaced."""


class Reader(Protocol):
    """Who reads: the configuration of a rank or an instance."""

    @property
    def wpg_id(self) -> str:
        """Its group."""
        ...

    @property
    def rank(self) -> int:
        """Its number in the group."""
        ...

    @property
    def incarnation(self) -> int:
        """Which generation of the group's processes it is."""
        ...

    @property
    def job_id(self) -> str:
        """Its job: others' versions are not found."""
        ...

    @property
    def node_id(self) -> str:
        """Its node."""
        ...

    @property
    def data_socket(self) -> str:
        """The data plane of its node."""
        ...

    @property
    def device_index(self) -> int:
        """Its device on its node."""
        ...


class VersionOpener:
    """Opens published versions for one process; every call blocks. Used from one thread at a time.

    With `here`, the process has a client of its own node's state manager already.
    """

    def __init__(self, config: Reader, *, here: OpenHere | None = None) -> None:
        self._config = config
        self._here = here
        self._clients: dict[str, StateClient] = {}

    def open(self, manifests: Sequence[statemanager_pb2.VersionManifest]) -> list[Published]:
        """Return this node's part of a version, and those of other nodes that add pieces.

        Raises:
            PlexError: `not_found` when the version was released or its holder is out of reach.
        """
        found: list[Published] = []
        for manifest in sorted(manifests, key=lambda m: not self._is_here(m)):
            if not found or adds_pieces(manifest, [part.manifest for part in found]):
                found.append(Published(manifest=manifest, data=self._open(manifest)))
        return found

    def _is_here(self, manifest: statemanager_pb2.VersionManifest) -> bool:
        return manifest.node_id in {"", self._config.node_id}

    def _open(self, manifest: statemanager_pb2.VersionManifest) -> memoryview:
        config = self._config
        if self._is_here(manifest):
            if self._here is not None:
                return self._here(manifest)
            return self._map(manifest, config.data_socket, device_index=config.device_index)
        if manifest.data_socket and Path(manifest.data_socket).exists():  # another node, one host
            return self._map(manifest, manifest.data_socket, device_index=0)
        if manifest.state_manager:
            return memoryview(read_whole(manifest)).toreadonly()
        raise PlexError(
            ErrorCode.NOT_FOUND,
            f"version {manifest.version} of {manifest.deployment_id} lies on node "
            f"{manifest.node_id}, which {config.node_id} cannot map and whose manifest names no "
            f"state manager to read it from",
            node_id=manifest.node_id,
        )

    def close(self) -> None:
        """Leave the data planes."""
        for client in self._clients.values():
            client.close()

    def _map(
        self, manifest: statemanager_pb2.VersionManifest, socket: str, *, device_index: int
    ) -> memoryview:
        try:
            return self._client(socket, device_index).open_version(manifest)
        except PlexError as error:
            if error.code is ErrorCode.UNAVAILABLE and socket in self._clients:
                self._clients.pop(socket).close()  # its state manager may have a successor
            raise

    def _client(self, socket: str, device_index: int) -> StateClient:
        if socket not in self._clients:
            config = self._config
            self._clients[socket] = StateClient(
                socket,
                wpg_id=config.wpg_id,
                rank=config.rank,
                incarnation=config.incarnation,
                device_index=device_index,
                job_id=config.job_id,
                handlers=None,
            )
        return self._clients[socket]


def read_whole(manifest: statemanager_pb2.VersionManifest) -> bytearray:
    """Return a version streamed whole from the state manager that holds it, or its successor.

    Raises:
        PlexError: `unavailable`.
    """
    cause: Exception | None = None
    with grpc.insecure_channel(manifest.state_manager, options=list(CHANNEL_OPTIONS)) as channel:
        for _ in range(MAX_READS):
            try:
                return _stream(manifest, channel)
            except grpc.RpcError as error:
                cause = error
            try:
                grpc.channel_ready_future(channel).result(timeout=READER_PATIENCE_S)
            except grpc.FutureTimeoutError:
                break
    raise PlexError(
        ErrorCode.UNAVAILABLE,
        f"version {manifest.version} of {manifest.deployment_id} could not be read from "
        f"{manifest.state_manager}: {cause}",
    ) from cause


def _stream(manifest: statemanager_pb2.VersionManifest, channel: grpc.Channel) -> bytearray:
    request = statemanager_pb2.ReadVersionRequest(
        deployment_id=manifest.deployment_id, version=manifest.version
    )
    data = bytearray(manifest.nbytes)
    stub = statemanager_pb2_grpc.StateManagerStub(channel)
    for chunk in stub.ReadVersion(request, timeout=READ_TIMEOUT_S):
        end = chunk.offset + len(chunk.data)
        if end > len(data):
            break  # longer than its manifest: the checksums will say so
        data[chunk.offset : end] = chunk.data
    return data
