"""Records wait for a node agent that stands still, in order; whoever writes none does not."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Iterator

import pytest

from plexsvc.errors import ErrorCode, PlexError
from plexsvc.node.vault import Vault
from plexsvc.statelink import dataplane
from plexsvc.statemanager import book as books
from plexsvc.statemanager.book import Book, Key
from tests.rigs.memory_files import open_files

BODY = bytes(32 << 10)


@pytest.fixture
def ends() -> Iterator[tuple[Book, socket.socket]]:
    """A book whose records nobody reads until a test does."""
    theirs, ours = socket.socketpair()
    book = Book(ours)
    with theirs:
        yield book, theirs
        book.close()


def key(number: int) -> Key:
    return ("wpg", str(number))


def test_a_record_that_nobody_reads_holds_nobody_up(ends: tuple[Book, socket.socket]) -> None:
    book, theirs = ends
    put_many(book)
    vault = Vault()
    keeper = threading.Thread(target=vault.serve, args=(theirs,))
    keeper.start()
    book.settle()
    book.close()
    keeper.join()
    assert list(vault._kept) == [key(number) for number in range(100)]


def test_what_was_dropped_is_let_go_of_when_the_vault_says_so(
    ends: tuple[Book, socket.socket],
) -> None:
    book, theirs = ends
    vault = Vault()
    keeper = threading.Thread(target=vault.serve, args=(theirs,))
    keeper.start()
    book.read()
    read_end, write_end = os.pipe()
    book.put(key(0), {}, fds=[write_end])
    os.close(write_end)
    book.drop(key(0))
    book.let_go()
    assert os.read(read_end, 1) == b"", "nobody holds its other end"
    os.close(read_end)
    book.close()
    keeper.join()


def test_what_is_said_after_a_question_that_nobody_hears_answered_is_kept(
    ends: tuple[Book, socket.socket], monkeypatch: pytest.MonkeyPatch
) -> None:
    book, theirs = ends
    monkeypatch.setattr(books, "SETTLE_S", 0.01)
    with pytest.raises(PlexError, match="answered nothing"):
        book.let_go()
    book.put(key(0), {})
    book.close()
    vault = Vault()
    vault.serve(theirs)
    assert list(vault._kept) == [key(0)]


def test_a_late_answer_is_not_taken_for_another(
    ends: tuple[Book, socket.socket], monkeypatch: pytest.MonkeyPatch
) -> None:
    book, theirs = ends
    monkeypatch.setattr(books, "SETTLE_S", 0.01)
    with pytest.raises(PlexError, match="answered nothing"):
        book.let_go()
    dataplane.send(theirs, dataplane.receive(theirs))
    with pytest.raises(PlexError, match="answered nothing"):
        book.let_go()


def test_a_vault_that_does_not_answer_is_not_waited_for_for_ever(
    ends: tuple[Book, socket.socket], monkeypatch: pytest.MonkeyPatch
) -> None:
    book, theirs = ends
    monkeypatch.setattr(books, "SETTLE_S", 0.01)
    with pytest.raises(PlexError, match="answered nothing"):
        book.let_go()
    theirs.close()
    with pytest.raises(PlexError, match="gone"):
        book.let_go()


def test_whoever_must_have_written_waits_and_not_for_ever(
    ends: tuple[Book, socket.socket], monkeypatch: pytest.MonkeyPatch
) -> None:
    book, _ = ends
    monkeypatch.setattr(books, "SETTLE_S", 0.01)
    book.settle()
    put_many(book)
    with pytest.raises(PlexError, match="node agent does not read it") as late:
        book.settle()
    assert late.value.code is ErrorCode.UNAVAILABLE


def test_records_that_wait_are_bounded(
    ends: tuple[Book, socket.socket], monkeypatch: pytest.MonkeyPatch
) -> None:
    book, _ = ends
    monkeypatch.setattr(books, "MAX_WAITING", 3)
    with pytest.raises(PlexError, match="3 records wait to be read"):
        put_many(book)
    book.drop(key(0))


def put_many(book: Book) -> None:
    for number in range(100):
        book.put(key(number), {}, body=BODY)


def test_a_file_may_be_closed_before_its_record_is_sent(ends: tuple[Book, socket.socket]) -> None:
    book, theirs = ends
    for number in range(20):
        fd = os.memfd_create("test")
        os.write(fd, str(number).encode())
        book.put(key(number), {}, body=BODY, fds=[fd])
        os.close(fd)
    before = open_files()
    for number in range(20):
        sent = dataplane.receive(theirs)
        assert os.pread(sent.fds[0], 9, 0) == str(number).encode()
        dataplane.close_all(sent.fds)
        book.settle() if number == 19 else book.beat()
    assert open_files() < before


def test_beats_come_only_when_the_agent_reads(ends: tuple[Book, socket.socket]) -> None:
    book, theirs = ends
    book.put(key(0), {}, body=bytes(1 << 20))
    for _ in range(1000):
        book.beat()
    received = threading.Thread(target=dataplane.receive, args=(theirs,))
    received.start()
    book.settle()
    received.join()
    book.beat()
    theirs.settimeout(10)
    assert dataplane.receive(theirs).header["op"] == "beat"
    theirs.setblocking(False)
    with pytest.raises(BlockingIOError):
        dataplane.receive(theirs)


def test_a_gone_agent_is_told(ends: tuple[Book, socket.socket]) -> None:
    book, theirs = ends
    theirs.close()
    with pytest.raises(PlexError, match="it is gone"):
        book.put(key(0), {})
