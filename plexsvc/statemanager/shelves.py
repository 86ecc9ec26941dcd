"""Shelves of a node: published versions and staged bundles, bounded, beside live state."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Final

from plexclient.ids import show
from plexsvc.errors import ErrorCode, PlexError, bad_request, not_found, payload_too_large
from plexsvc.ids import JobId, TenantId, VersionId
from plexsvc.slots import Limit
from plexsvc.statemanager.entries import Budget

UNHEARD: Final = 0
"""Holds what a predecessor kept until all of its clients have said what they map."""


@dataclass(slots=True, kw_only=True)
class VersionEntry:
    """Its bytes and who needs them: the scheduler until released, mappings until closed."""

    job_id: JobId
    nbytes: int
    holders: Counter[int]
    is_released: bool = False


class VersionShelf:
    """Published versions, a bounded number per deployment; the last holder frees one."""

    def __init__(self, host: Budget, *, max_per_deployment: int) -> None:
        self._host = host
        self._max = max_per_deployment
        self._entries: dict[VersionId, VersionEntry] = {}

    def admit(self, key: VersionId, *, job_id: JobId, nbytes: int) -> None:
        """Reserve host bytes for a new version.

        Raises:
            PlexError: `no_room` when the deployment has its share of versions or the host is full.
        """
        assert key not in self._entries, key
        kept = [k for k in self._entries if k.deployment_id == key.deployment_id]
        if len(kept) >= self._max:
            raise PlexError(
                ErrorCode.NO_ROOM,
                f"{key} not published: {len(kept)} versions "
                "are kept already (max_versions_per_deployment); release one first",
                need=1,
                free=0,
            )
        self._host.take(nbytes)
        self._entries[key] = VersionEntry(job_id=job_id, nbytes=nbytes, holders=Counter())

    def adopt(self, key: VersionId, *, job_id: JobId, nbytes: int, is_released: bool) -> None:
        """Take over a version of a predecessor; `unhold_all(UNHEARD)` once holders are known.

        Raises:
            PlexError: `no_room`.
        """
        self._host.take(nbytes)
        self._entries[key] = VersionEntry(
            job_id=job_id, nbytes=nbytes, holders=Counter([UNHEARD]), is_released=is_released
        )

    def get(self, key: VersionId, *, job_id: JobId | None = None) -> VersionEntry:
        """Return a version that may still be opened, by `job_id` if given.

        Raises:
            PlexError: `not_found`.
        """
        entry = self._entries.get(key)
        is_visible = entry is not None and job_id in (None, entry.job_id)
        if entry is None or entry.is_released or not is_visible:
            raise not_found(f"{key} is not on this node; publish it")
        return entry

    def __contains__(self, key: VersionId) -> bool:
        """Whether its bytes are kept."""
        return key in self._entries

    def job_of(self, key: VersionId) -> JobId:
        """Return the job that it belongs to."""
        return self._entries[key].job_id

    def is_released(self, key: VersionId) -> bool:
        """Whether only mappings keep it."""
        return self._entries[key].is_released

    def hold(self, key: VersionId, holder: int) -> None:
        """Count a mapping of it."""
        self._entries[key].holders[holder] += 1

    def set_held(self, key: VersionId, holder: int, *, count: int) -> None:
        """Take a client's word for its mappings; it may say so again."""
        self._entries[key].holders[holder] = count

    def unhold(self, key: VersionId, holder: int) -> bool:
        """Count a mapping less; True when that freed the version."""
        entry = self._entries.get(key)
        if entry is None:
            return False
        entry.holders[holder] -= 1
        entry.holders += Counter()  # drops what is not positive
        return self._free_unneeded(key)

    def unhold_all(self, holder: int) -> list[VersionId]:
        """Forget a holder that left; return the versions that freed."""
        for entry in self._entries.values():
            entry.holders.pop(holder, None)
        return [key for key in sorted(self._entries) if self._free_unneeded(key)]

    def release(self, key: VersionId) -> bool:
        """End the scheduler's hold; True when that freed the version. Safe to repeat."""
        entry = self._entries.get(key)
        if entry is None:
            return False
        entry.is_released = True
        return self._free_unneeded(key)

    def withdraw(self, key: VersionId) -> None:
        """Take back an admission whose publication failed."""
        self._host.give(self._entries.pop(key).nbytes)

    def _free_unneeded(self, key: VersionId) -> bool:
        entry = self._entries[key]
        if not entry.is_released or entry.holders:
            return False
        self.withdraw(key)
        return True


RESULTS_PART: Final = 4
"""One part of so many of staging memory is never given to uploads, so that what runs can answer.

A token of a batch takes 12 bytes or more, and 4 bytes of an answer."""


