"""A version on another host is streamed from its state manager; one out of reach says so."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from plexclient.errors import ErrorCode, PlexError
from plexclient.wire.v1 import common_pb2, statemanager_pb2, statemanager_pb2_grpc
from plexsvc.rollout.versions import verify
from plexsvc.rpc.channels import new_server
from plexsvc.statelink.version_source import VersionSource
from tests.fakes.fake_engine import FakeEngine
from tests.fakes.fake_instances import SHELF, FakeInstance, publish

DATA = bytes(range(256)) * 3000


class FakeStateManager(statemanager_pb2_grpc.StateManagerServicer):
    """Streams what is on the shelf."""

    def __init__(self, *, extra: bytes = b"") -> None:
        self.extra = extra

    async def ReadVersion(  # noqa: N802 - named by the service
        self, request: statemanager_pb2.ReadVersionRequest, context: object
    ) -> AsyncIterator[common_pb2.Chunk]:
        del context
        data = SHELF[request.version] + self.extra
        for at in range(0, len(data), 1 << 18):
            yield common_pb2.Chunk(offset=at, data=data[at : at + (1 << 18)])


async def read(
    manifest: statemanager_pb2.VersionManifest, servicer: FakeStateManager
) -> memoryview:
    server = new_server()
    statemanager_pb2_grpc.add_StateManagerServicer_to_server(servicer, server)
    manifest.state_manager = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    await server.start()
    try:
        return await asyncio.to_thread(VersionSource(FakeInstance(FakeEngine()).config), manifest)
    finally:
        await server.stop(None)


async def test_a_version_of_another_host_arrives_whole() -> None:
    manifest = publish(9, data=DATA)
    manifest.node_id = "far"
    data = await read(manifest, FakeStateManager())
    assert bytes(data) == DATA
    assert data.readonly
    assert verify(manifest, data)


async def test_a_stream_longer_than_its_manifest_is_not_taken_for_it() -> None:
    manifest = publish(9, data=DATA)
    manifest.node_id = "far"
    assert len(await read(manifest, FakeStateManager(extra=b"x"))) == len(DATA)


def test_a_version_out_of_reach_names_its_node() -> None:
    manifest = publish(9, data=DATA)
    manifest.node_id = "far"
    with pytest.raises(PlexError, match="node far") as caught:
        VersionSource(FakeInstance(FakeEngine()).config)(manifest)
    assert caught.value.code == ErrorCode.NOT_FOUND
