"""What a state manager wrote before it died is what the next one is handed."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from plexsvc.errors import PlexError
from plexsvc.node.vault import Vault
from plexsvc.statelink.dataplane import Message, close_all
from plexsvc.statemanager.book import Book

KEYS = st.sampled_from([("wpg", "a"), ("wpg", "b"), ("host", "a", "0", "params")])
WRITES = st.lists(st.tuples(KEYS, st.none() | st.binary(max_size=100)), max_size=12)


@contextmanager
def serving(vault: Vault) -> Iterator[Book]:
    """A state manager's book over a vault; its process ends with the block."""
    ours, theirs = socket.socketpair()
    keeper = threading.Thread(target=vault.serve, args=(ours,))
    keeper.start()
    book = Book(theirs)
    try:
        yield book
    finally:
        book.close()
        keeper.join()


def file_of(text: bytes) -> int:
    fd = os.memfd_create("test")
    os.write(fd, text)
    return fd


def read_and_close(fds: Sequence[int]) -> list[bytes]:
    found = [os.pread(fd, 1 << 10, 0) for fd in fds]
    close_all(tuple(fds))
    return found


@given(writes=WRITES)
def test_a_successor_reads_the_last_record_of_each_key(
    writes: list[tuple[tuple[str, ...], bytes | None]],
) -> None:
    vault, expected = Vault(), dict[tuple[str, ...], bytes]()
    with serving(vault) as book:
        assert book.read() == []
        for key, body in writes:
            expected.pop(key, None)
            if body is None:
                book.drop(key)
                continue
            expected[key] = body
            fd = file_of(body)
            book.put(key, {"size": len(body)}, body=body, fds=[fd])
            os.close(fd)
    with serving(vault) as successor:
        found = successor.read()
    assert [(e.key, e.body, e.facts) for e in found] == [
        (key, body, {"size": len(body)}) for key, body in expected.items()
    ]
    assert [read_and_close(entry.fds) for entry in found] == [[b] for b in expected.values()]
    vault.clear()
    assert len(vault) == 0


def test_a_memory_file_lives_as_long_as_its_record() -> None:
    vault = Vault()
    reader, writer = os.pipe()
    with serving(vault) as book:
        book.read()
        book.put(("staged", "1"), {}, fds=[writer])
        os.close(writer)
    os.set_blocking(reader, False)
    with pytest.raises(BlockingIOError):
        os.read(reader, 1)
    with serving(vault) as book:
        (entry,) = book.read()
        close_all(entry.fds)
        book.drop(("staged", "1"))
    assert os.read(reader, 1) == b"", "the last descriptor is closed"
    os.close(reader)


def test_a_record_that_changed_is_not_believed() -> None:
    vault = Vault()
    with serving(vault) as book:
        book.read()
        book.put(("wpg", "a"), {"lease_no": 7})
    kept = vault._kept["wpg", "a"]
    vault._kept["wpg", "a"] = Message(header=kept.header, body=kept.body.replace(b"7", b"8"))
    with serving(vault) as successor, pytest.raises(PlexError, match="not what it wrote"):
        successor.read()


def test_half_a_record_is_none() -> None:
    vault = Vault()
    ours, theirs = socket.socketpair()
    keeper = threading.Thread(target=vault.serve, args=(ours,))
    keeper.start()
    book = Book(theirs)
    book.read()
    book.put(("wpg", "a"), {})
    with suppress(OSError):
        theirs.sendall(b"PXD1\x40\x00\x00\x00\x00\x00\x00\x00{")
    book.close()
    keeper.join()
    assert len(vault) == 1
