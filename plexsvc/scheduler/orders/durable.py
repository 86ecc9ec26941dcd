"""Copies of durable deployments after each operation that writes weights, and the way back.

The copy is made beside the operations that follow: they change gradients alone, which it does not
hold. One that writes weights waits for it (`may_run`). It takes the place of the copy before when
it is whole. Until then the operations that ran since that one are kept, with their inputs. A
rebuilt WPG reads the copy and runs them again: what they come to must be what was answered.

Another node copies the copy, if one has room, and nothing waits for that. Staged inputs are sent
there, too, while their operation runs. It is read where the first copy is lost.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from typing import Any, Final

import grpc.aio

from plexclient.wire.v1 import common_pb2, statemanager_pb2, worker_pb2
from plexsvc.errors import ErrorCode, PlexError
from plexsvc.ids import NodeId, OperationId, WpgId
from plexsvc.log import Log
from plexsvc.rpc.errors import checked
from plexsvc.scheduler.core.actions import KeepState
from plexsvc.scheduler.core.vocabulary import WRITING_KINDS, Fault, OperationKind
from plexsvc.scheduler.handler import Handler, Work
from plexsvc.scheduler.ledger import results
from plexsvc.scheduler.ledger.durable import (
    REPLAYED,
    STAGING_PART,
    CheckpointStep,
    CompletedOperation,
    Durable,
    staged,
)
from plexsvc.scheduler.ledger.held import Held, Published
from plexsvc.scheduler.ledger.jobs import DeploymentRecord, WpgRecord
from plexsvc.scheduler.orders import (
    carry,
    checkpoints,
    host_bytes,
    lost_versions,
    managed,
    release,
)
from plexsvc.scheduler.orders.reach import Reach

log = Log(__name__)

TRIED_AGAIN: Final = frozenset({ErrorCode.WORKER_DIED, ErrorCode.NODE_LOST})
"""Codes of errors after which the core rebuilds once more: told as they are."""

OPENS_WINDOW: Final = frozenset({OperationKind.FORWARD_BACKWARD, OperationKind.BACKWARD})
"""Kinds that leave gradients behind even where they fail, and no rank that has to exit."""

SLOWEST_BYTES_PER_S: Final = 1 << 20
"""A second copy that comes more slowly than this is given up."""

Replies = Sequence[worker_pb2.ExecuteReply]
Execute = Callable[[Held], Awaitable[Replies]]
"""Runs an operation on a rebuilt WPG."""


def handlers(reach: Reach) -> list[Handler[Any]]:
    """Return the handler of copies."""
    return [Handler(KeepState, partial(keep, reach))]


def keep(reach: Reach, action: KeepState) -> Work:
    """Copy the state that an operation left; those that write weights wait from here on."""
    record = reach.registry.by_wpg[action.wpg_id]
    if not action.seq:
        return _keep_beside(reach, action, record=record)
    _of(record).copied.clear()
    return _keep(reach, action, record=record)


async def _keep(reach: Reach, action: KeepState, *, record: WpgRecord) -> None:
    durable = _of(record)
    request = statemanager_pb2.PublishRequest(
        fence=reach.fence(lease_no=action.lease_no, incarnation=record.incarnation),
        wpg_id=action.wpg_id,
        deployment_id=f"{record.deployment.deployment_id}~durable",
        incarnation=record.incarnation,
        version=action.seq,
        complete=True,
        beside=True,
    )
    try:
        published, replies = await managed.publish(reach, record, request)
        before, gone = durable.copy, durable.take(published, seq=action.seq)
        if before is durable.second:
            before = None
        step = CheckpointStep(
            copy=published,
            number=max(reply.step for reply in replies),
            position=record.deployment.position,
        )
        is_due = checkpoints.begin(record.deployment, durable, step)
    finally:
        durable.copied.set()
    await _changed(reach, record, gone=gone, before=before)
    async with asyncio.TaskGroup() as group:
        group.create_task(_keep_second(reach, action, record=record, published=published))
        if is_due:
            group.create_task(checkpoints.write(reach, record))


async def _keep_beside(reach: Reach, action: KeepState, *, record: WpgRecord) -> None:
    """Have another node copy what there is one copy of: its node, or that of the other, was lost.

    The weights of a model need no copy, only what ran since.
    """
    durable = _of(record)
    await durable.copied.wait()
    if durable.second is not None and not await _is_there(reach, durable.second):
        before, gone = durable.second, durable.lose_second("its node was lost")
        await _changed(reach, record, gone=gone, before=before)
    if durable.second_seq is not None or durable.is_over:
        return
    if durable.copy is not None:
        await _keep_second(reach, action, record=record, published=durable.copy)
        return
    durable.second_seq = 0
    await _changed(reach, record, gone=(), before=None)
    for done in list(durable.since.values()):
        await _send_inputs(reach, done.held, record)


async def _keep_second(
    reach: Reach, action: KeepState, *, record: WpgRecord, published: Published
) -> None:
    """Have another node copy the copy, if one has room and copies none now.

    If none has, an older copy on another node stays the second one.
    """
    durable = _of(record)
    if action.beside is None and durable.second is not None and durable.outlives(record.nodes):
        durable.alone = "no other node has room"
    elif action.beside is None:
        before, gone = durable.second, durable.lose_second("no other node has room")
        await _changed(reach, record, gone=gone, before=before)
    elif not durable.is_sending:
        durable.is_sending = True
        try:
            await _send(reach, record, published, to=action.beside)
        except (PlexError, grpc.aio.AioRpcError) as error:
            durable.alone = f"{action.beside} did not copy seq {action.seq}: {error}"
            log.warning("no second copy", wpg=action.wpg_id, node=action.beside, error=error)
        finally:
            durable.is_sending = False


async def _send(reach: Reach, record: WpgRecord, published: Published, *, to: NodeId) -> None:
    """Have another node copy the copy; it takes the place of the second one before.

    Raises:
        PlexError: what its state manager refused; `node_lost`.
        AioRpcError: it did not answer.
    """
    durable, nbytes = _of(record), sum(published.nbytes)
    request = statemanager_pb2.PublishRequest(
        fence=reach.fence(lease_no=0),
        **published.version._asdict(),
        copy_of=reach.locate(published),
        job_id=record.deployment.job_id,
    )
    timeout_s = reach.silence_s + nbytes / SLOWEST_BYTES_PER_S
    ask = reach.ask_state(to, lambda state: state.Publish(request, timeout=timeout_s))
    reply = checked(await ask)
    copy = replace(published, nodes=(to,), nbytes=(reply.nbytes,), parts=(reply.part,))
    if durable.is_over:
        await managed.release(reach, copy)
        return
    before, gone = durable.second, durable.take_second(copy, seq=copy.version.version)
    await _changed(reach, record, gone=gone, before=before)
    for done in list(durable.since.values()):  # what ran while there was none
        await _send_inputs(reach, done.held, record)


async def _changed(
    reach: Reach, record: WpgRecord, *, gone: Sequence[CompletedOperation], before: Published | None
) -> None:
    """Have store and core know of a deployment's copies; free what they take the place of."""
    durable, deployment_id = _of(record), record.deployment.deployment_id
    reach.versions.copied(deployment_id, durable)
    managed.note(reach, deployment_id)
    if before is not None and not durable.writes(before):
        await reach.recorder.until_stored()  # else a successor would count on what is gone
        await managed.release(reach, before)
    host_bytes.tell_held(reach, deployment_id)
    await _let_go(reach, gone, of=record.deployment)


