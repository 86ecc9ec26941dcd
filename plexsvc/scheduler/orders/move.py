"""Moves of a WPG's state between device and host, on all its nodes or on none.

Instances have no state to move: they sleep and wake, by their rollout manager. One that does not
answer when it is to sleep is ended, so that its device is free.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from typing import Any, Final

import grpc

from plexclient.wire.v1 import rollout_pb2, statemanager_pb2
from plexsvc.errors import ErrorCode, PlexError
from plexsvc.ids import DeploymentId, MoveId, NodeId, WpgId
from plexsvc.log import Log
from plexsvc.residency import Residency
from plexsvc.rpc.errors import checked
from plexsvc.rpc.residency import ON_WIRE
from plexsvc.scheduler.core.actions import MoveState
from plexsvc.scheduler.core.events import Event, InstanceLost, MoveFailed, ResidencyMoved
from plexsvc.scheduler.core.vocabulary import Fault, OperationKind
from plexsvc.scheduler.handler import Handler
from plexsvc.scheduler.ledger.jobs import WpgRecord
from plexsvc.scheduler.orders import spawn
from plexsvc.scheduler.orders.reach import Reach

log = Log(__name__)

MoveReply = statemanager_pb2.MoveReply

LOAD_THEMSELVES: Final = frozenset({OperationKind.PULL, OperationKind.SEED})
"""Operations that wake instances with the version that they need: not with the old one first."""


def handlers(reach: Reach) -> list[Handler[Any]]:
    """Return the handler of moves."""
    return [Handler(MoveState, partial(move, reach), _failed, is_internal=True)]


async def move(reach: Reach, action: MoveState) -> Event:
    """Move a WPG's state on all its nodes.

    Raises:
        PlexError: what a state manager refused, e.g. `no_room`; nothing has moved then.
            `worker_died` when a rank hangs in it, or no byte of it moves.
        AioRpcError: one did not answer; the others were told to move back.
    """
    wpg = reach.registry.by_wpg[action.wpg_id]
    if wpg.is_rollout:
        return await _move_instances(reach, action, wpg)
    nodes = wpg.nodes
    found = await _move_all(reach, action, nodes, to=action.to)
    replies = [reply for reply in found if isinstance(reply, MoveReply)]
    failures = [failure for failure in found if isinstance(failure, BaseException)]
    if failures:
        if len(nodes) > 1:  # a move on one node is atomic
            await _roll_back(reach, action, nodes)
        raise failures[0]
    return ResidencyMoved(
        wpg_id=action.wpg_id,
        move_id=action.move_id,
        nbytes=sum(reply.nbytes for reply in replies),
        total_us=max(reply.total_us for reply in replies),
    )


@asynccontextmanager
async def parked(reach: Reach, wpg_id: WpgId, *, lease_no: int) -> AsyncIterator[None]:
    """Have a WPG that is on its devices parked while the body runs.

    Raises:
        PlexError, AioRpcError: as `move`.
    """
    order = MoveState(
        wpg_id=wpg_id,
        move_id=MoveId(f"parked.{secrets.token_hex(8)}"),  # no other move has it
        to=Residency.HOST,
        lease_no=lease_no,
    )
    await move(reach, order)
    yield
    back = MoveId(f"{order.move_id}.back")
    await move(reach, replace(order, move_id=back, to=Residency.DEVICE))


async def _move_instances(reach: Reach, action: MoveState, wpg: WpgRecord) -> Event:
    """Have instances sleep or wake.

    Raises:
        PlexError: what one refused, or their manager is not there for long.
    """
    started_us = reach.clock.monotonic_us()
    deployment_id = wpg.deployment.deployment_id
    to = rollout_pb2.INSTANCES_MOVE_SLEEP
    if action.to is Residency.DEVICE:
        pulls = _first_waiting(reach, deployment_id) in LOAD_THEMSELVES
        to = rollout_pb2.INSTANCES_MOVE_AWAIT_PULL if pulls else rollout_pb2.INSTANCES_MOVE_WAKE
    fence = reach.fence(lease_no=action.lease_no, incarnation=wpg.incarnation)
    reply = await reach.rollout.move(deployment_id, fence=fence, to=to)
    for rank, instance in enumerate(reach.ranks.of(action.wpg_id)):
        if instance.address in reply.unreached:
            await spawn.stop_rank(reach, wpg, rank=rank)
            message = f"instance {rank} of {wpg.wpg_id} did not go to sleep, and was ended"
            lost = InstanceLost(
                wpg_id=wpg.wpg_id,
                rank=rank,
                incarnation=wpg.incarnation_of(rank),
                fault=Fault(code=ErrorCode.WORKER_DIED, message=message),
            )
            reach.post(lost)
    total_us = reach.clock.monotonic_us() - started_us
    return ResidencyMoved(
        wpg_id=action.wpg_id, move_id=action.move_id, nbytes=reply.nbytes, total_us=total_us
    )


def _first_waiting(reach: Reach, deployment_id: DeploymentId) -> OperationKind | None:
    """Return what a deployment of which nothing runs does next."""
    theirs = (h for h in reach.registry.held.values() if h.operation.deployment_id == deployment_id)
    first = min(theirs, key=lambda held: held.operation.seq, default=None)
    return None if first is None else first.kind


def _failed(action: MoveState, fault: Fault) -> Event:
    return MoveFailed(wpg_id=action.wpg_id, move_id=action.move_id, fault=fault)


async def _roll_back(reach: Reach, action: MoveState, nodes: Sequence[NodeId]) -> None:
    """Bring the nodes of a failed move back to where they were."""
    back = Residency.HOST if action.to is Residency.DEVICE else Residency.DEVICE
    found = await _move_all(reach, action, nodes, to=back)
    for node_id, outcome in zip(nodes, found, strict=True):
        if isinstance(outcome, grpc.aio.AioRpcError | PlexError):
            log.warning("roll-back failed", node=node_id, wpg=action.wpg_id, error=outcome)
        elif isinstance(outcome, BaseException):
            raise outcome


async def _move_all(
    reach: Reach, action: MoveState, nodes: Sequence[NodeId], *, to: Residency
) -> list[MoveReply | BaseException]:
    """Move on all nodes at once, however long bytes move.

    Raises:
        PlexError: `worker_died`.
    """
    moves = [_move_on(reach, node_id, action, to=to) for node_id in nodes]
    what = f"a move of {action.wpg_id} to the {to}"
    async with reach.watched(what, action.wpg_id, reach.carriers(action.wpg_id, nodes)):
        return await asyncio.gather(*moves, return_exceptions=True)


async def _move_on(reach: Reach, node_id: NodeId, action: MoveState, *, to: Residency) -> MoveReply:
    record = reach.registry.by_wpg.get(action.wpg_id)
    incarnation = 1 if record is None else record.incarnation
    request = statemanager_pb2.MoveRequest(
        fence=reach.fence(lease_no=action.lease_no, incarnation=incarnation),
        wpg_id=action.wpg_id,
        move_id=action.move_id.encode(),
        to=ON_WIRE[to],
        next=action.following,
    )
    return checked(await reach.ask_state(node_id, lambda state: state.Move(request)))
