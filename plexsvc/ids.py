"""Identifiers of the service's own things; those that clients mint come from plexclient."""

from __future__ import annotations

from typing import NamedTuple, NewType, Protocol, Self

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


class Versioned(Protocol):
    """A message that names a version."""

    @property
    def deployment_id(self) -> str:
        """The deployment that was published."""

    @property
    def incarnation(self) -> int:
        """Its incarnation then."""

    @property
    def version(self) -> int:
        """The number of the publish in the deployment's order."""


class VersionId(NamedTuple):
    """A frozen state of a deployment; without fields, the weights of the model directory.

    Numbers alone coincide between deployments, and between the incarnations of one. The fields have
    the wire's names.

    >>> str(VersionId("job/actor", 2, 7)), str(VersionId())
    ('version 7 of job/actor (incarnation 2)', "the model's own weights")
    """

    deployment_id: str = ""
    incarnation: int = 0
    version: int = 0

    @classmethod
    def of(cls, named: Versioned) -> Self:
        """Return the version that a message names."""
        return cls(named.deployment_id, named.incarnation, named.version)

    def __str__(self) -> str:
        if not self.deployment_id:
            return "the model's own weights"
        again = f" (incarnation {self.incarnation})" if self.incarnation > 1 else ""
        return f"version {self.version} of {self.deployment_id}{again}"


def rollout_kind(tp: int) -> str:
    """Return the kind of devices on which engines of so many tensor ranks are placed.

    >>> rollout_kind(1), rollout_kind(4)
    ('rollout', 'rollout-tp4')
    """
    return "rollout" if tp == 1 else f"rollout-tp{tp}"


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
    "VersionId",
    "WpgId",
    "new_deployment_id",
    "new_job_id",
    "new_operation_id",
    "rollout_kind",
    "show",
]
