"""Operation lane of a deployment: numbers operations at call time and brings their answers.

Theory of operation. A call takes its number under the session's lock and its coroutine starts in
that order. The same operation, under the same id, is submitted until it is answered: lost lines
and retryable refusals are tried again, and a deadline only attaches anew. A final refusal by the
service consumes the number. An operation that ends any other way (patience over) may have left
its number free, which would hold its successors and whatever comes `after` it; a no-op under the
same id and number then takes its place. If the service knew the operation after all, that is only
a repeat.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final, TypeVar

from plexclient.errors import ErrorCode, PlexError, payload_too_large, unavailable
from plexclient.ids import OperationId, new_operation_id, show
from plexclient.payloads import Arrays, Inputs, inputs, stage_requests, transfer_timeout_s
from plexclient.results import check
from plexclient.retry import Retry, persist
from plexclient.session import FATAL, Session
from plexclient.tracing import traceparent
from plexclient.wire.channels import MAX_MESSAGE_BYTES
from plexclient.wire.v1 import operations_pb2, service_pb2

R = TypeVar("R")
Submit = Callable[[], Awaitable[operations_pb2.OperationResult]]
"""Sends an operation once and returns its answer."""

MESSAGE_ROOM_BYTES: Final = 64 << 10
"""What a message needs beside its body."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ticket:
    """An operation that has its place in the order."""

    operation: operations_pb2.Operation
    inputs: Inputs | None
    patience: Retry = field(compare=False)
    """How long its answer is waited for; whoever sees it get further says so."""
    sent: asyncio.Event = field(default_factory=asyncio.Event, compare=False)
    """Set when the operation is on its way, or never will be."""
    answered: asyncio.Event = field(default_factory=asyncio.Event, compare=False)

    @property
    def operation_id(self) -> OperationId:
        """The operation's id."""
        return OperationId(self.operation.operation_id)

    @property
    def seq(self) -> int:
        """Its number among the deployment's operations."""
        return self.operation.seq

    @property
    def nbytes(self) -> int:
        """Bytes the client keeps for it until it is answered."""
        return self.inputs.nbytes if self.inputs is not None else 0


