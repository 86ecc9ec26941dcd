"""Views of deployments, jobs, the cluster's status and its timeline."""

from __future__ import annotations

import asyncio
from typing import Final

import grpc

from plexclient.wire.v1 import common_pb2, service_pb2, statemanager_pb2
from plexsvc.errors import ErrorCode, PlexError
from plexsvc.ids import DeploymentId, JobId
from plexsvc.residency import Residency
from plexsvc.rpc.residency import ON_WIRE
from plexsvc.rpc.services import Methods
from plexsvc.scheduler.core.state import Device
from plexsvc.scheduler.core.view import ClusterView
from plexsvc.scheduler.core.vocabulary import DeploymentState
from plexsvc.scheduler.faults import error_of
from plexsvc.scheduler.ledger import messages
from plexsvc.scheduler.ledger.jobs import DeploymentRecord, JobRecord
from plexsvc.scheduler.live import LiveScheduler
from plexsvc.scheduler.orders.nodes import NodeLink

MAX_SPANS: Final = 2_000
"""Spans in one reply; ask again from `next_index` for more."""

INVENTORY_S: Final = 1.0


def deployment(scheduler: LiveScheduler, record: DeploymentRecord) -> service_pb2.Deployment:
    """Return a deployment with where it is now."""
    view = messages.deployment(record)
    wpg = None if record.wpg is None else scheduler.cluster.wpgs.get(record.wpg.wpg_id)
    view.residency = ON_WIRE[wpg.residency] if wpg is not None else common_pb2.RESIDENCY_NONE
    view.state_bytes = sum(wpg.device_bytes) if wpg is not None else 0
    known = scheduler.cluster.deployments.get(record.deployment_id)
    view.next_seq = known.next_seq if known is not None else 0
    for node_id in record.nodes:
        if scheduler.nodes.is_up(node_id):
            view.staging_nodes.append(scheduler.nodes.link(node_id).address)
    others = () if record.durable is None else record.durable.other_nodes
    for node_id in dict.fromkeys((*record.former_nodes, *others)):
        if scheduler.nodes.is_up(node_id):
            view.former_nodes.append(scheduler.nodes.link(node_id).address)
    if record.is_rollout:
        view.executor_address = scheduler.reach.rollout.address_of(record.deployment_id)
    return view


def ready_deployment(scheduler: LiveScheduler, record: DeploymentRecord) -> service_pb2.Deployment:
    """Return a deployment that is ready.

    Raises:
        PlexError: what it failed with, or `job_ended` when it was stopped.
    """
    if record.fault is not None:
        raise error_of(record.fault)
    if record.state is DeploymentState.STOPPED:
        raise PlexError(
            ErrorCode.JOB_ENDED, f"{record.deployment_id} was stopped: its job has ended"
        )
    return deployment(scheduler, record)


def job(scheduler: LiveScheduler, record: JobRecord) -> service_pb2.Job:
    """Return a job with what it holds and does now."""
    view = messages.job(record)
    live = scheduler.cluster.jobs.get(record.job_id)
    if live is not None:
        view.device_us, view.phase = live.device_us, live.phase
        view.notice = scheduler.notice(record.tenant)
    return view


async def list_jobs(
    scheduler: LiveScheduler, request: service_pb2.ListJobsRequest
) -> service_pb2.ListJobsReply:
    """Return a tenant's jobs, oldest first; every tenant's when none is named."""
    return service_pb2.ListJobsReply(
        jobs=[
            job(scheduler, record)
            for record in scheduler.registry.jobs.values()
            if request.tenant in {"", record.tenant}
            and (request.include_ended or not record.has_ended)
        ]
    )


