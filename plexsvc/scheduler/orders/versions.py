"""Published weight versions by deployment: which exist, which describe its state, which may go.

A deployment's state is published once: until an operation changes it, every further publish hands
out the version that there is. A version is kept while it is among its deployment's newest, and
while somebody uses it: a pull that waits or runs, instances that serve it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from typing import Final

import msgspec

from plexsvc.errors import ErrorCode, PlexError
from plexsvc.ids import DeploymentId, NodeId, VersionId
from plexsvc.scheduler.ledger.durable import Durable
from plexsvc.scheduler.ledger.held import Published


@dataclass(slots=True)
class _DeploymentVersions:
    """One deployment's versions."""

    published: dict[int, Published] = field(default_factory=dict)
    """By the number of their publish."""
    handed_out: dict[int, int] = field(default_factory=dict)
    """The version that a publish handed out, by its number."""
    current: Published | None = None
    """The version that is the deployment's state now."""
    copy: Published | None = None
    """Of a durable deployment: the copy of its last step."""
    second: Published | None = None
    """The one on another node, perhaps of an earlier step."""
    has_model: bool = False
    """Whether all that ran on the model's weights is kept, so that they are the second copy."""
    unknown_to: int | None = None
    """What ran up to this number since is not in the store; None: that is not known."""
    is_gone: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class _KeptShelf:
    """A shelf as the store has it."""

    published: tuple[Published, ...]
    handed_out: dict[int, int]
    copy: Published | None = None
    second: Published | None = None
    has_model: bool = False
    unknown_to: int | None = None


_KEPT_SHELF: Final = msgspec.json.Decoder(_KeptShelf)


class Versions:
    """The versions of all deployments."""

    def __init__(self, *, keep: int) -> None:
        self._keep = keep
        self._shelves: dict[DeploymentId, _DeploymentVersions] = {}

    def add(self, published: Published) -> None:
        """Record a published version, which is its deployment's state until that changes."""
        shelf = self._shelf(published.version.deployment_id)
        shelf.published[published.version.version] = shelf.current = published
        shelf.is_gone = False

    def hand_out(
        self, deployment_id: DeploymentId, *, incarnation: int, number: int
    ) -> Published | None:
        """Return the version that is the state which publish `number` freezes, if there is one."""
        shelf = self._shelf(deployment_id)
        current = shelf.current
        if current is None or current.version.incarnation != incarnation:
            return None
        shelf.handed_out[number] = current.version.version
        return current

    def changed(self, deployment_id: DeploymentId) -> None:
        """Note that a deployment's parameters may change from here on."""
        self._shelf(deployment_id).current = None

    def find(self, deployment_id: DeploymentId, number: int) -> Published:
        """Return the version that a publish froze or handed out.

        Raises:
            PlexError: `not_found` when it was not published or was released.
        """
        shelf = self._shelf(deployment_id)
        found = shelf.published.get(shelf.handed_out.get(number, number))
        if found is None:
            have = ", ".join(map(str, sorted(shelf.published))) or "none"
            raise PlexError(
                ErrorCode.NOT_FOUND,
                f"version {number} of {deployment_id} is not published (known: {have}; those in "
                f"use and the last {self._keep} are kept, scheduler.max_versions_per_deployment); "
                "publish again",
                version=number,
            )
        return found

    def held(self, deployment_id: DeploymentId, *, with_next: bool = True) -> Counter[NodeId]:
        """Return the bytes that nodes hold of a deployment's versions.

        With room for the next while it may publish: that is made before an older one is released.
        """
        shelf = self._shelves.get(deployment_id, _DeploymentVersions())
        sizes: dict[NodeId, list[int]] = {}
        for published in shelf.published.values():
            for node_id, nbytes in zip(published.nodes, published.nbytes, strict=False):
                sizes.setdefault(node_id, []).append(nbytes)
        next_one = int(with_next and not shelf.is_gone)
        return Counter({node: sum(each) + next_one * max(each) for node, each in sizes.items()})

    def kept(self, deployment_id: DeploymentId) -> bytes:
        """Return what another scheduler needs to find a deployment's versions."""
        shelf = self._shelf(deployment_id)
        kept = _KeptShelf(
            published=tuple(shelf.published.values()),
            handed_out=shelf.handed_out,
            copy=shelf.copy,
            second=shelf.second,
            has_model=shelf.has_model,
            unknown_to=shelf.unknown_to,
        )
        return msgspec.json.encode(kept)

    def restore(self, deployment_id: DeploymentId, kept: bytes) -> None:
        """Take over what `kept` returned; none of these is taken for the state as it is now."""
        if kept:
            found = _KEPT_SHELF.decode(kept)
            published = {one.version.version: one for one in found.published}
            self._shelves[deployment_id] = _DeploymentVersions(
                published,
                dict(found.handed_out),
                copy=found.copy,
                second=found.second,
                has_model=found.has_model,
                unknown_to=found.unknown_to,
            )

    def known(self) -> set[VersionId]:
        """Return all versions and copies that are counted on."""
        found: set[VersionId] = set()
        for shelf in self._shelves.values():
            kept = (*shelf.published.values(), shelf.copy, shelf.second)
            found |= {one.version for one in kept if one is not None}
        return found

    def copied(self, deployment_id: DeploymentId, durable: Durable) -> None:
        """Note where the copies of a durable deployment's last steps are."""
        shelf = self._shelf(deployment_id)
        shelf.copy, shelf.second = durable.copy, durable.second
        shelf.has_model = durable.second_seq == 0
        shelf.unknown_to = durable.unknown_to

    def recall(self, deployment_id: DeploymentId, durable: Durable) -> None:
        """Have a durable deployment's record know what `copied` noted."""
        shelf = self._shelf(deployment_id)
        if shelf.unknown_to is not None:
            durable.unknown_to = shelf.unknown_to
        if shelf.copy is not None:
            durable.copy, durable.seq = shelf.copy, shelf.copy.version.version
            durable.second = shelf.second
            durable.second_seq = 0 if shelf.has_model else None
            if shelf.second is not None:
                durable.second_seq = shelf.second.version.version

    def forget(self, deployment_id: DeploymentId) -> None:
        """Note that a deployment is gone: its versions stay only while they are used."""
        self._shelf(deployment_id).is_gone = True

    def surplus(self, *, used: AbstractSet[VersionId]) -> list[Published]:
        """Take out and return the versions that nobody uses and that are not among the newest."""
        gone: list[Published] = []
        for deployment_id, shelf in list(self._shelves.items()):
            keep = 0 if shelf.is_gone else self._keep
            older = sorted(shelf.published)[: max(0, len(shelf.published) - keep)]
            unused = [n for n in older if shelf.published[n].version not in used]
            gone += [shelf.published.pop(number) for number in unused]
            shelf.handed_out = {
                asked: number
                for asked, number in shelf.handed_out.items()
                if number in shelf.published
            }
            if shelf.is_gone and not shelf.published:
                del self._shelves[deployment_id]
        return gone

    def _shelf(self, deployment_id: str) -> _DeploymentVersions:
        return self._shelves.setdefault(DeploymentId(deployment_id), _DeploymentVersions())
