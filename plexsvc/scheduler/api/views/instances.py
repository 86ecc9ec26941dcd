"""Rollout instances, as `plexctl instance` and `plexctl top` show them."""

from __future__ import annotations

from typing import Final

from plexclient.wire.v1 import service_pb2
from plexsvc.ids import DeploymentId
from plexsvc.rpc.services import Methods
from plexsvc.scheduler.api.views.lens import Asked, Lens
from plexsvc.scheduler.live import LiveScheduler


async def list_instances(
    scheduler: LiveScheduler, request: Asked
) -> service_pb2.ListInstancesReply:
    """Return the instances of a tenant's jobs, with spot devices; operators see everybody's.

    An engine that deployments share is called by the device of one of them.
    """
    lens, registry = Lens(scheduler.registry, request), scheduler.registry
    devices = {
        rank.address: f"{rank.node_id}:{rank.device}"
        for wpg in registry.by_wpg.values()
        if wpg.is_rollout
        for rank in scheduler.reach.ranks.of(wpg.wpg_id)
    }
    shown: list[service_pb2.InstanceView] = []
    engines: dict[str, str] = {}
    for view in await scheduler.reach.rollout.instances():
        if view.engine:
            view.engine = engines.setdefault(view.engine, devices.get(view.device, view.device))
        record = registry.deployments.get(DeploymentId(view.deployment_id))
        if record is None or not lens.sees(record.job_id):
            if view.deployment_id and not lens.sees_all:
                continue
        else:
            view.job_id, view.tenant = record.job_id, record.tenant
        view.device = devices.get(view.device, view.device)
        view.because = lens.text(view.because)
        shown.append(view)
    return service_pb2.ListInstancesReply(instances=shown)


async def drain_instance(
    scheduler: LiveScheduler, request: service_pb2.DrainInstanceRequest
) -> service_pb2.ListInstancesReply:
    """Have an instance's samples go elsewhere, and close its device or engine until it is opened.

    Raises:
        PlexError: `not_found` when no spot device or serving engine is called so.
    """
    scheduler.check_open()
    scheduler.reach.rollout.drain(request.device)
    return await _one(scheduler, request)


async def open_instance(
    scheduler: LiveScheduler, request: service_pb2.OpenInstanceRequest
) -> service_pb2.ListInstancesReply:
    """Let a spot device or engine that was drained by hand have instances again.

    Raises:
        PlexError: `not_found` when none is called so; `bad_request` when it was not drained.
    """
    scheduler.check_open()
    scheduler.reach.rollout.open(request.device)
    return await _one(scheduler, request)


async def lend_instance(
    scheduler: LiveScheduler, request: service_pb2.LendInstanceRequest
) -> service_pb2.ListInstancesReply:
    """Let jobs have the guest of a serving engine until its lease ends, or withdraw it.

    Raises:
        PlexError: `bad_request`, naming the field; `queue_full`.
    """
    scheduler.check_open()
    scheduler.reach.rollout.offer(request)
    return service_pb2.ListInstancesReply()


async def _one(
    scheduler: LiveScheduler,
    asked: service_pb2.DrainInstanceRequest | service_pb2.OpenInstanceRequest,
) -> service_pb2.ListInstancesReply:
    found = (await list_instances(scheduler, asked)).instances
    return service_pb2.ListInstancesReply(
        instances=[one for one in found if one.device == asked.device]
    )


METHODS: Final[Methods] = {"ListInstances": list_instances}
CHANGES: Final[Methods] = {
    "DrainInstance": drain_instance,
    "OpenInstance": open_instance,
    "LendInstance": lend_instance,
}
