"""Checkpoints that the system makes: which steps, from which copy, and what goes wrong."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass, field

import pytest

from plexclient.wire.errors import to_wire
from plexclient.wire.v1 import service_pb2, statemanager_pb2
from plexsvc.errors import ErrorCode, PlexError
from plexsvc.ids import DeploymentId
from plexsvc.scheduler.ledger.durable import Durable
from tests.rigs.scheduler_rig import TENANT, Rig, until

COPIES = "job-1/actor~durable"


@dataclass(slots=True)
class Disk:
    """Where fake state managers write: it is open unless it is shut."""

    is_open: asyncio.Event = field(default_factory=asyncio.Event)
    asked: list[statemanager_pb2.MaterializeRequest] = field(default_factory=list)
    errors: list[PlexError] = field(default_factory=list)

    async def write(
        self, request: statemanager_pb2.MaterializeRequest
    ) -> AsyncIterator[statemanager_pb2.MaterializeReply]:
        self.asked.append(request)
        await self.is_open.wait()
        if self.errors:
            yield statemanager_pb2.MaterializeReply(error=to_wire(self.errors.pop()))
        yield statemanager_pb2.MaterializeReply(nbytes=7, files=["model.safetensors"])

    @property
    def written(self) -> list[str]:
        """The paths that were asked for."""
        return [request.path for request in self.asked]


@pytest.fixture
def disk(rig: Rig) -> Disk:
    found = Disk()
    found.is_open.set()
    rig.behaviour.on_materialize = found.write
    return found


@pytest.fixture
async def durable(rig: Rig, disk: Disk) -> Durable:
    """The record of `job-1/actor`, which makes a checkpoint every second step."""
    del disk
    await rig.job("job-1")
    await rig.deploy("job-1", checkpoint_every=2)
    found = rig.driver.registry.deployments[DeploymentId("job-1/actor")].durable
    assert found is not None
    return found


async def step(rig: Rig, *, position: str = "") -> None:
    operation = rig.operation("job-1", "step")
    operation.position = position
    await rig.scheduler.submit(operation)


async def explained(rig: Rig) -> str:
    request = service_pb2.ExplainRequest(job_id="job-1", tenant=TENANT)
    reply = await rig.scheduler.call("ExplainOperation", request, service_pb2.ExplainReply)
    return "\n".join(reply.facts)


async def test_every_second_step_is_written_with_what_it_is(
    rig: Rig, disk: Disk, durable: Durable
) -> None:
    for number in range(1, 5):
        await step(rig, position=json.dumps({"batch": number}))
    await until(lambda: "step 4 (7 bytes)" in durable.checkpoint)
    assert disk.written == ["/lab/job-1/actor@2", "/lab/job-1/actor@4"]
    asked = disk.asked[1]
    assert (asked.copies.deployment_id, asked.copies.version) == (COPIES, 4)
    assert (asked.optimizer, asked.kept, asked.root, asked.tenant) == (True, 2, "/lab", TENANT)
    about = json.loads(asked.about_json)
    assert (about["job"], about["step"]) == ("job-1", 4)
    assert about["position"] == {"batch": 4}
    assert about["spec"]["checkpoint_every"] == 2
    assert "actor has a checkpoint of step 4" in await explained(rig)


async def test_the_job_trains_on_while_a_checkpoint_is_written(
    rig: Rig, disk: Disk, durable: Durable
) -> None:
    disk.is_open.clear()
    for _ in range(4):
        await step(rig)
    await until(lambda: (COPIES, 3) in rig.behaviour.released)
    assert disk.written == ["/lab/job-1/actor@2"]
    assert (COPIES, 2) not in rig.behaviour.released
    assert durable.held() == {"node-0": 15}
    disk.is_open.set()
    await until(lambda: (COPIES, 2) in rig.behaviour.released)
    await until(lambda: "step 4 (7 bytes)" in durable.checkpoint)  # it came meanwhile
    assert disk.written[1:] == ["/lab/job-1/actor@4"]
    assert (COPIES, 4) not in rig.behaviour.released
    assert durable.held() == {"node-0": 10}


async def test_a_checkpoint_that_cannot_be_written_costs_the_job_nothing(
    rig: Rig, disk: Disk, durable: Durable
) -> None:
    disk.errors.append(PlexError(ErrorCode.BAD_REQUEST, "no space left"))
    await step(rig)
    await step(rig)
    await until(lambda: bool(durable.checkpoint))
    assert "actor has no checkpoint of step 2: no space left" in await explained(rig)
    for _ in range(2):
        await step(rig)
    await until(lambda: "has a checkpoint of step 4" in durable.checkpoint)


async def test_one_that_is_written_when_its_job_ends_is_written_to_its_end(
    rig: Rig, disk: Disk, durable: Durable
) -> None:
    disk.is_open.clear()
    await step(rig)
    await step(rig)
    await until(lambda: bool(disk.asked))
    await rig.end("job-1")
    assert (COPIES, 2) not in rig.behaviour.released
    disk.is_open.set()
    await until(lambda: (COPIES, 2) in rig.behaviour.released)
    assert "has a checkpoint of step 2" in durable.checkpoint
