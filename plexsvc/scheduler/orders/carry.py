"""Transport of a relocated deployment: its state as complete copies, and its staged payloads.

The state is published like a version, complete, on every node of the old WPG. The new ranks map it
on the same host and stream it from another. The payloads of operations that wait lie where the
deployment was when they came. They are passed on when it has arrived elsewhere, at the latest when
their operation starts.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from functools import partial
from typing import Any

import grpc

from plexclient.wire.v1 import (
    common_pb2,
    operations_pb2,
    service_pb2,
    statemanager_pb2,
    statemanager_pb2_grpc,
    worker_pb2,
)
from plexsvc.errors import PlexError, unavailable
from plexsvc.ids import NodeId, OperationId, new_operation_id, show
from plexsvc.log import Log
from plexsvc.rpc.errors import checked
from plexsvc.scheduler.core.actions import CarryState, CutOver, DropCarried
from plexsvc.scheduler.core.events import CarryFailed, Event, StateCarried
from plexsvc.scheduler.core.vocabulary import Fault
from plexsvc.scheduler.handler import Handler, Work
from plexsvc.scheduler.ledger import messages
from plexsvc.scheduler.ledger.held import Held, Published
from plexsvc.scheduler.ledger.jobs import Copies, WpgRecord
from plexsvc.scheduler.orders import managed
from plexsvc.scheduler.orders.reach import Reach

log = Log(__name__)


def handlers(reach: Reach) -> list[Handler[Any]]:
    """Return the handlers of what a deployment takes along."""
    return [
        Handler(CarryState, partial(carry, reach), _carry_failed),
        Handler(DropCarried, partial(drop, reach)),
        Handler(CutOver, partial(cut_over, reach)),
    ]


async def carry(reach: Reach, action: CarryState) -> Event:
    """Copy a WPG's state and hold the `Initialize` that reads it.

    Raises:
        PlexError: what a state manager refused, e.g. `no_room` for the copy in host memory.
        AioRpcError: a state manager did not answer.
    """
    record = reach.registry.by_wpg[action.from_wpg_id]
    if record.is_rollout:  # its manager brings the new instances to the version in use
        return _carried(reach, action, record=record)
    published, replies = await managed.publish(reach, record, request_of(reach, action))
    nbytes = sum(reply.nbytes for reply in replies)
    return _carried(reach, action, record=record, published=published, nbytes=nbytes)


def request_of(reach: Reach, action: CarryState) -> statemanager_pb2.PublishRequest:
    """Return what state managers are asked for a copy; asked again, they have it."""
    incarnation = reach.registry.by_wpg[action.from_wpg_id].incarnation
    return statemanager_pb2.PublishRequest(
        fence=reach.fence(lease_no=action.lease_no, incarnation=incarnation),
        wpg_id=action.from_wpg_id,
        deployment_id=f"{action.deployment_id}~carried",
        incarnation=incarnation,
        version=int(action.move_id.rpartition(".")[2]),
        complete=True,
    )


async def drop(reach: Reach, action: DropCarried) -> None:
    """Free the copies of a relocation that is over.

    If it failed, its rollout manager is told to use the deployment's instances again: it may have
    gone over to others just before those died.
    """
    copies = reach.recorder.carried_dropped(action.move_id)
    if copies is None:
        return
    if copies.published is not None:
        await managed.release(reach, copies.published)
    record = reach.registry.by_wpg.get(copies.from_wpg_id)
    if record is None or not record.is_rollout or not record.is_current or record.is_stopping:
        return
    request = worker_pb2.ExecuteRequest(
        fence=reach.fence(lease_no=copies.lease_no, incarnation=record.incarnation),
        wpg_id=record.wpg_id,
        operation=messages.initialize(record.deployment, new_operation_id()),
        deployment=messages.deployment(record.deployment),
        instance_addresses=[rank.address for rank in reach.ranks.of(record.wpg_id)],
    )
    await reach.rollout.execute(request)


def cut_over(reach: Reach, action: CutOver) -> Work:
    """Let a deployment be where its second WPG is, and have its staged payloads follow."""
    wpg = reach.registry.by_wpg[action.to_wpg_id]
    reach.recorder.cut_over(wpg)
    return _bring_payloads(reach, wpg)


def _carried(
    reach: Reach,
    action: CarryState,
    *,
    record: WpgRecord,
    published: Published | None = None,
    nbytes: int = 0,
) -> Event:
    copies = Copies(
        published=published,
        initialize_id=action.initialize_id,
        from_wpg_id=action.from_wpg_id,
        lease_no=action.lease_no,
    )
    reach.recorder.carried(action.move_id, copies, of=record.deployment)
    return StateCarried(deployment_id=action.deployment_id, move_id=action.move_id, nbytes=nbytes)


def _carry_failed(action: CarryState, fault: Fault) -> Event:
    return CarryFailed(deployment_id=action.deployment_id, move_id=action.move_id, fault=fault)


async def bring_payload(
    reach: Reach, held: Held, record: WpgRecord, *, is_checked: bool = False
) -> None:
    """Return when an operation's staged payload lies on every node that it runs on.

    `is_checked`: it is looked for there, since the node may have been lost and come back.

    Raises:
        PlexError: `unavailable` when no node that has it can be reached any more.
    """
    if not held.staged_on or record.is_rollout:
        return
    misses = [node_id for node_id in record.nodes if node_id not in held.staged_on]
    if is_checked:
        bundle, job_id = held.operation.payload.staged, held.operation.job_id
        misses = [n for n in record.nodes if not await is_staged(reach, bundle, job_id, on=n)]
    if not misses:
        return
    async with reach.underway.turn(record.deployment.deployment_id):
        for node_id in misses:
            if is_checked or node_id not in held.staged_on:  # it may have come in its turn
                await pass_on(reach, held, to=node_id)


async def is_staged(reach: Reach, bundle: common_pb2.StagedBundle, job_id: str, *, on: str) -> bool:
    """Return whether a node has a staged bundle, whole."""
    request = statemanager_pb2.ReadStagedRequest(
        staging_id=bundle.staging_id, offset=bundle.nbytes, job_id=job_id
    )

    async def read(state: statemanager_pb2_grpc.StateManagerAsyncStub) -> None:
        async for _ in state.ReadStaged(request):
            pass

    try:
        await reach.ask_state(NodeId(on), read)
    except (PlexError, grpc.aio.AioRpcError):
        return False
    return True


async def _bring_payloads(reach: Reach, record: WpgRecord) -> None:
    """Pass on what waits for a deployment that has just arrived, before its devices wait for it.

    What cannot be passed on is told when its operation starts.
    """
    waiting = [
        held
        for held in reach.registry.held.values()
        if held.operation.deployment_id == record.deployment.deployment_id
    ]
    for held in sorted(waiting, key=lambda held: held.operation.seq):
        with suppress(PlexError):
            await bring_payload(reach, held, record)


async def pass_on(reach: Reach, held: Held, *, to: NodeId) -> None:
    """Stream a staged payload from a node that has it to one that needs it.

    Its client has it until the operation is answered: told that it is lost, it uploads it again.

    Raises:
        PlexError: `unavailable` when no node that has it can be reached any more.
    """
    bundle = common_pb2.StagedBundle()
    bundle.CopyFrom(held.operation.payload.staged)
    bundle.staging_id = held.operation.operation_id
    bundle.node_ids[:] = held.staged_on
    await copy_staged(reach, held.operation, bundle, to=to)
    reach.recorder.staged(held, on=dict.fromkeys((*held.staged_on, to)))


async def copy_staged(
    reach: Reach,
    operation: operations_pb2.Operation,
    bundle: common_pb2.StagedBundle,
    *,
    to: NodeId,
) -> None:
    """Stream what is staged for an operation from a node that has it to another.

    Raises:
        PlexError: `unavailable` when no node that has it can be reached any more.
    """
    errors: list[str] = []
    for source in map(NodeId, bundle.node_ids):
        relay = partial(_relay, reach, operation, bundle, to=to)
        try:
            await reach.ask_state(source, relay, which_asks=to)
        except (grpc.aio.AioRpcError, PlexError) as error:
            log.warning("payload not passed on", source=source, target=to, error=error)
            errors.append(f"{source}: {error}")
        else:
            return
    raise unavailable(
        f"{show(OperationId(operation.operation_id))}: its deployment was moved to {to} and its "
        f"payload could not follow ({'; '.join(errors)}); upload it again"
    )


async def _relay(
    reach: Reach,
    operation: operations_pb2.Operation,
    bundle: common_pb2.StagedBundle,
    source: statemanager_pb2_grpc.StateManagerAsyncStub,
    *,
    to: NodeId,
) -> None:
    """Pass staged bytes on a chunk at a time.

    Raises:
        PlexError: what the target refused; `node_lost`.
        AioRpcError: the source does not have it, or one of them does not answer.
    """
    request = statemanager_pb2.ReadStagedRequest(
        staging_id=bundle.staging_id, job_id=operation.job_id
    )
    stream = source.ReadStaged(request)
    call = reach.nodes.link(to).state.Stage()
    header = service_pb2.StageHeader(
        operation_id=bundle.staging_id,
        job_id=operation.job_id,
        deployment_id=operation.deployment_id,
        tenant=operation.tenant,
        tensors=bundle.tensors,
        nbytes=bundle.nbytes,
    )
    loop, silence_s = asyncio.get_running_loop(), reach.silence_s
    try:
        async with asyncio.timeout(silence_s) as limit:
            with suppress(asyncio.InvalidStateError):  # it has answered already
                await call.write(service_pb2.StageRequest(header=header))
                async for chunk in stream:
                    await call.write(service_pb2.StageRequest(chunk=chunk))
                    limit.reschedule(loop.time() + silence_s)
                await call.done_writing()
            reply = await call
    except TimeoutError as error:
        raise unavailable(
            f"nothing of it was passed on for {silence_s:g} s (scheduler.progress_timeout_us)"
        ) from error
    finally:
        call.cancel()
        stream.cancel()
    checked(reply)
