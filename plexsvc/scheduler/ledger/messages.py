"""Wire messages of jobs and deployments, made from their records when they are asked for."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from plexclient.wire.errors import to_wire
from plexclient.wire.v1 import common_pb2, operations_pb2, service_pb2
from plexsvc.ids import OperationId
from plexsvc.scheduler.core.vocabulary import JobState, Place
from plexsvc.scheduler.faults import error_of
from plexsvc.scheduler.ledger.jobs import DeploymentRecord, JobRecord

JOB_STATES: Final = {
    JobState.QUEUED: service_pb2.JOB_STATE_QUEUED,
    JobState.RUNNING: service_pb2.JOB_STATE_RUNNING,
    JobState.COMPLETED: service_pb2.JOB_STATE_COMPLETED,
    JobState.FAILED: service_pb2.JOB_STATE_FAILED,
    JobState.CANCELLED: service_pb2.JOB_STATE_CANCELLED,
}


def job(record: JobRecord) -> service_pb2.Job:
    """Return a job as its client is shown it."""
    return service_pb2.Job(
        job_id=record.job_id,
        name=record.name,
        tenant=record.tenant,
        state=JOB_STATES[record.state],
        reason=record.reason,
        exit_code=record.exit_code,
        created_us=record.created_us,
        ended_us=record.ended_us,
        session_ttl_us=record.session_ttl_us,
        labels=record.labels,
        deployment_ids=record.deployment_ids,
        operations_done=record.operations_done,
        device_us=record.device_us,
        controller=record.controller,
    )


def deployment(record: DeploymentRecord) -> service_pb2.Deployment:
    """Return a deployment as its client and its ranks are shown it."""
    wpg = record.wpg
    return service_pb2.Deployment(
        deployment_id=record.deployment_id,
        job_id=record.job_id,
        tenant=record.tenant,
        name=record.name,
        spec=record.spec,
        state=record.state,
        error=None if record.fault is None else to_wire(error_of(record.fault)),
        incarnation=0 if wpg is None else wpg.incarnation,
        blocks=() if wpg is None else blocks_of(wpg.places),
        vocab_size=record.vocab_size,
        max_sequence_length=record.max_sequence_length,
        wpg_id="" if wpg is None else wpg.wpg_id,
        model_files=record.model_files,
        position=record.position,
        applied_seq=record.applied_seq,
    )


def initialize(record: DeploymentRecord, operation_id: OperationId) -> operations_pb2.Operation:
    """Return the operation that brings a deployment's ranks up."""
    return operations_pb2.Operation(
        operation_id=operation_id,
        tenant=record.tenant,
        job_id=record.job_id,
        deployment_id=record.deployment_id,
        initialize=operations_pb2.Initialize(),
    )


def blocks_of(places: Sequence[Place]) -> list[common_pb2.DeviceBlock]:
    """Return places as runs of neighbouring devices."""
    blocks: list[common_pb2.DeviceBlock] = []
    for place in places:
        last = blocks[-1] if blocks else None
        if (
            last is not None
            and last.node_id == place.node_id
            and last.first + last.count == place.device
        ):
            last.count += 1
        else:
            blocks.append(
                common_pb2.DeviceBlock(node_id=place.node_id, first=place.device, count=1)
            )
    return blocks
