"""Rows of the store, made from the ledger's records."""

from __future__ import annotations

import json

from plexclient.wire.v1 import operations_pb2, service_pb2
from plexsvc.ids import NodeId
from plexsvc.scheduler.core.vocabulary import OperationKind
from plexsvc.scheduler.ledger import messages
from plexsvc.scheduler.ledger.durable import CompletedOperation
from plexsvc.scheduler.ledger.held import Held
from plexsvc.scheduler.ledger.jobs import DeploymentRecord, JobRecord
from plexsvc.scheduler.ledger.results import Result
from plexsvc.store.rows import DeploymentRow, JobRow, KeptOperationRow, OperationRow


def kept_operation(record: DeploymentRecord, done: CompletedOperation) -> KeptOperationRow:
    """Return the row of an operation that a durable deployment may run again."""
    return KeptOperationRow(
        deployment_id=record.deployment_id,
        slot=done.slot,
        seq=done.held.operation.seq,
        operation=done.held.operation.SerializeToString(),
        staged_on=json.dumps(done.held.staged_on),
        digest=done.digest,
        error_code=done.code,
    )


def done_of(row: KeptOperationRow) -> CompletedOperation:
    """Return the operation of a row."""
    operation = operations_pb2.Operation.FromString(row.operation)
    held = Held(
        operation=operation,
        kind=OperationKind(operation.WhichOneof("body") or ""),
        nbytes=0,
        submitted_us=0,
        staged_on=tuple(map(NodeId, json.loads(row.staged_on))),
    )
    return CompletedOperation(held=held, digest=row.digest, code=row.error_code, slot=row.slot)


def job(record: JobRecord) -> JobRow:
    """Return the row of a job."""
    return JobRow(
        job_id=record.job_id,
        tenant=record.tenant,
        name=record.name,
        state=record.state,
        reason=record.reason,
        exit_code=record.exit_code,
        created_us=record.created_us,
        ended_us=record.ended_us,
        record=messages.job(record).SerializeToString(),
    )


def deployment(record: DeploymentRecord) -> DeploymentRow:
    """Return the row of a deployment."""
    wpg, kept = record.wpg, messages.deployment(record)
    kept.former_nodes.extend(service_pb2.NodeAddress(node_id=one) for one in record.former_nodes)
    return DeploymentRow(
        deployment_id=record.deployment_id,
        tenant=record.tenant,
        job_id=record.job_id,
        lease_no=0,
        incarnation=0 if wpg is None else wpg.incarnation,
        applied_seq=record.applied_seq,
        role=record.spec.role,
        backend=record.spec.backend,
        model=record.spec.model,
        wpg_id="" if wpg is None else wpg.wpg_id,
        state=record.state,
        error="" if record.fault is None else record.fault.message,
        record=kept.SerializeToString(),
        versions=record.versions,
    )


def operation(
    held: Held, result: Result, *, incarnation: int, answered_us: int, keeps_answer: bool
) -> OperationRow:
    """Return the row of an operation that was answered."""
    asked = held.operation
    return OperationRow(
        operation_id=asked.operation_id,
        tenant=asked.tenant,
        job_id=asked.job_id,
        deployment_id=asked.deployment_id,
        lease_no=held.lease_no,
        incarnation=incarnation,
        seq=asked.seq,
        kind=held.kind,
        state="answered" if not result.HasField("error") else "failed",
        digest=held.digest,
        error_code=result.error.code,
        submitted_us=held.submitted_us,
        answered_us=answered_us,
        answer=result.SerializeToString() if keeps_answer else b"",
    )
