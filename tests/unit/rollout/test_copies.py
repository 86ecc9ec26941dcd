"""Copies of token records: what a peer keeps of them, refuses, drops and reads."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from plexclient.wire.v1 import operations_pb2
from plexclient.wire.v1 import rollout_pb2 as pb
from plexsvc.clock import SystemClock
from plexsvc.errors import ErrorCode, PlexError
from plexsvc.rollout import copies
from plexsvc.rollout.copies import Copier, RecordCopies
from plexsvc.rollout.main import MANAGER
from plexsvc.rollout.recordfiles import RecordFile, StoredFrame
from plexsvc.rpc.channels import listen, new_server
from plexsvc.rpc.services import add_service
from tests.rigs.keys import KEYS

ENTRIES = [StoredFrame(b"first"), StoredFrame(b"second", b"spans"), StoredFrame(b"third")]


def operation(number: int = 1, *, deployment: str = "rollout") -> operations_pb2.Operation:
    return operations_pb2.Operation(
        operation_id=bytes([number]) * 16, job_id="job", deployment_id=deployment, tenant="lab"
    )


def whole(directory: Path, of: operations_pb2.Operation) -> bytes:
    """Return the bytes of a record's file."""
    file = RecordFile(directory, of)
    for entry in ENTRIES:
        file.append(entry)
    return file.read(0, 1 << 20)


def bytes_of(of: operations_pb2.Operation, data: bytes, *, offset: int = 0) -> pb.CopiedBytes:
    return pb.CopiedBytes(
        deployment_id=of.deployment_id, operation_id=of.operation_id, offset=offset, data=data
    )


def keep(held: RecordCopies, *parts: pb.CopiedBytes, leads: tuple[str, ...] = ()) -> list[bytes]:
    return held.keep(pb.KeepCopiesRequest(parts=parts), leads=leads)


def files(directory: Path) -> list[Path]:
    return [path for path in directory.rglob("*") if path.is_file()]


@given(cuts=st.lists(st.integers(1, 200), max_size=8), kept=st.integers(0, 200))
def test_a_copy_that_is_behind_has_the_frames_that_came_whole(
    tmp_path_factory: pytest.TempPathFactory, cuts: list[int], kept: int
) -> None:
    place = tmp_path_factory.mktemp("copy")
    data = whole(place, operation())[:kept]
    ends = sorted({*(cut for cut in cuts if cut < len(data)), len(data)})
    held = RecordCopies(place / "copies", max_bytes=1 << 20)
    for start, end in zip([0, *ends], ends, strict=False):
        assert keep(held, bytes_of(operation(), data[start:end], offset=start)) == []
    found = list(RecordCopies(place / "copies", max_bytes=1 << 20).take("rollout"))
    assert [of for of, _ in found] in ([], [operation()])
    for _, entries in found:
        assert entries == ENTRIES[: len(entries)]
        assert kept < len(whole(place, operation(2))) or entries == ENTRIES
    assert files(place / "copies") == []


def test_a_copy_with_a_hole_is_refused_and_stays_as_it_was(tmp_path: Path) -> None:
    held, data = RecordCopies(tmp_path / "copies", max_bytes=1 << 20), whole(tmp_path, operation())
    keep(held, bytes_of(operation(), data[:10]))
    with pytest.raises(PlexError, match="has 10 bytes, and bytes from 20") as caught:
        keep(held, bytes_of(operation(2), data), bytes_of(operation(), data[20:], offset=20))
    assert caught.value.code is ErrorCode.BAD_REQUEST
    (path,) = files(tmp_path / "copies")
    assert path.read_bytes() == data[:10]


def test_an_operation_id_is_no_path(tmp_path: Path) -> None:
    held = RecordCopies(tmp_path / "copies", max_bytes=1 << 20)
    odd = pb.CopiedBytes(deployment_id="../rollout", operation_id=b"../../x", data=b"data")
    with pytest.raises(PlexError, match="names no operation"):
        keep(held, odd)
    keep(held, bytes_of(operation(deployment="../../rollout"), b"data"))
    assert [path.parent.parent for path in files(tmp_path)] == [tmp_path / "copies"]


def test_what_finds_no_room_is_refused_by_name_and_others_go_on(tmp_path: Path) -> None:
    held = RecordCopies(tmp_path / "copies", max_bytes=20)
    assert keep(held, bytes_of(operation(1), bytes(8)), bytes_of(operation(2), bytes(8))) == []
    more = [bytes_of(operation(1), bytes(8), offset=8), bytes_of(operation(2), b"four", offset=8)]
    assert keep(held, *more) == [operation(1).operation_id]
    (path,) = files(tmp_path)
    assert path.name == operation(2).operation_id.hex()
    assert keep(held, bytes_of(operation(3), bytes(8))) == []


