"""A rollout manager: the `Worker` service of rollout deployments, and what leads it.

Theory of operation. A deployment is known from its `Initialize`, which brings the addresses of its
instances. An operation runs once, in a task of its own; every `Execute` of its id waits for that
task or is answered from its record. A generate's tokens go into its token record, which any number
of `StreamFrames` read; the record is kept until it is acknowledged (`Cancel` of a finished
operation, or of a WPG) or newer ones need its room. `run` must be running: all tasks live in it.
A manager that follows another knows no deployment; until a deployment is initialised again its
orders are refused with `unavailable`, and `managers` repeats them.
"""

from __future__ import annotations

import asyncio
import secrets
from collections import OrderedDict
from collections.abc import AsyncGenerator, Awaitable
from contextlib import aclosing, suppress
from dataclasses import dataclass
from typing import Final, TypeVar

from plexclient.wire.v1 import operations_pb2, rollout_pb2, worker_pb2
from plexsvc.clock import Clock
from plexsvc.errors import ErrorCode, PlexError
from plexsvc.fencing import Gate
from plexsvc.ids import OperationId, show
from plexsvc.log import Log
from plexsvc.newest import Newest
from plexsvc.rollout.config import RolloutConfig
from plexsvc.rollout.core import orders
from plexsvc.rollout.core.instances import DEDICATED, RESERVED, Phase
from plexsvc.rollout.deployment import (
    FAILED,
    REFUSED,
    RolloutDeployment,
    failure,
    success,
)
from plexsvc.rollout.fleet import Gone
from plexsvc.rollout.store import RecordStore
from plexsvc.rpc.keys import ClusterKeys
from plexsvc.slots import Limit, Slots

log = Log(__name__)

T = TypeVar("T")

BEAT_S: Final = 1.0
"""How often who leads a manager hears from it."""

GENERATE_LOOKS: Final = 50
GENERATE_LOOK_US: Final = 50_000
"""How often, and how far apart, a seed looks for its generate; one that does not come is over."""

MAX_ANSWERS: Final = 4096
"""Finished operations whose answer is kept, beside their token records."""


@dataclass(slots=True)
class _Execution:
    """An operation that runs or ran."""

    answer: asyncio.Future[worker_pb2.ExecuteReply]
    deployment_id: str
    tenant: str
    task: asyncio.Task[None] | None = None
    is_cancelled: bool = False


