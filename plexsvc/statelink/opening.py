"""Opener of published versions: maps them on this host, which has those of another brought here."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

from plexclient.wire.v1.statemanager_pb2 import PublishedVersion, VersionHolder, VersionManifest
from plexsvc.errors import ErrorCode, PlexError, not_found
from plexsvc.ids import VersionId
from plexsvc.log import Log
from plexsvc.rpc.addresses import host_of
from plexsvc.rpc.keys import read_keys
from plexsvc.statelink.client import StateClient
from plexsvc.statelink.far import Far
from plexsvc.statelink.member import Member
from plexsvc.weights.manifests import adds_pieces
from plexsvc.weights.reading import OpenedPart, OpenedVersion

log = Log(__name__)


class Here(Protocol):
    """A process's own node, as `StateClient` reaches it."""

    def open_version(self, version: VersionId) -> OpenedPart:
        """Return a version's part on this node."""

    def fetch_version(self, version: PublishedVersion, holder: VersionHolder) -> OpenedPart:
        """Return another node's part of a version, brought to this node."""


class VersionOpener:
    """Opens published versions for one process; every call blocks. Used from one thread at a time.

    With `here`, the process has a client of its own node's state manager already.
    """

    def __init__(self, config: Member, *, here: Here | None = None) -> None:
        self._config = config
        self._here = here
        self._clients: dict[str, StateClient] = {}

    def open(self, version: PublishedVersion) -> OpenedVersion:
        """Return each part's manifest, and the bytes of this node's part and of those that add.

        One holder of each part is asked, and another if that is out of reach.

        Raises:
            PlexError: `not_found` when the version was released or its holder is out of reach.
        """
        opened, done = OpenedVersion(published=version), set[str]()
        # This node's own first: it is mapped, and not brought.
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
        # Data-parallel ranks on several nodes hold the same boxes: once is enough.
        if not opened.parts or adds_pieces(manifest, opened.manifests):
            opened.parts.append(part or self._fetched(version, far, manifest))
        opened.manifests.append(manifest)

    def _fetched(
        self, version: PublishedVersion, far: Far, manifest: VersionManifest
    ) -> OpenedPart:
        """Return another host's part, which this node keeps for all who want it if it has room."""
        config = self._config
        if not config.job_id or (self._here is None and not config.data_socket):
            return far.read_whole(manifest)
        try:
            here = self._here or self._client(config.data_socket, config.device_index)
            return here.fetch_version(version, far.holder)
        except PlexError as error:
            if error.code not in {ErrorCode.NO_ROOM, ErrorCode.NO_PLACEMENT}:
                raise
            log.warning("version not kept on this node", error=error)
            return far.read_whole(manifest)

    def _is_here(self, holder: VersionHolder) -> bool:
        return holder.node_id in {"", self._config.node_id}

    def _mapped(self, version: PublishedVersion, holder: VersionHolder) -> OpenedPart | None:
        """Return a holder's part as this host maps it, None when it must be streamed."""
        config = self._config
        if not config.job_id:
            return None  # of no job, and a state manager maps a job's versions for that job alone
        if self._is_here(holder):
            if self._here is not None:
                return self._here.open_version(VersionId.of(version))
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

    def _map(self, version: PublishedVersion, socket: str, *, device_index: int) -> OpenedPart:
        return self._client(socket, device_index).open_version(VersionId.of(version))

    def _client(self, socket: str, device_index: int) -> StateClient:
        known = self._clients.get(socket)
        if known is not None and known.is_lost:  # its state manager may have a successor by now
            self._clients.pop(socket).close()
        if socket not in self._clients:
            self._clients[socket] = StateClient(
                socket, self._config, device_index=device_index, handlers=None
            )
        return self._clients[socket]
