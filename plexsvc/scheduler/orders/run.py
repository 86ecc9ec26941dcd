"""Runs of operations: on ranks, by state managers, or by rollout managers."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from itertools import count
from typing import Any, Final

from plexclient.specs import HOST
from plexclient.wire.v1 import operations_pb2, worker_pb2
from plexsvc.errors import ErrorCode, PlexError
from plexsvc.ids import DeploymentId, OperationId, WpgId, show
from plexsvc.rpc.retry import Patience
from plexsvc.scheduler.core.actions import CancelOperation, StartOperation
from plexsvc.scheduler.core.events import Event, OperationFinished
from plexsvc.scheduler.core.vocabulary import MANAGED_KINDS, WRITING_KINDS, Fault, OperationKind
from plexsvc.scheduler.faults import fault_from_wire, fault_of
from plexsvc.scheduler.handler import Handler, Work
from plexsvc.scheduler.ledger import messages, results
from plexsvc.scheduler.ledger.held import Held
from plexsvc.scheduler.ledger.jobs import WpgRecord
from plexsvc.scheduler.orders import carry, durable, host_bytes, leaving, managed, move, spawn
from plexsvc.scheduler.orders.ranks import Rank
from plexsvc.scheduler.orders.reach import Reach, RolloutPort

MAX_EXECUTE_TRIES: Final = 3
"""Times an operation is sent to a rank whose connection breaks; a repeat attaches to it."""

_attempts: Final = count(1 + secrets.randbits(62))
"""Numbers that no other start of an operation carries, also under another scheduler."""

_NOT_SENT_AGAIN: Final = Fault(
    code=ErrorCode.UNAVAILABLE,
    message="the service was started again, and the operation's client did not come back to it in "
    "its session's time to live (session_ttl_us)",
)
_NOT_RUN: Final = Fault(
    code=ErrorCode.UNAVAILABLE,
    message="the service was started again, and another controller has the job; no rank had got "
    "the operation, which was not run",
)
_LEFT: Final = Fault(
    code=ErrorCode.UNAVAILABLE,
    message="the service was started again, and another controller has the job; nobody waits for "
    "what the operation may have published, saved or sampled",
)
_COPY_LEFT: Final = Fault(
    code=ErrorCode.UNAVAILABLE,
    message="the service was started again, and the copy of the state that the operation worked "
    "from went with the one before; make it again",
)

Replies = Sequence[worker_pb2.ExecuteReply]


def handlers(reach: Reach) -> list[Handler[Any]]:
    """Return the handlers of operations."""
    return [
        Handler(StartOperation, partial(start, reach), partial(_ended, reach), is_internal=True),
        Handler(CancelOperation, partial(cancel, reach)),
    ]


async def start(reach: Reach, action: StartOperation) -> Event | None:
    """Run an operation on its executors; None if its job ended meanwhile.

    Raises:
        PlexError: what an executor died of or a state manager refused.
        AioRpcError: an executor did not answer.
    """
    record = reach.registry.by_wpg.get(action.wpg_id)
    if record is not None and (end := await _without_client(reach, action, record)) is not None:
        return end
    held = reach.registry.held.get(action.operation_id)
    if held is None or record is None:
        return None
    reach.recorder.granted(held, lease_no=action.lease_no)
    try:
        await carry.bring_payload(reach, held, record)
    except PlexError as error:
        return _failed(action, fault_of(error), is_refusal=True)
    started_us = reach.clock.monotonic_us()
    kept = record.deployment.durable
    if held.kind in WRITING_KINDS:
        reach.versions.changed(record.deployment.deployment_id)
    if kept is not None and not await durable.may_run(reach, held, record):
        return None
    async with durable.inputs_kept(reach, held, record):
        replies = await _execute(reach, action, held=held, record=record)
    _count(reach, held, record)
    for address in (address for reply in replies for address in reply.asleep):
        leaving.report(reach, action.wpg_id, address, action.operation_id)
    result = results.merge(action.operation_id, replies)
    if result.HasField("error"):
        is_refusal = result.state == operations_pb2.OPERATION_STATE_REFUSED
        if kept is not None and not is_refusal:
            await durable.note(reach, record, held, digest="", code=result.error.code)
        return _ended(reach, action, fault_from_wire(result.error), is_refusal=is_refusal)
    if held.kind is OperationKind.INITIALIZE:
        host_bytes.forget_reads(reach, record)
        await spawn.learn(reach, record)
    elif held.kind is OperationKind.PULL:
        await managed.release_unused(reach)  # what it served before
    digest = results.digest_of(replies)
    if kept is not None:
        await durable.keep_results(reach, held, record, result)
        again = partial(_again, reach, action, record)
        await durable.after(reach, held, record, digest=digest, execute=again)
    reach.recorder.applied(held, record.deployment, result=result, digest=digest)
    measured_us = max(reply.run_us for reply in replies)
    num_tokens, nbytes = results.size_of(held.operation, result)
    return OperationFinished(
        operation_id=action.operation_id,
        fault=None,
        is_refusal=False,
        run_us=measured_us or reach.clock.monotonic_us() - started_us,
        digest=digest,
        num_tokens=num_tokens,
        nbytes=nbytes,
        wpg_id=action.wpg_id,
    )


async def _without_client(reach: Reach, action: StartOperation, record: WpgRecord) -> Event | None:
    """Wait for the client of an operation that a former scheduler held.

    Returns None once it is here, or how the operation ends without it.
    """
    awaited = reach.registry.missing.get(action.operation_id)
    if awaited is None:
        return None
    ttl_us = reach.registry.jobs[record.deployment.job_id].session_ttl_us
    try:
        async with asyncio.timeout(ttl_us / 1e6):
            await awaited.arrival.wait()
    except TimeoutError:
        return _failed(action, _NOT_SENT_AGAIN)
    finally:
        reach.registry.missing.pop(action.operation_id, None)
    if action.operation_id in reach.registry.held:
        # What is copied now may be the state after later operations, which the core has let run.
        return _failed(action, _COPY_LEFT) if awaited.had_copy else None
    return await _what_became(reach, action, awaited.operation, record)  # its job was resumed


async def _what_became(
    reach: Reach, action: StartOperation, operation: operations_pb2.Operation, record: WpgRecord
) -> Event:
    """End an operation whose client is gone as its ranks say that it ended, if they ran it.

    A durable deployment cannot be rebuilt from before it: what it read is not known.

    Raises:
        PlexError: what an executor died of.
    """
    held = Held(
        operation=operation,
        kind=OperationKind(operation.WhichOneof("body") or ""),
        nbytes=0,
        submitted_us=reach.clock.wall_us(),
        lease_no=action.lease_no,
    )
    if record.is_rollout or held.kind in MANAGED_KINDS:
        return _failed(action, _LEFT)  # it changed nothing that its job goes on from
    reach.registry.hold(held)
    replies = await _execute(reach, action, held=held, record=record, is_asked=True)
    result = results.merge(action.operation_id, replies)
    if result.HasField("error"):
        is_unknown = result.error.code == ErrorCode.NOT_FOUND
        return _failed(action, _NOT_RUN if is_unknown else fault_from_wire(result.error))
    deployment, digest = record.deployment, results.digest_of(replies)
    operation.position = replies[0].position
    if held.kind in WRITING_KINDS:
        reach.versions.changed(deployment.deployment_id)
    if deployment.durable is not None:
        deployment.durable.unknown_to = operation.seq
        reach.versions.copied(deployment.deployment_id, deployment.durable)
        managed.note(reach, deployment.deployment_id)
    reach.recorder.applied(held, deployment, result=result, digest=digest)
    return OperationFinished(
        operation_id=action.operation_id,
        fault=None,
        is_refusal=False,
        run_us=max(reply.run_us for reply in replies),
        digest=digest,
        wpg_id=action.wpg_id,
    )


async def recall(
    reach: Reach, operation: operations_pb2.Operation, *, lease_no: int, ran_on: WpgId | None
) -> operations_pb2.OperationResult:
    """Return the answer of an operation that was applied, from the processes that applied it.

    Ranks and rollout managers have it in their records; others than those would run it again. The
    store knows published versions, what saves, exports and digests came to, and the answers of
    durable deployments.

    Raises:
        PlexError: `result_gone` when nobody has it; `not_found` for a version that was released.
    """
    operation_id = OperationId(operation.operation_id)
    record = reach.registry.deployments[DeploymentId(operation.deployment_id)]
    kind, wpg = OperationKind(operation.WhichOneof("body") or ""), record.wpg
    answered = operations_pb2.OPERATION_STATE_ANSWERED
    if kind is OperationKind.PUBLISH:
        version = reach.versions.find(record.deployment_id, operation.seq).version.version
        return operations_pb2.OperationResult(
            operation_id=operation_id, state=answered, weight_version=version
        )
    if kind is OperationKind.PULL and record.is_rollout:
        loaded = reach.rollout.pulled(record.deployment_id, operation_id)
        if loaded is not None:
            return operations_pb2.OperationResult(
                operation_id=operation_id, state=answered, weight_version=loaded
            )
    kept = reach.registry.answers.pop(operation_id, None)
    if kept is not None:
        kept.state = answered
        return kept
    is_recorded = kind is OperationKind.GENERATE if record.is_rollout else kind not in MANAGED_KINDS
    is_recorded &= record.is_rollout or (wpg is not None and wpg.wpg_id == ran_on)
    if wpg is not None and is_recorded and reach.ranks.of(wpg.wpg_id):
        held = Held(operation=operation, kind=kind, nbytes=0, submitted_us=reach.clock.wall_us())
        action = StartOperation(operation_id=operation_id, wpg_id=wpg.wpg_id, lease_no=lease_no)
        result = results.merge(operation_id, await _execute(reach, action, held=held, record=wpg))
        if not result.HasField("error"):
            result.state = answered
            return result
    raise PlexError(
        ErrorCode.RESULT_GONE,
        f"{show(operation_id)} was applied, and its answer went with the service that had it",
    )


def _count(reach: Reach, held: Held, record: WpgRecord) -> None:
    """Add an operation that ended to the times of its job's step."""
    training, now_us = reach.registry.jobs[record.deployment.job_id].training, reach.clock.wall_us()
    if held.kind is OperationKind.SEED:
        training.seeded(until_us=now_us)
    elif not record.is_rollout and held.kind not in MANAGED_KINDS:
        training.ran(since_us=held.submitted_us, until_us=now_us)


