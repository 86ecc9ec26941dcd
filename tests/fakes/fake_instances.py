"""Fake-engine instances behind the real servicer on loopback, and versions published in memory."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import grpc.aio

from plexclient.wire.v1 import rollout_pb2_grpc, statemanager_pb2, worker_pb2_grpc
from plexsvc.clock import SystemClock
from plexsvc.ids import VersionId
from plexsvc.rollout.config import InstanceConfig
from plexsvc.rollout.instance import CALLED, DescribeServicer, InstanceServicer
from plexsvc.rpc.channels import listen, new_server
from plexsvc.weights.checksums import block_checksums
from plexsvc.weights.reading import OpenedPart, OpenedVersion
from tests.fakes.fake_engine import FakeEngine
from tests.rigs.keys import KEYS

SHELF: dict[VersionId, OpenedPart] = {}
"""Published versions, as a state manager would open them."""


def publish(
    version: int,
    *,
    source: str = "actor",
    incarnation: int = 1,
    data: bytes | None = None,
    is_damaged: bool = False,
) -> statemanager_pb2.PublishedVersion:
    """Put a version on the shelf and return it as a scheduler would send it."""
    named = VersionId(source, incarnation, version)
    view = memoryview(data if data is not None else f"{source} {version}".encode() * 100)
    manifest = statemanager_pb2.VersionManifest(
        **named._asdict(),
        nbytes=len(view),
        block_checksums=block_checksums(view),
    )
    found = memoryview(bytes(len(view))) if is_damaged else view
    SHELF[named] = OpenedPart(manifest=manifest, data=found)
    return statemanager_pb2.PublishedVersion(
        **named._asdict(), holders=[statemanager_pb2.VersionHolder()]
    )


def open_version(version: statemanager_pb2.PublishedVersion) -> OpenedVersion:
    """Open what is on the shelf."""
    part = SHELF[VersionId.of(version)]
    return OpenedVersion(manifests=[part.manifest], parts=[part])


@dataclass(slots=True)
class FakeInstance:
    """An instance that can be killed and started again at the same address."""

    engine: FakeEngine
    address: str = "127.0.0.1:0"
    server: grpc.aio.Server | None = None
    servicer: InstanceServicer = field(init=False)
    config: InstanceConfig = field(
        default_factory=lambda: InstanceConfig(
            wpg_id="wpg",
            rank=0,
            incarnation=1,
            scheduler_epoch=1,
            tenant="tenant",
            job_id="job",
            deployment_id="rollout",
            model="fake",
        )
    )

    async def start(self) -> None:
        """Serve on the address, a free one the first time."""
        self.server = new_server(KEYS, takes_nodes=[*CALLED, "Describe"])
        self.servicer = InstanceServicer(
            self.engine,
            self.config,
            clock=SystemClock(),
            open_version=open_version,
        )
        rollout_pb2_grpc.add_RolloutInstanceServicer_to_server(self.servicer, self.server)
        describe = DescribeServicer(self.engine, self.config)
        worker_pb2_grpc.add_WorkerServicer_to_server(describe, self.server)
        self.address = listen(self.server, self.address, KEYS, key="fake")
        await self.server.start()

    async def kill(self) -> None:
        """End at once: open streams break."""
        if self.server is not None:
            await self.server.stop(None)
            self.server = None


@asynccontextmanager
async def serving(*, held: bool = False) -> AsyncIterator[FakeInstance]:
    """Yield a fake instance that serves, and end it."""
    instance = FakeInstance(FakeEngine(held=held))
    try:
        await instance.start()
        yield instance
    finally:
        await instance.kill()
