"""Fake-engine instances behind the real servicer on loopback, and versions published in memory."""

from __future__ import annotations

from dataclasses import dataclass, field

import grpc.aio

from plexclient.wire.v1 import rollout_pb2_grpc, statemanager_pb2, worker_pb2_grpc
from plexsvc.clock import SystemClock
from plexsvc.rollout.config import InstanceConfig
from plexsvc.rollout.instance import DescribeServicer, InstanceServicer
from plexsvc.rpc.channels import new_server
from plexsvc.weights.checksums import block_checksums
from plexsvc.weights.reading import Published
from tests.fakes.fake_engine import FakeEngine

SHELF: dict[int, bytes] = {}
"""Bytes of published versions, as a state manager would map them."""


def publish(version: int, *, data: bytes | None = None) -> statemanager_pb2.VersionManifest:
    """Put a version on the shelf and return its manifest."""
    data = data if data is not None else bytes([version]) * 100
    SHELF[version] = data
    return statemanager_pb2.VersionManifest(
        deployment_id="actor",
        version=version,
        nbytes=len(data),
        block_checksums=block_checksums(memoryview(data)),
    )


@dataclass(slots=True)
class FakeInstance:
    """An instance that can be killed and started again at the same address."""

    engine: FakeEngine
    address: str = "127.0.0.1:0"
    server: grpc.aio.Server | None = None
    config: InstanceConfig = field(
        default_factory=lambda: InstanceConfig(
            wpg_id="wpg",
            rank=0,
            incarnation=1,
            scheduler_epoch=1,
            job_id="job",
            deployment_id="rollout",
            model="fake",
        )
    )

    async def start(self) -> None:
        """Serve on the address, a free one the first time."""
        self.server = new_server()
        servicer = InstanceServicer(
            self.engine,
            self.config,
            clock=SystemClock(),
            open_version=lambda manifests: [
                Published(manifest=m, data=memoryview(SHELF[m.version])) for m in manifests
            ],
        )
        rollout_pb2_grpc.add_RolloutInstanceServicer_to_server(servicer, self.server)
        describe = DescribeServicer(self.engine, self.config)
        worker_pb2_grpc.add_WorkerServicer_to_server(describe, self.server)
        port = self.server.add_insecure_port(self.address)
        self.address = f"127.0.0.1:{port}"
        await self.server.start()

    async def kill(self) -> None:
        """End at once: open streams break."""
        if self.server is not None:
            await self.server.stop(None)
            self.server = None


async def start_instance(*, held: bool = False) -> FakeInstance:
    """Return a serving fake instance."""
    instance = FakeInstance(FakeEngine(held=held))
    await instance.start()
    return instance