def _trained(reach: Reach, record: WpgRecord) -> worker_pb2.Trained | None:
    """Return how the job trained on the step before; None: it did not, or nobody knows."""
    before = reach.registry.jobs[record.deployment.job_id].training.before
    if not before.ended_us:
        return None
    ago_us = max(0, reach.clock.wall_us() - before.ended_us)
    return worker_pb2.Trained(train_us=before.train_us, ended_ago_us=ago_us)


def cancel(reach: Reach, action: CancelOperation) -> Work | None:
    """End a running operation early: stop managed work at once, ask for the end of a generate."""
    held = reach.registry.held.get(action.operation_id)
    if held is not None and held.kind in MANAGED_KINDS:
        reach.underway.cancel(action.operation_id)
        return None
    return _cancel_generate(reach, action, held)


async def _cancel_generate(reach: Reach, action: CancelOperation, held: Held | None) -> None:
    """Ask a rollout manager to end a running generate early.

    Raises:
        PlexError: it did not; the operation ends by itself, only later.
    """
    record = reach.registry.by_wpg.get(action.wpg_id)
    fence = reach.fence(
        lease_no=0 if held is None else held.lease_no,
        incarnation=1 if record is None else record.incarnation,
    )
    request = worker_pb2.CancelRequest(
        operation_id=action.operation_id, wpg_id=action.wpg_id, fence=fence
    )
    await reach.rollout.cancel(request)


