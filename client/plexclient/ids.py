"""Identifiers on the wire. Whoever starts a thing mints its id; it is opaque to all others."""

from __future__ import annotations

import secrets
from typing import Final, NewType

TenantId = NewType("TenantId", str)
JobId = NewType("JobId", str)
DeploymentId = NewType("DeploymentId", str)
OperationId = NewType("OperationId", bytes)
"""128 random bits, minted by the client: the key of every record, retry and log line."""

OPERATION_ID_BYTES: Final = 16

SHOWN_BYTES: Final = 4
"""First bytes of an operation's id, by which errors and logs name it."""


def new_operation_id() -> OperationId:
    """Return a fresh 16-byte operation id."""
    return OperationId(secrets.token_bytes(OPERATION_ID_BYTES))


def new_job_id() -> JobId:
    """Return a fresh job id, e.g. `job-1f0c9a3b7d52`."""
    return JobId(f"job-{secrets.token_hex(6)}")


def new_deployment_id(job_id: JobId, name: str) -> DeploymentId:
    """Return the id of deployment `name` of a job: the same name is the same deployment."""
    return DeploymentId(f"{job_id}/{name}")


def show(operation_id: bytes) -> str:
    """Return the short printable form of an operation id, e.g. `op_1f0c9a3b`."""
    return f"op_{operation_id[:SHOWN_BYTES].hex()}"
