"""Copies of durable deployments after each operation that writes weights, and the way back.

The copy is made beside the operations that follow: they change gradients alone, which it does not
hold. One that writes weights waits for it (`may_run`). It takes the place of the copy before when
it is whole. Until then the operations that ran since that one are kept, with their inputs. A
rebuilt WPG reads the copy and runs them again: what they come to must be what was answered.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any, Final

from plexclient.wire.v1 import statemanager_pb2, worker_pb2
from plexsvc.errors import ErrorCode, PlexError
from plexsvc.ids import OperationId, WpgId
from plexsvc.log import Log
from plexsvc.scheduler.core.actions import KeepState
from plexsvc.scheduler.core.vocabulary import WRITING_KINDS, Fault, OperationKind
from plexsvc.scheduler.handler import Handler, Work
from plexsvc.scheduler.ledger import results
from plexsvc.scheduler.ledger.durable import REPLAYED, STAGING_PART, Done, Durable, Step, staged
from plexsvc.scheduler.ledger.held import Held
from plexsvc.scheduler.ledger.jobs import DeploymentRecord, WpgRecord
from plexsvc.scheduler.orders import checkpoints, host_bytes, managed, release
from plexsvc.scheduler.orders.reach import Reach

log = Log(__name__)

DEATHS: Final = frozenset({ErrorCode.WORKER_DIED, ErrorCode.NODE_LOST})
"""Codes of errors after which it is tried again."""

OPENS_WINDOW: Final = frozenset({OperationKind.FORWARD_BACKWARD, OperationKind.BACKWARD})
"""Kinds that leave gradients behind even where they fail, and no rank that has to exit."""

Replies = Sequence[worker_pb2.ExecuteReply]
Execute = Callable[[Held], Awaitable[Replies]]
"""Runs an operation on a rebuilt WPG."""


def handlers(reach: Reach) -> list[Handler[Any]]:
    """Return the handler of copies."""
    return [Handler(KeepState, partial(keep, reach))]


def keep(reach: Reach, action: KeepState) -> Work:
    """Copy the state that an operation left; those that write weights wait from here on."""
    record = reach.registry.by_wpg[action.wpg_id]
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
        step = Step(
            copy=published,
            number=max(reply.step for reply in replies),
            position=record.deployment.position,
        )
        is_due = checkpoints.begin(record.deployment, durable, step)
    finally:
        durable.copied.set()
    reach.versions.copied(record.deployment.deployment_id, published)
    managed.note(reach, record.deployment.deployment_id)
    if before is not None and not durable.writes(before):
        await managed.release(reach, before)
    host_bytes.tell_held(reach, record.deployment.deployment_id)
    await _let_go(reach, gone, of=record.deployment)
    if is_due:
        await checkpoints.write(reach, record)


def _of(record: WpgRecord) -> Durable:
    durable = record.deployment.durable
    assert durable is not None, record.deployment.deployment_id
    return durable


async def note(reach: Reach, record: WpgRecord, held: Held, *, digest: str, code: str) -> None:
    """Keep an operation that ran until a copy holds what it did."""
    durable = _of(record)
    if held.kind in (OPENS_WINDOW if code else REPLAYED):
        gone = durable.note(Done(held=held, digest=digest, code=code))
        if gone:
            log.warning(
                "too much since the last copy to be kept",
                deployment=record.deployment.deployment_id,
                seq=durable.seq,
            )
        await _let_go(reach, gone, of=record.deployment)


async def after(
    reach: Reach, held: Held, record: WpgRecord, *, digest: str, execute: Execute
) -> None:
    """Keep an operation that was applied; replay others after an `Initialize` that rebuilds.

    Raises:
        PlexError: what did not come to the same again, or died.
    """
    await note(reach, record, held, digest=digest, code="")
    if held.kind is OperationKind.INITIALIZE:
        await _replay(reach, record, execute=execute)


async def _let_go(reach: Reach, gone: Sequence[Done], *, of: DeploymentRecord) -> None:
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
    if is_first:
        node_id, ask = record.nodes[0], statemanager_pb2.InventoryRequest()
        found = await reach.ask_state(
            node_id, lambda state: state.Inventory(ask, timeout=reach.rpc_s)
        )
        durable.most_bytes = min(durable.most_bytes, found.staging_bytes_total // STAGING_PART)
    elif held.kind in {*WRITING_KINDS, OperationKind.INITIALIZE}:
        await durable.copied.wait()
    if held.kind is OperationKind.INITIALIZE and not is_first and held.copies is None:
        durable.check()
        held.copies = durable.copy
    return not record.is_stopping


def told(reach: Reach, wpg_id: WpgId, fault: Fault) -> Fault:
    """Return why an operation failed; of an `Initialize` that rebuilds, what was to be rebuilt."""
    record = reach.registry.by_wpg.get(wpg_id)
    durable = None if record is None else record.deployment.durable
    if record is None or durable is None or not durable.is_lost or fault.code in DEATHS:
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
    if pause is None or not durable.is_lost:
        return
    pause.seq, pause.restored_us = durable.seq, reach.clock.monotonic_us()
    for seq in sorted(durable.since):
        done = durable.since[seq]
        replies = await execute(done.held)
        result = results.merge(done.held.operation.operation_id, replies)
        if (results.digest_of(replies), result.error.code) != (done.digest, done.code):
            raise PlexError(
                ErrorCode.DEPLOYMENT_FAILED,
                f"{done.held.kind} (seq {seq}) came to another result than before: "
                f"{result.error.message or dict(result.metrics)}",
            )
        if copies := results.staged_ids(result):  # its client has those of before
            await release.drop_staged(reach, copies, record=record.deployment)
        pause.replayed += 1
    pause.going_on_us = reach.clock.monotonic_us()
    log.warning("deployment rebuilt", deployment=record.deployment.deployment_id, how=str(pause))
