"""Performs the core's orders over gRPC; each ends in the event that says what came of it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Final, assert_never

import grpc

from plexclient.wire.v1 import (
    operations_pb2,
    statemanager_pb2,
    worker_pb2,
)
from plexsvc.errors import ErrorCode, PlexError
from plexsvc.ids import DeploymentId, NodeId, OperationId, WpgId, show
from plexsvc.log import Log
from plexsvc.rpc.errors import first_failure
from plexsvc.rpc.retry import Patience, retry
from plexsvc.scheduler.core.actions import (
    CancelOperation,
    CarryState,
    DropCarried,
    DropPayload,
    ForgetWpg,
    MoveState,
    ReleaseOperation,
    SpawnWpg,
    StartOperation,
    StopWpg,
)
from plexsvc.scheduler.core.events import (
    MoveFailed,
    OperationFinished,
    Post,
    ResidencyMoved,
    SpawnFailed,
    StateCarried,
    WpgForgotten,
    WpgReady,
    WpgStopped,
)
from plexsvc.scheduler.core.vocabulary import MANAGED_KINDS, Fault, OperationKind
from plexsvc.scheduler.faults import fault_from_wire, fault_of_call
from plexsvc.scheduler.ledger import results
from plexsvc.scheduler.ledger.jobs import DeploymentRecord, Held, Rank
from plexsvc.scheduler.orders import carry, managed, move, spawn
from plexsvc.scheduler.orders.ports import ExternalAction, RolloutPort, failure_of, operation_failed
from plexsvc.scheduler.orders.reach import Reach

log = Log(__name__)

MAX_EXECUTE_TRIES: Final = 3
"""Times an operation is sent to a rank whose connection breaks; a repeat attaches to it."""


class Executor:
    """Knows how each order is carried out; holds no state of its own but what it was given."""

    def __init__(self, reach: Reach, *, rollout: RolloutPort, post: Post) -> None:
        self._reach = reach
        self._rollout = rollout
        self._post = post

    async def perform(self, action: ExternalAction) -> None:
        """Carry an order out and post its outcome; never raises but when cancelled."""
        try:
            await self._perform(action)
        except Exception as error:  # noqa: BLE001 - an action that fails comes back as an event
            log.error("action failed", action=type(action).__name__)  # noqa: TRY400 - with trace
            detail = f"{type(error).__name__}: {error}"
            fault = Fault(code=ErrorCode.INTERNAL, message=f"the scheduler failed: {detail}")
            outcome = failure_of(action, fault)
            if outcome is not None:
                self._post(outcome)

    async def _perform(self, action: ExternalAction) -> None:  # noqa: C901 - one line an action
        match action:
            case StartOperation():
                await self._start_operation(action)
            case MoveState():
                await self._move(action)
            case SpawnWpg():
                await self._spawn(action)
            case CarryState():
                await self._carry(action)
            case DropCarried():
                await self._drop_carried(action)
            case StopWpg():
                await self._stop(action)
            case ForgetWpg():
                await self._forget(action)
            case CancelOperation():
                await self._cancel(action)
            case DropPayload():
                await self._drop_payload(action.operation_id)
            case ReleaseOperation():
                self._rollout.release(action.operation_id)
            case _:
                assert_never(action)

    async def bring_payloads(self, wpg_id: WpgId) -> None:
        """Have the staged payloads of a deployment that moved follow it."""
        record = self._reach.registry.by_wpg.get(wpg_id)
        if record is None:
            return
        try:
            await carry.bring_payloads(self._reach, record)
        except Exception as error:  # noqa: BLE001 - their operations will find out themselves
            log.warning("payloads did not follow", wpg=wpg_id, error=error)

    async def drop_staged(self, staging_ids: Sequence[bytes], *, nodes: Sequence[NodeId]) -> None:
        """Free staged bytes on nodes that are up; what is gone already is fine."""
        request = statemanager_pb2.DropStagedRequest(staging_ids=staging_ids)
        for node_id in nodes:
            if self._reach.nodes.is_up(node_id):
                dropped = self._reach.ask_state(
                    node_id, lambda state: state.DropStaged(request, timeout=self._reach.rpc_s)
                )
                await self._quietly(dropped)

    async def _spawn(self, action: SpawnWpg) -> None:
        record = self._reach.registry.by_wpg[action.wpg_id]
        try:
            record.ranks = await spawn.spawn(self._reach, action, record)
            device_bytes = await spawn.describe(self._reach, record)
        except* (grpc.aio.AioRpcError, PlexError) as group:
            fault = fault_of_call(first_failure(group))
            self._post(SpawnFailed(wpg_id=action.wpg_id, fault=fault))
        else:
            ready = WpgReady(wpg_id=action.wpg_id, device_bytes=device_bytes)
            self._post(ready)

    async def _carry(self, action: CarryState) -> None:
        try:
            nbytes = await carry.carry(self._reach, action)
        except (grpc.aio.AioRpcError, PlexError) as error:
            outcome = failure_of(action, fault_of_call(error))
            assert outcome is not None, action
            self._post(outcome)
        else:
            self._post(
                StateCarried(
                    deployment_id=action.deployment_id,
                    move_id=action.move_id,
                    nbytes=nbytes,
                )
            )

    async def _drop_carried(self, action: DropCarried) -> None:
        copies = await carry.drop(self._reach, action.move_id)
        record = self._reach.registry.by_wpg.get(copies.from_wpg_id) if copies else None
        if copies is None or record is None or not record.is_rollout:
            return
        if not record.is_stand_in and not record.is_stopping:  # the relocation failed: it stays
            order = carry.reconnect(self._reach, copies, record)
            await self._quietly(self._rollout.Execute(order, None))

    async def _stop(self, action: StopWpg) -> None:
        record = self._reach.registry.by_wpg[action.wpg_id]
        async with asyncio.TaskGroup() as group:
            for rank in range(len(record.places)):
                group.create_task(self._stop_rank(record, rank=rank))
        self._post(WpgStopped(wpg_id=action.wpg_id))

    async def _stop_rank(self, record: DeploymentRecord, *, rank: int) -> None:
        node_id = record.places[rank].node_id
        grace_us = self._reach.config.stop_grace_us
        timeout_s = self._reach.rpc_s + grace_us / 1e6

        async def stop() -> None:
            await self._reach.nodes.link(node_id).agent.Stop(
                spawn.stop_request(self._reach, record, rank=rank, grace_us=grace_us),
                timeout=timeout_s,
            )

        await self._insist(node_id, stop)

    async def _forget(self, action: ForgetWpg) -> None:
        record = self._reach.registry.by_wpg[action.wpg_id]
        request = statemanager_pb2.ForgetRequest(
            fence=self._reach.fence(lease_no=action.lease_no, incarnation=record.incarnation),
            wpg_id=action.wpg_id,
            job_id=record.view.job_id,
        )
        for node_id in record.nodes:

            async def forget(node_id: NodeId = node_id) -> None:
                await self._reach.ask_state(
                    node_id, lambda state: state.Forget(request, timeout=self._reach.rpc_s)
                )

            await self._insist(node_id, forget)
        if record.is_rollout and not record.is_stand_in:
            await self._rollout.forget(record.view.deployment_id)
        for rank in record.ranks:
            await rank.close()
        if not record.is_stand_in:
            await managed.release_versions(self._reach, record, needed=None)
        self._post(WpgForgotten(wpg_id=action.wpg_id))

    async def _insist(self, node_id: NodeId, call: Callable[[], Awaitable[None]]) -> None:
        """Try a teardown call until it succeeds, the node is lost, or tries run out."""
        config = self._reach.config

        async def call_if_up() -> None:
            if self._reach.nodes.is_up(node_id):  # else its agent has killed every rank
                await call()

        try:
            await retry(
                call_if_up,
                on=(grpc.aio.AioRpcError, PlexError),
                clock=self._reach.clock,
                patience=Patience(
                    pause_us=config.connect_retry_us, max_tries=config.max_stop_tries
                ),
                what=f"teardown on {node_id}",
            )
        except (grpc.aio.AioRpcError, PlexError) as error:
            log.error("teardown call gave up", node=node_id, error=error)  # noqa: TRY400 - no bug

    async def _move(self, action: MoveState) -> None:
        try:
            replies = await move.move(self._reach, action)
        except (grpc.aio.AioRpcError, PlexError) as error:
            fault = fault_of_call(error)
            failed = MoveFailed(wpg_id=action.wpg_id, move_id=action.move_id, fault=fault)
            self._post(failed)
        else:
            self._post(
                ResidencyMoved(
                    wpg_id=action.wpg_id,
                    move_id=action.move_id,
                    nbytes=sum(reply.nbytes for reply in replies),
                    total_us=max(reply.total_us for reply in replies),
                )
            )

    async def _start_operation(self, action: StartOperation) -> None:
        held = self._reach.registry.held.get(action.operation_id)
        record = self._reach.registry.by_wpg.get(action.wpg_id)
        if held is None or record is None:
            return  # its job ended meanwhile
        held.lease_no = action.lease_no
        try:
            await carry.bring_payload(self._reach, held, record)
        except PlexError as error:
            self._post_failure(action.operation_id, fault_of_call(error), is_refusal=True)
            return
        started_us = self._reach.clock.monotonic_us()
        try:
            replies = await self._execute(action, held=held, record=record)
            await self._finished(held, record, replies, started_us=started_us)
        except (grpc.aio.AioRpcError, PlexError) as error:
            self._post_failure(action.operation_id, fault_of_call(error))

    async def _execute(
        self, action: StartOperation, *, held: Held, record: DeploymentRecord
    ) -> Sequence[worker_pb2.ExecuteReply]:
        if held.kind in MANAGED_KINDS:
            return [await managed.execute(self._reach, action, held=held, record=record)]
        request = worker_pb2.ExecuteRequest(
            fence=self._reach.fence(lease_no=action.lease_no, incarnation=record.incarnation),
            wpg_id=action.wpg_id,
            operation=held.operation,
        )
        if held.kind is OperationKind.INITIALIZE:
            request.deployment.CopyFrom(record.view)
            request.manifests.extend(held.copies)
            request.instance_addresses.extend(rank.address for rank in record.ranks)
        elif held.kind is OperationKind.PULL:
            pull = held.operation.pull
            source = DeploymentId(pull.source_deployment_id)
            request.manifests.extend(self._reach.versions.find(source, pull.version))
        if record.is_rollout:
            return [await self._rollout.Execute(request, None)]
        return await self._execute_on_ranks(request, record.ranks)

    async def _execute_on_ranks(
        self, request: worker_pb2.ExecuteRequest, ranks: Sequence[Rank]
    ) -> Sequence[worker_pb2.ExecuteReply]:
        if len(ranks) == 1:
            return [await self._execute_on(request, ranks[0])]
        try:
            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(self._execute_on(request, rank)) for rank in ranks]
        except* PlexError as failures:
            raise first_failure(failures) from failures
        return [task.result() for task in tasks]

    async def _execute_on(
        self, request: worker_pb2.ExecuteRequest, rank: Rank
    ) -> worker_pb2.ExecuteReply:
        """Run an operation on one rank; try again if the line breaks, as a repeat attaches.

        Raises:
            PlexError: `worker_died` when the rank does not come back; by then the node agent has
                usually said more.
        """
        timeout_s = self._reach.config.operation_timeout_us / 1e6 + self._reach.rpc_s

        async def execute() -> worker_pb2.ExecuteReply:
            if rank.is_closed:
                raise ConnectionAbortedError("its WPG was forgotten")
            return await rank.execute(request, timeout_s=timeout_s)

        try:
            return await retry(
                execute,
                on=(grpc.aio.AioRpcError, OSError),
                clock=self._reach.clock,
                patience=Patience(
                    pause_us=self._reach.config.exit_report_us // (MAX_EXECUTE_TRIES - 1),
                    max_tries=MAX_EXECUTE_TRIES,
                ),
                what=f"execute on {rank.proc_id}",
            )
        except (grpc.aio.AioRpcError, OSError) as error:
            raise PlexError(
                ErrorCode.WORKER_DIED,
                f"{rank.proc_id} at {rank.address} stopped answering during "
                f"{show(request.operation.operation_id)} ({_shown(error)}); deploy again to go on",
                worker=rank.proc_id,
            ) from error

    async def _finished(
        self,
        held: Held,
        record: DeploymentRecord,
        replies: Sequence[worker_pb2.ExecuteReply],
        *,
        started_us: int,
    ) -> None:
        result = results.merge(held.operation.operation_id, replies)
        if result.HasField("error"):
            fault = fault_from_wire(result.error)
            is_refusal = result.state == operations_pb2.OPERATION_STATE_REFUSED
            self._post_failure(held.operation.operation_id, fault, is_refusal=is_refusal)
            return
        if held.kind is OperationKind.INITIALIZE:
            await spawn.learn(self._reach, record)
        held.result, held.digest = result, results.digest_of(replies)
        record.applied_seq = max(record.applied_seq, held.operation.seq)
        measured_us = max(reply.run_us for reply in replies)
        self._post(
            OperationFinished(
                operation_id=OperationId(held.operation.operation_id),
                fault=None,
                is_refusal=False,
                run_us=measured_us or self._reach.clock.monotonic_us() - started_us,
                digest=held.digest,
            )
        )

    def _post_failure(self, operation_id: bytes, fault: Fault, *, is_refusal: bool = False) -> None:
        self._post(operation_failed(OperationId(operation_id), fault, is_refusal=is_refusal))

    async def _cancel(self, action: CancelOperation) -> None:
        registry = self._reach.registry
        held, record = registry.held.get(action.operation_id), registry.by_wpg.get(action.wpg_id)
        fence = self._reach.fence(
            lease_no=0 if held is None else held.lease_no,
            incarnation=1 if record is None else record.incarnation,
        )
        request = worker_pb2.CancelRequest(
            operation_id=action.operation_id, wpg_id=action.wpg_id, fence=fence
        )
        await self._quietly(self._rollout.Cancel(request, None))

    async def _drop_payload(self, operation_id: OperationId) -> None:
        node_ids = [link.node_id for link in self._reach.nodes.links if link.is_up]
        await self.drop_staged([operation_id], nodes=node_ids)

    async def _quietly(self, call: Awaitable[object]) -> None:
        """Make a call that frees something; its failure costs only the room it would have freed."""
        try:
            await call
        except (grpc.aio.AioRpcError, PlexError) as error:
            log.warning("call failed", error=error)


def _shown(error: grpc.aio.AioRpcError | OSError) -> str:
    """Return what became of a call or line, in a line."""
    if isinstance(error, OSError):
        return f"{type(error).__name__}: {error}"
    return f"{error.code().name}: {error.details()}"