class Lane:
    """Numbers, sends and answers the operations of one deployment."""

    def __init__(self, session: Session, *, deployment_id: str, first_seq: int = 1) -> None:
        self.session = session
        self.deployment_id = deployment_id
        self._last_seq = first_seq - 1
        # Made on a caller's thread: it belongs to a loop only once somebody waits for it.
        self._gate = asyncio.Semaphore(session.options.max_in_flight_per_deployment)
        self._uploading: set[int] = set()
        self._uploaded = asyncio.Event()

    def enter(
        self,
        operation: operations_pb2.Operation,
        *,
        arrays: Arrays | None = None,
        after: Sequence[OperationId] = (),
    ) -> Ticket:
        """Give `operation` its id and the deployment's next number; it is the lane's from now on.

        The caller holds `session.order`.

        Raises:
            PlexError: `job_ended`; `queue_full` or `payload_too_large` for its payload. No number
                is taken then.
        """
        self.session.check_open()
        given = inputs(arrays) if arrays is not None else None
        _check_size(operation)
        operation.operation_id = new_operation_id()
        operation.job_id = self.session.job_id
        operation.deployment_id = self.deployment_id
        operation.seq = self._last_seq + 1
        operation.controller = self.session.controller
        operation.traceparent = traceparent()
        operation.after.extend(after)
        if given is not None:
            operation.payload.CopyFrom(given.payload(operation.operation_id))
        patience = self.session.retry(self._name(operation))
        ticket = Ticket(operation=operation, inputs=given, patience=patience)
        self.session.budget.take(ticket.nbytes)
        self._last_seq = operation.seq  # the last thing: what fails before it leaves no gap
        return ticket

    async def answer(self, ticket: Ticket) -> operations_pb2.OperationResult:
        """Return the answer of an operation that was applied.

        Raises:
            PlexError: why it was refused or failed, or that the service did not answer in time.
        """
        try:
            async with self._gate:
                ticket.sent.set()
                # Its patience begins here: it may have waited long behind others of its deployment.
                ticket.patience.progress()
                submit = self._submitting(ticket.operation)
                if ticket.inputs is None or ticket.inputs.is_inline:
                    result = await persist(submit, retry=ticket.patience)
                else:
                    result = await self._submit_staged(ticket, submit)
        except Exception as error:
            # Where the job itself is gone nobody waits for the number.
            if not isinstance(error, PlexError) or error.code not in FATAL:
                self.session.background.start(lambda: self._fill(ticket))
            raise
        finally:
            # Also if it was never sent: whoever cancels or follows it waits for this.
            ticket.sent.set()
            ticket.answered.set()
            self.session.budget.give_back(ticket.nbytes)
        return check(result)

    def cancel(self, ticket: Ticket) -> None:
        """Ask the service to end an operation, now or once it has it; its answer says what came."""
        self.session.background.start(lambda: self._cancel(ticket))

    async def _cancel(self, ticket: Ticket) -> None:
        session = self.session
        request = service_pb2.CancelOperationRequest(
            operation_id=ticket.operation_id, job_id=session.job_id
        )
        retry = session.retry(f"cancelling {self._name(ticket.operation)}")
        await ticket.sent.wait()
        while not ticket.answered.is_set():
            try:
                await session.short("CancelOperation", request)
            except PlexError as error:
                if error.code is ErrorCode.NOT_FOUND:  # it is on its way
                    error = unavailable(error.message)
                await retry.pause(error)
            else:
                return

    def release(self, ticket: Ticket) -> None:
        """Note that the operation's answer has been read: the service may forget it."""
        self.session.answered(self.deployment_id, ticket.seq)

    def _submitting(self, operation: operations_pb2.Operation) -> Submit:
        timeout_s = self.session.options.attempt_timeout_s
        return partial(self.session.link.submit, operation, timeout_s=timeout_s)

    async def _submit_staged(
        self, ticket: Ticket, submit: Submit
    ) -> operations_pb2.OperationResult:
        """Submit and upload at once; the service's answer counts, whatever the upload met.

        What was refused for now has been put back without its payload, so each attempt uploads
        again, unless it is under way: what lies on the node is announced at once, what was damaged
        is replaced.
        """
        refused: asyncio.Future[Exception] = asyncio.get_running_loop().create_future()
        sending: asyncio.Task[None] | None = None

        async def attempt() -> operations_pb2.OperationResult:
            nonlocal sending
            if sending is None or (sending.done() and not refused.done()):
                sending = group.create_task(self._upload(ticket, refused))
            return await submit()

        async with asyncio.TaskGroup() as group:
            answer = group.create_task(outcome(persist(attempt, retry=ticket.patience)))
            either: set[asyncio.Future[Any]] = {answer, refused}
            await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
            if not answer.done():  # what waits for a payload that does not come is ended
                self.cancel(ticket)
                await asyncio.wait({answer}, timeout=self.session.options.staging_settle_s)
            is_told = answer.done() and not (refused.done() and _is_cancelled(answer.result()))
            found = answer.result() if is_told else refused.result()
            answer.cancel()
            if sending is not None:
                sending.cancel()
        if isinstance(found, Exception):
            raise found
        return found

    async def _upload(self, ticket: Ticket, refused: asyncio.Future[Exception]) -> None:
        assert ticket.inputs is not None, ticket
        operation, given = ticket.operation, ticket.inputs
        retry = self.session.retry(f"the payload of {self._name(operation)}")
        timeout_s = transfer_timeout_s(given.nbytes, options=self.session.options)
        self._uploading.add(ticket.seq)
        try:
            while True:
                # A later payload could take the last room on the node, and wait there for an
                # earlier one.
                while min(self._uploading) != ticket.seq:
                    self._uploaded.clear()
                    await self._uploaded.wait()
                    retry.progress()
                requests = stage_requests(operation, given)
                try:
                    await self.session.link.stage(requests, timeout_s=timeout_s)
                except PlexError as error:
                    await retry.pause(error)
                else:
                    return
        except Exception as error:  # noqa: BLE001 - whoever awaits the answer raises it
            refused.set_result(error)
        finally:
            self._uploading.discard(ticket.seq)
            self._uploaded.set()

    async def _fill(self, ticket: Ticket) -> None:
        """Take the number that `ticket` may have left free."""
        filler = operations_pb2.Operation(
            operation_id=ticket.operation_id,
            job_id=self.session.job_id,
            deployment_id=self.deployment_id,
            seq=ticket.seq,
            controller=ticket.operation.controller,
            noop=operations_pb2.Noop(),
        )
        with suppress(PlexError):  # the line is gone, too: nothing left to do
            await persist(self._submitting(filler), retry=self.session.retry(self._name(filler)))

    def _name(self, operation: operations_pb2.Operation) -> str:
        kind, name = operation.WhichOneof("body"), show(OperationId(operation.operation_id))
        return f"{kind} {name} (number {operation.seq} of {self.deployment_id})"


def _is_cancelled(found: operations_pb2.OperationResult | Exception) -> bool:
    return not isinstance(found, Exception) and found.error.code == ErrorCode.CANCELLED


async def outcome(work: Awaitable[R]) -> R | Exception:
    """Return what `work` returns or raises, so that one of two tasks does not end the other."""
    try:
        return await work
    except Exception as error:  # noqa: BLE001 - raised by whoever reads the outcome
        return error


def _check_size(operation: operations_pb2.Operation) -> None:
    nbytes = operation.ByteSize()
    if nbytes > MAX_MESSAGE_BYTES - MESSAGE_ROOM_BYTES:
        raise payload_too_large(
            f"the operation's message has {nbytes} bytes; one message carries at most "
            f"{MAX_MESSAGE_BYTES - MESSAGE_ROOM_BYTES}: split the prompts over several calls"
        )
