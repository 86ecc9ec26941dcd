"""Staged inputs are freed where they lie, whatever the size of the cluster."""

from __future__ import annotations

import asyncio
from pathlib import Path

from plexclient.wire.v1 import operations_pb2, service_pb2
from plexsvc.errors import ErrorCode
from plexsvc.ids import OperationId
from tests.fakes.fake_cluster import staged_payload
from tests.rigs.scheduler_rig import TENANT, Rig, start_rig


async def run_staged(rig: Rig, *, refused: bool = False) -> OperationId:
    """Run an operation with staged inputs, or have it refused; return its id."""
    operation = rig.operation("job-1", "forward", payload=staged_payload(1 << 20))
    announced = service_pb2.PayloadStagedRequest(
        operation_id=operation.operation_id,
        job_id="job-1",
        tenant=TENANT,
        deployment_id="job-1/actor",
        node_ids=["node-0"],
    )
    if refused:
        announced.error.code = ErrorCode.BAD_REQUEST
    async with asyncio.TaskGroup() as group:
        call = group.create_task(rig.scheduler.submit(operation))
        await asyncio.sleep(0)  # lets the submission in
        await rig.scheduler.call("PayloadStaged", announced, service_pb2.PayloadStagedReply)
    answered = call.result().state == operations_pb2.OPERATION_STATE_ANSWERED
    assert answered is not refused
    return OperationId(operation.operation_id)


async def test_inputs_are_dropped_on_the_nodes_of_their_deployment_alone(tmp_path: Path) -> None:
    async with start_rig(tmp_path, nodes=[{"train": 1}] * 5) as rig:
        await rig.job("job-1")
        await rig.deploy("job-1")
        ran = [await run_staged(rig, refused=is_refused) for is_refused in (False, True, False)]
        async with asyncio.timeout(120):
            while ran[-1] not in rig.behaviour.dropped:  # noqa: ASYNC110 - fakes answer in their own time
                await asyncio.sleep(0.01)
        assert sorted(rig.behaviour.dropped) == sorted(ran)
