"""Handlers for operators: nodes in and out of service, moves, pins, repacking.

An order is an event like any other. The answer tells what the core ordered for it; the work itself
goes on after the answer.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import grpc

from plexclient.wire.v1 import node_pb2, node_pb2_grpc, service_pb2
from plexsvc.errors import ErrorCode, PlexError, bad_request, unavailable
from plexsvc.ids import DeploymentId, JobId, NodeId
from plexsvc.rpc.services import Methods
from plexsvc.scheduler.api.views import nodes
from plexsvc.scheduler.api.views.lens import Lens
from plexsvc.scheduler.core.actions import Action, RelocationChanged
from plexsvc.scheduler.core.events import (
    Event,
    JobMoveRequested,
    JobPinned,
    NodeCordoned,
    NodeUncordoned,
    RepackRequested,
)
from plexsvc.scheduler.core.vocabulary import RelocationStage
from plexsvc.scheduler.live import LiveScheduler
from plexsvc.scheduler.orders.nodes import NodeLink, check_shown
from plexsvc.store.rows import NodeRow

JOIN_TIMEOUT_US: Final = 20_000_000
"""How long a node agent that is added may take to join."""


async def change_node(
    scheduler: LiveScheduler, request: service_pb2.ChangeNodeRequest
) -> service_pb2.NodeView:
    """Cordon, drain or uncordon a node; return it as it is then.

    Raises:
        PlexError: `not_found`, or `bad_request` for a change that is none.
    """
    node_id = nodes.link_of(scheduler, request.node_id).node_id
    await _decided(scheduler, _change(request.change, node_id))
    return await nodes.node(scheduler, node_id, lens=Lens(scheduler.registry, request))


async def add_node(
    scheduler: LiveScheduler, request: service_pb2.AddNodeRequest
) -> service_pb2.NodeView:
    """Dial one more node agent; return its node once it has joined. Repeating it changes nothing.

    Raises:
        PlexError: `unavailable` when nobody answers there, `bad_request` when its node's name is
            taken by an agent elsewhere.
    """
    link = await take_in(scheduler, request.agent)
    lens = Lens(scheduler.registry, request)
    return await nodes.node(scheduler, link.node_id or link.target, lens=lens)


async def take_in(scheduler: LiveScheduler, agent: str) -> NodeLink:
    """Lead the node agent at an address from now on, also after a restart.

    Raises:
        PlexError: as `add_node`.
    """
    known = next((link for link in scheduler.nodes.links if link.target == agent), None)
    if known is None:
        described = await _describe(scheduler, agent)
        node_id = NodeId(described.node_id)
        if scheduler.nodes.is_up(node_id):
            other = scheduler.nodes.link(node_id).target
            raise bad_request(
                f"the agent at {agent} is node {node_id!r}, and so is the one at {other}; "
                "give it another node_id",
                node=node_id,
            )
        scheduler.check_open()
        known = await scheduler.nodes.add(agent, timeout_us=JOIN_TIMEOUT_US)
        await scheduler.remember(NodeRow(agent=agent, node_id=known.node_id, is_member=True))
    return known


async def move_job(
    scheduler: LiveScheduler, request: service_pb2.MoveJobRequest
) -> service_pb2.MovesReply:
    """Order a job's training deployments elsewhere.

    Raises:
        PlexError: `not_found` job or node, `job_ended`, `bad_request` for a job that does not
            train, `no_placement` when nothing of it moves, with the reasons.
    """
    lens = Lens(scheduler.registry, request)
    job_id = _live_job(scheduler, lens, request.job_id)
    node_id = None
    if request.node_id:
        node_id = nodes.link_of(scheduler, request.node_id).node_id
        if not scheduler.nodes.is_up(node_id):
            raise PlexError(
                ErrorCode.NODE_LOST,
                f"node {node_id} is lost; nothing can move there until it is back",
            )
        if node_id in scheduler.cluster.cordoned:
            raise PlexError(
                ErrorCode.NO_PLACEMENT,
                f"node {node_id} is cordoned; `plexctl node uncordon {node_id}` opens it",
            )
    cluster = scheduler.cluster
    if all(cluster.deployments[d].is_rollout for d in cluster.jobs[job_id].deployments):
        raise bad_request(
            f"job {job_id} has no training deployment; rollout instances move when their node is "
            "drained"
        )
    actions = await _decided(scheduler, JobMoveRequested(job_id=job_id, node_id=node_id))
    reply = _moves(scheduler, actions, lens=lens)
    if not reply.moves:
        where = f"node {node_id}" if node_id else "another place"
        why = "; ".join(reply.reasons) or f"no place on {where} takes it within everyone's bounds"
        raise PlexError(
            ErrorCode.NO_PLACEMENT,
            f"job {job_id} not moved to {where}: {why}; `plexctl pack` shows who is where",
            job=job_id,
        )
    return reply


async def pin_job(
    scheduler: LiveScheduler, request: service_pb2.PinJobRequest
) -> service_pb2.PinJobReply:
    """Keep a job where it is, or let it be moved again.

    Raises:
        PlexError: `not_found`, `job_ended`.
    """
    job_id = _live_job(scheduler, Lens(scheduler.registry, request), request.job_id)
    await _decided(scheduler, JobPinned(job_id=job_id, is_pinned=request.is_pinned))
    return service_pb2.PinJobReply(job_id=job_id, is_pinned=request.is_pinned)


async def repack(
    scheduler: LiveScheduler, request: service_pb2.RepackRequest
) -> service_pb2.MovesReply:
    """Order the moves that pay for themselves now."""
    ordered = await _decided(scheduler, RepackRequested())
    return _moves(scheduler, ordered, lens=Lens(scheduler.registry, request))


async def _decided(scheduler: LiveScheduler, event: Event) -> list[Action]:
    """Return what the core ordered for an operator's fact.

    Raises:
        PlexError: `unavailable` when the scheduler does not run or stops before it decided.
    """
    scheduler.check_open()
    return await scheduler.post(event).decision


def _change(change: int, node_id: NodeId) -> Event:
    match change:
        case service_pb2.NODE_CHANGE_CORDON:
            return NodeCordoned(node_id=node_id)
        case service_pb2.NODE_CHANGE_DRAIN:
            return NodeCordoned(node_id=node_id, is_drained=True)
        case service_pb2.NODE_CHANGE_UNCORDON:
            return NodeUncordoned(node_id=node_id)
        case _:
            raise bad_request(f"{change} is no change; give CORDON, DRAIN or UNCORDON")


async def _describe(scheduler: LiveScheduler, target: str) -> node_pb2.NodeDescription:
    """Ask an agent for its name before its lease is taken."""
    shown = await scheduler.nodes.peers.node_at(target)
    channel = scheduler.nodes.dial(target)
    try:
        stub = node_pb2_grpc.NodeStub(channel)
        found: node_pb2.NodeDescription = await stub.Describe(
            node_pb2.NodeDescribeRequest(), timeout=scheduler.config.rpc_timeout_us / 1e6
        )
    except grpc.aio.AioRpcError as failure:
        raise unavailable(
            f"no node agent answers at {target}: {failure.code().name}, {failure.details()}; start "
            "it, on another host with `plexctl node join`, then add it again",
            agent=target,
        ) from failure
    finally:
        await channel.close()
    check_shown(shown, found, target=target)
    return found


def _live_job(scheduler: LiveScheduler, lens: Lens, job_id: str) -> JobId:
    record = lens.job(job_id)
    if record.has_ended or JobId(job_id) not in scheduler.cluster.jobs:
        raise PlexError(ErrorCode.JOB_ENDED, f"job {job_id!r} has ended; nothing of it is left")
    return JobId(job_id)


def _moves(
    scheduler: LiveScheduler, actions: Iterable[Action], *, lens: Lens
) -> service_pb2.MovesReply:
    """Return the relocations that began, in the order they did, and why others did not."""
    reply = service_pb2.MovesReply()
    for action in actions:
        if isinstance(action, RelocationChanged):
            if action.stage is RelocationStage.SPAWNING:
                reply.moves.append(_move(scheduler, action, lens=lens))
            elif action.fault is not None:
                reply.reasons.append(lens.text(action.fault.message))
    return reply


def _move(
    scheduler: LiveScheduler, action: RelocationChanged, *, lens: Lens
) -> service_pb2.JobMove:
    cluster = scheduler.cluster
    deployment = cluster.deployments[DeploymentId(action.deployment_id)]
    wpg = cluster.wpg_of(deployment)
    view = service_pb2.JobMove(
        to_devices=[place.unit for place in action.places],
        from_devices=[place.unit for place in wpg.places] if wpg is not None else [],
        state_bytes=sum(wpg.device_bytes) if wpg is not None else 0,
        reason=action.reason,
    )
    if lens.sees(deployment.job_id):
        view.deployment_id, view.job_id = deployment.deployment_id, deployment.job_id
        view.job_name = lens.job_name(deployment.job_id)
        view.name = deployment.deployment_id.removeprefix(f"{deployment.job_id}/")
    return view


METHODS: Final[Methods] = {
    "ChangeNode": change_node,
    "AddNode": add_node,
    "Repack": repack,
    "MoveJob": move_job,
    "PinJob": pin_job,
}