def _ended(
    reach: Reach, action: StartOperation, fault: Fault, *, is_refusal: bool = False
) -> Event:
    return _failed(action, durable.told(reach, action.wpg_id, fault), is_refusal=is_refusal)


def _failed(action: StartOperation, fault: Fault, *, is_refusal: bool = False) -> Event:
    return OperationFinished(
        operation_id=action.operation_id,
        fault=fault,
        is_refusal=is_refusal,
        run_us=0,
        digest="",
        wpg_id=action.wpg_id,
    )


async def _again(reach: Reach, action: StartOperation, record: WpgRecord, held: Held) -> Replies:
    """Run an operation once more, in the `Initialize` of another WPG than before."""
    await carry.bring_payload(reach, held, record, is_checked=True)
    if held.kind is not OperationKind.STEP or record.deployment.spec.optimizer.on != HOST:
        return await _execute(reach, action, held=held, record=record)
    # What is rebuilt is on its devices.
    async with move.parked(reach, action.wpg_id, lease_no=action.lease_no):
        return await _execute(reach, action, held=held, record=record)


async def _execute(
    reach: Reach,
    action: StartOperation,
    *,
    held: Held,
    record: WpgRecord,
    is_asked: bool = False,
) -> Replies:
    """Have an operation run; or ask its ranks what became of it, and run nothing."""
    ranks = reach.ranks.of(action.wpg_id)
    what = f"{held.kind} ({show(held.operation.operation_id)})"
    if held.kind in MANAGED_KINDS:
        return [await managed.execute(reach, held=held, record=record)]
    request = worker_pb2.ExecuteRequest(
        fence=reach.fence(lease_no=action.lease_no, incarnation=record.incarnation),
        wpg_id=action.wpg_id,
        operation=held.operation,
        attempt=next(_attempts),
        is_asked=is_asked,
    )
    if held.kind is OperationKind.INITIALIZE:
        request.deployment.CopyFrom(messages.deployment(record.deployment))
        if held.copies is not None:
            host_bytes.tell_read(reach, record, held.copies)
            request.published.CopyFrom(reach.locate(held.copies))
        request.instance_addresses.extend(rank.address for rank in ranks)
    elif held.kind is OperationKind.PULL and not is_asked:
        pull = held.operation.pull
        source = DeploymentId(pull.source_deployment_id)
        published = reach.versions.find(source, pull.version)
        host_bytes.tell_read(reach, record, published)
        request.published.CopyFrom(reach.locate(published))
    elif held.kind is OperationKind.GENERATE:
        reach.registry.jobs[record.deployment.job_id].training.generate_began()
    elif held.kind is OperationKind.SEED and (trained := _trained(reach, record)) is not None:
        request.trained.CopyFrom(trained)
    if record.is_rollout:
        return [await _sample(reach, request, what=what)]
    # A broken line is tried again for as long as the news may take that the rank has ended.
    patience = Patience(
        pause_us=reach.config.exit_report_us // (MAX_EXECUTE_TRIES - 1), max_tries=MAX_EXECUTE_TRIES
    )
    execute = partial(Rank.execute, request=request, clock=reach.clock, patience=patience)
    async with reach.watched(what, record.wpg_id, ranks):
        if len(ranks) == 1:
            return [await execute(ranks[0])]
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(execute(rank)) for rank in ranks]
        return [task.result() for task in tasks]


