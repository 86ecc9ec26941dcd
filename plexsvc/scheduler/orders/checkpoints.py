"""Checkpoints of durable deployments: each n-th step's copy, written while the deployment goes on.

One is written at a time. Where a step's turn comes while another is still being written, the newest
copy is written after that. What goes wrong is told by `explain` and costs the job nothing.
"""

from __future__ import annotations

import json

import grpc.aio
from google.protobuf.json_format import MessageToDict

from plexclient.wire.v1 import statemanager_pb2
from plexsvc.errors import PlexError
from plexsvc.log import Log
from plexsvc.scheduler.faults import fault_of_call
from plexsvc.scheduler.ledger.durable import CheckpointStep, Durable
from plexsvc.scheduler.ledger.jobs import DeploymentRecord, WpgRecord
from plexsvc.scheduler.orders import host_bytes, managed
from plexsvc.scheduler.orders.reach import Reach

log = Log(__name__)


def begin(record: DeploymentRecord, durable: Durable, step: CheckpointStep) -> bool:
    """Note what the copy that was just made is; return whether to write it, which keeps it."""
    durable.newest = step
    every = record.spec.checkpoint_every
    if not every or not step.number or step.number % every:
        return False
    if durable.written is not None:
        durable.is_overdue = True
        return False
    durable.written = step
    return True


async def write(reach: Reach, wpg: WpgRecord) -> None:
    """Write what `begin` said, and then the newest copy if another was to be written meanwhile."""
    record, durable = wpg.deployment, wpg.deployment.durable
    assert durable is not None, record.deployment_id
    while (step := durable.written) is not None:
        try:
            nbytes = await _write(reach, wpg, step)
            durable.checkpoint = f"has a checkpoint of step {step.number} ({nbytes} bytes)"
        except (grpc.aio.AioRpcError, PlexError) as error:
            why = fault_of_call(error).message
            durable.checkpoint = f"has no checkpoint of step {step.number}: {why}"
            log.warning("not written", step=f"{record.deployment_id}@{step.number}", error=why)
        finally:
            is_next = durable.is_overdue and durable.copy is not None
            durable.written = durable.newest if is_next else None
            durable.is_overdue = False
            if durable.copy is not step.copy:
                await managed.release(reach, step.copy)
            host_bytes.tell_held(reach, record.deployment_id)


async def _write(reach: Reach, wpg: WpgRecord, step: CheckpointStep) -> int:
    record = wpg.deployment
    about = {
        "job": reach.registry.jobs[record.job_id].name,
        "step": step.number,
        "position": json.loads(step.position or "null"),
        "spec": MessageToDict(record.spec, preserving_proto_field_name=True),
    }
    request = statemanager_pb2.MaterializeRequest(
        fence=reach.fence(lease_no=0),
        wpg_id=wpg.wpg_id,
        path=f"{record.spec.checkpoint_root}/{record.deployment_id}@{step.number}",
        root=record.spec.checkpoint_root,
        tenant=record.tenant,
        optimizer=True,
        model=record.spec.model,
        model_root=record.spec.model_root,
        about_json=json.dumps(about),
        kept=record.spec.checkpoints_kept,
        copies=reach.locate(step.copy),
    )
    return (await managed.write(reach, wpg, request)).nbytes
