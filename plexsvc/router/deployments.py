"""Cache of deployment layouts, kept for a few seconds."""

from __future__ import annotations

from dataclasses import dataclass

from plexclient.wire.v1 import service_pb2
from plexsvc.clock import Clock
from plexsvc.errors import not_found, unavailable
from plexsvc.ids import TenantId
from plexsvc.newest import Newest
from plexsvc.router.api import SchedulerApi
from plexsvc.router.config import RouterConfig


@dataclass(frozen=True, slots=True)
class _DeploymentKey:
    tenant: str
    job_id: str
    deployment_id: str


@dataclass(frozen=True, slots=True)
class _KnownDeployment:
    deployment: service_pb2.Deployment
    until_us: int


class DeploymentCache:
    """Ready deployments by tenant, job and id: at most `max_deployments_cached`, oldest out."""

    def __init__(self, scheduler: SchedulerApi, *, config: RouterConfig, clock: Clock) -> None:
        self._scheduler = scheduler
        self._config = config
        self._clock = clock
        self._entries = Newest[_DeploymentKey, _KnownDeployment](config.max_deployments_cached)

    async def get(
        self, *, tenant: TenantId, job_id: str, deployment_id: str
    ) -> service_pb2.Deployment:
        """Return the deployment as it was at most `deployment_ttl_us` ago.

        Raises:
            PlexError: `not_found` for one that is unknown, of another job or of another tenant.
        """
        key = _DeploymentKey(tenant, job_id, deployment_id)
        entry = self._entries.get(key)
        if entry is not None and entry.until_us > self._clock.monotonic_us():
            return entry.deployment
        request = service_pb2.GetDeploymentRequest(
            tenant=tenant, job_id=job_id, deployment_id=deployment_id
        )
        found = await self._scheduler.call("GetDeployment", request, service_pb2.Deployment)
        if (found.tenant, found.job_id) != (tenant, job_id):
            raise not_found(
                f"job {job_id!r} has no deployment {deployment_id!r}; create it first",
                deployment_id=deployment_id,
            )
        if found.state == "ready":  # one that is not yet placed has no nodes to remember
            until_us = self._clock.monotonic_us() + self._config.deployment_ttl_us
            self._entries[key] = _KnownDeployment(found, until_us)
        return found

    def forget(self, deployment: service_pb2.Deployment) -> None:
        """Ask again next time: what was remembered led nowhere."""
        key = _DeploymentKey(deployment.tenant, deployment.job_id, deployment.deployment_id)
        self._entries.pop(key, None)


def staging_targets(deployment: service_pb2.Deployment) -> list[str]:
    """Return the state managers a batch's bytes go to: one copy for all ranks of a node.

    Raises:
        PlexError: `unavailable` when the deployment has no nodes (yet, or any more).
    """
    if not deployment.staging_nodes:
        raise unavailable(
            f"deployment {deployment.deployment_id!r} is {deployment.state or 'unknown'}: no node "
            "stages payloads for it; try again when it is ready"
        )
    return [node.state_manager for node in deployment.staging_nodes]