def test_a_deployment_that_is_led_here_is_not_overwritten(tmp_path: Path) -> None:
    held = RecordCopies(tmp_path / "copies", max_bytes=1 << 20)
    data = whole(tmp_path, operation())
    refused = keep(held, bytes_of(operation(), data), leads=("rollout",))
    assert refused == [operation().operation_id]
    assert files(tmp_path / "copies") == []


def test_a_record_of_another_deployment_is_not_read_in_its_place(tmp_path: Path) -> None:
    held = RecordCopies(tmp_path / "copies", max_bytes=1 << 20)
    theirs = whole(tmp_path, operation(deployment="another tenant's"))
    keep(held, bytes_of(operation(), theirs))
    assert list(held.take("rollout")) == []


def test_the_copies_of_deployments_that_ended_are_dropped(tmp_path: Path) -> None:
    held = RecordCopies(tmp_path / "copies", max_bytes=20)
    keep(held, bytes_of(operation(1), bytes(8)), bytes_of(operation(2, deployment="b"), bytes(8)))
    held.keep_only(["b"])
    (path,) = files(tmp_path)
    assert path.name == operation(2).operation_id.hex()
    assert keep(held, bytes_of(operation(3), bytes(12))) == [], "its room is free"
    gone = pb.CopiedBytes(deployment_id="b", operation_id=operation(2).operation_id, is_gone=True)
    assert keep(held, gone) == []
    assert [path.name for path in files(tmp_path)] == [operation(3).operation_id.hex()]


class FakePeer:
    """A manager that keeps copies, or refuses to."""

    def __init__(self, directory: Path) -> None:
        self.held = RecordCopies(directory, max_bytes=1 << 20)
        self.failures = 0
        self.restarts = 0

    async def keep(self, request: pb.KeepCopiesRequest, _: Any) -> pb.KeepCopiesReply:
        if self.failures:
            self.failures -= 1
            raise PlexError(ErrorCode.UNAVAILABLE, "not now")
        self.restarts += len(request.restarts)
        return pb.KeepCopiesReply(refused=self.held.keep(request, leads=()))


@asynccontextmanager
async def copying(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[tuple[Copier, FakePeer]]:
    """Yield a copier that runs, and the peer that it is told of."""
    monkeypatch.setattr(copies, "PAUSE_US", 1000)
    peer, server = FakePeer(tmp_path / "copies"), new_server(KEYS)
    add_service(server, MANAGER, calls={"KeepCopies": peer.keep})
    (tmp_path / "run").mkdir(mode=0o700)
    address = listen(server, f"unix:{tmp_path / 'run' / 'p.sock'}", KEYS, key="listen")
    await server.start()
    copier = Copier(SystemClock(), KEYS, leads=lambda: ["rollout"])
    async with asyncio.TaskGroup() as tasks:
        running = tasks.create_task(copier.run())
        copier.aim(address, 1)
        yield copier, peer
        running.cancel()
    await server.stop(None)


async def until_copied(peer: FakePeer, data: bytes) -> None:
    async with asyncio.timeout(120):
        while [path.read_bytes() for path in files(peer.held._directory)] != [data]:  # noqa: ASYNC110 - nobody tells
            await asyncio.sleep(0.002)


async def test_every_entry_is_copied_in_order_and_what_is_removed_is_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(copies, "SENT_BYTES", 7)  # entries go in pieces
    async with copying(tmp_path, monkeypatch) as (copier, peer):
        copier.begins("rollout")
        file = RecordFile(tmp_path, operation(), watcher=copier)
        for entry in ENTRIES:
            file.append(entry)
            await until_copied(peer, file.read(0, 1 << 20))
        await copier.caught_up(operation().operation_id)
        file.remove()
        async with asyncio.timeout(120):
            while files(tmp_path / "copies"):  # noqa: ASYNC110 - nobody tells
                await asyncio.sleep(0.002)


async def test_a_peer_that_fails_gets_everything_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with copying(tmp_path, monkeypatch) as (copier, peer):
        copier.begins("rollout")
        file = RecordFile(tmp_path, operation(), watcher=copier)
        file.append(ENTRIES[0])
        await until_copied(peer, file.read(0, 1 << 20))
        restarts, peer.failures = peer.restarts, 3
        file.append(ENTRIES[1])
        await until_copied(peer, file.read(0, 1 << 20))
        assert peer.restarts > restarts


async def test_no_answer_waits_for_a_peer_that_does_not_take_copies(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(copies, "ANSWER_S", 1e6)
    async with copying(tmp_path, monkeypatch) as (copier, peer):
        copier.begins("rollout")
        file = RecordFile(tmp_path, operation(), watcher=copier)
        peer.failures = 1 << 30
        file.append(ENTRIES[0])
        async with asyncio.timeout(120):
            await copier.caught_up(operation().operation_id)
