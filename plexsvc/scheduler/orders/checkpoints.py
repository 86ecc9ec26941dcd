"""Checkpoints of durable deployments: each n-th step's copy, written while the deployment goes on.

One is written at a time. A step whose turn comes while the one before is still being written is
left out. What goes wrong is told by `explain` and costs the job nothing.
"""

from __future__ import annotations

import json

import grpc.aio
from google.protobuf.json_format import MessageToDict

from plexclient.wire.v1 import statemanager_pb2
from plexsvc.errors import PlexError
from plexsvc.log import Log
from plexsvc.scheduler.faults import fault_of_call
from plexsvc.scheduler.ledger.durable import Durable
from plexsvc.scheduler.ledger.held import Published
from plexsvc.scheduler.ledger.jobs import DeploymentRecord, WpgRecord
from plexsvc.scheduler.orders import host_bytes, managed
from plexsvc.scheduler.orders.reach import Reach

log = Log(__name__)


def begin(record: DeploymentRecord, durable: Durable, *, step: int) -> bool:
    """Return whether the copy that was just made is to be written; it is kept until then."""
    every = record.spec.checkpoint_every
    if not every or not step or step % every:
        return False
    if durable.written is not None:
        durable.checkpoint = (
            f"has no checkpoint of step {step}: the one before was still being written; make them "
            "less often"
        )
        log.warning("checkpoint left out", deployment=record.deployment_id, step=step)
        return False
    durable.written = durable.copy
    return True


async def write(reach: Reach, wpg: WpgRecord, copy: Published, *, step: int, position: str) -> None:
    """Write a copy as a checkpoint, and release it if a newer one took its place meanwhile."""
    record, durable = wpg.deployment, wpg.deployment.durable
    assert durable is not None, record.deployment_id
    request = statemanager_pb2.MaterializeRequest(
        fence=reach.fence(lease_no=0),
        wpg_id=wpg.wpg_id,
        path=f"{record.spec.checkpoint_root}/{record.deployment_id}@{step}",
        root=record.spec.checkpoint_root,
        tenant=record.tenant,
        optimizer=True,
        model=record.spec.model,
        model_root=record.spec.model_root,
        about_json=_about(reach, record, step=step, position=position),
        kept=record.spec.checkpoints_kept,
    )
    try:
        request.copies.CopyFrom(reach.locate(copy))
        reply = await managed.write(reach, wpg, request)
        durable.checkpoint = f"has a checkpoint of step {step} ({reply.nbytes} bytes)"
    except (grpc.aio.AioRpcError, PlexError) as error:
        why = fault_of_call(error).message
        durable.checkpoint = f"has no checkpoint of step {step}: {why}"
        log.warning("checkpoint not written", deployment=record.deployment_id, step=step, error=why)
    finally:
        durable.written = None
        if durable.copy is not copy:
            await managed.release(reach, copy)
        host_bytes.tell_held(reach, record.deployment_id)


def _about(reach: Reach, record: DeploymentRecord, *, step: int, position: str) -> str:
    about = {
        "job_id": record.job_id,
        "job": reach.registry.jobs[record.job_id].name,
        "deployment": record.name,
        "step": step,
        "position": json.loads(position or "null"),
        "spec": MessageToDict(record.spec, preserving_proto_field_name=True),
    }
    return json.dumps(about)
