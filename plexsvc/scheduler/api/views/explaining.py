"""Explanations: why an operation or a job waits, without the names of other tenants."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from plexclient.ids import OPERATION_ID_BYTES
from plexclient.wire.v1 import service_pb2
from plexsvc.errors import bad_request, not_found
from plexsvc.ids import OperationId, show
from plexsvc.rpc.services import Methods
from plexsvc.scheduler.api.views import story
from plexsvc.scheduler.api.views.lens import Lens
from plexsvc.scheduler.faults import WIRE_STATES
from plexsvc.scheduler.ledger.jobs import JobRecord
from plexsvc.scheduler.live import LiveScheduler


async def explain(
    scheduler: LiveScheduler, request: service_pb2.ExplainRequest
) -> service_pb2.ExplainReply:
    """Return why an operation is where it is or, without one, what a job's deployments wait for.

    Raises:
        PlexError: `not_found`; `bad_request` for what begins the ids of several operations.
    """
    lens = Lens(scheduler.registry, request)
    if not request.operation_id:
        reply = _job(scheduler, lens.job(request.job_id), lens=lens)
    else:
        told = _operation(scheduler, request, lens=lens)
        assert told.state is not None, told
        reply = service_pb2.ExplainReply(
            text=lens.text(told.text),
            facts=map(lens.text, told.facts),
            state=WIRE_STATES[told.state],
        )
    if stalled := scheduler.stalled():  # what came since is not in the state that stories are of
        reply.text = f"nothing is decided, for {stalled}. Before, {reply.text}"
    return reply


def _operation(
    scheduler: LiveScheduler, request: service_pb2.ExplainRequest, *, lens: Lens
) -> story.Story:
    cluster, operation_id = scheduler.cluster, _whole(scheduler, request, lens=lens)
    if request.job_id:
        lens.job(request.job_id)
    found = cluster.operations.get(operation_id)
    told = story.explain(cluster, operation_id, now_us=scheduler.clock.wall_us())
    is_there = found is not None and lens.sees(found.job_id)
    if told is None or found is None or not is_there or request.job_id not in {"", found.job_id}:
        where = f"job {request.job_id!r} has" if request.job_id else "there is"
        stalled = scheduler.stalled()
        raise not_found(
            f"{where} no operation {show(operation_id)} that waits, runs or was lately answered"
            + (f"; what came since waits to be decided, for {stalled}" if stalled else "")
        )
    return told


def _whole(
    scheduler: LiveScheduler, request: service_pb2.ExplainRequest, *, lens: Lens
) -> OperationId:
    """Return the id that begins as asked: errors and logs show its first bytes. `O(operations)`."""
    asked = OperationId(request.operation_id)
    if len(asked) == OPERATION_ID_BYTES:
        return asked
    found = [
        operation_id
        for operation_id, one in scheduler.cluster.operations.items()
        if operation_id.startswith(asked)
        and lens.sees(one.job_id)
        and request.job_id in {"", one.job_id}
    ]
    if len(found) > 1:
        those = ", ".join(sorted(one.hex() for one in found))
        raise bad_request(f"op_{asked.hex()} begins the ids of several operations: {those}")
    return found[0] if found else asked


def _job(scheduler: LiveScheduler, record: JobRecord, *, lens: Lens) -> service_pb2.ExplainReply:
    told = story.explain_job(scheduler.cluster, record.job_id, now_us=scheduler.clock.wall_us())
    if told is None:
        why = f": {record.reason}" if record.reason else ""
        text = f"{record.job_id} ({record.name}) is {record.state}{why}"
        return service_pb2.ExplainReply(text=text)
    facts = [*told.facts, *_durable(scheduler, record)]
    return service_pb2.ExplainReply(text=lens.text(told.text), facts=map(lens.text, facts))


def _durable(scheduler: LiveScheduler, record: JobRecord) -> Iterator[str]:
    """Say what durable deployments can be rebuilt from, and how each was rebuilt last."""
    for deployment_id in record.deployment_ids:
        one = scheduler.registry.deployments[deployment_id]
        if one.durable is not None and not one.durable.is_lost:
            yield f"{one.name} {one.durable}"
            if one.durable.checkpoint:
                yield f"{one.name} {one.durable.checkpoint}"
            if one.durable.pause is not None:
                yield f"{one.name} {one.durable.pause}"


METHODS: Final[Methods] = {"ExplainOperation": explain}