async def forget(reach: Reach, record: WpgRecord) -> None:
    """Free the copies of a deployment of which nothing is left."""
    durable = _of(record)
    await durable.copied.wait()
    durable.is_over = True
    copies = [copy for copy in (durable.copy, durable.second) if copy is not None]
    durable.copy = durable.second = None
    for copy in copies:
        if not durable.writes(copy):
            await managed.release(reach, copy)
    if copies:
        host_bytes.tell_held(reach, record.deployment.deployment_id)


async def find(reach: Reach, record: WpgRecord) -> None:
    """Go on from a copy that is there.

    Raises:
        PlexError: `deployment_failed` when there is no way back.
    """
    durable = _of(record)
    await durable.copied.wait()
    if not await _is_there(reach, durable.copy):
        lost = durable.copy
        durable.fall_back()
        await _changed(reach, record, gone=(), before=lost)
        if not await _is_there(reach, durable.copy):
            durable.fall_back()
    durable.check()


async def _is_there(reach: Reach, copy: Published | None) -> bool:
    return copy is None or await managed.is_there(reach, copy)  # None: a model's weights


@asynccontextmanager
async def inputs_kept(reach: Reach, held: Held, record: WpgRecord) -> AsyncIterator[None]:
    """Have another node get an operation's staged inputs while the body runs it."""
    if record.deployment.durable is None or not held.staged_on:
        yield
        return
    async with asyncio.TaskGroup() as group:
        group.create_task(_send_inputs(reach, held, record))
        yield
    await _send_inputs(reach, held, record)  # if a copy has come to another node meanwhile


