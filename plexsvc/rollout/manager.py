"""The rollout manager: the `Worker` service of rollout deployments, inside the control process.

Theory of operation. A deployment is known from its `Initialize`, which brings the addresses of its
instances. An operation runs once, in a task of its own; every `Execute` of its id waits for that
task or is answered from its record. A generate's tokens go into its token record, which any number
of `StreamFrames` read; the record is kept until it is acknowledged (`Cancel` of a finished
operation, `forget`) or newer ones need its room. `run` must be running: all tasks live in it.
"""

from __future__ import annotations

import asyncio
from collections import Counter, OrderedDict
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, Sequence
from contextlib import aclosing, contextmanager, suppress
from dataclasses import dataclass
from typing import Final, TypeAlias, TypeVar

import grpc.aio

from plexclient.wire.v1 import operations_pb2, service_pb2, worker_pb2, worker_pb2_grpc
from plexsvc.clock import Clock
from plexsvc.errors import ErrorCode, PlexError
from plexsvc.fencing import Gate
from plexsvc.ids import DeploymentId, VersionId, show
from plexsvc.log import Log
from plexsvc.rollout.config import RolloutConfig
from plexsvc.rollout.core import orders
from plexsvc.rollout.core.instances import DEDICATED, SPOT
from plexsvc.rollout.core.pool import SlotClosed, SlotOpened, Wanted
from plexsvc.rollout.deployment import (
    FAILED,
    REFUSED,
    RolloutDeployment,
    failure,
    success,
)
from plexsvc.rollout.fleet import Fleet, Gone
from plexsvc.rollout.providers.base import Hosts
from plexsvc.rollout.providers.trace import Change
from plexsvc.rollout.records import OperationRecord
from plexsvc.rollout.spot import SpotInstances, provider_of
from plexsvc.rollout.store import RecordStore
from plexsvc.rpc.keys import ClusterKeys
from plexsvc.rpc.status import abort_with
from plexsvc.slots import Limit, Slots

log = Log(__name__)

T = TypeVar("T")

GivenUp = Callable[[str, str, str], None]
"""Takes a WPG, the address of one of its instances, and why that is given up."""

MAX_ANSWERS: Final = 4096
"""Finished operations whose answer is kept, beside their token records."""

Context: TypeAlias = "grpc.aio.ServicerContext[object, object] | None"


@dataclass(slots=True)
class _Execution:
    """An operation that runs or ran."""

    answer: asyncio.Future[worker_pb2.ExecuteReply]
    deployment_id: str
    tenant: str
    task: asyncio.Task[None] | None = None
    is_cancelled: bool = False


