"""Published weight versions: which exist, which pulls need them, which may go."""

from __future__ import annotations

from collections.abc import Iterable

from plexclient.wire.v1 import statemanager_pb2
from plexsvc.errors import ErrorCode, PlexError
from plexsvc.ids import DeploymentId

Manifests = list[statemanager_pb2.VersionManifest]


class Versions:
    """The manifests of each deployment's newest versions, one a node that holds pieces."""

    def __init__(self, *, keep: int) -> None:
        self._keep = keep
        self._known: dict[DeploymentId, dict[int, Manifests]] = {}

    def add(self, deployment_id: DeploymentId, version: int, manifests: Manifests) -> None:
        """Record a published version; publishing it again replaces it."""
        self._known.setdefault(deployment_id, {})[version] = manifests

    def find(self, deployment_id: DeploymentId, version: int) -> Manifests:
        """Return the manifests of a version, or of the newest for version 0.

        Raises:
            PlexError: `not_found` when it was not published or was released.
        """
        known = self._known.get(deployment_id, {})
        wanted = version or max(known, default=0)
        if wanted not in known:
            have = ", ".join(map(str, sorted(known))) or "none"
            raise PlexError(
                ErrorCode.NOT_FOUND,
                f"version {version} of {deployment_id} is not published (known: {have}; the last "
                f"{self._keep} are kept, scheduler.max_versions_per_deployment); publish again",
                version=version,
            )
        return known[wanted]

    def surplus(
        self, deployment_id: DeploymentId, *, needed: Iterable[int]
    ) -> dict[int, Manifests]:
        """Take out and return the oldest versions beyond the bound that no pull still needs."""
        known = self._known.get(deployment_id, {})
        keep = set(sorted(known)[-self._keep :]) | set(needed)
        gone = [version for version in sorted(known) if version not in keep]
        return {version: known.pop(version) for version in gone}

    def forget(self, deployment_id: DeploymentId) -> dict[int, Manifests]:
        """Take out and return all versions of a deployment that is gone."""
        return self._known.pop(deployment_id, {})
