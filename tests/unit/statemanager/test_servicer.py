"""What is saved, published or hashed is a copy: slow disks hold nobody up, what gave up stops."""

from __future__ import annotations

import asyncio
import os
import socket
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
from safetensors.numpy import load_file

from plexclient.wire.v1 import common_pb2, service_pb2, statemanager_pb2
from plexsvc.clock import SystemClock
from plexsvc.errors import ErrorCode, PlexError
from plexsvc.ids import JobId, TenantId, VersionId, WpgId
from plexsvc.statelink import mapping
from plexsvc.statelink.client import ExportReport, Region, RegionSpec, StateClient
from plexsvc.statelink.member import Member
from plexsvc.statemanager import book as books
from plexsvc.statemanager import checkpoints, hostcopy, publishing, shards, snapshot
from plexsvc.statemanager.book import Book, Facts, Key
from plexsvc.statemanager.clients import Clients
from plexsvc.statemanager.config import StateManagerConfig, TierConfig
from plexsvc.statemanager.dataserver import DataServer
from plexsvc.statemanager.links import RankLink
from plexsvc.statemanager.moves import StateMover
from plexsvc.statemanager.node import ManagedNode
from plexsvc.statemanager.parking import Parking
from plexsvc.statemanager.servicer import MAX_CONTROL_CALLS, StateManagerServicer
from plexsvc.weights.checkpoints import SCRATCH
from tests.rigs.faults import ERRORS, Faults, FaultyProxy
from tests.rigs.keys import KEYS

KIB = 1 << 10
STATE_BYTES = 64 * KIB


class Rank:
    """A rank with one region of equal numbers."""

    def __init__(self, socket: str) -> None:
        identity = {
            "wpg_id": "w",
            "rank": 0,
            "incarnation": 1,
            "device_index": 0,
            "job_id": "j",
            "tenant": "t",
        }
        self.client = StateClient(
            socket, cast("Member", SimpleNamespace(**identity)), handlers=self
        )
        spec = RegionSpec(name="params", nbytes=STATE_BYTES)
        self.region: Region = self.client.allocate([spec])["params"]
        half = STATE_BYTES // 8
        self.client.set_index(
            [
                statemanager_pb2.CanonicalPiece(
                    kind="param",
                    name=name,
                    global_shape=[half],
                    start=[0],
                    size=[half],
                    dtype="F32",
                    region="params",
                    offset=at * half * 4,
                    stride=[1],
                )
                for at, name in enumerate(("a", "b"))
            ]
        )

    def fill(self, value: float) -> None:
        address = self.region.memory.address
        np.ctypeslib.as_array(mapping.buffer_at(address, STATE_BYTES)).view("<f4")[:] = value

    def export(self, *, beside: bool) -> ExportReport:
        del beside
        return ExportReport(dirty=frozenset(), scalars={}, applied_seq=1)

    def restored(self, scalars: object) -> None:
        """Nothing to take back."""


class Daemon:
    """A state manager in this process, and one rank of it."""

    def __init__(self, directory: Path, book: Book) -> None:
        config = StateManagerConfig(
            node_id="n",
            runtime_dir=directory,
            devices=(TierConfig(index=0, bytes_total=1 << 20),),
            host_bytes=4 * STATE_BYTES,
        )
        self.node = ManagedNode(config, book=book, arenas={})
        self.clients = Clients(self.node)
        parking = Parking(self.node)
        self.data = DataServer(self.node, self.clients, directory / "data.sock", parking=parking)
        self.servicer = StateManagerServicer(
            self.node,
            clients=self.clients,
            mover=StateMover(self.node, clock=SystemClock()),
            parking=parking,
            clock=SystemClock(),
            data_socket=str(self.data.path),
            keys=KEYS,
        )
        self.rank = Rank(str(self.data.path))

    async def copy(self, version: int) -> statemanager_pb2.PublishedVersion:
        reply = await self.publish(version)
        assert not reply.HasField("error"), reply.error
        holder = statemanager_pb2.VersionHolder(node_id="n")
        return statemanager_pb2.PublishedVersion(
            deployment_id="d", version=version, holders=[holder]
        )

    async def publish(self, version: int) -> statemanager_pb2.PublishReply:
        request = statemanager_pb2.PublishRequest(
            wpg_id="w", deployment_id="d", version=version, complete=True
        )
        return await self.servicer.publish(request)

    async def release(self, version: int) -> None:
        request = statemanager_pb2.ReleaseVersionRequest(deployment_id="d", version=version)
        await self.servicer.release_version(request)

    async def save(
        self, path: Path, copies: statemanager_pb2.PublishedVersion
    ) -> statemanager_pb2.MaterializeReply:
        request = statemanager_pb2.MaterializeRequest(
            wpg_id="w", path=str(path), root=str(path.parent), copies=copies
        )

        async def messages() -> AsyncIterator[bytes]:
            yield request.SerializeToString()

        replies = [reply async for reply in self.servicer.materialize(messages())]
        return replies[-1]

    async def move(self, to: common_pb2.Residency) -> None:
        request = statemanager_pb2.MoveRequest(wpg_id="w", to=to)
        reply = await self.servicer.move(request)
        assert reply.residency == to, reply

    async def worked(self) -> int:
        found = await self.servicer.inventory(statemanager_pb2.InventoryRequest())
        return found.wpgs[0].worked_bytes

    def close(self) -> None:
        self.servicer.close()
        self.rank.client.close()
        self.data.close()
        for link in list(self.node.links.values()):
            self.clients.disconnect(link)
        self.node.close()

    @property
    def host_bytes(self) -> int:
        return self.node.ledger.host.used