async def status(
    scheduler: LiveScheduler, request: service_pb2.GetStatusRequest
) -> service_pb2.ClusterStatus:
    """Return nodes and devices, and the tenant's jobs and deployments."""
    everything = service_pb2.ListJobsRequest(tenant=request.tenant, include_ended=True)
    jobs = (await list_jobs(scheduler, everything)).jobs
    reply = service_pb2.ClusterStatus(
        now_us=scheduler.clock.wall_us(), scheduler_epoch=scheduler.epoch, jobs=jobs
    )
    links = [link for link in scheduler.nodes.links if link.node_id]  # the others have no name yet
    inventories = await asyncio.gather(*(inventory_of(link) for link in links))
    for link, inventory in zip(links, inventories, strict=True):
        reply.nodes.append(_node(scheduler.cluster, link, inventory))
    for device in scheduler.cluster.devices.values():
        reply.devices.append(device_status(scheduler, device))
    for view in jobs:
        for deployment_id in view.deployment_ids:
            found = scheduler.registry.deployments[DeploymentId(deployment_id)]
            reply.deployments.append(deployment(scheduler, found))
        record = scheduler.registry.jobs[JobId(view.job_id)]
        progress = reply.progress[record.job_id]
        progress.metrics.update(record.metrics)
        progress.at_us = record.metrics_us
    return reply


async def timeline(
    scheduler: LiveScheduler, request: service_pb2.TimelineRequest
) -> service_pb2.TimelineReply:
    """Return spans above an index; those of other tenants lose their names, but to operators.

    To read on, pass `next_index` as `after_index`.
    """
    spans = scheduler.cluster.timeline.after(request.after_index, limit=MAX_SPANS)
    reply = service_pb2.TimelineReply(next_index=spans[-1].number if spans else request.after_index)
    for index, place, span in spans:
        record = scheduler.registry.jobs.get(span.job_id)
        is_own = record is not None and (
            request.is_operator or request.tenant in {"", record.tenant}
        )
        reply.spans.append(
            service_pb2.Span(
                index=index,
                node_id=place.node_id,
                device=place.device,
                kind=span.kind,
                job_id=span.job_id if is_own else "",
                deployment_id=span.deployment_id if is_own else "",
                operation_id=(span.operation_id or b"") if is_own else b"",
                start_us=span.start_us,
                end_us=span.end_us,
                nbytes=span.nbytes,
            )
        )
    return reply


async def inventory_of(link: NodeLink) -> statemanager_pb2.InventoryReply | None:
    """Return what a node's state manager holds; None when it is lost or does not answer soon."""
    if not link.is_up:
        return None
    try:
        request = statemanager_pb2.InventoryRequest()
        reply: statemanager_pb2.InventoryReply = await link.state.Inventory(
            request, timeout=INVENTORY_S
        )
    except grpc.aio.AioRpcError:
        return None  # a busy state manager: status shows the configured sizes instead
    return reply


def node_state(cluster: ClusterView, link: NodeLink) -> str:
    """Return what a node is: up, cordoned, draining, drained or lost."""
    if not link.is_up:
        return "lost"
    is_drained = cluster.cordoned.get(link.node_id)
    if not is_drained:
        return "up" if is_drained is None else "cordoned"
    lives = any(p.node_id == link.node_id for wpg in cluster.wpgs.values() for p in wpg.places)
    return "draining" if lives else "drained"


def _node(
    cluster: ClusterView, link: NodeLink, inventory: statemanager_pb2.InventoryReply | None
) -> service_pb2.NodeStatus:
    return service_pb2.NodeStatus(
        node_id=link.node_id,
        state=node_state(cluster, link),
        host_bytes_used=inventory.host_bytes_used if inventory is not None else 0,
        host_bytes_total=link.description.host_bytes,
        address=link.address,
    )


def device_status(scheduler: LiveScheduler, device: Device) -> service_pb2.DeviceStatus:
    """Return what one device holds and does."""
    cluster, now_us = scheduler.cluster, scheduler.clock.wall_us()
    holder = cluster.wpgs.get(device.holder) if device.holder is not None else None
    busy_us = device.busy_us
    if holder is not None and holder.busy_since_us is not None:
        busy_us += max(0, now_us - holder.busy_since_us)
    return service_pb2.DeviceStatus(
        node_id=device.place.node_id,
        index=device.place.device,
        kind=device.kind,
        bytes_used=cluster.resident_bytes(device.place),
        bytes_total=device.bytes_total,
        resident_wpgs=[
            wpg_id for wpg_id in device.ranks if cluster.wpgs[wpg_id].residency is Residency.DEVICE
        ],
        running_wpg=device.holder or "",
        busy_us=busy_us,
        switch_us=device.switch_us,
        switches=device.switches,
        since_us=device.since_us,
        lease_no=device.lease_no,
    )


METHODS: Final[Methods] = {"ListJobs": list_jobs, "GetStatus": status, "Timeline": timeline}
