"""Operations that a rollout manager runs or ran: each once, in a task of its own.

A repeated operation waits for that task, or gets the answer that it gave. The answer
is kept until it is acknowledged or `MAX_ANSWERS` newer ones came; that of a generate is the end of
its token record.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from plexclient.wire.v1 import operations_pb2, worker_pb2
from plexsvc.clock import Clock
from plexsvc.errors import ErrorCode, PlexError, internal, unavailable
from plexsvc.ids import show
from plexsvc.log import Log
from plexsvc.newest import Newest
from plexsvc.rollout.config import RolloutConfig
from plexsvc.rollout.deployment import RolloutDeployment
from plexsvc.rollout.operations import FAILED, REFUSED, failure
from plexsvc.rollout.store import RecordStore
from plexsvc.slots import Limit

log = Log(__name__)

MAX_ANSWERS: Final = 4096
"""Finished operations whose answer is kept, beside their token records."""


@dataclass(slots=True)
class Execution:
    """An operation that runs or ran."""

    answer: asyncio.Future[worker_pb2.ExecuteReply]
    deployment_id: str
    tenant: str
    task: asyncio.Task[None] | None = None
    is_cancelled: bool = False

    def stop(self) -> None:
        """End it with `cancelled` if it runs."""
        if self.task is not None:
            self.is_cancelled = True
            self.task.cancel()


class Executions:
    """All operations of a manager. Owned by the event loop; their tasks live in `group`."""

    def __init__(
        self,
        config: RolloutConfig,
        clock: Clock,
        records: RecordStore,
        deployments: Mapping[str, RolloutDeployment],
        run: Callable[[worker_pb2.ExecuteRequest], Awaitable[worker_pb2.ExecuteReply]],
    ) -> None:
        """Have `run` do what an operation asks for."""
        self._clock, self._records, self._deployments = clock, records, deployments
        self._run = run
        self._limit = Limit(
            total=config.max_operations, what="operations", key="rollout.max_operations"
        )
        self._known: OrderedDict[bytes, Execution] = OrderedDict()
        self._cancelled = Newest[bytes, None](MAX_ANSWERS)
        """Operations whose end was asked for before they came here."""
        self.group: asyncio.TaskGroup | None = None
        """None: the manager does not run, and what it leaves is its successor's."""

    def get(self, operation_id: bytes) -> Execution | None:
        """Return an operation, None for one that is not known."""
        return self._known.get(operation_id)

    def begin(self, request: worker_pb2.ExecuteRequest) -> Execution:
        """Start the task of an operation that was not seen before.

        Raises:
            PlexError: `unavailable` when the manager does not run; `queue_full`; `stale_sequence`
                for one that comes too late.
        """
        group, operation = self.group, request.operation
        if group is None:
            raise unavailable("the rollout manager is not running")
        tenants = [run.tenant for run in self._known.values() if run.task is not None]
        held = tenants.count(operation.tenant)
        self._limit.check(operation.tenant, held=held, taken=len(tenants))
        deployment = self._deployments.get(operation.deployment_id)
        if deployment is not None and 0 < operation.seq < deployment.exclusive_seq:
            raise PlexError(
                ErrorCode.STALE_SEQUENCE,
                f"{show(operation.operation_id)} has seq {operation.seq} of "
                f"{operation.deployment_id}, which pulled weights at "
                f"{deployment.exclusive_seq}; a new operation takes the next seq",
                seq=operation.seq,
                applied_seq=deployment.exclusive_seq,
            )
        loop = asyncio.get_running_loop()
        execution = Execution(loop.create_future(), operation.deployment_id, operation.tenant)
        self._known[operation.operation_id] = execution
        record = self._records.get(operation.operation_id)
        if record is not None and record.result is not None:  # of the manager before
            execution.answer.set_result(worker_pb2.ExecuteReply(result=record.result))
            return execution
        started_us = self._clock.monotonic_us()
        if operation.operation_id in self._cancelled:
            self._answer(execution, operation, _cancelled(operation), started_us=started_us)
            return execution
        execution.task = group.create_task(self._carry(execution, request, started_us=started_us))

        def ended(_: asyncio.Task[None]) -> None:
            # A task that is cancelled before its first step never gets to its own cleanup.
            reply = _cancelled(operation) if execution.is_cancelled else _stopped(operation)
            self._answer(execution, operation, reply, started_us=started_us)

        execution.task.add_done_callback(ended)
        if len(self._known) > MAX_ANSWERS:  # forget the oldest answers, whatever else runs
            finished = [key for key, known in self._known.items() if known.answer.done()]
            for key in finished[: max(0, len(finished) - MAX_ANSWERS)]:
                del self._known[key]
        return execution

    def cancel(self, operation_id: bytes) -> None:
        """End a running operation with `cancelled`, or release the record of a finished one.

        One that is not known here ends so as soon as it comes: the manager before had it.
        """
        execution = self._known.get(operation_id)
        if execution is not None and execution.task is not None:
            execution.stop()
            return
        record = self._records.get(operation_id)
        if execution is None:
            self._cancelled[operation_id] = None
        if execution is not None or (record is not None and record.result is not None):
            self._known.pop(operation_id, None)
            self._records.drop(operation_id)

    async def forget(self, deployment_id: str) -> None:
        """Cancel what runs of a deployment, and drop its answers and records."""
        for operation_id, execution in list(self._known.items()):
            if execution.deployment_id == deployment_id:
                execution.stop()
                with suppress(asyncio.CancelledError):
                    await asyncio.shield(execution.answer)
                self._known.pop(operation_id, None)
        for record in self._records.of_deployment(deployment_id):
            self._records.drop(record.operation.operation_id)

    async def _carry(
        self, execution: Execution, request: worker_pb2.ExecuteRequest, *, started_us: int
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
            broken = internal(f"the rollout manager failed: {error!r}")
            reply = failure(operation, broken)
        finally:
            self._answer(execution, operation, reply, started_us=started_us)

    def _answer(
        self,
        execution: Execution,
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
        if self.group is None:  # it stops: the record is its successor's
            pass
        elif record is None and reply.result.error.retryable and operation.seq:
            self._known.pop(operation.operation_id, None)  # a repeat is a new try
        elif operation.WhichOneof("body") == "generate":
            if record is None:
                record = self._records.open(operation)
                self._records.add(record)
            record.finish(reply.result)
            self._records.settle(record)
        execution.answer.set_result(reply)


def _cancelled(operation: operations_pb2.Operation) -> worker_pb2.ExecuteReply:
    cause = f"{show(operation.operation_id)} was cancelled while it ran"
    return failure(operation, PlexError(ErrorCode.CANCELLED, cause))


def _stopped(operation: operations_pb2.Operation) -> worker_pb2.ExecuteReply:
    """Return the reply of an operation that the manager's successor goes on with."""
    error = unavailable(f"{show(operation.operation_id)}: the rollout manager stopped")
    return failure(operation, error, state=REFUSED)