async def keep_results(reach: Reach, held: Held, record: WpgRecord, result: results.Result) -> None:
    """Have another node get what is staged of an answer before its client is told of it."""
    to = _other_node(reach, record) if results.staged_ids(result) else None
    if to is None:
        return
    try:
        for shard in result.shards:
            if shard.payload.HasField("staged"):
                await carry.copy_staged(reach, held.operation, shard.payload.staged, to=to)
                shard.payload.staged.node_ids.append(to)
    except PlexError as error:
        log.warning("results on one node alone", wpg=record.wpg_id, node=to, error=error)


def _other_node(reach: Reach, record: WpgRecord) -> NodeId | None:
    """Return the node of the copy that a durable deployment goes on from if its own are lost."""
    durable = record.deployment.durable
    if durable is None or (durable.second_seq is None and not durable.outlives(record.nodes)):
        return None
    copy = durable.second or durable.copy
    others = [link.node_id for link in reach.nodes.links if link.is_up]
    others = [node_id for node_id in others if node_id not in record.nodes]
    wanted = copy.nodes[0] if copy is not None else None
    to = wanted if wanted in others else next(iter(others), None)
    if to is not None:
        durable.other_nodes[to] = None
    return to


async def _send_inputs(reach: Reach, held: Held, record: WpgRecord) -> None:
    to = _other_node(reach, record) if held.staged_on else None
    if to is None or to in held.staged_on:
        return
    durable = _of(record)
    try:
        await carry.pass_on(reach, held, to=to)
    except PlexError as error:
        before, gone = durable.second, durable.lose_second(f"{to} did not take inputs: {error}")
        await _changed(reach, record, gone=gone, before=before)


def _of(record: WpgRecord) -> Durable:
    durable = record.deployment.durable
    assert durable is not None, record.deployment.deployment_id
    return durable


async def note(reach: Reach, record: WpgRecord, held: Held, *, digest: str, code: str) -> None:
    """Keep an operation that ran until a copy holds what it did."""
    durable = _of(record)
    if held.kind in (OPENS_WINDOW if code else REPLAYED):
        before = durable.second
        slot = durable.slot_of(held.operation.seq)
        done = CompletedOperation(held=held, digest=digest, code=code, slot=slot)
        gone = durable.note(done)
        reach.recorder.done_kept(record.deployment, done)
        if gone:
            log.warning(
                "too much since the last copy to be kept",
                deployment=record.deployment.deployment_id,
                seq=durable.seq,
            )
            await _changed(reach, record, gone=gone, before=None if durable.second else before)


async def after(
    reach: Reach, held: Held, record: WpgRecord, *, digest: str, execute: Execute
) -> None:
    """Keep an operation that was applied; replay others after an `Initialize` that rebuilds.

    Raises:
        PlexError: what did not come to the same again, or died.
    """
    await note(reach, record, held, digest=digest, code="")
    if held.kind is OperationKind.INITIALIZE and _of(record).is_lost:
        await _replay(reach, record, execute=execute)
        await lost_versions.publish_again(reach, held, record)


async def _let_go(
    reach: Reach, gone: Sequence[CompletedOperation], *, of: DeploymentRecord
) -> None:
    """Free staged inputs whose operations were answered; others are dropped when they are."""
    answered = [one for one in staged(gone) if OperationId(one) not in reach.registry.held]
    if answered:
        await release.drop_staged(reach, answered, record=of)


