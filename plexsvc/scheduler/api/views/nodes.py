"""Views of nodes for operators: their state, who lives there and what becomes of each."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from typing import Final

from plexclient.wire.v1 import service_pb2, statemanager_pb2
from plexsvc.errors import not_found
from plexsvc.ids import NodeId
from plexsvc.rpc.residency import ON_WIRE
from plexsvc.rpc.services import Methods
from plexsvc.scheduler.api.views import status
from plexsvc.scheduler.api.views.lens import Lens
from plexsvc.scheduler.core.state import DeploymentEntry, Device, Wpg
from plexsvc.scheduler.core.view import ClusterView
from plexsvc.scheduler.core.vocabulary import Place
from plexsvc.scheduler.live import LiveScheduler
from plexsvc.scheduler.orders.nodes import NodeLink


async def list_nodes(
    scheduler: LiveScheduler, request: service_pb2.ListNodesRequest
) -> service_pb2.ListNodesReply:
    """Return every node that is dialed, in the order of the configuration, then hosts without one.

    Where a node's agent listens, how it was lost, and why a host has no agent, is for operators.
    """
    lens = Lens(scheduler.registry, request)
    links = [
        link
        for link in scheduler.nodes.links
        if (link.node_id or lens.sees_all) and not _is_replaced(scheduler, link)
    ]
    asked, views = [], []  # one node in each turn: all at once would hold the event loop up
    async with asyncio.TaskGroup() as tasks:
        for link in links:
            asked.append(tasks.create_task(status.inventory_of(link)))
            await asyncio.sleep(0)
    for link, inventory in zip(links, asked, strict=True):
        views.append(_view(scheduler, link, inventory.result(), lens=lens))
        await asyncio.sleep(0)
    if lens.sees_all:
        known = {link.node_id for link in links}
        views += [
            service_pb2.NodeView(node_id=node_id, state="absent", reason=reason)
            for node_id, reason in scheduler.nodes.absent.items()
            if node_id not in known
        ]
    return service_pb2.ListNodesReply(nodes=views)


async def node(scheduler: LiveScheduler, node_id: str, *, lens: Lens) -> service_pb2.NodeView:
    """Return one node.

    Raises:
        PlexError: `not_found`, naming those there are.
    """
    link = link_of(scheduler, node_id)
    return _view(scheduler, link, await status.inventory_of(link), lens=lens)


def link_of(scheduler: LiveScheduler, node_id: str) -> NodeLink:
    """Return the link of a node, up or lost.

    Raises:
        PlexError: `not_found`, naming the nodes there are.
    """
    named = [link for link in scheduler.nodes.links if link.node_id == node_id]
    if not named:
        known = ", ".join(sorted({link.node_id for link in scheduler.nodes.links if link.node_id}))
        raise not_found(
            f"no node {node_id!r}; there are {known or 'none'}: `plexctl node list` shows them",
            node=node_id,
        )
    return next((link for link in named if link.is_up), named[-1])


def moving_to(deployment: DeploymentEntry) -> list[str]:
    """Return the devices a deployment is being moved to, none when it stays."""
    relocation = deployment.relocation
    return [] if relocation is None else [place.unit for place in relocation.places]


def _is_replaced(scheduler: LiveScheduler, link: NodeLink) -> bool:
    """Whether a node that was lost at this address is back at another."""
    return bool(link.node_id) and not link.is_up and scheduler.nodes.is_up(link.node_id)


def _view(
    scheduler: LiveScheduler,
    link: NodeLink,
    inventory: statemanager_pb2.InventoryReply | None,
    *,
    lens: Lens,
) -> service_pb2.NodeView:
    cluster = scheduler.cluster
    here = [w for w in cluster.wpgs.values() if _devices(w, link.node_id)] if link.node_id else []
    inventory = inventory or statemanager_pb2.InventoryReply()
    held = {wpg.wpg_id: wpg for wpg in inventory.wpgs}
    view = service_pb2.NodeView(
        node_id=link.node_id or link.target,
        address=link.address,
        host_bytes_used=inventory.host_bytes_used,
        host_bytes_total=link.description.host_bytes,
        disk_bytes_used=inventory.disk_bytes_used,
        disk_bytes_total=link.description.disk_bytes,
        sunk_bytes=inventory.sunk_bytes,
        risen_bytes=inventory.risen_bytes,
        queued_bytes=inventory.queued_bytes,
        spared_bytes=inventory.spared_bytes,
        replica_bytes=inventory.replica_bytes,
        devices=[status.device_status(scheduler, device) for device in _devices_of(cluster, link)],
        residents=[
            _resident(cluster, w, link.node_id, held=held.get(w.wpg_id), lens=lens) for w in here
        ],
    )
    view.state = status.node_state(cluster, link)
    if (renewed := link.renewed) is not None:
        view.processes.update(renewed.reply.processes)
        view.state_manager_restarts = renewed.reply.state_manager_restarts
        view.lease_age_us = round((time.monotonic() - renewed.sent_s) * 1e6)
    if lens.sees_all or view.state != "lost":
        view.reason = _reason(cluster, link, view.state, here)
    return view


def _devices_of(cluster: ClusterView, link: NodeLink) -> Iterator[Device]:
    """Yield the devices of a node that the core knows."""
    for described in link.description.devices:
        place = Place(node_id=link.node_id, device=described.index)
        if place in cluster.devices:
            yield cluster.devices[place]


def _reason(cluster: ClusterView, link: NodeLink, state: str, here: list[Wpg]) -> str:
    match state:
        case "lost":
            return link.reason or f"the agent at {link.target} has not answered yet"
        case "cordoned":
            return "takes no further work; `plexctl node uncordon` opens it"
        case "drained":
            return "nothing lives here; `plexctl node uncordon` opens it"
        case "draining":
            moving = sum(_is_moving(cluster, wpg) for wpg in here)
            return f"{len(here)} still here: {moving} on the move, {len(here) - moving} stay"
        case _:
            return ""


def _resident(
    cluster: ClusterView,
    wpg: Wpg,
    node_id: NodeId,
    *,
    held: statemanager_pb2.WpgState | None,
    lens: Lens,
) -> service_pb2.NodeResident:
    deployment = cluster.deployments[wpg.deployment_id]
    held = held or statemanager_pb2.WpgState()
    view = service_pb2.NodeResident(
        role=deployment.role,
        devices=_devices(wpg, node_id),
        residency=ON_WIRE[wpg.residency],
        moving_to=moving_to(deployment) if cluster.is_current(wpg) else (),
        next=lens.text(what_next(cluster, wpg, node_id)),
        device_bytes=held.device_bytes,
        host_bytes=held.host_bytes - held.disk_bytes,
        disk_bytes=held.disk_bytes,
        move_us=held.move_us,
        moved_bytes=held.moved_bytes,
    )
    if lens.sees(wpg.job_id):
        view.deployment_id, view.job_id = wpg.deployment_id, wpg.job_id
        view.job_name, view.tenant = lens.job_name(wpg.job_id), lens.tenant_of(wpg.job_id)
        view.name = wpg.deployment_id.removeprefix(f"{wpg.job_id}/")
    return view


def what_next(cluster: ClusterView, wpg: Wpg, node_id: NodeId) -> str:
    """Return what becomes of a WPG that lives on a node; empty if it stays and works."""
    deployment = cluster.deployments[wpg.deployment_id]
    current = cluster.wpg_of(deployment)
    if cluster.is_leaving(wpg):
        has_moved = current is not None and wpg.incarnation < current.incarnation
        return "is being stopped" + (": it moved away" if has_moved else "")
    if wpg is not current:
        return "arrives here"
    if deployment.relocation is not None:
        where = ", ".join(moving_to(deployment))
        return f"moves to {where} ({deployment.relocation.stage})"
    return _left_behind(cluster, wpg, deployment) if cluster.cordoned.get(node_id) else ""


def _is_moving(cluster: ClusterView, wpg: Wpg) -> bool:
    relocation = cluster.deployments[wpg.deployment_id].relocation
    return relocation is not None or not cluster.is_current(wpg)


def _left_behind(cluster: ClusterView, wpg: Wpg, deployment: DeploymentEntry) -> str:
    if deployment.relocation_fault is not None:
        return f"stays for now: {deployment.relocation_fault.message}"
    if wpg.is_rollout:
        return "moves as soon as idle devices elsewhere take its instances"
    return f"waits for a place elsewhere: {cluster.why_stays(deployment)}"


def _devices(wpg: Wpg, node_id: NodeId) -> list[str]:
    return [place.unit for place in wpg.places if place.node_id == node_id]


METHODS: Final[Methods] = {"ListNodes": list_nodes}