class RolloutManager(worker_pb2_grpc.WorkerServicer):
    """Runs operations of rollout deployments. Methods take `context=None` when embedded."""

    def __init__(self, config: RolloutConfig, clock: Clock, keys: ClusterKeys) -> None:
        self._config, self._clock, self._keys = config, clock, keys
        self._records = RecordStore(config, clock)
        self._deployments: dict[str, RolloutDeployment] = {}
        self._gates: dict[str, Gate] = {}
        self._executions: OrderedDict[bytes, _Execution] = OrderedDict()
        self._group: asyncio.TaskGroup | None = None
        self._report: GivenUp | None = None
        self._operations = Limit(
            total=config.max_operations, what="operations", key="rollout.max_operations"
        )
        self._slots = Slots(
            Limit(total=config.max_streams, what="streams", key="rollout.max_streams")
        )
        self._streams: Counter[str] = Counter()
        """Open streams by deployment."""
        self.spot: SpotInstances | None = None

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

    async def Execute(  # noqa: N802 - named by the service
        self, request: worker_pb2.ExecuteRequest, context: Context
    ) -> worker_pb2.ExecuteReply:
        """Run an operation, or wait for or repeat the answer of one that was run.

        Errors are in the reply's result; a refused order leaves no record.
        """
        del context
        try:
            gate, what = self._gate(request.wpg_id), _what(request)
            execution = self._executions.get(request.operation.operation_id)
            if execution is not None:
                gate.admit_leader(request.fence, what=what)
            else:
                shared = request.operation.WhichOneof("body") == "generate"
                admit = gate.admit_shared if shared else gate.admit_exclusive
                admit(request.fence, what=what)
                execution = self._begin(request)
        except PlexError as error:
            return failure(request.operation, error, state=REFUSED)
        return await asyncio.shield(execution.answer)

    async def Cancel(  # noqa: N802 - named by the service
        self, request: worker_pb2.CancelRequest, context: Context
    ) -> worker_pb2.CancelReply:
        """End a running operation with `cancelled`, or release the record of a finished one.

        Without an operation id the whole WPG is forgotten.
        """
        try:
            self._gate(request.wpg_id).admit_leader(request.fence, what="cancel")
            if not request.operation_id:
                for deployment_id in [
                    d.deployment_id
                    for d in self._deployments.values()
                    if d.wpg_id == request.wpg_id
                ]:
                    await self.forget(deployment_id)
            else:
                self._cancel(request.operation_id)
        except PlexError as error:
            await abort_with(context, error)
        return worker_pb2.CancelReply()

    async def StreamFrames(  # noqa: N802 - named by the service
        self, request: worker_pb2.StreamFramesRequest, context: Context
    ) -> AsyncGenerator[operations_pb2.GenerateFrame]:
        """Yield the frames after `after_cursor`, then live, up to the one with the result.

        Waits for an operation that has not started.

        Raises:
            PlexError: (embedded; on the wire as status) `result_gone`, `not_found`, `queue_full`.
        """
        try:
            with self._slots.hold(request.tenant), self._stream_of(request.deployment_id):
                record = await self._records.wait_for(
                    request.operation_id, deployment_id=request.deployment_id
                )
                async for frame in record.read(request.after_cursor):
                    yield frame
        except PlexError as error:
            await abort_with(context, error)

    async def Sample(  # noqa: N802 - named by the service
        self, request: operations_pb2.Operation, context: Context
    ) -> AsyncGenerator[operations_pb2.GenerateFrame]:
        """Generate beside the order of operations; it ends when its reader leaves.

        The first frame has the prompts as token ids, the last one the result. Its token record is
        one like others, and goes with it.

        Raises:
            PlexError: (embedded; on the wire as status) `not_found` without a deployment or
                weights, `queue_full`, `bad_request`, `unavailable`; `operation_timeout` when no
                token comes for `rollout.stall_us`.
        """
        try:
            deployment = self._deployment(request)
            with self._slots.hold(request.tenant), self._stream_of(request.deployment_id):
                await deployment.prepare(request)
                async with aclosing(self._sampled(request, deployment)) as frames:
                    async for frame in frames:
                        yield frame
        except PlexError as error:
            await abort_with(context, error)

    async def Describe(  # noqa: N802 - named by the service
        self, request: worker_pb2.DescribeRequest, context: Context
    ) -> worker_pb2.DescribeReply:
        """Return the facts of a WPG's instances; `initialized` is false for an unknown one."""
        del context
        reply = worker_pb2.DescribeReply(wpg_id=request.wpg_id)
        for deployment in self._deployments.values():
            if deployment.wpg_id == request.wpg_id:
                reply.CopyFrom(deployment.describe)
                reply.applied_seq = deployment.applied_seq
        return reply

    def use(self, hosts: Hosts, changes: Sequence[Change]) -> SpotInstances:
        """Give deployments spot instances from now on, while what this returns runs."""
        provider = provider_of(self._config.spot, changes, hosts=hosts, clock=self._clock)
        self.spot = SpotInstances(hosts, provider, clock=self._clock, fleet_of=self._fleet)
        return self.spot

    def instances(self) -> list[service_pb2.InstanceView]:
        """Return every instance and spot device; `device` of a dedicated one is its address."""
        found: list[service_pb2.InstanceView] = []
        for deployment in self._deployments.values():
            for address, view in deployment.fleet.views():
                view.device = address
                if self.spot is not None:
                    self.spot.describe(address, view)
                found.append(view)
        return found + (self.spot.without_instance() if self.spot is not None else [])

    def drain(self, device: str) -> None:
        """Have the samples of a spot instance go on elsewhere, and close its device.

        Raises:
            PlexError: `not_found` when there is no such spot device.
        """
        self._spot(device).post(SlotClosed(slot_id=device))

    def open(self, device: str) -> None:
        """Open a spot device that `drain` closed.

        Raises:
            PlexError: `not_found` when there is no such spot device; `bad_request` when it is not
                closed.
        """
        spot = self._spot(device)
        if device not in spot.pool.closed:
            is_leaving = spot.pool.slots[device].is_noticed
            was = "to be taken back by its provider" if is_leaving else "open"
            raise PlexError(
                ErrorCode.BAD_REQUEST,
                f"spot device {device} was not drained by `plexctl instance drain`: it is {was}",
            )
        spot.post(SlotOpened(slot_id=device))

    def _spot(self, device: str) -> SpotInstances:
        spot = self.spot
        if spot is None or device not in {*spot.pool.slots, *spot.pool.closed}:
            raise PlexError(
                ErrorCode.NOT_FOUND,
                f"no spot device {device!r}; `plexctl instance list` shows them. Dedicated "
                "instances leave with `plexctl node drain`",
            )
        return spot

    def _fleet(self, deployment_id: str) -> Fleet | None:
        deployment = self._deployments.get(deployment_id)
        return deployment.fleet if deployment is not None else None

    def report_to(self, given_up: GivenUp) -> None:
        """Say from now on which instances do not come back by themselves."""
        self._report = given_up

    async def replace(self, deployment_id: str, *, index: int, address: str) -> None:
        """Let a new instance take the place of one that was lost.

        Raises:
            PlexError: `not_found`; `unavailable` when the new one does not answer.
        """
        deployment = self._deployments.get(deployment_id)
        if deployment is None:
            raise PlexError(ErrorCode.NOT_FOUND, f"rollout deployment {deployment_id} is gone")
        await deployment.fleet.replace(index, address)

    async def forget(self, deployment_id: str) -> None:
        """End a deployment: cancel what runs, drop its records and connections. Safe to repeat."""
        for operation_id, execution in list(self._executions.items()):
            if execution.deployment_id == deployment_id:
                self._stop(execution)
                with suppress(asyncio.CancelledError):
                    await asyncio.shield(execution.answer)
                self._executions.pop(operation_id, None)
        for record in self._records.of_deployment(deployment_id):
            self._records.drop(record.operation.operation_id)
        deployment = self._deployments.pop(deployment_id, None)
        if self.spot is not None:
            self.spot.post(Wanted(deployment_id=DeploymentId(deployment_id), most=0))
        if deployment is not None:
            self._gates.pop(deployment.wpg_id, None)
            await deployment.fleet.close()

    def release(self, operation_id: bytes) -> None:
        """Drop the answer and the token record of a finished operation that was acknowledged."""
        execution = self._executions.get(operation_id)
        if execution is not None and execution.answer.done():
            del self._executions[operation_id]
            self._records.drop(operation_id)

    def versions_in_use(self) -> set[VersionId]:
        """Return the versions that instances serve or load, or would after a restart."""
        return {
            version
            for deployment in self._deployments.values()
            for version in deployment.fleet.sources
        }

    def progress(self, operation_id: bytes) -> int:
        """Return a count that grows while an operation gets on: tokens recorded, weights loaded."""
        record, execution = self._records.get(operation_id), self._executions.get(operation_id)
        if record is not None:
            return record.generated
        deployment = self._deployments.get(execution.deployment_id) if execution else None
        return 0 if deployment is None else deployment.fleet.progress

    # -- executions

    async def _sampled(
        self, operation: operations_pb2.Operation, deployment: RolloutDeployment
    ) -> AsyncGenerator[operations_pb2.GenerateFrame]:
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
            execution.answer.add_done_callback(lambda _: self.release(operation_id))

    def _gate(self, wpg_id: str) -> Gate:
        return self._gates.setdefault(wpg_id, Gate())

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
        started_us = self._clock.monotonic_us()
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
        """Forget the oldest answers beyond `MAX_ANSWERS`."""
        extra = len(self._executions) - MAX_ANSWERS
        finished = [key for key, ex in self._executions.items() if ex.answer.done()]
        for key in finished[: max(0, extra)]:
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
            cause = f"{show(operation.operation_id)} was cancelled while it ran"
            reply = failure(operation, PlexError(ErrorCode.CANCELLED, cause))
        except Exception as error:  # noqa: BLE001 - the operation fails, not the manager
            log.error("operation failed", operation=show(operation.operation_id))  # noqa: TRY400 - adds the traceback
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
        if record is None and reply.result.error.retryable and operation.seq:
            self._executions.pop(operation.operation_id, None)  # a repeat is a new try
        elif operation.WhichOneof("body") == "generate":
            if record is None:
                record = OperationRecord(operation)
                self._records.add(record)
            record.finish(reply.result)
            self._records.settle(record)
        execution.answer.set_result(reply)

    def _cancel(self, operation_id: bytes) -> None:
        execution = self._executions.get(operation_id)
        if execution is None or execution.task is None:
            self.release(operation_id)
            return
        self._stop(execution)

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
            case "noop":
                return success(operation)
            case other:
                raise PlexError(
                    ErrorCode.BAD_REQUEST,
                    f"{show(operation.operation_id)}: a rollout deployment runs generate and sync, "
                    f"not {other}",
                )

    def _deployment(self, operation: operations_pb2.Operation) -> RolloutDeployment:
        deployment = self._deployments.get(operation.deployment_id)
        if deployment is None:
            raise PlexError(
                ErrorCode.NOT_FOUND,
                f"{show(operation.operation_id)}: rollout deployment {operation.deployment_id} is "
                f"not initialised here",
                deployment_id=operation.deployment_id,
            )
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
        if self.spot is not None:
            self.spot.post(_wanted(deployment_id, request.deployment.spec))
        return reply

    def _gone(self, deployment: RolloutDeployment, order: Gone) -> None:
        """Have a dedicated instance that was given up replaced; note that a spot one is gone."""
        because = order.because if isinstance(order, orders.GiveUpInstance) else ""
        is_dedicated = isinstance(order, orders.GiveUpInstance) and order.kind == DEDICATED.name
        if is_dedicated and self._report is not None:
            self._report(deployment.wpg_id, order.address, because)
        elif not is_dedicated and self.spot is not None:
            self.spot.gone(order.address, because=because)

    @contextmanager
    def _stream_of(self, deployment_id: str) -> Iterator[None]:
        """Count an open stream of a deployment."""
        count, limit = self._streams[deployment_id], self._config.max_streams_per_deployment
        if count >= limit:
            raise PlexError(
                ErrorCode.QUEUE_FULL,
                f"{count} streams of {deployment_id} are open "
                "(rollout.max_streams_per_deployment); close some",
                limit=limit,
            )
        self._streams[deployment_id] += 1
        try:
            yield
        finally:
            self._streams[deployment_id] -= 1
            self._streams += Counter()  # drops what is not positive


async def _within(limit_us: int, awaited: Awaitable[T]) -> T:
    async with asyncio.timeout(limit_us / 1e6):
        return await awaited


def _wanted(deployment_id: str, spec: service_pb2.DeploymentSpec) -> Wanted:
    """Return how many spot instances a deployment asks for."""
    asked = next((one for one in spec.instances if one.kind == SPOT.name), None)
    if asked is None:
        return Wanted(deployment_id=DeploymentId(deployment_id), most=0)
    return Wanted(
        deployment_id=DeploymentId(deployment_id),
        least=asked.least,
        most=asked.most,
        price=asked.price if asked.HasField("price") else None,
    )


def _what(request: worker_pb2.ExecuteRequest) -> str:
    return f"{show(request.operation.operation_id)} on {request.wpg_id}"


def _stopped(operation: operations_pb2.Operation) -> worker_pb2.ExecuteReply:
    error = PlexError(
        ErrorCode.UNAVAILABLE, f"{show(operation.operation_id)}: the rollout manager stopped"
    )
    return failure(operation, error)
