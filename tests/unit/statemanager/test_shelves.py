"""Published versions and staged bundles are counted, bounded and given back."""

from __future__ import annotations

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from plexsvc.errors import ErrorCode, PlexError
from plexsvc.ids import JobId, TenantId, VersionId
from plexsvc.statemanager.entries import Budget
from plexsvc.statemanager.shelves import UNHEARD, StagedEntry, StagingRoom, VersionShelf

JOB = JobId("job")


def key(version: int, deployment: str = "d") -> VersionId:
    return VersionId(deployment, 1, version)


def test_a_version_lives_until_released_and_unmapped() -> None:
    host = Budget("host", total=100)
    shelf = VersionShelf(host, max_per_deployment=2)
    shelf.admit(key(1), job_id=JOB, nbytes=40)
    shelf.hold(key(1), 7)
    shelf.hold(key(1), 7)
    assert not shelf.release(key(1))
    with pytest.raises(PlexError, match="not_found"):
        shelf.get(key(1))
    assert not shelf.unhold(key(1), 7)
    assert shelf.unhold(key(1), 7)
    assert (host.used, key(1) in shelf) == (0, False)
    assert not shelf.release(key(1))


def test_a_holder_that_leaves_lets_all_its_versions_go() -> None:
    host = Budget("host", total=100)
    shelf = VersionShelf(host, max_per_deployment=2)
    for version in (1, 2):
        shelf.admit(key(version), job_id=JOB, nbytes=10)
        shelf.hold(key(version), 7)
    shelf.hold(key(2), 8)
    shelf.release(key(1))
    shelf.release(key(2))
    assert shelf.unhold_all(7) == [key(1)]
    assert shelf.unhold_all(8) == [key(2)]


def test_what_a_predecessor_kept_stays_until_every_client_was_heard() -> None:
    host = Budget("host", total=100)
    shelf = VersionShelf(host, max_per_deployment=2)
    for version in (1, 2):
        shelf.adopt(key(version), job_id=JOB, nbytes=10, is_released=False)
        assert not shelf.release(key(version)), "somebody who was not heard may map it"
    for _ in range(2):  # its connection broke between the two
        shelf.set_held(key(1), 7, count=1)
    assert shelf.unhold_all(UNHEARD) == [key(2)]
    assert shelf.unhold(key(1), 7)
    assert host.used == 0


def test_each_deployment_has_its_own_share_of_versions() -> None:
    shelf = VersionShelf(Budget("host", total=100), max_per_deployment=1)
    shelf.admit(key(1), job_id=JOB, nbytes=1)
    shelf.admit(key(1, "other"), job_id=JOB, nbytes=1)
    with pytest.raises(PlexError) as refused:
        shelf.admit(key(2), job_id=JOB, nbytes=1)
    assert refused.value.code is ErrorCode.NO_ROOM


def entry(
    nbytes: int, *, tenant: str = "a", job_id: JobId = JOB, owner: int | None = None
) -> StagedEntry:
    return StagedEntry(tenant=TenantId(tenant), job_id=job_id, nbytes=nbytes, owner=owner)


def test_a_job_has_a_bounded_number_of_bundles() -> None:
    room = StagingRoom(staging_bytes=100, max_per_job=1)
    room.admit(b"1", entry(10))
    with pytest.raises(PlexError, match="max_staged_per_job"):
        room.admit(b"2", entry(10))
    room.admit(b"2", entry(10, job_id=JobId("other")))


def test_uploads_leave_room_for_results() -> None:
    room = StagingRoom(staging_bytes=100, max_per_job=4)
    with pytest.raises(PlexError, match="39 bytes are more than the 38 that one tenant may have"):
        room.admit(b"1", entry(39))
    room.admit(b"1", entry(38))
    room.admit(b"2", entry(19, tenant="b"))
    room.admit(b"3", entry(21, owner=1))
    with pytest.raises(PlexError, match="57 of 75 bytes of staging memory for uploads"):
        room.admit(b"4", entry(10, tenant="c"))
    room.admit(b"4", entry(9, tenant="c"))
    with pytest.raises(PlexError, match="87 of 100 bytes of staging memory for results"):
        room.admit(b"5", entry(8, tenant="b", owner=1))
    room.admit(b"5", entry(7, tenant="b", owner=1))


def test_a_tenant_that_fills_what_it_can_leaves_room_for_a_neighbour() -> None:
    """Uploads that are never submitted, and answers that are never read, hold up nobody else."""
    room = StagingRoom(staging_bytes=1000, max_per_job=1 << 20)
    for owner in (None, 1):
        taken, number = -1, 0
        while taken != room.budget.used:
            taken, number = room.budget.used, number + 1
            with suppress(PlexError):
                room.admit(f"{owner}/{number}".encode(), entry(7, tenant="greedy", owner=owner))
        with pytest.raises(PlexError) as full:
            room.admit(b"one more", entry(7, tenant="greedy", owner=owner))
        assert (full.value.code, full.value.retryable) == (ErrorCode.STAGING_FULL, True)
        room.admit(f"{owner}/theirs".encode(), entry(100, tenant="neighbour", owner=owner))


def test_what_was_admitted_is_adopted_in_any_order() -> None:
    bundles = [(b"1", entry(38, tenant="a")), (b"2", entry(19, tenant="b"))]
    for order in (bundles, bundles[::-1]):
        room = StagingRoom(staging_bytes=100, max_per_job=1)
        for staging_id, found in order:
            room.adopt(staging_id, found)
        assert room.budget.used == 57


@given(
    st.lists(
        st.tuples(st.binary(min_size=1, max_size=1), st.integers(0, 60), st.booleans()),
        max_size=40,
    )
)
def test_staging_never_exceeds_its_bytes_and_returns_all_of_them(
    steps: list[tuple[bytes, int, bool]],
) -> None:
    room = StagingRoom(staging_bytes=100, max_per_job=8)
    kept: dict[bytes, int] = {}
    refusals: list[tuple[str, str, bool]] = []
    for staging_id, nbytes, is_drop in steps:
        if is_drop:
            assert room.drop(staging_id) == kept.pop(staging_id, 0)
            continue
        try:
            room.admit(staging_id, entry(nbytes, owner=1))
            kept[staging_id] = nbytes
        except PlexError as error:
            is_full = sum(kept.values()) + nbytes > 50 or len(kept) >= 8
            expected = "payload_too_large" if nbytes > 50 else "staging_full"
            expected = "bad_request" if staging_id in kept else expected
            refusals.append((str(error.code), expected, is_full))
        assert room.budget.used == sum(kept.values()) <= 100
    assert all(code == expected for code, expected, _ in refusals)
    assert all(is_full for code, _, is_full in refusals if code == "staging_full")
