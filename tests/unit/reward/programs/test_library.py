"""Library of own programs: tenants apart, versions kept, nothing half-written read."""

from __future__ import annotations

import errno
import os
from itertools import count
from pathlib import Path

import pytest

from plexsvc.errors import ErrorCode, PlexError
from plexsvc.ids import TenantId
from plexsvc.reward.programs.library import MAX_VERSIONS, Library
from plexsvc.reward.programs.own import Definition, OwnStage

ACME, RIVAL = TenantId("acme"), TenantId("rival")
STAGE = OwnStage("run", "cpu", 1, 1 << 26, 1_000_000, "./run.sh", "", is_untrusted=False)


def definition(text: str = "", *, name: str = "own") -> Definition:
    return Definition(name, (STAGE,), {"run.sh": text.encode()}, -1.0)


def library(place: Path, *, max_bytes: int = 1 << 20) -> Library:
    return Library(place / "programs", max_bytes=max_bytes)


def test_a_program_belongs_to_its_tenant(tmp_path: Path) -> None:
    kept = library(tmp_path)
    made = kept.add(ACME, definition())
    assert kept.find(ACME, "own") == made
    assert kept.of(ACME) == [made]
    assert kept.of(RIVAL) == []
    with pytest.raises(PlexError, match="there is no program 'own'") as refused:
        kept.find(RIVAL, "own")
    assert refused.value.code is ErrorCode.NOT_FOUND
    with pytest.raises(PlexError, match="there is no program"):
        kept.remove(RIVAL, "own")


def test_programs_and_their_order_survive_a_restart(tmp_path: Path) -> None:
    before = library(tmp_path)
    versions = [before.add(ACME, definition(text)).version for text in ("a", "b", "a")]
    after = library(tmp_path)
    assert after.find(ACME, "own").version == versions[2] == versions[0]
    assert after.find(ACME, "own", versions[1]).version == versions[1]
    assert after.find(ACME, "own").definition == before.find(ACME, "own").definition


def test_the_same_again_changes_nothing(tmp_path: Path) -> None:
    kept = library(tmp_path)
    kept.add(ACME, definition("a"))
    found = sorted(tmp_path.rglob("*"))
    kept.add(ACME, definition("a"))
    assert sorted(tmp_path.rglob("*")) == found


def test_a_few_versions_are_kept_and_older_ones_are_gone(tmp_path: Path) -> None:
    kept = library(tmp_path)
    versions = [kept.add(ACME, definition(str(n))).version for n in range(MAX_VERSIONS + 1)]
    for again in (kept, library(tmp_path)):
        assert again.find(ACME, "own", versions[1]).version == versions[1]
        with pytest.raises(PlexError, match="is gone, the newest is"):
            again.find(ACME, "own", versions[0])


def test_a_program_of_the_service_cannot_be_removed(tmp_path: Path) -> None:
    with pytest.raises(PlexError, match="exact is a program of the service itself"):
        library(tmp_path).remove(ACME, "exact")


def test_a_removed_program_does_not_come_back(tmp_path: Path) -> None:
    kept = library(tmp_path)
    kept.add(ACME, definition("a"))
    kept.add(ACME, definition("b"))
    kept.remove(ACME, "own")
    for again in (kept, library(tmp_path)):
        with pytest.raises(PlexError, match="there is no program"):
            again.find(ACME, "own")


def test_a_removal_that_was_cut_short_does_not_bring_an_older_version_back(tmp_path: Path) -> None:
    kept = library(tmp_path)
    kept.add(ACME, definition("a"))
    place = tmp_path / "programs" / "acme"
    (place / "own").rename(place / ".goneown")
    assert library(tmp_path).of(ACME) == []
    again = library(tmp_path)
    again.add(ACME, definition("b"))
    again.remove(ACME, "own")
    assert library(tmp_path).of(ACME) == []


def test_what_was_not_finished_or_was_changed_is_not_read(tmp_path: Path) -> None:
    version = library(tmp_path).add(ACME, definition("a")).version
    (place,) = (tmp_path / "programs" / "acme" / "own").iterdir()
    (place.parent / "unfinished").write_bytes(place.read_bytes()[:10])
    place.with_name(f"00000002-{version}").write_bytes(place.read_bytes()[:10])
    changed = place.read_bytes().replace(b"run.sh", b"ran.sh")
    place.with_name(f"00000003-{version}").write_bytes(changed)
    assert library(tmp_path).find(ACME, "own").version == version


def test_a_tenant_has_so_much_room_with_the_older_versions(tmp_path: Path) -> None:
    kept = library(tmp_path, max_bytes=2500)
    kept.add(ACME, definition("a" * 1000))
    kept.add(ACME, definition("b" * 1000))
    with pytest.raises(PlexError, match=r"reward\.max_program_bytes") as refused:
        kept.add(ACME, definition("c" * 1000))
    assert not refused.value.retryable
    with pytest.raises(PlexError, match="2 programs"):
        kept.add(ACME, definition("c" * 1000, name="other"))
    kept.add(RIVAL, definition("c" * 1000))
    kept.remove(ACME, "own")
    kept.add(ACME, definition("c" * 1000))


@pytest.mark.parametrize("works", range(4))
def test_a_program_that_does_not_get_to_disk_is_not_there(
    works: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = library(tmp_path)
    version = kept.add(ACME, definition("a")).version
    calls = count()

    def full(_: int) -> None:
        if next(calls) % 4 == works:
            raise OSError(errno.ENOSPC, "no space left")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with pytest.raises(PlexError, match="no space left") as refused:
            kept.add(ACME, definition("b"))
    assert refused.value.code is ErrorCode.DISK_FULL
    for again in (kept, library(tmp_path)):
        assert [program.version for program in again.of(ACME)] == [version]
    assert kept.add(ACME, definition("b")).version != version


def test_a_shipped_name_is_refused_and_found(tmp_path: Path) -> None:
    kept = library(tmp_path)
    for name in ("math", "judge"):
        with pytest.raises(PlexError, match="give yours another name"):
            kept.add(ACME, definition(name=name))
    assert kept.find(ACME, "math").name == "math"
