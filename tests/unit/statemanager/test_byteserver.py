"""Bytes for other nodes: to members alone, bit by bit, whatever carries them."""

from __future__ import annotations

import os
import socket
import struct
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from plexclient.wire.v1.statemanager_pb2 import ReadVersionRequest, VersionChunk
from plexsvc.clock import SystemClock
from plexsvc.errors import bad_request
from plexsvc.rpc import certificates
from plexsvc.rpc.keys import SHUT_OUT, ClusterKeys, write_shut_out
from plexsvc.statelink import byteline
from plexsvc.statelink.byteline import ByteLine, LineBrokenError, checked, dial
from plexsvc.statemanager.byteserver import ByteServer
from plexsvc.statemanager.memfiles import MemoryFile
from tests.rigs.keys import FOREIGN, KEYS, member

SIZE = (1 << 20) + 12345
"""No whole number of pieces, nor of what is encrypted at once."""


@pytest.fixture
def file() -> MemoryFile:
    made = MemoryFile("test", SIZE)
    made.write(0, memoryview(os.urandom(SIZE)))
    return made


@pytest.fixture(params=["unix", "tcp"])
def address(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return f"unix:{tmp_path}/state.sock" if request.param == "unix" else "127.0.0.1:0"


class Giver:
    """Sends a file but for its first bytes, and then what is asked for as `site`."""

    def __init__(self, file: MemoryFile) -> None:
        self.file = file
        self.asked: list[ReadVersionRequest] = []
        self.has_ended = threading.Event()

    def __call__(self, line: ByteLine, request: ReadVersionRequest) -> None:
        self.asked.append(request)
        if request.part:
            raise bad_request(f"there is no part {request.part}")
        nbytes = self.file.nbytes - request.offset
        line.send(VersionChunk(offset=request.offset, nbytes=nbytes))
        line.send_file(self.file.fd, offset=request.offset, nbytes=nbytes)
        line.send(VersionChunk(nbytes=len(request.site)))
        line.send_bytes(request.site.encode())
        line.wait_for_end()
        self.has_ended.set()


@contextmanager
def serving(giver: Giver, address: str, *, keys: ClusterKeys = KEYS) -> Iterator[str]:
    server = ByteServer(giver, keys=keys, address=address)
    try:
        yield server.address
    finally:
        server.close()


def test_what_is_asked_for_comes_and_is_held_until_the_reader_hangs_up(
    file: MemoryFile, address: str
) -> None:
    giver, told = Giver(file), list[int]()
    with serving(giver, address) as where:
        with dial(where, KEYS) as line:
            line.send(ReadVersionRequest(offset=3, site="end"))
            got = memoryview(bytearray(checked(line.receive(VersionChunk)).nbytes))
            line.receive_into(got, told.append)
            assert bytes(got) == file.read(3, SIZE)
            tail = memoryview(bytearray(checked(line.receive(VersionChunk)).nbytes))
            line.receive_into(tail)
            assert bytes(tail) == b"end"
            assert not giver.has_ended.is_set()
        assert giver.has_ended.wait(30)
    assert (sum(told), len(told)) == (SIZE - 3, 2)


def test_a_reader_is_told_why_it_gets_nothing(file: MemoryFile, address: str) -> None:
    with serving(Giver(file), address) as where:
        with pytest.raises(LineBrokenError, match="there is no part p"):
            ask(where, KEYS, ReadVersionRequest(part="p"))
        with dial(where, KEYS) as line:
            line.send_text(b"\xff" * 9)
            with pytest.raises(LineBrokenError, match="no ReadVersionRequest"):
                checked(line.receive(VersionChunk))
        with dial(where, KEYS) as line:
            line.send_bytes(struct.pack("<I", byteline.MAX_MESSAGE_BYTES + 1))
            with pytest.raises(LineBrokenError, match="are allowed"):
                checked(line.receive(VersionChunk))


def ask(where: str, keys: ClusterKeys, request: ReadVersionRequest | None = None) -> VersionChunk:
    with dial(where, keys) as line:
        line.send(request or ReadVersionRequest())
        return checked(line.receive(VersionChunk))


def test_on_one_host_nobody_gets_bytes_without_the_secret(file: MemoryFile, tmp_path: Path) -> None:
    giver = Giver(file)
    with serving(giver, f"unix:{tmp_path}/state.sock") as where:
        for secret in ("", KEYS.secret[:-1] + "!", FOREIGN.secret):
            with pytest.raises(LineBrokenError, match="secret"):
                ask(where, replace(KEYS, secret=secret))
        assert giver.asked == []
        assert Path(where.removeprefix("unix:")).stat().st_mode & 0o777 == 0o600
        assert ask(where, KEYS).nbytes == SIZE


def test_who_is_refused_is_told_so_whatever_it_says_meanwhile(
    file: MemoryFile, tmp_path: Path
) -> None:
    def talk(where: str) -> None:
        with dial(where, replace(KEYS, secret="")) as line:
            for _ in range(200):
                line.send_bytes(bytes(1 << 10))
            checked(line.receive(VersionChunk))

    with serving(Giver(file), f"unix:{tmp_path}/state.sock") as where:
        for _ in range(20):
            with pytest.raises(LineBrokenError, match="secret"):
                talk(where)


def test_between_hosts_nobody_gets_bytes_without_a_certificate(
    file: MemoryFile, tmp_path: Path
) -> None:
    giver, out = Giver(file), member("out")
    forged = replace(FOREIGN, certificate=signed(FOREIGN), authority=KEYS.root, secret=KEYS.secret)
    strangers = {
        "another cluster's": FOREIGN,
        "signed by another cluster": forged,
        "expired": member("n1", valid_us=-86_400_000_000),
        "a node that signs": replace(out, certificate=signed(member("n1"))),
    }
    keys = replace(KEYS, file=tmp_path / "keys.json")
    with serving(giver, "127.0.0.1:0", keys=keys) as where:
        for who, stranger in strangers.items():
            with pytest.raises(LineBrokenError, match=r"(?i)ssl|reset|hung up"):
                ask(where, stranger)
            assert giver.asked == [], who
        host, _, port = where.rpartition(":")
        with socket.create_connection((host, int(port)), 30) as plain:
            plain.sendall(struct.pack("<I", 0))
            assert len(plain.recv(1 << 16)) < SIZE, "an alert of TLS at most"
        assert giver.asked == []
        assert ask(where, out).nbytes == ask(where, KEYS).nbytes == SIZE
        write_shut_out(tmp_path / SHUT_OUT, [certificates.read(out.certificate).serial])
        with pytest.raises(LineBrokenError, match="node 'out' was shut out"):
            ask(where, out)
        assert len(giver.asked) == 2


def signed(signer: ClusterKeys) -> str:
    request = certificates.request_for(certificates.new_key(), node_id="n1")
    return certificates.sign(
        request,
        authority=signer.certificate,
        private_key=signer.private_key,
        now_us=SystemClock().wall_us(),
    )


def test_who_says_nothing_is_hung_up_on(
    file: MemoryFile, address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(byteline, "SHAKE_S", 0.2)
    with serving(Giver(file), address) as where:
        path = where.removeprefix("unix:")
        sock = socket.socket(socket.AF_UNIX if path != where else socket.AF_INET)
        with sock:
            sock.settimeout(30)
            if path != where:
                sock.connect(path)
            else:
                sock.connect((where.rpartition(":")[0], int(where.rpartition(":")[2])))
            sock.send(b"\x16")
            while sock.recv(1 << 10):
                pass
        monkeypatch.undo()
        assert ask(where, KEYS).nbytes == SIZE


def test_a_line_that_brings_nothing_is_broken_off(
    file: MemoryFile, address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Silent(Giver):
        def __call__(self, line: ByteLine, request: ReadVersionRequest) -> None:
            line.send(VersionChunk(nbytes=2))
            line.send_bytes(b"x")
            line.wait_for_end()

    monkeypatch.setattr(byteline, "STALL_S", 1)
    with serving(Silent(file), address) as where, dial(where, KEYS) as line:
        line.send(ReadVersionRequest())
        assert checked(line.receive(VersionChunk)).nbytes == 2
        with pytest.raises(OSError, match=r"came in|timed out"):
            line.receive_into(memoryview(bytearray(2)))
