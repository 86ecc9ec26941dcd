"""Versions are copied once, seen when whole, and may be released at any time."""

from __future__ import annotations

import os
import threading

import numpy as np
import pytest

from plexclient.wire.v1.statemanager_pb2 import CanonicalPiece
from plexsvc.errors import ErrorCode, PlexError
from plexsvc.ids import JobId, VersionId
from plexsvc.statemanager import publishing
from plexsvc.statemanager.book import Book
from plexsvc.statemanager.caller import WaitingCaller
from plexsvc.statemanager.entries import Budget
from plexsvc.statemanager.publishing import Progress, Publisher, Version
from plexsvc.statemanager.shelves import VersionShelf
from plexsvc.weights.pieces import Bytes
from tests.rigs.memory_files import open_files
from tests.rigs.waiting import wait_until

KEY = VersionId("d", 1, 1)
HOST = 1 << 20
SIZE = 64
"""Bytes of a version."""


class Rig:
    """A publisher of what ranks hold."""

    def __init__(self) -> None:
        self.host = Budget("host", total=HOST)
        shelf = VersionShelf(self.host, max_per_deployment=8)
        self.publisher = Publisher(
            shelf, host=self.host, node_id="n", lock=threading.Lock(), book=Book()
        )

    def region(self, rank: int, name: str) -> Bytes:
        del name
        return np.full(64, rank, dtype=np.uint8)

    def draft(self, *index: CanonicalPiece) -> Version:
        return self.publisher.draft(
            KEY, index, job_id=JobId("j"), region=self.region, progress=None
        )


def piece(name: str, *, kind: str = "param", rank: int = 0, offset: int = 0) -> CanonicalPiece:
    return CanonicalPiece(
        kind=kind,
        name=name,
        global_shape=[4],
        start=[0],
        size=[4],
        dtype="U8",
        stride=[1],
        rank=rank,
        offset=offset,
        region="r",
    )


@pytest.fixture
def rig() -> Rig:
    return Rig()


def test_a_version_released_while_it_is_made_leaves_nothing(rig: Rig) -> None:
    with rig.publisher.making(KEY):
        draft = rig.draft(piece("t"))
        rig.publisher.release(KEY)
        with pytest.raises(PlexError, match="released meanwhile") as gone:
            rig.publisher.enter(draft, WaitingCaller())
    assert gone.value.code is ErrorCode.NOT_FOUND
    assert rig.host.used == 0
    assert rig.publisher.enter(rig.draft(piece("t")), WaitingCaller()).version == 1, (
        "it may come again"
    )


def test_a_version_nobody_waits_for_leaves_nothing(rig: Rig) -> None:
    caller = WaitingCaller()
    with rig.publisher.making(KEY):
        draft = rig.draft(piece("t"))
        caller.leave()
        with pytest.raises(PlexError, match="gave up"):
            rig.publisher.enter(draft, caller)
    assert rig.host.used == 0
    assert rig.publisher.find(KEY) is None


def test_a_version_that_is_read_stays_until_it_is_read(rig: Rig) -> None:
    rig.publisher.enter(rig.draft(piece("t")), WaitingCaller())
    with rig.publisher.reading(KEY) as published:
        rig.publisher.release(KEY)
        assert rig.host.used > 0
        assert bytes(published.data[:4]) == bytes(4)
    assert rig.host.used == 0


def test_gradients_of_every_rank_are_kept_and_shared_tensors_once(rig: Rig) -> None:
    index = [piece("t", kind=kind, rank=rank) for kind in ("param", "grad") for rank in (0, 1)]
    manifest = rig.publisher.enter(rig.draft(*index), WaitingCaller())
    found = [(piece.kind, piece.rank) for piece in manifest.pieces]
    assert found == [("param", 0), ("grad", 0), ("grad", 1)]


def test_a_lack_of_memory_leaves_nothing(rig: Rig) -> None:
    def fail(_rank: int, _name: str) -> Bytes:
        raise PlexError(ErrorCode.NO_ROOM, "the machine has no memory")

    with pytest.raises(PlexError, match="no memory"), rig.publisher.making(KEY):
        rig.publisher.draft(KEY, [piece("t")], job_id=JobId("j"), region=fail, progress=None)
    assert rig.host.used == 0
    assert rig.publisher.find(KEY) is None


def test_a_draft_that_is_lost_before_it_enters_leaves_nothing(rig: Rig) -> None:
    before = open_files()
    with rig.publisher.making(KEY):
        rig.draft(piece("t"))
    assert rig.host.used == 0
    assert open_files() == before
    with rig.publisher.making(KEY):
        assert rig.publisher.enter(rig.draft(piece("t")), WaitingCaller()).version == 1
    assert rig.publisher.find(KEY) is not None