async def may_run(reach: Reach, held: Held, record: WpgRecord) -> bool:
    """Have an operation that writes weights, or rebuilds the deployment, wait for the copy.

    Returns False if its ranks died meanwhile: it comes again. An `Initialize` that rebuilds starts
    from the copy.

    Raises:
        PlexError: `deployment_failed` when there is no way back.
    """
    durable = _of(record)
    is_first = record.deployment.initialize_id == held.operation.operation_id
    if held.kind is OperationKind.INITIALIZE and durable.copy is None:
        reach.versions.copied(record.deployment.deployment_id, durable)
        managed.note(reach, record.deployment.deployment_id)
        node_id, ask = record.nodes[0], statemanager_pb2.InventoryRequest()
        found = await reach.ask_state(
            node_id, lambda state: state.Inventory(ask, timeout=reach.rpc_s)
        )
        durable.most_bytes = min(durable.most_bytes, found.staging_bytes_total // STAGING_PART)
    if held.kind in {*WRITING_KINDS, OperationKind.INITIALIZE}:
        await durable.copied.wait()
    if held.kind is OperationKind.INITIALIZE and not is_first and held.copies is None:
        await find(reach, record)
        held.copies = durable.copy
    return not record.is_stopping


def told(reach: Reach, wpg_id: WpgId, fault: Fault) -> Fault:
    """Return why an operation failed; of an `Initialize` that rebuilds, what was to be rebuilt."""
    record = reach.registry.by_wpg.get(wpg_id)
    durable = None if record is None else record.deployment.durable
    if record is None or durable is None or not durable.is_lost or fault.code in TRIED_AGAIN:
        return fault
    text = (
        f"{record.deployment.deployment_id} cannot be rebuilt; its last durable step is seq "
        f"{durable.seq}: {fault.message}"
    )
    return Fault(code=ErrorCode.DEPLOYMENT_FAILED, message=text, facts=fault.facts)


async def _replay(reach: Reach, record: WpgRecord, *, execute: Execute) -> None:
    """Run again on a rebuilt WPG what was applied since the copy that its `Initialize` read.

    Raises:
        PlexError: `deployment_failed` when something comes to another result than it was answered
            with; what an executor died of.
    """
    durable = _of(record)
    pause = durable.pause
    assert pause is not None, record.deployment.deployment_id
    pause.seq, pause.restored_us = durable.seq, reach.clock.monotonic_us()
    staged_again = list[results.Result]()
    for done in durable.to_replay:
        replies = await execute(done.held)
        seq, result = (
            done.held.operation.seq,
            results.merge(done.held.operation.operation_id, replies),
        )
        if (results.digest_of(replies), result.error.code) != (done.digest, done.code):
            raise PlexError(
                ErrorCode.DEPLOYMENT_FAILED,
                f"{done.held.kind} (seq {seq}) came to another result than before: "
                f"{result.error.message or dict(result.metrics)}",
            )
        if results.staged_ids(result):
            staged_again.append(result)
        pause.replayed += 1
    await _replace_results(reach, record, by=staged_again)
    pause.going_on_us = reach.clock.monotonic_us()
    log.warning("deployment rebuilt", deployment=record.deployment.deployment_id, how=str(pause))


async def _replace_results(
    reach: Reach, record: WpgRecord, *, by: Sequence[results.Result]
) -> None:
    """Let clients read what was lost with a node from where it came to be again; drop the rest.

    What did not run again is gone for good: its copy is of a later state.
    """
    deployment, again = record.deployment, {result.operation_id: result for result in by}
    for result in reach.recorder.unread(deployment.deployment_id):
        if not await _are_staged(reach, result, of=deployment):
            reach.recorder.lost(result, again.pop(result.operation_id, None))
    copies = [one for result in again.values() for one in results.staged_ids(result)]
    if copies:
        await release.drop_staged(reach, copies, record=deployment)


async def _are_staged(reach: Reach, result: results.Result, *, of: DeploymentRecord) -> bool:
    """Return whether every staged part of an answer is on one of the nodes that it names."""
    bundles = [s.payload.staged for s in result.shards if s.payload.HasField("staged")]
    return all([await _is_staged(reach, bundle, of=of) for bundle in bundles])


async def _is_staged(
    reach: Reach, bundle: common_pb2.StagedBundle, *, of: DeploymentRecord
) -> bool:
    for node_id in bundle.node_ids:
        if await carry.is_staged(reach, bundle, of.job_id, on=node_id):
            return True
    return False
