"""Release of operations: their records with rollout managers, and their staged bytes."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import grpc.aio

from plexclient.wire.v1 import statemanager_pb2
from plexsvc.errors import PlexError
from plexsvc.log import Log
from plexsvc.scheduler.core.actions import DropPayload, ReleaseOperation
from plexsvc.scheduler.handler import Handler, Work
from plexsvc.scheduler.ledger.jobs import DeploymentRecord
from plexsvc.scheduler.orders.reach import Reach

log = Log(__name__)


def handlers(reach: Reach) -> list[Handler[Any]]:
    """Return the handlers of what frees an operation's memory."""
    return [
        Handler(ReleaseOperation, partial(release, reach), is_internal=True),
        Handler(DropPayload, partial(drop_payload, reach), is_internal=True),
    ]


def release(reach: Reach, action: ReleaseOperation) -> Work:
    """Forget an operation's answer, and the results that wait for its client on nodes."""
    staged, record = reach.recorder.release(action.operation_id)
    return _release(reach, action, staged=staged, record=record)


async def drop_payload(reach: Reach, action: DropPayload) -> None:
    """Free an operation's staged inputs: where its deployment is and was, known or not all come.

    Where the deployment is gone, the nodes have dropped everything with its job.
    """
    record = reach.recorder.deployment_of(action.operation_id)
    durable = None if record is None else record.durable
    is_kept = durable is not None and durable.keeps(action.operation_id)
    if record is not None and not is_kept:
        await drop_staged(reach, [action.operation_id], record=record)


async def _release(
    reach: Reach,
    action: ReleaseOperation,
    *,
    staged: Sequence[bytes],
    record: DeploymentRecord | None,
) -> None:
    if record is None:
        return
    try:
        await reach.rollout.release(record.deployment_id, action.operation_id)
    except PlexError as error:  # it goes when others need its room
        log.warning("token record not dropped", error=error)
    if staged:
        await drop_staged(reach, staged, record=record)


async def drop_staged(
    reach: Reach, staging_ids: Sequence[bytes], *, record: DeploymentRecord
) -> None:
    """Free staged bytes on nodes that are up; what is gone already is fine."""
    request = statemanager_pb2.DropStagedRequest(staging_ids=staging_ids, job_id=record.job_id)
    others = () if record.durable is None else record.durable.other_nodes
    for node_id in dict.fromkeys((*record.nodes, *record.former_nodes, *others)):
        if not reach.nodes.is_up(node_id):
            continue
        try:
            await reach.ask_state(
                node_id, lambda state: state.DropStaged(request, timeout=reach.rpc_s)
            )
        except (grpc.aio.AioRpcError, PlexError) as error:
            log.warning("staged bytes not freed", node=node_id, error=error)