def test_a_version_that_is_being_made_is_not_there_yet(rig: Rig) -> None:
    with rig.publisher.making(KEY):
        draft = rig.draft(piece("t"))
        for look in (
            lambda: rig.publisher.manifest(KEY),
            lambda: rig.publisher.open(KEY, job_id=JobId("j"), holder=1),
            lambda: rig.publisher.reading(KEY).__enter__(),
        ):
            with pytest.raises(PlexError, match="not on this node") as missing:
                look()
            assert missing.value.code is ErrorCode.NOT_FOUND
        rig.publisher.enter(draft, WaitingCaller())
    rig.publisher.release(KEY)
    assert rig.host.used == 0, "who was refused holds nothing"


class Steps(Rig):
    """Complete copies of a deployment that is one number larger after each step."""

    def __init__(self, *, recurs: bool = True) -> None:
        super().__init__()
        self.recurs = recurs
        self.seq = 0

    def keep(self) -> VersionId:
        self.seq += 1
        key = KEY._replace(version=self.seq)
        progress = Progress(scalars_json="{}", applied_seq=self.seq)
        with self.publisher.making(key):
            draft = self.publisher.draft(
                key,
                [piece("t", rank=self.seq)],
                job_id=JobId("j"),
                region=self.region,
                progress=progress,
                recurs=self.recurs,
            )
            self.publisher.enter(draft, WaitingCaller())
        return key

    def bytes_of(self, key: VersionId) -> bytes:
        with self.publisher.reading(key) as part:
            return bytes(part.data)


def test_a_copy_takes_the_memory_of_the_one_before_the_last() -> None:
    rig, before = Steps(), open_files()
    kept = [rig.keep(), rig.keep()]
    size, files = rig.host.used // 2, open_files()
    for step in range(3, 6):
        rig.publisher.release(kept[-2])
        assert rig.host.used == 2 * size, "what is left of it is counted"
        kept.append(rig.keep())
        assert (rig.host.used, open_files()) == (2 * size, files)
        assert [rig.bytes_of(key)[:4] for key in kept[-2:]] == [
            bytes([step - 1] * 4),
            bytes([step] * 4),
        ]
    for key in kept[-2:]:
        rig.publisher.release(key)
    assert (rig.host.used, open_files()) == (0, before), "nothing is left without a successor"


def test_memory_that_is_left_is_given_to_whoever_needs_it() -> None:
    rig = Steps()
    first, _ = rig.keep(), rig.keep()
    rig.publisher.release(first)
    size, files = rig.host.used // 2, open_files()
    rig.host.take(HOST - 2 * size)
    assert open_files() == files
    rig.host.take(size)
    assert open_files() < files
    assert rig.host.free == 0


@pytest.fixture
def versions(monkeypatch: pytest.MonkeyPatch) -> Steps:
    """Versions, for which memory is taken ahead however small they are."""
    monkeypatch.setattr(publishing, "AHEAD_BYTES", 1)
    return Steps(recurs=False)


def test_memory_is_taken_ahead_of_the_next_version(versions: Steps) -> None:
    rig, before, kept = versions, open_files(), list[VersionId]()

    def is_one_ahead() -> bool:
        return (rig.host.used, open_files()) == ((len(kept) + 1) * SIZE, before + len(kept) + 1)

    for step in range(1, 5):
        kept.append(rig.keep())
        wait_until(is_one_ahead, what="memory is taken for the next one")
        found = [rig.bytes_of(key)[:4] for key in kept]
        assert found == [bytes([number] * 4) for number in range(1, step + 1)]
    for key in kept:
        rig.publisher.release(key)
    assert (rig.host.used, open_files()) == (0, before), "nothing is left without a successor"


def test_memory_taken_ahead_is_given_to_whoever_needs_it(versions: Steps) -> None:
    rig = versions
    rig.keep()
    wait_until(lambda: rig.host.used == 2 * SIZE, what="memory is taken")
    rig.host.take(HOST - SIZE)
    assert rig.host.free == 0


def test_a_copy_that_is_read_keeps_its_bytes_while_others_are_made() -> None:
    rig = Steps()
    first, second = rig.keep(), rig.keep()
    fd, manifest = rig.publisher.open(first, job_id=JobId("j"), holder=1)
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.write(fd, b"x")
    rig.publisher.release(first)
    rig.keep()
    rig.publisher.release(second)
    rig.keep()
    assert os.pread(fd, 4, 0) == bytes([1] * 4)
    os.close(fd)
    assert manifest.applied_seq == 1
    rig.publisher.unhold(first, 1)
    with pytest.raises(PlexError, match="publish it"):
        rig.publisher.open(first, job_id=JobId("j"), holder=1)
