"""The ledger of a scheduler that takes over: a thawed core, and the records that clients need.

The core says who there is and in what state. What it does not know lies in the store: names,
labels, specifications, and the answers that no rank has on record. Operations that wait come from
their clients again.
"""

from __future__ import annotations

from collections.abc import Sequence

from plexclient.wire.v1 import operations_pb2, service_pb2
from plexsvc.errors import internal
from plexsvc.ids import DeploymentId, JobId, NodeId, OperationId, TenantId
from plexsvc.scheduler.core.actions import DeploymentLost
from plexsvc.scheduler.core.state import DeploymentEntry, Wpg
from plexsvc.scheduler.core.view import ClusterView
from plexsvc.scheduler.core.vocabulary import (
    TERMINAL,
    DeploymentState,
    JobState,
    OperationKind,
    WpgState,
)
from plexsvc.scheduler.ledger import messages, rows
from plexsvc.scheduler.ledger.durable import Durable
from plexsvc.scheduler.ledger.held import Awaited
from plexsvc.scheduler.ledger.jobs import DeploymentRecord, JobRecord, Registry, WpgRecord
from plexsvc.scheduler.ledger.recorder import Recorder
from plexsvc.store.rows import DeploymentRow, JobRow, OperationRow, Row


def restore(
    registry: Registry,
    recorder: Recorder,
    view: ClusterView,
    *,
    jobs: Sequence[JobRow],
    deployments: Sequence[DeploymentRow],
    answers: Sequence[OperationRow] = (),
) -> list[Row]:
    """Fill an empty registry; return the rows of what goes on, which are this scheduler's now.

    Raises:
        PlexError: `internal` for a job or deployment of the core that the store does not know.
    """
    for row in jobs:
        job_id = JobId(row.job_id)
        known = view.jobs.get(job_id)
        state = view.ended.get(job_id) if known is None else known.state
        if row.record and (state is not None or row.ended_us):
            registry.jobs[job_id] = _job(row, state=state or JobState(row.state))
    for kept in deployments:
        found = view.deployments.get(DeploymentId(kept.deployment_id))
        if kept.record and found is not None and found.job_id in registry.jobs:
            registry.deployments[found.deployment_id] = _deployment(kept, found)
            registry.jobs[found.job_id].deployment_ids.append(found.deployment_id)
    lost: list[str] = [*(view.jobs.keys() - registry.jobs.keys())]
    lost += view.deployments.keys() - registry.deployments.keys()
    if lost:
        raise internal(
            "what runs cannot be taken over: the store has no record of "
            f"{', '.join(sorted(lost))}; end what runs with `plexctl down`"
        )
    for wpg in view.wpgs.values():
        record = _wpg(registry.deployments[wpg.deployment_id], wpg)
        recorder.wpg_opened(record, is_current=view.is_current(wpg))
    _restore_operations(registry, recorder, view)
    for answer in answers:
        if (operation_id := OperationId(answer.operation_id)) in registry.answered_before:
            result = operations_pb2.OperationResult.FromString(answer.answer)
            registry.answers[operation_id] = result
    return [
        *map(rows.job, registry.jobs.values()),
        *map(rows.deployment, registry.deployments.values()),
    ]


def _restore_operations(registry: Registry, recorder: Recorder, view: ClusterView) -> None:
    """Note whose clients must send them again, and hold each `Initialize`, which has no client."""
    written = {one for wpg in view.wpgs.values() for one in wpg.writing}
    for operation in view.operations.values():
        if operation.state in TERMINAL:
            registry.answered_before.add(operation.operation_id)
        elif operation.kind is not OperationKind.INITIALIZE:
            bare = operations_pb2.Operation(
                operation_id=operation.operation_id,
                job_id=operation.job_id,
                deployment_id=operation.deployment_id,
                seq=operation.seq,
            )
            getattr(bare, operation.kind).SetInParent()
            had_copy = operation.operation_id in written
            registry.missing[operation.operation_id] = Awaited(bare, had_copy=had_copy)
    for deployment in registry.deployments.values():
        found = view.deployments[deployment.deployment_id]
        if found.lost is not None:
            recorder.deployment_lost(
                DeploymentLost(
                    deployment_id=found.deployment_id,
                    initialize_id=found.initialize_id_of(found.incarnations),
                    fault=found.lost,
                )
            )
        elif deployment.state is DeploymentState.STARTING:
            initialize = messages.initialize(deployment, deployment.initialize_id)
            recorder.hold(initialize, OperationKind.INITIALIZE)


def _job(row: JobRow, *, state: JobState) -> JobRecord:
    kept = service_pb2.Job.FromString(row.record)
    return JobRecord(
        job_id=JobId(row.job_id),
        tenant=TenantId(row.tenant),
        name=row.name,
        labels=dict(kept.labels),
        created_us=row.created_us,
        session_ttl_us=kept.session_ttl_us,
        state=state,
        reason=row.reason,
        exit_code=row.exit_code,
        ended_us=row.ended_us,
        device_us=kept.device_us,
        operations_done=kept.operations_done,
        controller=kept.controller,
    )


def _deployment(row: DeploymentRow, found: DeploymentEntry) -> DeploymentRecord:
    kept = service_pb2.Deployment.FromString(row.record)
    return DeploymentRecord(
        deployment_id=found.deployment_id,
        job_id=found.job_id,
        tenant=TenantId(row.tenant),
        name=kept.name,
        spec=kept.spec,
        initialize_id=found.initialize_id,
        vocab_size=kept.vocab_size,
        max_sequence_length=kept.max_sequence_length,
        model_files=tuple(kept.model_files),
        host_bytes=found.num_devices
        * (found.state_bytes + found.optimizer_bytes + found.version_bytes),
        instance_bytes=found.instance_bytes,
        state=found.state,
        fault=found.fault,
        applied_seq=row.applied_seq,
        position=kept.position,
        former_nodes=tuple(NodeId(one.node_id) for one in kept.former_nodes),
        # Until it is read what ran since the last copy.
        durable=Durable(unknown_to=found.next_seq - 1) if found.is_durable else None,
        versions=row.versions,
    )


def _wpg(deployment: DeploymentRecord, wpg: Wpg) -> WpgRecord:
    return WpgRecord(
        wpg_id=wpg.wpg_id,
        deployment=deployment,
        incarnation=wpg.incarnation,
        places=wpg.places,
        is_stopping=wpg.state in {WpgState.STOPPING, WpgState.FORGETTING},
        respawned=dict(wpg.respawned),
    )
