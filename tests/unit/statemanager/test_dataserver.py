"""The data plane goes on accepting, and keeps nothing of a peer that misbehaves."""

from __future__ import annotations

import errno
import os
import socket
import struct
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from plexsvc import progress
from plexsvc.statelink import dataplane
from plexsvc.statelink.dataplane import Header, Message
from plexsvc.statelink.session import StateSession
from plexsvc.statemanager import accepting, dataserver, hostcopy, tiers
from plexsvc.statemanager.book import Book
from plexsvc.statemanager.clients import Clients
from plexsvc.statemanager.config import StateManagerConfig, TierConfig
from plexsvc.statemanager.dataserver import DataServer
from plexsvc.statemanager.node import ManagedNode
from plexsvc.statemanager.parking import Parking
from tests.rigs.waiting import wait_until

HELLO: Header = {
    "op": "hello",
    "wpg_id": "w",
    "job_id": "j",
    "rank": 0,
    "incarnation": 1,
    "device_index": 0,
}


@pytest.fixture
def node(tmp_path: Path) -> Iterator[ManagedNode]:
    devices = (TierConfig(index=0, bytes_total=1 << 20),)
    config = StateManagerConfig(node_id="n", runtime_dir=tmp_path, devices=devices)
    node = ManagedNode(config, book=Book(), arenas={})
    yield node
    node.close()


@contextmanager
def serving(node: ManagedNode) -> Iterator[DataServer]:
    path = node.config.runtime_dir / "data.sock"
    server = DataServer(node, Clients(node), path, parking=Parking(node))
    try:
        yield server
    finally:
        server.close()


@contextmanager
def connected(server: DataServer) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX) as sock:
        sock.settimeout(10)
        sock.connect(str(server.path))
        yield sock


def ask(server: DataServer, header: Header, *, fds: tuple[int, ...] = ()) -> Message:
    with connected(server) as sock:
        dataplane.send(sock, Message(header=header, fds=fds))
        answer = dataplane.receive(sock)
    dataplane.close_all(answer.fds)
    return answer


class Exhausted:
    """A listener in a process that runs out of descriptors now and then."""

    def __init__(self, listener: socket.socket, codes: list[int]) -> None:
        self._listener = listener
        self._codes = codes

    def accept(self) -> tuple[socket.socket, Any]:
        if self._codes:
            raise OSError(self._codes.pop(), "cannot accept")
        return self._listener.accept()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._listener, name)


def test_a_connection_that_cannot_be_accepted_ends_nothing(
    node: ManagedNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    codes = [errno.EMFILE, errno.ENFILE, errno.ECONNABORTED, errno.ENOMEM]
    listen = accepting.listen_at
    monkeypatch.setattr(accepting, "ACCEPT_PAUSE_S", 0.001)
    monkeypatch.setattr(dataserver, "listen_at", lambda path: Exhausted(listen(path), codes))
    with serving(node) as server:
        assert ask(server, HELLO).header["kind"] == "cpu"
    assert codes == []


def test_a_client_for_whom_there_is_no_thread_may_come_again(
    node: ManagedNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    start, failures = threading.Thread.start, [RuntimeError("can't start new thread")]

    def fail_once(thread: threading.Thread) -> None:
        if thread.name == "data" and failures:
            raise failures.pop()
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", fail_once)
    monkeypatch.setattr(accepting, "ACCEPT_PAUSE_S", 0.001)
    with serving(node) as server:
        with pytest.raises((EOFError, ConnectionError)):
            ask(server, HELLO)
        assert ask(server, HELLO).header["kind"] == "cpu"


@pytest.mark.parametrize("op", ["attach", "hello", "nonsense"])
def test_descriptors_of_a_first_message_are_closed(node: ManagedNode, op: str) -> None:
    read_end, write_end = os.pipe()
    with serving(node) as server:
        ask(server, {**HELLO, "op": op}, fds=(write_end,) * 60)
        os.close(write_end)
        os.set_blocking(read_end, False)
        wait_until(lambda: is_ended(read_end), what="nobody holds the pipe open")
    os.close(read_end)


def is_ended(read_end: int) -> bool:
    try:
        return os.read(read_end, 1) == b""
    except BlockingIOError:
        return False


def test_a_client_that_leaves_before_it_is_welcomed_may_come_again(
    node: ManagedNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    send, failures = dataplane.send, [BrokenPipeError("it left")]

    def fail_once(sock: socket.socket, message: Message) -> None:
        if "client_id" in message.header and failures:
            raise failures.pop()
        send(sock, message)

    monkeypatch.setattr(dataplane, "send", fail_once)
    with serving(node) as server:
        with connected(server) as sock:
            send(sock, Message(header=HELLO))
            assert sock.recv(1) == b""
        wait_until(lambda: not node.links, what="it is forgotten")
        assert "client_id" in ask(server, HELLO).header


def test_garbage_is_cut_off_and_the_next_client_is_served(node: ManagedNode) -> None:
    with serving(node) as server:
        with connected(server) as sock:
            sock.sendall(struct.pack("<4sII", b"HTTP", 1, 1))
            assert sock.recv(1) == b""
        assert ask(server, HELLO).header["kind"] == "cpu"


ALLOCATE: Header = {
    "op": "allocate",
    "regions": [{"name": "params", "nbytes": 5 << 16, "droppable": False, "shared": ""}],
}


def test_an_allocation_says_part_by_part_how_far_it_is(
    node: ManagedNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hostcopy, "PART_BYTES", 1 << 16)
    with serving(node) as server, connected(server) as sock:
        dataplane.send(sock, Message(header=HELLO))
        dataplane.receive(sock)
        for header in (ALLOCATE, {**ALLOCATE, "repeat": True}):
            dataplane.send(sock, Message(header=header))
            heard = []
            while "done_bytes" in (answer := dataplane.receive(sock)).header:
                heard.append(answer.header["done_bytes"])
            assert "params" in answer.header["regions"]
            dataplane.close_all(answer.fds)
            assert heard == ([1 << 16] * 5 if header is ALLOCATE else []), "a repeat does nothing"


def test_a_client_that_leaves_while_memory_is_allocated_has_none(
    node: ManagedNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hostcopy, "PART_BYTES", 1 << 16)
    populate, left = hostcopy.populate, threading.Event()

    def slowly(address: int, nbytes: int) -> None:
        assert left.wait(120)
        populate(address, nbytes)

    monkeypatch.setattr(tiers, "populate", slowly)
    with serving(node) as server:
        with connected(server) as sock:
            dataplane.send(sock, Message(header=HELLO))
            dataplane.receive(sock)
            dataplane.send(sock, Message(header=ALLOCATE))
        left.set()
        wait_until(lambda: not node.links, what="it is forgotten")
    assert node.ledger.wpgs == {}


def test_a_wait_for_memory_lasts_as_long_as_it_gets_on(tmp_path: Path) -> None:
    here, there = socket.socketpair()
    session = StateSession(str(tmp_path), {}, patience_s=0, on_granted=lambda _: None)
    session._call_sock = here
    before = progress.count()
    said: list[Header] = [{"done_bytes": 7}, {"done_bytes": 9}, {"regions": {}}]
    for header in said:
        dataplane.send(there, Message(header=header))
    assert session.exchange(ALLOCATE).header == {"regions": {}}
    assert progress.count() == before + 2
    here.close()
    there.close()
