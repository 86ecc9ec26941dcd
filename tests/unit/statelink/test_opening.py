"""A version on another host is streamed from its state manager; one out of reach says so."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from plexclient.errors import ErrorCode, PlexError
from plexclient.wire.v1 import common_pb2, statemanager_pb2, statemanager_pb2_grpc
from plexsvc.rollout.config import InstanceConfig
from plexsvc.rpc.channels import new_server
from plexsvc.statelink.opening import VersionOpener
from plexsvc.weights.checksums import verify
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
        opener = VersionOpener(FakeInstance(FakeEngine()).config)
        (part,) = await asyncio.to_thread(opener.open, [manifest])
        return part.data
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
        VersionOpener(FakeInstance(FakeEngine()).config).open([manifest])
    assert caught.value.code == ErrorCode.NOT_FOUND


def test_a_version_is_read_from_other_nodes_only_for_what_is_not_here() -> None:
    def manifest(node_id: str, *starts: int) -> statemanager_pb2.VersionManifest:
        parts = [
            statemanager_pb2.CanonicalPiece(kind="param", name="w", start=[low, 0], size=[2, 5])
            for low in starts
        ]
        return statemanager_pb2.VersionManifest(node_id=node_id, pieces=parts)

    def opened(*manifests: statemanager_pb2.VersionManifest) -> list[str]:
        config = InstanceConfig(
            wpg_id="wpg", rank=0, incarnation=1, scheduler_epoch=1, job_id="job",
            deployment_id="actor", model="", node_id="here",
        )  # fmt: skip
        opener = VersionOpener(config, here=lambda _: memoryview(b""))
        opener._map = lambda *_, **__: memoryview(b"")  # type: ignore[method-assign]
        return [part.manifest.node_id for part in opener.open(manifests)]

    here, copy, rest = manifest("here", 0), manifest("copy", 0), manifest("rest", 2, 4)
    for far in (copy, rest):
        far.data_socket = "/"
    assert opened(copy, here, rest) == ["here", "rest"]
    assert opened(copy) == ["copy"]
    assert opened() == []
