"""A version on another host is streamed from its state manager; one out of reach says so."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import TypeAlias

import grpc
import pytest

from plexclient.errors import ErrorCode, PlexError
from plexclient.wire.v1 import statemanager_pb2, statemanager_pb2_grpc
from plexsvc import progress
from plexsvc.ids import VersionId
from plexsvc.rpc.channels import listen, new_server
from plexsvc.statelink import opening
from plexsvc.statelink.byteline import ByteLine
from plexsvc.statelink.far import Far
from plexsvc.statelink.opening import VersionOpener
from plexsvc.statemanager.byteserver import ByteServer
from plexsvc.weights.checksums import verify
from plexsvc.weights.reading import OpenedPart
from tests.fakes.fake_engine import FakeEngine
from tests.fakes.fake_instances import SHELF, FakeInstance, publish
from tests.rigs.keys import KEYS, keys_file

Context: TypeAlias = "grpc.aio.ServicerContext[object, object]"

DATA = bytes(range(256)) * 3000


class FakeStateManager(statemanager_pb2_grpc.StateManagerServicer):
    """Answers with what is on the shelf; breaks off the first `breaks` calls."""

    def __init__(self, *, extra: bytes = b"", breaks: int = 0) -> None:
        self.extra, self.breaks = extra, breaks
        self.bytes_at = ""

    async def GetManifest(
        self, request: statemanager_pb2.GetManifestRequest, context: Context
    ) -> statemanager_pb2.VersionManifest:
        if self.breaks:
            self.breaks -= 1
            await context.abort(grpc.StatusCode.UNAVAILABLE, "killed")
        found = statemanager_pb2.VersionManifest()
        found.CopyFrom(SHELF[VersionId.of(request)].manifest)
        found.bytes_at = self.bytes_at
        return found

    def answer(self, line: ByteLine, request: statemanager_pb2.ReadVersionRequest) -> None:
        data = bytes(SHELF[VersionId.of(request)].data) + self.extra
        for at in range(0, len(data), 1 << 18):
            part = data[at : at + (1 << 18)]
            line.send(statemanager_pb2.VersionChunk(offset=at, nbytes=len(part)))
            line.send_bytes(part)
        line.wait_for_end()


def far_version() -> statemanager_pb2.PublishedVersion:
    version = publish(9, data=DATA)
    version.holders[0].node_id = "far"
    return version


async def read(
    servicer: FakeStateManager, tmp_path: Path, *, address: str = "127.0.0.1:0", job_id: str = "job"
) -> OpenedPart:
    version, server = far_version(), new_server(KEYS)
    statemanager_pb2_grpc.add_StateManagerServicer_to_server(servicer, server)
    version.holders[0].state_manager = listen(server, address, KEYS, key="fake")
    giving = ByteServer(servicer.answer, keys=KEYS, address=version.holders[0].state_manager)
    servicer.bytes_at = giving.address
    await server.start()
    try:
        config = FakeInstance(FakeEngine()).config
        config = replace(config, keys_file=keys_file(tmp_path), job_id=job_id)
        opener = VersionOpener(config)
        opened = await asyncio.to_thread(opener.open, version)
    finally:
        giving.close()
        await server.stop(None)
    (part,) = opened.parts
    assert opened.manifests == [part.manifest]
    return part


async def test_a_version_of_another_host_arrives_whole(tmp_path: Path) -> None:
    before = progress.count()
    part = await read(FakeStateManager(), tmp_path)
    assert progress.count() - before == 3, "each chunk is progress"
    assert bytes(part.data) == DATA
    assert part.data.readonly
    assert verify(part.manifest, part.data)


async def test_to_an_instance_of_no_job_a_version_of_this_host_is_streamed(tmp_path: Path) -> None:
    address = f"unix:{tmp_path / 'state.sock'}"
    part = await read(FakeStateManager(), tmp_path, address=address, job_id="")
    assert bytes(part.data) == DATA


async def test_a_holder_that_breaks_off_is_asked_again_and_one_that_stays_away_is_named(
    tmp_path: Path,
) -> None:
    assert bytes((await read(FakeStateManager(breaks=1), tmp_path)).data) == DATA
    with pytest.raises(PlexError, match="version 9 of actor could not be read") as caught:
        await read(FakeStateManager(breaks=2), tmp_path)
    assert caught.value.code == ErrorCode.UNAVAILABLE


async def test_a_stream_longer_than_its_manifest_is_not_taken_for_it(tmp_path: Path) -> None:
    with pytest.raises(PlexError, match="out of turn"):
        await read(FakeStateManager(extra=b"x"), tmp_path)


def test_a_version_out_of_reach_names_its_node() -> None:
    with pytest.raises(PlexError, match="node far") as caught:
        VersionOpener(FakeInstance(FakeEngine()).config).open(far_version())
    assert caught.value.code == ErrorCode.NOT_FOUND


class Shelf:
    """This node: has one part, and notes from whom others are brought."""

    def __init__(self, part: OpenedPart, brought: list[str]) -> None:
        self._part, self._brought = part, brought

    def open_version(self, version: VersionId) -> OpenedPart:
        del version
        return self._part

    def fetch_version(
        self,
        version: statemanager_pb2.PublishedVersion,
        holder: statemanager_pb2.VersionHolder,
    ) -> OpenedPart:
        del version
        self._brought.append(holder.node_id)
        manifest = statemanager_pb2.VersionManifest(node_id=holder.node_id)
        return OpenedPart(manifest=manifest, data=memoryview(b""))


def test_a_version_is_read_from_other_nodes_only_for_what_is_not_here(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    held = {
        node_id: OpenedPart(
            manifest=statemanager_pb2.VersionManifest(
                node_id=node_id,
                pieces=[
                    statemanager_pb2.CanonicalPiece(kind="param", name="w", start=[low], size=[2])
                    for low in lows
                ],
            ),
            data=memoryview(b""),
        )
        for node_id, lows in (("here", [0]), ("copy", [0]), ("rest", [2, 4]))
    }
    streamed: list[str] = []

    def asked(far: Far, _: object) -> statemanager_pb2.VersionManifest:
        return held[far.holder.node_id].manifest

    monkeypatch.setattr(Far, "read_manifest", asked)
    config = replace(FakeInstance(FakeEngine()).config, node_id="here")
    opener = VersionOpener(config, here=Shelf(held["here"], streamed))

    def opened(*node_ids: str) -> list[str]:
        streamed.clear()
        holders = [
            statemanager_pb2.VersionHolder(node_id=node_id, state_manager="there:1")
            for node_id in node_ids
        ]
        found = opener.open(statemanager_pb2.PublishedVersion(holders=holders))
        assert {manifest.node_id for manifest in found.manifests} == set(node_ids)
        return [part.manifest.node_id for part in found.parts]

    assert opened("copy", "here", "rest") == ["here", "rest"]
    assert streamed == ["rest"]
    assert opened("copy") == streamed == ["copy"]
    assert opened() == []


def test_a_socket_of_the_same_name_on_another_host_is_not_mapped(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "data.sock").touch()  # both hosts have their files at the same place
    holder = statemanager_pb2.VersionHolder(
        node_id="far", state_manager="10.0.0.8:50061", data_socket=str(tmp_path / "data.sock")
    )
    manifest = statemanager_pb2.VersionManifest(node_id="far")
    part = OpenedPart(manifest=manifest, data=memoryview(b""))
    monkeypatch.setattr(Far, "read_manifest", lambda *_: manifest)
    monkeypatch.setattr(Far, "read_whole", lambda *_: part)
    config = replace(FakeInstance(FakeEngine()).config, node_id="here", listen="10.0.0.7:0")
    opened = VersionOpener(config).open(statemanager_pb2.PublishedVersion(holders=[holder]))
    assert opened.parts == [part]


def test_a_part_that_two_have_is_read_from_one_and_from_the_other_if_that_is_gone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[str] = []
    gone: set[str] = set()

    def ask(far: Far, _: object) -> statemanager_pb2.VersionManifest:
        asked.append(far.holder.node_id)
        if far.holder.node_id in gone:
            raise PlexError(ErrorCode.UNAVAILABLE, f"{far.holder.node_id} is gone")
        return statemanager_pb2.VersionManifest(node_id=far.holder.node_id)

    monkeypatch.setattr(Far, "read_manifest", ask)
    monkeypatch.setattr(
        Far, "read_whole", lambda _, manifest: OpenedPart(manifest=manifest, data=memoryview(b""))
    )
    opener = VersionOpener(replace(FakeInstance(FakeEngine()).config, node_id="here"))

    def opened(**parts: str) -> list[str]:
        asked.clear()
        holders = [
            statemanager_pb2.VersionHolder(node_id=name, part=part, state_manager="there:1")
            for name, part in parts.items()
        ]
        version = statemanager_pb2.PublishedVersion(holders=holders)
        return [manifest.node_id for manifest in opener.open(version).manifests]

    assert opened(one="p", other="p") == asked == ["one"]
    gone.add("one")
    assert opened(one="p", other="p") == ["other"]
    assert asked == ["one", "other"]
    gone.add("other")
    with pytest.raises(PlexError, match="other is gone"):
        opened(one="p", other="p")
    with pytest.raises(PlexError, match="one is gone"):
        opened(one="p", rest="q")
    with pytest.raises(PlexError, match="one is gone"):
        opened(one="", rest="")


def test_a_client_that_lost_its_state_manager_is_made_anew_by_the_next_call(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    manifest = statemanager_pb2.VersionManifest(node_id="far")
    part = OpenedPart(manifest=manifest, data=memoryview(b""))
    closed: list[int] = []
    made: list[int] = []

    class FakeClient:
        def __init__(self, *_: object, **__: object) -> None:
            self.number = len(made)
            made.append(self.number)
            self.is_lost = False

        def fetch_version(self, *_: object) -> OpenedPart:
            if self.number == 0:
                self.is_lost = True
                raise PlexError(ErrorCode.UNAVAILABLE, "none took over")
            return part

        def close(self) -> None:
            closed.append(self.number)

    monkeypatch.setattr(opening, "StateClient", FakeClient)
    monkeypatch.setattr(Far, "read_manifest", lambda *_: manifest)
    config = replace(FakeInstance(FakeEngine()).config, node_id="here", data_socket="/data.sock")
    opener = VersionOpener(config)
    holder = statemanager_pb2.VersionHolder(node_id="far", state_manager="10.0.0.8:50061")
    version = statemanager_pb2.PublishedVersion(holders=[holder])
    with pytest.raises(PlexError, match="none took over"):
        opener.open(version)
    assert opener.open(version).parts == [part]
    assert (made, closed) == ([0, 1], [0])