@dataclass(frozen=True, slots=True)
class _Sampler:
    """A rollout manager, as the carrier of one operation."""

    rollout: RolloutPort
    deployment_id: str
    operation_id: bytes
    name: str = "the rollout manager"

    def is_alive(self) -> bool:
        return True  # it watches over its instances itself, and one that hangs is replaced

    async def progress(self) -> int:
        return await self.rollout.progress(self.deployment_id, self.operation_id)


async def _sample(
    reach: Reach, request: worker_pb2.ExecuteRequest, *, what: str
) -> worker_pb2.ExecuteReply:
    """Run an operation of a rollout deployment; end it, and it alone, when it gets stuck.

    Raises:
        PlexError: `operation_timeout` when it got stuck.
    """
    operation_id = request.operation.operation_id
    sampler = _Sampler(reach.rollout, request.operation.deployment_id, operation_id)
    try:
        async with reach.watch.over(what, [sampler], stuck=ErrorCode.OPERATION_TIMEOUT):
            return await reach.rollout.execute(request)
    except PlexError:
        ended = worker_pb2.CancelRequest(
            operation_id=operation_id, wpg_id=request.wpg_id, fence=request.fence
        )
        with suppress(PlexError):  # the first error says more
            await reach.rollout.cancel(ended)
        raise