class RolloutManager:
    """Runs operations of rollout deployments."""

    def __init__(self, config: RolloutConfig, clock: Clock, keys: ClusterKeys) -> None:
        self._config, self._clock, self._keys = config, clock, keys
        self._records = RecordStore(config, clock)
        self._deployments: dict[str, RolloutDeployment] = {}
        self._gates: dict[str, Gate] = {}
        self._executions: OrderedDict[bytes, _Execution] = OrderedDict()
        self._group: asyncio.TaskGroup | None = None
        self._incarnation = 1 + secrets.randbits(62)
        self._news: asyncio.Queue[rollout_pb2.ManagerNews] = asyncio.Queue()
        self._lost: dict[str, rollout_pb2.InstanceGone] = {}
        """Instances that are gone, by address, until their end or a successor is ordered."""
        self._operations = Limit(
            total=config.max_operations, what="operations", key="rollout.max_operations"
        )
        self._slots = Slots(
            Limit(total=config.max_streams, what="streams", key="rollout.max_streams")
        )
        self._cancelled = Newest[bytes, None](MAX_ANSWERS)
        """Operations whose end was asked for before they came here."""

    async def run(self) -> None:
        """Host all work of this manager until cancelled; cancellation ends it."""
        async with asyncio.TaskGroup() as group:
            self._group = group
            try:
                await asyncio.Event().wait()
            finally:
                self._group = None
                for deployment in self._deployments.values():
                    await deployment.fleet.close()

    async def execute(self, request: worker_pb2.ExecuteRequest) -> worker_pb2.ExecuteReply:
        """Run an operation, or wait for or repeat the answer of one that was run.

        Errors are in the reply's result; a refused order leaves no record.
        """
        try:
            self._check_known(request.operation)
            shared = request.operation.WhichOneof("body") == "generate"
            gate, what = self._gate(request.wpg_id), _what(request)
            execution = self._executions.get(request.operation.operation_id)
            if execution is not None:
                gate.admit_leader(request.fence, what=what)
            else:
                admit = gate.admit_shared if shared else gate.admit_exclusive
                admit(request.fence, what=what)
                execution = self._begin(request)
        except PlexError as error:
            return failure(request.operation, error, state=REFUSED)
        reply = await asyncio.shield(execution.answer)
        deployment = self._deployments.get(request.operation.deployment_id)
        if shared and deployment is not None:
            reply.asleep[:] = deployment.fleet.asleep()
        return reply

    async def cancel(self, request: worker_pb2.CancelRequest) -> worker_pb2.CancelReply:
        """End a running operation with `cancelled`, or release the record of a finished one.

        One that is not known here ends so as soon as it comes: the manager before had it. Without
        an operation id the whole WPG is forgotten.

        Raises:
            PlexError: `stale_fence`.
        """
        self._gate(request.wpg_id).admit_leader(request.fence, what="cancel")
        if request.operation_id:
            self._cancel(request.operation_id)
        else:
            for deployment in [d for d in self._deployments.values() if d.wpg_id == request.wpg_id]:
                await self._forget(deployment.deployment_id)
        return worker_pb2.CancelReply()

    async def sample(
        self, request: operations_pb2.Operation
    ) -> AsyncGenerator[operations_pb2.GenerateFrame | bytes]:
        """Generate beside the order of operations; it ends when its reader leaves.

        The first frame has the prompts as token ids, the last one the result. Its token record is
        one like others, and goes with it.

        Raises:
            PlexError: `unavailable` without a deployment, `not_found` without weights,
                `queue_full`, `bad_request`; `operation_timeout` when no token comes for
                `rollout.stall_us`.
        """
        deployment = self._deployment(request)
        if deployment.fleet.core.is_shared:
            text = (
                f"{request.deployment_id} shares its devices in time, so it samples in the order "
                "of operations alone: use `generate`, or deploy it with `shared=False`"
            )
            raise PlexError(ErrorCode.BAD_REQUEST, text)
        with self._slots.hold(request.tenant):
            await deployment.prepare(request)
            if request.generate.encodes_only:
                yield operations_pb2.GenerateFrame(prompts=request.generate.prompts)
                return
            async with aclosing(self._sampled(request, deployment)) as frames:
                async for frame in frames:
                    yield frame

    async def frames(self, request: worker_pb2.StreamFramesRequest) -> AsyncGenerator[bytes]:
        """Yield the frames after `after_cursor`, then live, up to the one with the result.

        They are serialised. Waits for an operation that has not started.

        Raises:
            PlexError: `result_gone`, `not_found`, `queue_full`.
        """
        with self._slots.hold(request.tenant):
            record = await self._records.wait_for(
                request.operation_id, deployment_id=request.deployment_id
            )
            async for frame in record.read(request.after_cursor):
                yield frame

    async def describe(self, request: worker_pb2.DescribeRequest) -> worker_pb2.DescribeReply:
        """Return the facts of a WPG's instances; `initialized` is false for an unknown one."""
        reply = worker_pb2.DescribeReply(wpg_id=request.wpg_id)
        for deployment in self._deployments.values():
            if deployment.wpg_id == request.wpg_id:
                reply.CopyFrom(deployment.describe)
                reply.applied_seq = deployment.applied_seq
        return reply

    async def follow(
        self, request: rollout_pb2.FollowRequest
    ) -> AsyncGenerator[rollout_pb2.ManagerNews]:
        """Yield a beat every `BEAT_S`, what becomes of instances, and what turns took of them.

        Until the caller leaves. It begins with instances that are gone: the line of who followed
        before may have broken on the news.
        """
        del request
        for gone in list(self._lost.values()):
            yield rollout_pb2.ManagerNews(incarnation=self._incarnation, gone=gone)
        news = rollout_pb2.ManagerNews()
        while True:
            news.incarnation = self._incarnation
            yield news
            try:
                news = await asyncio.wait_for(self._news.get(), BEAT_S)
            except TimeoutError:
                self._note_turns()
                news = rollout_pb2.ManagerNews()

    def _note_turns(self) -> None:
        for deployment in self._deployments.values():
            if device_us := deployment.fleet.take_turned_us():
                taken = rollout_pb2.TurnsTaken(wpg_id=deployment.wpg_id, device_us=device_us)
                self._news.put_nowait(rollout_pb2.ManagerNews(turns=taken))

    async def change_instance(
        self, request: rollout_pb2.ChangeInstanceRequest
    ) -> rollout_pb2.ChangeInstanceReply:
        """Take an instance, or let one go.

        Raises:
            PlexError: `stale_fence`; `unavailable` when a new instance does not answer, or the
                deployment is not known yet.
        """
        self._gate(request.wpg_id).admit_leader(request.fence, what="a change of instances")
        deployment = self._deployments.get(request.deployment_id)
        if deployment is None:
            raise _unknown(request.deployment_id)
        fleet, address = deployment.fleet, request.address
        match request.WhichOneof("change"):
            case "replaces":
                before = list(fleet.lines.values())[request.replaces].address
                await fleet.replace(request.replaces, address)
                self._lost.pop(before, None)
            case "joins_as":
                await fleet.add(address, kind=request.joins_as)
            case "drains":
                fleet.drain(address)
            case "ended":
                self._lost.pop(address, None)
                fleet.drop(address, because=request.ended)
            case _:
                raise PlexError(ErrorCode.BAD_REQUEST, f"no change of instance {address} was named")
        return rollout_pb2.ChangeInstanceReply()

    async def move_instances(
        self, request: rollout_pb2.MoveInstancesRequest
    ) -> rollout_pb2.MoveInstancesReply:
        """Have all instances of a deployment sleep, or wake.

        Raises:
            PlexError: `stale_fence`; `unavailable` when the deployment is not known yet; what an
                instance refused to sleep with.
        """
        self._gate(request.wpg_id).admit_exclusive(request.fence, what="a move of instances")
        deployment = self._deployments.get(request.deployment_id)
        if deployment is None:
            raise _unknown(request.deployment_id)
        fleet = deployment.fleet
        fleet.fence.CopyFrom(request.fence)
        if request.to == rollout_pb2.INSTANCES_MOVE_SLEEP:
            return await fleet.sleep()
        return await fleet.wake(is_for_pull=request.to == rollout_pb2.INSTANCES_MOVE_AWAIT_PULL)

    async def inspect(self, request: rollout_pb2.InspectRequest) -> rollout_pb2.ManagerFacts:
        """Return every instance, and a count that grows while an operation gets on."""
        facts = rollout_pb2.ManagerFacts(progress=self.progress(request.operation_id))
        for deployment in self._deployments.values():
            lends_to = self._deployments.get(deployment.seeds)
            window = {} if lends_to is None else lends_to.fleet.reserved()
            for address, view in deployment.fleet.views():
                if lends_to is not None:
                    if view.phase == Phase.SERVING:  # itself it gets no samples
                        view.phase = "awake"
                    view.CopyFrom(window.get(address, view))
                    view.kind, view.deployment_id = RESERVED.name, deployment.deployment_id
                view.device = address
                facts.instances.append(view)
        return facts

    async def _forget(self, deployment_id: str) -> None:
        """End a deployment: cancel what runs, drop its records and connections."""
        for operation_id, execution in list(self._executions.items()):
            if execution.deployment_id == deployment_id:
                self._stop(execution)
                with suppress(asyncio.CancelledError):
                    await asyncio.shield(execution.answer)
                self._executions.pop(operation_id, None)
        for record in self._records.of_deployment(deployment_id):
            self._records.drop(record.operation.operation_id)
        deployment = self._deployments.pop(deployment_id, None)
        if deployment is not None:
            wpg_id = deployment.wpg_id
            self._lost = {one: gone for one, gone in self._lost.items() if gone.wpg_id != wpg_id}
            self._gates.pop(wpg_id, None)
            await deployment.fleet.close()

    def progress(self, operation_id: bytes) -> int:
        """Return a count that grows while an operation gets on: tokens recorded, weights loaded."""
        record, execution = self._records.get(operation_id), self._executions.get(operation_id)
        if record is not None:
            return record.generated
        deployment = self._deployments.get(execution.deployment_id) if execution else None
        if deployment is not None:
            deployment = self._deployments.get(deployment.seeds, deployment)
        return 0 if deployment is None else deployment.fleet.progress

    # -- executions

    async def _sampled(
        self, operation: operations_pb2.Operation, deployment: RolloutDeployment
    ) -> AsyncGenerator[operations_pb2.GenerateFrame | bytes]:
        """Yield the frames of a generate that lives as long as they are read."""
        operation_id = operation.operation_id
        if operation_id in self._executions:
            text = f"{show(operation_id)} is known; a sample takes an id of its own"
            raise PlexError(ErrorCode.BAD_REQUEST, text)
        order = worker_pb2.ExecuteRequest(
            fence=deployment.fleet.fence, wpg_id=deployment.wpg_id, operation=operation
        )
        execution = self._begin(order)
        stall_us = self._config.stall_us
        try:
            record = await self._records.wait_for(operation_id)
            yield operations_pb2.GenerateFrame(prompts=operation.generate.prompts)
            async with aclosing(record.read(0)) as frames:
                while frame := await _within(stall_us, anext(frames, None)):
                    yield frame
        except TimeoutError as error:
            raise PlexError(
                ErrorCode.OPERATION_TIMEOUT,
                f"{show(operation_id)} got no token for {stall_us} us (rollout.stall_us); its "
                "instances are busy or lost: try again later",
            ) from error
        finally:
            self._stop(execution)
            execution.answer.add_done_callback(lambda _: self._cancel(operation_id))

    def _gate(self, wpg_id: str) -> Gate:
        return self._gates.setdefault(wpg_id, Gate())

    def _check_known(self, operation: operations_pb2.Operation) -> None:
        known = operation.deployment_id in self._deployments
        if not known and operation.WhichOneof("body") != "initialize":
            raise _unknown(operation.deployment_id)

    def _begin(self, request: worker_pb2.ExecuteRequest) -> _Execution:
        """Start the task of an operation that was not seen before."""
        group, operation = self._group, request.operation
        if group is None:
            raise PlexError(ErrorCode.UNAVAILABLE, "the rollout manager is not running")
        tenants = [run.tenant for run in self._executions.values() if run.task is not None]
        held = tenants.count(operation.tenant)
        self._operations.check(operation.tenant, held=held, taken=len(tenants))
        self._check_order(operation)
        loop = asyncio.get_running_loop()
        execution = _Execution(loop.create_future(), operation.deployment_id, operation.tenant)
        self._executions[operation.operation_id] = execution
        record = self._records.get(operation.operation_id)
        if record is not None and record.result is not None:  # of the manager before
            execution.answer.set_result(worker_pb2.ExecuteReply(result=record.result))
            return execution
        started_us = self._clock.monotonic_us()
        if operation.operation_id in self._cancelled:
            self._answer(execution, operation, _cancelled(operation), started_us=started_us)
            return execution
        execution.task = group.create_task(self._carry(execution, request, started_us=started_us))
        # A task that is cancelled before its first step never gets to its own cleanup.
        execution.task.add_done_callback(
            lambda _: self._answer(execution, operation, _stopped(operation), started_us=started_us)
        )
        self._trim()
        return execution

    def _check_order(self, operation: operations_pb2.Operation) -> None:
        deployment = self._deployments.get(operation.deployment_id)
        if deployment is not None and 0 < operation.seq <= deployment.exclusive_seq:
            raise PlexError(
                ErrorCode.STALE_SEQUENCE,
                f"{show(operation.operation_id)} has seq {operation.seq} of "
                f"{operation.deployment_id}, which pulled weights at "
                f"{deployment.exclusive_seq}; a new operation takes the next seq",
                seq=operation.seq,
                applied_seq=deployment.exclusive_seq,
            )

    def _trim(self) -> None:
        """Forget the oldest answers beyond `MAX_ANSWERS`, whatever else runs."""
        if len(self._executions) <= MAX_ANSWERS:
            return
        finished = [key for key, ex in self._executions.items() if ex.answer.done()]
        for key in finished[: max(0, len(finished) - MAX_ANSWERS)]:
            del self._executions[key]

    async def _carry(
        self, execution: _Execution, request: worker_pb2.ExecuteRequest, *, started_us: int
    ) -> None:
        """Run one operation to its answer, whatever happens."""
        operation = request.operation
        reply = _stopped(operation)
        try:
            reply = await self._run(request)
        except PlexError as error:
            refused = error.code in {ErrorCode.BAD_REQUEST, ErrorCode.PAYLOAD_TOO_LARGE}
            reply = failure(operation, error, state=REFUSED if refused else FAILED)
        except asyncio.CancelledError:
            if not execution.is_cancelled:
                raise
            reply = _cancelled(operation)
        except Exception as error:  # noqa: BLE001 - the operation fails, not the manager
            log.error("operation failed", operation=show(operation.operation_id))
            broken = PlexError(ErrorCode.INTERNAL, f"the rollout manager failed: {error!r}")
            reply = failure(operation, broken)
        finally:
            self._answer(execution, operation, reply, started_us=started_us)

    def _answer(
        self,
        execution: _Execution,
        operation: operations_pb2.Operation,
        reply: worker_pb2.ExecuteReply,
        *,
        started_us: int,
    ) -> None:
        """Give the answer; the first one stands."""
        execution.task = None
        if execution.answer.done():
            return
        reply.run_us = self._clock.monotonic_us() - started_us
        reply.result.times.run_us = reply.run_us
        deployment = self._deployments.get(operation.deployment_id)
        if deployment is not None:
            deployment.applied_seq = max(deployment.applied_seq, operation.seq)
            reply.applied_seq = deployment.applied_seq
        record = self._records.get(operation.operation_id)
        if self._group is None:  # it stops: the record is its successor's
            pass
        elif record is None and reply.result.error.retryable and operation.seq:
            self._executions.pop(operation.operation_id, None)  # a repeat is a new try
        elif operation.WhichOneof("body") == "generate":
            if record is None:
                record = self._records.open(operation)
                self._records.add(record)
            record.finish(reply.result)
            self._records.settle(record)
        execution.answer.set_result(reply)

    def _cancel(self, operation_id: bytes) -> None:
        execution = self._executions.get(operation_id)
        if execution is not None and execution.task is not None:
            self._stop(execution)
            return
        record = self._records.get(operation_id)
        if execution is None:
            self._cancelled[operation_id] = None
        if execution is not None or (record is not None and record.result is not None):
            self._executions.pop(operation_id, None)
            self._records.drop(operation_id)

    def _stop(self, execution: _Execution) -> None:
        if execution.task is not None:
            execution.is_cancelled = True
            execution.task.cancel()

    async def _run(self, request: worker_pb2.ExecuteRequest) -> worker_pb2.ExecuteReply:
        operation = request.operation
        match operation.WhichOneof("body"):
            case "initialize":
                return await self._initialize(request)
            case "pull":
                return await self._deployment(operation).pull(request)
            case "generate":
                return await self._deployment(operation).generate(request, self._records)
            case "seed":
                return await self._seed(request)
            case "noop":
                return success(operation)
            case other:
                raise PlexError(
                    ErrorCode.BAD_REQUEST,
                    f"{show(operation.operation_id)}: a rollout deployment runs generate and sync, "
                    f"not {other}",
                )

    async def _seed(self, request: worker_pb2.ExecuteRequest) -> worker_pb2.ExecuteReply:
        """Serve a generate with engines on training devices; nothing is to do where it is over."""
        operation = request.operation
        own, generate_id = self._deployment(operation), OperationId(operation.after[0])
        for _ in range(GENERATE_LOOKS):
            served = self._deployments.get(own.seeds)
            if served is not None and generate_id in served.fleet.generates:
                return await own.seed(request, served)
            found = self._executions.get(generate_id)
            if found is not None and found.answer.done():
                break
            await self._clock.sleep(GENERATE_LOOK_US)
        return success(operation)

    def _deployment(self, operation: operations_pb2.Operation) -> RolloutDeployment:
        deployment = self._deployments.get(operation.deployment_id)
        if deployment is None:
            raise _unknown(operation.deployment_id)
        return deployment

    async def _initialize(self, request: worker_pb2.ExecuteRequest) -> worker_pb2.ExecuteReply:
        """Connect to the instances; a deployment that is known goes on with its new ones."""
        deployment_id = request.operation.deployment_id
        deployment = self._deployments.get(deployment_id)
        if deployment is None:
            assert self._group is not None
            deployment = RolloutDeployment(
                deployment_id,
                wpg_id=request.wpg_id,
                config=self._config,
                clock=self._clock,
                group=self._group,
                keys=self._keys,
                gone=self._gone,
            )
        reply = await deployment.initialize(request)
        if deployment.wpg_id != request.wpg_id:
            self._gates.pop(deployment.wpg_id, None)
            deployment.wpg_id = request.wpg_id
        self._deployments[deployment_id] = deployment
        if request.HasField("published"):  # wanted from here on, so nothing is sampled from another
            await deployment.fleet.load(request.published, wakes=False)
        return reply

    def _gone(self, deployment: RolloutDeployment, order: Gone | orders.LeaveDevice) -> None:
        """Say that an instance was given up, drained, or sleeps while a generate goes on."""
        if isinstance(order, orders.LeaveDevice):
            left = rollout_pb2.InstanceLeft(
                wpg_id=deployment.wpg_id, address=order.address, operation_id=order.operation_id
            )
            self._news.put_nowait(rollout_pb2.ManagerNews(left=left))
            return
        gone = rollout_pb2.InstanceGone(wpg_id=deployment.wpg_id, address=order.address)
        if isinstance(order, orders.GiveUpInstance):
            gone.because, gone.is_dedicated = order.because, order.kind == DEDICATED.name
        self._lost[order.address] = gone
        self._news.put_nowait(rollout_pb2.ManagerNews(gone=gone))


async def _within(limit_us: int, awaited: Awaitable[T]) -> T:
    async with asyncio.timeout(limit_us / 1e6):
        return await awaited


def _unknown(deployment_id: str) -> PlexError:
    return PlexError(
        ErrorCode.UNAVAILABLE, f"rollout deployment {deployment_id} is not initialised here yet"
    )


def _what(request: worker_pb2.ExecuteRequest) -> str:
    return f"{show(request.operation.operation_id)} on {request.wpg_id}"


def _cancelled(operation: operations_pb2.Operation) -> worker_pb2.ExecuteReply:
    cause = f"{show(operation.operation_id)} was cancelled while it ran"
    return failure(operation, PlexError(ErrorCode.CANCELLED, cause))


def _stopped(operation: operations_pb2.Operation) -> worker_pb2.ExecuteReply:
    """Return the reply of an operation that the manager's successor goes on with."""
    error = PlexError(
        ErrorCode.UNAVAILABLE, f"{show(operation.operation_id)}: the rollout manager stopped"
    )
    return failure(operation, error, state=REFUSED)
