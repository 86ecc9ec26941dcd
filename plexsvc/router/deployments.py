"""What the router remembers of deployments: only what their layout says, for a few seconds."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass

from plexclient.wire.v1 import service_pb2
from plexsvc.clock import Clock
from plexsvc.errors import ErrorCode, PlexError
from plexsvc.ids import TenantId
from plexsvc.router.api import SchedulerApi
from plexsvc.router.config import RouterConfig
from plexsvc.router.layout import Degrees, payload_nodes


@dataclass(frozen=True, slots=True)
class _Key:
    tenant: str
    job_id: str
    deployment_id: str


@dataclass(frozen=True, slots=True)
class _Entry:
    deployment: service_pb2.Deployment
    until_us: int


class DeploymentCache:
    """Ready deployments by tenant, job and id: at most `max_deployments_cached`, oldest out."""

    def __init__(self, scheduler: SchedulerApi, *, config: RouterConfig, clock: Clock) -> None:
        self._scheduler = scheduler
        self._config = config
        self._clock = clock
        self._entries: OrderedDict[_Key, _Entry] = OrderedDict()

    async def get(
        self, *, tenant: TenantId, job_id: str, deployment_id: str
    ) -> service_pb2.Deployment:
        """Return the deployment as it was at most `deployment_ttl_us` ago.

        Raises:
            PlexError: `not_found` for one that is unknown, of another job or of another tenant.
        """
        key = _Key(tenant, job_id, deployment_id)
        entry = self._entries.get(key)
        if entry is not None and entry.until_us > self._clock.monotonic_us():
            return entry.deployment
        found = await self._scheduler.GetDeployment(
            service_pb2.GetDeploymentRequest(
                tenant=tenant, job_id=job_id, deployment_id=deployment_id
            ),
            None,
        )
        if (found.tenant, found.job_id) != (tenant, job_id):
            raise PlexError(
                ErrorCode.NOT_FOUND,
                f"job {job_id!r} has no deployment {deployment_id!r}; create it first",
                deployment_id=deployment_id,
            )
        if found.state == "ready":
            self._remember(key, found)
        return found

    def forget(self, deployment: service_pb2.Deployment) -> None:
        """Ask again next time: what was remembered led nowhere."""
        key = _Key(deployment.tenant, deployment.job_id, deployment.deployment_id)
        self._entries.pop(key, None)

    def _remember(self, key: _Key, deployment: service_pb2.Deployment) -> None:
        until_us = self._clock.monotonic_us() + self._config.deployment_ttl_us
        self._entries[key] = _Entry(deployment, until_us)
        self._entries.move_to_end(key)
        while len(self._entries) > self._config.max_deployments_cached:
            self._entries.popitem(last=False)


def degrees_of(deployment: service_pb2.Deployment) -> Degrees:
    """Return the degrees of parallelism a deployment runs with; 0 on the wire reads as 1."""
    wire = deployment.spec.parallel
    return Degrees(tp=wire.tp or 1, pp=wire.pp or 1, dp=wire.dp or 1, cp=wire.cp or 1)


def staging_targets(deployment: service_pb2.Deployment) -> list[service_pb2.NodeAddress]:
    """Return the nodes a batch's bytes go to: those of the first and the last pipeline stage.

    Where the blocks do not name a device for each rank, every staging node gets the bytes.

    Raises:
        PlexError: `unavailable` when the deployment has no nodes (yet, or any more).
    """
    nodes = list(deployment.staging_nodes)
    if not nodes:
        raise PlexError(
            ErrorCode.UNAVAILABLE,
            f"deployment {deployment.deployment_id!r} is {deployment.state or 'unknown'}: no node "
            "stages payloads for it; try again when it is ready",
        )
    degrees = degrees_of(deployment)
    hosts = [block.node_id for block in deployment.blocks for _ in range(block.count)]
    if len(hosts) != degrees.world_size:
        return nodes
    needed = payload_nodes(degrees, node_of_rank=dict(enumerate(hosts)))
    return [node for node in nodes if node.node_id in needed] or nodes
