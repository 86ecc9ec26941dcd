"""Identifiers of the service's own things; those that clients mint come from plexclient."""

from __future__ import annotations

from typing import NewType

from plexclient.ids import (
    DeploymentId,
    JobId,
    OperationId,
    TenantId,
    new_deployment_id,
    new_job_id,
    new_operation_id,
    show,
)

NodeId = NewType("NodeId", str)
WpgId = NewType("WpgId", str)
MoveId = NewType("MoveId", str)
ProcId = NewType("ProcId", str)
"""One process: `<wpg id>/<rank>`."""

ResidentId = NewType("ResidentId", str)
"""What planning gives a place: a deployment; in a simulation of planning alone, a job."""

UnitId = NewType("UnitId", str)
"""What planning gives out: a device, `<node id>:<index>`; in a simulation of planning, a node."""

__all__ = [
    "DeploymentId",
    "JobId",
    "MoveId",
    "NodeId",
    "OperationId",
    "ProcId",
    "ResidentId",
    "TenantId",
    "UnitId",
    "WpgId",
    "new_deployment_id",
    "new_job_id",
    "new_operation_id",
    "show",
]
