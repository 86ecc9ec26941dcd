"""Published weight versions by deployment: which exist, and which may go."""

from __future__ import annotations

from collections.abc import Iterable

from plexsvc.errors import ErrorCode, PlexError
from plexsvc.ids import DeploymentId
from plexsvc.scheduler.ledger.jobs import Published


class Versions:
    """The newest versions of each deployment."""

    def __init__(self, *, keep: int) -> None:
        self._keep = keep
        self._known: dict[DeploymentId, dict[int, Published]] = {}

    def add(self, published: Published) -> None:
        """Record a published version; publishing it again replaces it."""
        known = self._known.setdefault(DeploymentId(published.deployment_id), {})
        known[published.version] = published

    def find(self, deployment_id: DeploymentId, version: int) -> Published:
        """Return a version, or the newest for version 0.

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

    def surplus(self, deployment_id: DeploymentId, *, needed: Iterable[int]) -> list[Published]:
        """Take out and return the oldest versions beyond the bound that no pull still needs."""
        known = self._known.get(deployment_id, {})
        keep = set(sorted(known)[-self._keep :]) | set(needed)
        return [known.pop(version) for version in sorted(known) if version not in keep]

    def forget(self, deployment_id: DeploymentId) -> list[Published]:
        """Take out and return all versions of a deployment that is gone."""
        known = self._known.pop(deployment_id, {})
        return [known[version] for version in sorted(known)]