@pytest.fixture
async def daemon(tmp_path: Path) -> AsyncIterator[Daemon]:
    daemon = await asyncio.to_thread(Daemon, tmp_path, Book())
    yield daemon
    await asyncio.to_thread(daemon.close)


class Disk:
    """A disk that takes nothing until it is told to."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.goes_on = threading.Event()
        self.is_asked = threading.Event()
        write = shards._write_steadily

        def write_late(*given: Any) -> None:
            self.is_asked.set()
            assert self.goes_on.wait(120)
            write(*given)

        monkeypatch.setattr(shards, "_write_steadily", write_late)


def saved(path: Path) -> list[float]:
    tensors = load_file(path / "model.safetensors")
    return [float(found) for _, tensor in sorted(tensors.items()) for found in np.unique(tensor)]


def scratches(place: Path) -> list[str]:
    return [path.name for path in place.iterdir() if SCRATCH in path.name]


async def test_what_is_saved_does_not_change_while_it_is_written(
    daemon: Daemon, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = Disk(monkeypatch)
    daemon.rank.fill(1.0)
    copies = await daemon.copy(1)
    async with asyncio.TaskGroup() as tasks:
        save = tasks.create_task(daemon.save(tmp_path / "out", copies))
        await asyncio.to_thread(disk.is_asked.wait, 120)
        daemon.rank.fill(2.0)
        disk.goes_on.set()
    assert not save.result().HasField("error")
    assert saved(tmp_path / "out") == [1.0, 1.0]


async def test_a_save_is_on_record_while_it_is_written(
    daemon: Daemon, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copies = await daemon.copy(1)
    known: dict[Key, Facts] = {}
    found: list[Facts] = []
    write = checkpoints.materialize

    def look(*args: Any, **kwargs: Any) -> checkpoints.Written:
        found.extend(known.values())
        return write(*args, **kwargs)

    monkeypatch.setattr(checkpoints, "materialize", look)
    monkeypatch.setattr(daemon.node.book, "put", known.__setitem__)
    monkeypatch.setattr(daemon.node.book, "drop", known.pop)
    assert not (await daemon.save(tmp_path / "out", copies)).HasField("error")
    assert found == [{"directory": str(tmp_path), "root": str(tmp_path)}]
    assert known == {}


async def test_slow_saves_hold_up_neither_moves_nor_publishing(
    daemon: Daemon, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = Disk(monkeypatch)
    copies = await daemon.copy(1)
    paths = [tmp_path / f"out{i}" for i in range(MAX_CONTROL_CALLS + 1)]
    async with asyncio.timeout(120), asyncio.TaskGroup() as tasks:
        saves = [tasks.create_task(daemon.save(path, copies)) for path in paths]
        await asyncio.to_thread(disk.is_asked.wait, 120)
        await daemon.move(common_pb2.RESIDENCY_HOST)
        await daemon.move(common_pb2.RESIDENCY_DEVICE)
        await daemon.copy(2)
        disk.goes_on.set()
    assert not [save for save in saves if save.result().HasField("error")]
    assert all((path / ".complete").is_file() for path in paths)


async def test_a_save_that_was_given_up_never_appears(
    daemon: Daemon, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    daemon.rank.fill(1.0)
    assert not (await daemon.save(tmp_path / "out", await daemon.copy(1))).HasField("error")
    disk = Disk(monkeypatch)
    daemon.rank.fill(2.0)
    used = daemon.host_bytes
    copies = await daemon.copy(2)
    async with asyncio.TaskGroup() as tasks:
        save = tasks.create_task(daemon.save(tmp_path / "out", copies))
        await asyncio.to_thread(disk.is_asked.wait, 120)
        save.cancel()
    assert save.cancelled()
    await daemon.release(2)
    assert daemon.host_bytes == used + STATE_BYTES, "it is read, so it is counted"
    disk.goes_on.set()
    await asyncio.to_thread(daemon.servicer.close)
    assert saved(tmp_path / "out") == [1.0, 1.0]
    assert scratches(tmp_path) == []
    assert daemon.host_bytes == used


async def test_a_version_whose_caller_gave_up_never_appears(
    daemon: Daemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    is_copied, goes_on = threading.Event(), threading.Event()

    def hash_late(data: memoryview) -> list[bytes]:
        del data
        is_copied.set()
        assert goes_on.wait(120)
        return []

    monkeypatch.setattr(publishing, "block_checksums", hash_late)
    used = daemon.host_bytes
    async with asyncio.TaskGroup() as tasks:
        publish = tasks.create_task(daemon.publish(1))
        await asyncio.to_thread(is_copied.wait, 120)
        await daemon.move(common_pb2.RESIDENCY_HOST)  # the copy is made, so its WPG is free
        publish.cancel()
    assert publish.cancelled()
    goes_on.set()
    await asyncio.to_thread(daemon.servicer.close)
    assert daemon.host_bytes == used
    with pytest.raises(PlexError, match="not_found"):
        daemon.node.publisher.manifest(VersionId("d", 0, 1))


async def test_a_copy_that_does_not_fit_is_refused_and_leaves_nothing(daemon: Daemon) -> None:
    used = [daemon.host_bytes]
    for version in (1, 2, 3):
        await daemon.copy(version)
        used.append(daemon.host_bytes)
    refused = (await daemon.publish(4)).error
    assert refused.code == ErrorCode.NO_ROOM
    assert daemon.host_bytes == used[-1]
    await daemon.release(3)
    assert daemon.host_bytes == used[-2]
    await daemon.copy(4)


async def test_work_without_a_copy_is_refused(daemon: Daemon, tmp_path: Path) -> None:
    reply = await daemon.save(tmp_path / "out", statemanager_pb2.PublishedVersion())
    assert reply.error.code == ErrorCode.BAD_REQUEST
    assert not (tmp_path / "out").exists()


async def test_a_node_agent_that_stands_still_holds_up_only_who_must_write(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    agent, ours = socket.socketpair()
    book = Book(ours)
    daemon = await asyncio.to_thread(Daemon, tmp_path, book)
    await daemon.copy(1)
    monkeypatch.setattr(books, "SETTLE_S", 0.1)
    while book._blocked() is None:
        book.put(("wpg", "other"), {}, body=bytes(32 * KIB))
    async with asyncio.timeout(120):
        assert (await daemon.publish(2)).error.code == ErrorCode.UNAVAILABLE
        with pytest.raises(PlexError, match="does not read it"):
            await asyncio.to_thread(daemon.rank.client.create_staged, (), 8)
        request = statemanager_pb2.GetManifestRequest(deployment_id="d", version=1)
        assert (await daemon.servicer.get_manifest(request)).version == 1
        await daemon.servicer.inventory(statemanager_pb2.InventoryRequest())
        agent.close()
        book.close()
        await asyncio.to_thread(daemon.close)


class SlowMemory:
    """Memory copies in parts of `PART` bytes, each of which waits for permission."""

    PART = STATE_BYTES // 4

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.turns = threading.Semaphore(0)
        copy = mapping.copy

        def wait_and_copy(target: int, source: int, nbytes: int) -> None:
            assert self.turns.acquire(timeout=120)
            copy(target, source, nbytes)

        monkeypatch.setattr(hostcopy, "PART_BYTES", self.PART)
        monkeypatch.setattr(mapping, "copy", wait_and_copy)


async def test_a_move_shows_its_bytes_while_it_goes_on(
    daemon: Daemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    memory = SlowMemory(monkeypatch)
    seen = []
    async with asyncio.timeout(120), asyncio.TaskGroup() as tasks:
        move = tasks.create_task(daemon.move(common_pb2.RESIDENCY_HOST))
        while not move.done():
            worked = await daemon.worked()
            if worked not in seen:
                seen.append(worked)
                memory.turns.release()
            await asyncio.sleep(0)
    assert seen[:4] == [part * SlowMemory.PART for part in range(4)]
    assert await daemon.worked() == STATE_BYTES


async def test_copies_and_digests_show_their_bytes_too(daemon: Daemon) -> None:
    copies = await daemon.copy(1)
    copied = await daemon.worked()
    assert copied >= STATE_BYTES
    request = statemanager_pb2.DigestRequest(wpg_id="w", copies=copies)
    assert not (await daemon.servicer.digest(request)).HasField("error")
    assert await daemon.worked() == copied + STATE_BYTES


# -- faults at every call of a handler -------------------------------------------------------------

HEADER_ROOM = service_pb2.StageHeader(operation_id=b"o" * 16, job_id="j", nbytes=4)


class FaultyNode(FaultyProxy):
    """A node whose parts, and the links to whose ranks, fail as told."""

    def __init__(self, node: ManagedNode, faults: Faults) -> None:
        super().__init__(node, faults, parts={"publisher", "staging", "book", "wpg_locks"})
        self._node = node

    def links_of(self, wpg_id: WpgId) -> list[Any]:
        links = self._faults.around("links_of", self._node.links_of, wpg_id)
        return [FaultyProxy(link, self._faults, parts={"memory"}) for link in links]


async def staging_stream() -> AsyncIterator[bytes]:
    yield service_pb2.StageRequest(header=HEADER_ROOM).SerializeToString()
    chunk = common_pb2.Chunk(offset=0, data=b"data")
    yield service_pb2.StageRequest(chunk=chunk).SerializeToString()


async def do_move(d: Daemon, _: Path) -> Any:
    request = statemanager_pb2.MoveRequest(wpg_id="w", to=common_pb2.RESIDENCY_HOST, move_id=b"m")
    return await d.servicer.move(request)


async def do_publish(d: Daemon, _: Path) -> Any:
    return await d.publish(2)


async def do_release(d: Daemon, _: Path) -> Any:
    request = statemanager_pb2.ReleaseVersionRequest(deployment_id="d", version=1)
    return await d.servicer.release_version(request)


async def do_save(d: Daemon, place: Path) -> Any:
    holder = statemanager_pb2.VersionHolder(node_id="n")
    copies = statemanager_pb2.PublishedVersion(deployment_id="d", version=1, holders=[holder])
    return await d.save(place / "out", copies)


async def do_stage(d: Daemon, _: Path) -> Any:
    return await d.servicer.stage(staging_stream())


async def do_digest(d: Daemon, _: Path) -> Any:
    holder = statemanager_pb2.VersionHolder(node_id="n")
    copies = statemanager_pb2.PublishedVersion(deployment_id="d", version=1, holders=[holder])
    request = statemanager_pb2.DigestRequest(wpg_id="w", copies=copies)
    return await d.servicer.digest(request)


async def do_manifest(d: Daemon, _: Path) -> Any:
    request = statemanager_pb2.GetManifestRequest(deployment_id="d", version=1)
    return await d.servicer.get_manifest(request)


async def do_read_staged(d: Daemon, _: Path) -> Any:
    request = statemanager_pb2.ReadStagedRequest(staging_id=RESULT, job_id="j", offset=1)
    chunks = d.servicer.read_staged(request)
    assert b"".join([chunk.data async for chunk in chunks]) == bytes(7)
    return common_pb2.Chunk()


async def do_drop_staged(d: Daemon, _: Path) -> Any:
    request = statemanager_pb2.DropStagedRequest(staging_ids=[RESULT], job_id="j")
    return await d.servicer.drop_staged(request)


async def do_forget(d: Daemon, _: Path) -> Any:
    request = statemanager_pb2.ForgetRequest(wpg_id="w")
    return await d.servicer.forget(request)


RESULT, UNSEALED = b"r" * 16, b"u" * 16

HANDLERS = [
    do_move,
    do_publish,
    do_release,
    do_save,
    do_digest,
    do_manifest,
    do_stage,
    do_read_staged,
    do_drop_staged,
]


async def furnish(d: Daemon) -> None:
    """Give the rank a version that it maps, a result that is done and one that it still writes."""
    await d.copy(1)
    link, job_id = d.node.links[WpgId("w"), 0], JobId("j")
    fd, _ = d.node.publisher.open(VersionId("d", 0, 1), job_id=job_id, holder=link.client_id)
    os.close(fd)
    for staging_id in (RESULT, UNSEALED):
        os.close(
            d.node.staging.create(
                staging_id, (), 8, tenant=TenantId("t"), job_id=job_id, owner=link.client_id
            )
        )
    d.node.staging.seal(RESULT, job_id=job_id)


def shown(d: Daemon, place: Path) -> dict[str, object]:
    """Return what a node holds, counted and in fact."""
    wpg, staging, publisher = d.node.ledger.wpgs.get(WpgId("w")), d.node.staging, d.node.publisher
    shelf, staged = publisher._shelf._entries, staging._room._entries
    assert shelf.keys() == publisher._versions.keys(), "a version is counted and kept, or neither"
    assert staged.keys() == staging._bundles.keys(), "so is a bundle"
    return {
        "residency": None if wpg is None else wpg.residency,
        "versions": {key.version: (e.is_released, dict(e.holders)) for key, e in shelf.items()},
        "host": d.host_bytes,
        "devices": [budget.used for budget in d.node.ledger.devices.values()],
        "staged": {key: (entry.nbytes, entry.is_sealed) for key, entry in staged.items()},
        "staging": staging.usage(),
        "ranks": sorted(d.node.links),
        "files": sorted(path.name for path in place.iterdir()) if place.exists() else [],
    }


async def tried(
    handler: Callable[[Daemon, Path], Awaitable[Any]], daemon: Daemon, place: Path
) -> bool:
    """Return whether a handler said that it did what was asked."""
    try:
        return not (reply := await handler(daemon, place)).DESCRIPTOR.fields_by_name.get(
            "error"
        ) or not reply.HasField("error")
    except (MemoryError, OSError, PlexError, RuntimeError):
        return False


@pytest.mark.parametrize("is_after", [False, True])
@pytest.mark.parametrize("handler", HANDLERS)
async def test_a_fault_at_any_call_of_a_handler_leaves_it_undone_or_done(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    handler: Callable[[Daemon, Path], Awaitable[Any]],
    is_after: bool,
) -> None:
    faults = Faults()
    for home, name in ((checkpoints, "materialize"), (snapshot, "take"), (snapshot, "of_copies")):
        monkeypatch.setattr(home, name, faults.over(name, getattr(home, name)))
    at, total, error = -1, 0, list(ERRORS)
    while at < total:
        place = tmp_path / f"{at}"
        place.mkdir()
        (tmp_path / f"s{at}").mkdir()
        daemon = await asyncio.to_thread(Daemon, tmp_path / f"s{at}", Book())
        try:
            await furnish(daemon)
            before = shown(daemon, place)
            make_faulty(daemon, faults)
            faults.arm(at, is_after=is_after, error=error[at % len(error)])
            is_done = await tried(handler, daemon, place)
            faults.is_armed = False
            if at < 0:
                assert is_done
                total = len(faults.calls)
            found = shown(daemon, place)
            assert await tried(handler, daemon, place), (at, faults.calls[: at + 1][-3:])
            wanted = shown(daemon, place)
            assert found == wanted if is_done else found in (before, wanted), (
                at,
                faults.calls[: at + 1][-3:],
                error[at % len(error)],
            )
        finally:
            faults.is_armed = False
            await asyncio.to_thread(daemon.close)
            at += 1
    assert total, "there were calls to fail"


def make_faulty(daemon: Daemon, faults: Faults) -> None:
    servicer: Any = daemon.servicer
    faulty: Any = FaultyNode(daemon.node, faults)
    servicer._mover._node = faulty
    servicer._mover = FaultyProxy(servicer._mover, faults)
    servicer._clients = FaultyProxy(servicer._clients, faults)
    servicer._node = servicer._saver._node = faulty
    book: Any = FaultyProxy(daemon.node.book, faults)
    daemon.node.staging._book = daemon.node.publisher._book = book


class FakeForgetful(Clients):
    """Frees nothing when a client leaves, so that only `Forget` does."""

    def disconnect(self, link: RankLink) -> None:
        del link


async def test_a_wpg_whose_forgetting_broke_off_anywhere_is_forgotten_by_the_repeat(
    tmp_path: Path,
) -> None:
    faults, at, total = Faults(), -1, 0
    wanted: dict[str, object] = {}
    for is_after in (False, True):
        at = -1
        while at < total:
            (tmp_path / f"{is_after}{at}").mkdir()
            daemon = await asyncio.to_thread(Daemon, tmp_path / f"{is_after}{at}", Book())
            make_faulty(daemon, faults)
            inner: Any = Clients(cast("Any", FaultyNode(daemon.node, faults)))
            daemon.servicer._clients = inner
            daemon.data._clients = FakeForgetful(daemon.node)
            try:
                await furnish(daemon)
                faults.arm(at, is_after=is_after)
                is_done = await tried(do_forget, daemon, tmp_path)
                faults.is_armed = False
                assert is_done == (at < 0), faults.calls[: at + 1]
                total = total if at >= 0 else len(faults.calls)
                assert await tried(do_forget, daemon, tmp_path), faults.calls[: at + 1]
                found = shown(daemon, tmp_path / "none")
                wanted = wanted if at >= 0 else found
                assert found == wanted, faults.calls[: at + 1]
            finally:
                faults.is_armed = False
                await asyncio.to_thread(daemon.close)
                at += 1
    assert wanted["ranks"] == []
    assert wanted["staged"] == {b"j/" + RESULT: (8, True)}
    assert wanted["versions"] == {1: (False, {})}
    assert wanted["host"] == STATE_BYTES, "the version that its job has not released"
    assert total > 15


class Guarded(dict[Any, Any]):
    """What some iterate over under a lock: it changes under that lock alone."""

    def __init__(self, known: dict[Any, Any], lock: threading.Lock) -> None:
        super().__init__(known)
        self._lock = lock

    def __setitem__(self, key: object, value: object) -> None:
        assert self._lock.locked(), key
        super().__setitem__(key, value)

    def __delitem__(self, key: object) -> None:
        assert self._lock.locked(), key
        super().__delitem__(key)

    def pop(self, key: object, *default: object) -> Any:
        assert self._lock.locked(), key
        return super().pop(key, *default)


async def test_what_is_iterated_over_under_the_lock_changes_under_it(daemon: Daemon) -> None:
    node = daemon.node
    node.links, node.parked = Guarded(node.links, node.lock), Guarded(node.parked, node.lock)
    await daemon.move(common_pb2.RESIDENCY_HOST)
    assert list(node.parked) == ["w"]
    await daemon.move(common_pb2.RESIDENCY_DEVICE)
    assert not node.parked
    ours, theirs = socket.socketpair()
    with ours, theirs:
        link = daemon.clients.connect(
            ours, wpg_id=WpgId("x"), rank=0, incarnation=1, device_index=0, job_id=JobId("j")
        )
        assert node.links["x", 0] is link
        daemon.clients.disconnect(link)
    await daemon.servicer.forget(statemanager_pb2.ForgetRequest(wpg_id="w"))
    assert not node.links


async def test_a_move_whose_record_is_not_taken_is_on_record_as_not_made(
    daemon: Daemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    records: dict[Key, Facts] = {}
    monkeypatch.setattr(
        daemon.node.book, "put", lambda key, facts, **_: records.update({key: facts})
    )

    def refuse_once_it_is_made() -> None:
        if records and records["wpg", "w"]["last_move"] is not None:
            raise PlexError(ErrorCode.UNAVAILABLE, "the node agent does not read it")

    monkeypatch.setattr(daemon.node.book, "settle", refuse_once_it_is_made)
    request = statemanager_pb2.MoveRequest(wpg_id="w", to=common_pb2.RESIDENCY_HOST)
    request.fence.lease_no = 1
    reply = await daemon.servicer.move(request)
    assert (reply.error.code, reply.residency) == ("unavailable", common_pb2.RESIDENCY_DEVICE)
    assert records["wpg", "w"]["state"]["residency"] == "device"
    daemon.rank.fill(3.0)


async def test_memory_is_taken_once_the_book_is_read(
    daemon: Daemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What others have left is theirs for a successor until it is on record that they have."""
    settle = daemon.node.book.settle

    def refuse() -> None:
        raise PlexError(ErrorCode.UNAVAILABLE, "the node agent does not read it")

    monkeypatch.setattr(daemon.node.book, "settle", refuse)
    used, more = daemon.node.ledger.devices[0].used, RegionSpec(name="more", nbytes=KIB)
    with pytest.raises(PlexError, match="does not read it"):
        await asyncio.to_thread(daemon.rank.client.allocate, [more])
    assert daemon.node.ledger.devices[0].used == used
    monkeypatch.setattr(daemon.node.book, "settle", settle)
    assert "more" in await asyncio.to_thread(daemon.rank.client.allocate, [more])
