"""Operations on managed state: publish, save, export, digest, carried out by the state managers."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, replace
from typing import Any, Final

import grpc

from plexclient.wire.v1 import (
    common_pb2,
    operations_pb2,
    statemanager_pb2,
    statemanager_pb2_grpc,
    worker_pb2,
)
from plexsvc.errors import ErrorCode, PlexError, unavailable
from plexsvc.ids import DeploymentId, NodeId, OperationId, VersionId
from plexsvc.log import Log
from plexsvc.rpc.errors import checked, first_failure
from plexsvc.scheduler.core.events import StateCopied
from plexsvc.scheduler.core.vocabulary import OperationKind
from plexsvc.scheduler.ledger.held import Held, Published
from plexsvc.scheduler.ledger.jobs import WpgRecord
from plexsvc.scheduler.orders import host_bytes
from plexsvc.scheduler.orders.reach import Reach

log = Log(__name__)

Result = operations_pb2.OperationResult
_Call = Any
"""A call of gRPC whose replies are read one by one."""

RELEASE_S: Final = 60.0
"""Deadline of a release: by then a state manager that hangs is replaced, and its successor asked.

A release that is given up before that is made by nobody until a service takes over.
"""


@dataclass(frozen=True, slots=True)
class _Managed:
    """An operation on the state of a WPG, and its answer so far."""

    reach: Reach
    held: Held
    record: WpgRecord
    fence: common_pb2.Fence
    result: Result


async def execute(reach: Reach, *, held: Held, record: WpgRecord) -> worker_pb2.ExecuteReply:
    """Run a managed operation and answer as a rank would.

    Raises:
        PlexError: what a state manager refused; `cancelled`.
        AioRpcError: a state manager did not answer.
    """
    operation_id = OperationId(held.operation.operation_id)
    fence = reach.fence(lease_no=held.lease_no, incarnation=record.incarnation)
    result = Result(operation_id=operation_id, state=operations_pb2.OPERATION_STATE_APPLIED)
    kinds = {OperationKind.PUBLISH: _publish, OperationKind.STATE_DIGEST: _digest}
    work = kinds.get(held.kind, _materialize)
    with reach.underway.cancellable(operation_id, kind=held.kind):
        await work(_Managed(reach, held, record, fence, result))
    return worker_pb2.ExecuteReply(result=result)


async def release_unused(reach: Reach) -> None:
    """Release the versions that nobody needs any more, of whatever deployment."""
    gone = reach.versions.surplus(used=used(reach))
    for published in gone:
        await release(reach, published)
    for deployment_id in dict.fromkeys(one.version.deployment_id for one in gone):
        host_bytes.tell_held(reach, DeploymentId(deployment_id))
        note(reach, DeploymentId(deployment_id))


def note(reach: Reach, deployment_id: DeploymentId) -> None:
    """Have the store know which versions there are, before the core hears of the newest."""
    record = reach.registry.deployments.get(deployment_id)
    if record is not None:
        record.versions = reach.versions.kept(deployment_id)
        reach.recorder.deployment_kept(record)


async def release(reach: Reach, published: Published) -> None:
    """Release a version where it lies; a node that is gone has none."""
    request = statemanager_pb2.ReleaseVersionRequest(
        **published.version._asdict(), fence=reach.fence(lease_no=0)
    )
    for node_id in filter(reach.nodes.is_up, published.nodes):
        try:
            await reach.ask_state(
                node_id, lambda state: state.ReleaseVersion(request, timeout=RELEASE_S)
            )
        except (grpc.aio.AioRpcError, PlexError) as error:
            log.warning("version not released", node=node_id, error=error)


async def is_there(reach: Reach, published: Published) -> bool:
    """Return whether every part of a version is on a node that answers: replicas hold the same."""
    request = statemanager_pb2.GetManifestRequest(**published.version._asdict())
    try:
        holders = reach.locate(published).holders
    except PlexError as error:
        log.warning("version not found", version=str(published.version), error=error)
        return False
    answered = dict.fromkeys((holder.part or holder.node_id for holder in holders), False)
    for holder in holders:
        part = holder.part or holder.node_id
        if answered[part]:
            continue
        try:
            await reach.ask_state(
                NodeId(holder.node_id),
                lambda state: state.GetManifest(request, timeout=reach.rpc_s),
            )
            answered[part] = True
        except (PlexError, grpc.aio.AioRpcError) as error:
            log.warning("version not found", version=str(published.version), error=error)
    return all(answered.values())


async def publish(
    reach: Reach, record: WpgRecord, request: statemanager_pb2.PublishRequest
) -> tuple[Published, list[statemanager_pb2.PublishReply]]:
    """Freeze a version on every node of a WPG; what some had frozen is released if one cannot.

    Raises:
        PlexError: what a state manager refused; `worker_died` when a rank hangs;
            `operation_timeout` when no byte is copied.
        AioRpcError: a state manager did not answer.
    """
    replies = []
    published = Published(version=VersionId.of(request), nodes=tuple(record.nodes))
    carriers = reach.carriers(record.wpg_id, record.nodes)
    what = f"a copy of the state of {record.wpg_id}"
    try:
        async with reach.watched(what, record.wpg_id, carriers, stuck=ErrorCode.OPERATION_TIMEOUT):
            for node_id in record.nodes:
                reply = await reach.ask_state(node_id, lambda state: state.Publish(request))
                replies.append(checked(reply))
    except BaseException:  # one that was asked may have it, whatever became of its answer
        await release(reach, published)
        raise
    nbytes, parts = (reply.nbytes for reply in replies), (reply.part for reply in replies)
    return replace(published, nbytes=tuple(nbytes), parts=tuple(parts)), replies


async def _publish(work: _Managed) -> None:
    """Freeze a version on every node of the WPG, unless this state is one already.

    A new version's number is the operation's.
    """
    reach, record, result = work.reach, work.record, work.result
    deployment_id, number = record.deployment.deployment_id, work.held.operation.seq
    incarnation = record.incarnation
    known = reach.versions.hand_out(deployment_id, incarnation=incarnation, number=number)
    if known is not None:
        result.weight_version = known.version.version
        note(reach, deployment_id)
        return
    request = statemanager_pb2.PublishRequest(
        fence=work.fence,
        wpg_id=record.wpg_id,
        deployment_id=deployment_id,
        incarnation=incarnation,
        version=number,
    )
    published, replies = await publish(reach, record, request)
    reach.versions.add(published)
    note(reach, deployment_id)
    result.weight_version = number
    result.metrics["copy_us"] = sum(reply.copy_us for reply in replies)
    result.metrics["nbytes"] = sum(reply.nbytes for reply in replies)
    await release_unused(reach)
    host_bytes.tell_held(reach, deployment_id)


def used(reach: Reach) -> set[VersionId]:
    """Return the versions that instances serve, and that waiting and running pulls will read."""
    used = reach.rollout.versions_in_use()
    for source, number in reach.registry.pulled():
        with suppress(PlexError):  # its publish has not run, or it is too late
            used.add(reach.versions.find(source, number).version)
    return used


async def _digest(work: _Managed) -> None:
    reach, record = work.reach, work.record
    request = statemanager_pb2.DigestRequest(wpg_id=record.wpg_id, fence=work.fence)
    async with _copies(work) as copies:
        request.copies.CopyFrom(copies)
        node_id, what = record.nodes[0], f"a digest of {record.wpg_id}"
        carriers = reach.state_carriers(record.wpg_id, [node_id])
        async with reach.watch.over(what, carriers, stuck=ErrorCode.OPERATION_TIMEOUT):
            reply = await reach.ask_state(node_id, lambda state: state.Digest(request))
    work.result.texts.update(checked(reply).digests)


async def _materialize(work: _Managed) -> None:
    reach, record, operation = work.reach, work.record, work.held.operation
    is_save = work.held.kind is OperationKind.SAVE
    body = operation.save if is_save else operation.export
    request = statemanager_pb2.MaterializeRequest(
        fence=work.fence,
        wpg_id=record.wpg_id,
        path=body.path,
        root=body.root,
        tenant=record.deployment.tenant,
        optimizer=is_save and operation.save.optimizer,
        model=record.deployment.spec.model,
        model_root=record.deployment.spec.model_root,
    )
    async with _copies(work, complete=request.optimizer) as copies:
        request.copies.CopyFrom(copies)
        reply = await write(reach, record, request)
    work.result.texts["path"] = body.path
    work.result.texts["files"] = "\n".join(reply.files)
    work.result.metrics["nbytes"] = reply.nbytes


async def write(
    reach: Reach, record: WpgRecord, request: statemanager_pb2.MaterializeRequest
) -> statemanager_pb2.MaterializeReply:
    """Have a WPG's nodes write a checkpoint, which the first one makes; return once it is there.

    Raises:
        PlexError: what a state manager refused; `unavailable` when all wrote nothing for long.
        AioRpcError: the first one did not answer.
    """
    return await reach.ask_state(record.nodes[0], _Save(reach, request).write)


class _Save:
    """A checkpoint that state managers write, for as long as they get on."""

    def __init__(self, reach: Reach, request: statemanager_pb2.MaterializeRequest) -> None:
        self._reach = reach
        self._request = request
        self._silence = asyncio.timeout(None)
        self._nbytes = Counter[str]()
        """Written so far, by node; the one that makes the checkpoint has no name."""

    async def write(
        self, state: statemanager_pb2_grpc.StateManagerAsyncStub
    ) -> statemanager_pb2.MaterializeReply:
        """Have a state manager make the checkpoint; carry to the others what they are to write."""
        self._silence = asyncio.timeout(self._reach.silence_s)
        call = state.Materialize()
        try:
            async with self._silence, asyncio.TaskGroup() as others:
                await call.write(self._request)
                reply = await self._read(call)
                if reply.shares:
                    others.create_task(self._write_shares(call, reply))
                    reply = await self._read(call)
        except TimeoutError as error:
            raise unavailable(
                f"{self._request.path} not written: {self._nbytes.total()} bytes were written and "
                f"none since {self._reach.silence_s:.0f} s (scheduler.progress_timeout_us); look "
                "at its disk"
            ) from error
        except BaseExceptionGroup as errors:
            raise first_failure(errors) from errors
        finally:
            call.cancel()
        return reply

    async def _write_shares(self, call: _Call, asked: statemanager_pb2.MaterializeReply) -> None:
        """Have other nodes write; tell the one that asked what they have written."""
        replies = await asyncio.gather(*(self._write_share(one, asked) for one in asked.shares))
        written = [shard for reply in replies for shard in reply.written]
        await call.write(statemanager_pb2.MaterializeRequest(written=written))

    async def _write_share(
        self, share: statemanager_pb2.Share, asked: statemanager_pb2.MaterializeReply
    ) -> statemanager_pb2.MaterializeReply:
        request = statemanager_pb2.WriteShardsRequest(
            fence=self._request.fence,
            copies=self._request.copies,
            directory=asked.directory,
            root=self._request.root,
            shards=share.shards,
        )

        async def ask(
            state: statemanager_pb2_grpc.StateManagerAsyncStub,
        ) -> statemanager_pb2.MaterializeReply:
            call = state.WriteShards(request)
            try:
                return await self._read(call, of=share.node_id)
            finally:
                call.cancel()

        try:
            return await self._reach.ask_state(NodeId(share.node_id), ask)
        except grpc.aio.AioRpcError as error:
            raise unavailable(
                f"{self._request.path} not written: the state manager of {share.node_id}, which "
                f"has a part of it, does not answer ({error.details()}); save again"
            ) from error

    async def _read(self, call: _Call, *, of: str = "") -> statemanager_pb2.MaterializeReply:
        """Return the next reply that says more than how much is written.

        Raises:
            PlexError: what was refused.
        """
        while True:
            reply = await call.read()
            assert isinstance(reply, statemanager_pb2.MaterializeReply), self._request.path
            with suppress(RuntimeError):  # it has run out
                self._silence.reschedule(asyncio.get_running_loop().time() + self._reach.silence_s)
            self._nbytes[of] = max(self._nbytes[of], reply.nbytes)
            if checked(reply).files or reply.shares or reply.written:
                return reply


@asynccontextmanager
async def _copies(
    work: _Managed, *, complete: bool = True
) -> AsyncIterator[statemanager_pb2.PublishedVersion]:
    """Have every node of a WPG copy its part, for one of them to work from; the WPG goes on."""
    reach, record, held = work.reach, work.record, work.held
    request = statemanager_pb2.PublishRequest(
        fence=work.fence,
        wpg_id=record.wpg_id,
        deployment_id=f"{record.deployment.deployment_id}~copied",
        incarnation=record.incarnation,
        version=reach.clock.wall_us(),  # a save that is tried again has the same number
        complete=complete,
        mid_window=True,
        gradients=held.kind is OperationKind.STATE_DIGEST,
    )
    published, _ = await publish(reach, record, request)
    reach.post(StateCopied(operation_id=OperationId(held.operation.operation_id)))
    try:
        yield reach.locate(published)
    finally:
        await release(reach, published)
