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

__all__ = [
    "DeploymentId",
    "JobId",
    "MoveId",
    "NodeId",
    "OperationId",
    "ProcId",
    "TenantId",
    "WpgId",
    "new_deployment_id",
    "new_job_id",
    "new_operation_id",
    "show",
]