@dataclass(slots=True, kw_only=True)
class StagedEntry:
    """One staged bundle; `owner` is the client whose result it is, None for an upload."""

    tenant: TenantId
    job_id: JobId
    nbytes: int
    owner: int | None = None
    is_sealed: bool = False

    @property
    def is_result(self) -> bool:
        """Whether a rank wrote it, not a client."""
        return self.owner is not None


def shown(key: bytes) -> str:
    """Return the short printable form of a bundle's key, which begins with its job."""
    return show(key.partition(b"/")[2])


class StagingRoom:
    """Staged bundles by key: bounded bytes, shared by tenants, and a bounded number of a job.

    Uploads get a part of the bytes, results what is left. A tenant holds at most as much of either
    as it leaves free.
    """

    def __init__(self, *, staging_bytes: int, max_per_job: int) -> None:
        self.budget = Budget("staging", total=staging_bytes)
        self._uploads = _limit("uploads", staging_bytes - staging_bytes // RESULTS_PART)
        self._results = _limit("results", staging_bytes)
        self._max_per_job = max_per_job
        self._entries: dict[bytes, StagedEntry] = {}

    def admit(self, staging_id: bytes, entry: StagedEntry) -> None:
        """Reserve room for a bundle.

        Raises:
            PlexError: `payload_too_large` for one that could never fit, `staging_full` for one that
                does not fit now; `bad_request` for an id in use.
        """
        if staging_id in self._entries:
            text = f"staging id {shown(staging_id)} is in use"
            raise bad_request(f"{text}; ids are for one bundle")
        limit = self._results if entry.is_result else self._uploads
        if entry.nbytes > limit.most:
            raise payload_too_large(
                f"{entry.nbytes} bytes are more than the {limit.most} that one tenant may have of "
                f"the {limit.total} {limit.what} ({self.budget.total} {limit.key}); send smaller "
                "batches",
                need=entry.nbytes,
                limit=limit.most,
            )
        self._check_room(entry)
        self.adopt(staging_id, entry)

    def adopt(self, staging_id: bytes, entry: StagedEntry) -> None:
        """Take a bundle that was admitted already, perhaps under other shares.

        Raises:
            PlexError: `no_room`.
        """
        self.budget.take(entry.nbytes)
        self._entries[staging_id] = entry

    def get(self, staging_id: bytes) -> StagedEntry:
        """Return an entry.

        Raises:
            PlexError: `not_found`.
        """
        entry = self._entries.get(staging_id)
        if entry is None:
            raise not_found(
                f"nothing is staged on this node under {shown(staging_id)}; it was never sent, "
                "or it was answered and dropped"
            )
        return entry

    def find(self, staging_id: bytes) -> StagedEntry | None:
        """Return an entry or None."""
        return self._entries.get(staging_id)

    def drop(self, staging_id: bytes) -> int:
        """Forget a bundle and return its bytes, 0 for an unknown one."""
        entry = self._entries.pop(staging_id, None)
        if entry is None:
            return 0
        self.budget.give(entry.nbytes)
        return entry.nbytes

    def ids_of(self, job_id: JobId) -> list[bytes]:
        """Return the ids of a job's bundles."""
        return [key for key, entry in self._entries.items() if entry.job_id == job_id]

    def unsealed_of(self, owner: int) -> list[bytes]:
        """Return the ids a client was still writing."""
        return [
            key
            for key, entry in self._entries.items()
            if entry.owner == owner and not entry.is_sealed
        ]

    def _check_room(self, entry: StagedEntry) -> None:
        alike = [other for other in self._entries.values() if other.is_result == entry.is_result]
        count = sum(other.job_id == entry.job_id for other in alike)
        if count >= self._max_per_job:
            raise PlexError(
                ErrorCode.STAGING_FULL,
                f"not staged: {entry.job_id} has {count} "
                f"{'results' if entry.is_result else 'uploads'} staged (max_staged_per_job); try "
                "again when earlier operations are answered",
            )
        held = sum(other.nbytes for other in alike if other.tenant == entry.tenant)
        if entry.is_result:
            limit, taken = self._results, self.budget.used
        else:
            limit, taken = self._uploads, sum(other.nbytes for other in alike)
            # Results that have more than their part have it of what uploads may take.
            taken = max(taken, self.budget.used - (self.budget.total - limit.total))
        limit.check(entry.tenant, held=held, taken=taken, more=entry.nbytes)


def _limit(kind: str, nbytes: int) -> Limit:
    what = f"bytes of staging memory for {kind}"
    return Limit(total=nbytes, what=what, key="staging_bytes", code=ErrorCode.STAGING_FULL)
