"""Who leads a PostgreSQL database: one at most, and another when that dies or stands still."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy.exc import OperationalError

from plexsvc.errors import ErrorCode, PlexError
from plexsvc.store import leadership
from plexsvc.store.leadership import Leadership
from plexsvc.store.opening import open_store
from tests.rigs.postgres import Postgres


@pytest.fixture
def url(postgres: Postgres, tmp_path: Path) -> str:
    """The URL of a database that a service has led."""
    found = postgres.create(f"l{abs(hash(str(tmp_path)))}")
    open_store(found, now_us=1).close()
    return found


@pytest.fixture
def pair(url: str) -> Iterator[tuple[Leadership, Leadership]]:
    """One that leads, and one that would."""
    first, second = (Leadership(url, holder=name) for name in ("first", "second"))
    assert first.try_take() is None
    yield first, second
    first.close(ends_all=False)
    second.close(ends_all=False)


def until_taken(claim: Leadership) -> None:
    """Return when it leads."""
    for _ in range(2000):
        if claim.try_take() is None:
            return
    raise AssertionError("it never leads")


def kill(leader: Leadership) -> None:
    """Have it die: its thread, then its session."""
    leader._stopped.set()
    assert leader._thread is not None
    leader._thread.join()
    leader._drop()


def test_the_first_leads_and_the_second_is_told_who_does(
    pair: tuple[Leadership, Leadership],
) -> None:
    first, second = pair
    assert not first.took_over
    assert second.try_take() == "first"


def test_one_that_is_killed_has_a_successor_that_goes_on(
    pair: tuple[Leadership, Leadership],
) -> None:
    first, second = pair
    kill(first)
    until_taken(second)
    assert second.took_over


@pytest.mark.parametrize("ends_all", [False, True])
def test_one_that_ends_says_whether_it_left_something(
    pair: tuple[Leadership, Leadership], ends_all: bool
) -> None:
    first, second = pair
    first.close(ends_all=ends_all)
    assert second.try_take() is None
    assert second.took_over is not ends_all


def test_one_that_stands_still_is_replaced_and_learns_it_when_it_wakes(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(leadership, "LEASE_S", 0.2)
    first, second = (Leadership(url, holder=name) for name in ("first", "second"))
    awake = threading.Event()
    keep = first._keep

    def stand_still() -> bool:
        awake.wait(120)
        return keep()

    monkeypatch.setattr(first, "_keep", stand_still)
    lost = threading.Event()
    first.on_lost = lost.set
    assert first.try_take() is None
    until_taken(second)
    awake.set()
    assert lost.wait(120)
    assert second._keep()
    first.close(ends_all=True)  # what it says now is not heard
    second.close(ends_all=False)
    third = Leadership(url, holder="third")
    assert third.try_take() is None
    assert third.took_over
    third.close(ends_all=True)


def test_a_leader_whose_session_ends_leads_on(
    postgres: Postgres, pair: tuple[Leadership, Leadership]
) -> None:
    first, second = pair
    first._stopped.set()  # this test renews in its place
    postgres.restart()
    with pytest.raises(OperationalError):
        first._keep()
    first._drop()
    assert second.try_take() == "first"  # nobody has the lock, and the row is not over
    assert second.is_awaited
    assert first._keep()
    assert second.try_take() == "first"
    assert not second.is_awaited


def test_a_database_that_does_not_answer_is_no_leader() -> None:
    claim = Leadership("postgresql+psycopg://plex@/x?host=/nowhere", holder="it")
    with pytest.raises(PlexError) as refused:
        claim.try_take()
    assert refused.value.code == ErrorCode.UNAVAILABLE
    claim.close(ends_all=True)
