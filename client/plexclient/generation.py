"""One running `generate`: waits for the answer while it reads the token stream."""

from __future__ import annotations

import asyncio
from collections.abc import (
    AsyncGenerator,
    AsyncIterator,
    Awaitable,
    Callable,
    Generator,
    Iterator,
)
from concurrent.futures import Future
from contextlib import aclosing
from typing import Any, TypeVar

from plexclient.errors import ErrorCode, PlexError, unavailable
from plexclient.lane import Lane, Ticket
from plexclient.link import messages
from plexclient.results import check
from plexclient.retry import Retry
from plexclient.samples import Delta, Sample, Samples, TokenRecord
from plexclient.wire.v1 import operations_pb2, service_pb2

R = TypeVar("R")


class Stream(Iterator[R]):
    """Items of a running generate as they come. Leaving it early does not end the generate."""

    def __init__(self, items: Generator[R], generation: Generation) -> None:
        self._items = items
        self._generation = generation

    def __next__(self) -> R:
        return next(self._items)

    def cancel(self) -> None:
        """Ask the service to end the generate; the next items raise `cancelled`."""
        self._generation.cancel()

    def close(self) -> None:
        """Read no further; the generate goes on."""
        self._items.close()
        self._generation.leave()


class AsyncStream(AsyncIterator[R]):
    """Items of a running generate as they come. Leaving it early does not end the generate."""

    def __init__(self, items: AsyncGenerator[R], generation: Generation) -> None:
        self._items = items
        self._generation = generation

    def __anext__(self) -> Awaitable[R]:
        return anext(self._items)

    def cancel(self) -> None:
        """Ask the service to end the generate; the next items raise `cancelled`."""
        self._generation.cancel()

    async def aclose(self) -> None:
        """Read no further; the generate goes on."""
        await self._items.aclose()
        self._generation.leave()


class Generation:
    """A generate operation that has its place in the order; its coroutines run on the loop."""

    def __init__(self, lane: Lane, ticket: Ticket, *, record: TokenRecord) -> None:
        self._lane = lane
        self._ticket = ticket
        self._record = record
        self._was_answered = False
        self._answer: Future[operations_pb2.OperationResult] = lane.session.background.start(
            lambda: lane.answer(ticket)
        )

    def cancel(self) -> None:
        """Ask the service to end it; whoever reads it is told `cancelled`."""
        self._lane.cancel(self._ticket)

    def leave(self) -> None:
        """Note that nobody reads it further: the service may forget what it answered."""

        async def release() -> None:
            self._lane.release(self._ticket)

        # Also where reading has: a generator that never began does not end what it would have.
        self._lane.session.background.start(release)

    async def collect(self, finished: Callable[[Sample], None] | None = None) -> Samples:
        """Return all samples; `finished` is told of each when it is.

        Raises:
            PlexError: why the operation was refused or failed.
        """
        async with aclosing(self.deltas()) as deltas:
            async for delta in deltas:
                if finished is not None and delta.sample is not None:
                    finished(delta.sample)
        return self._record.samples()

    async def batches(self, *, min_samples: int) -> AsyncGenerator[Samples]:
        """Yield what has finished, as soon as that is `min_samples`; at the end what is left.

        Samples are collected whether anybody waits or not. The last batch has the metrics. Left
        early, the operation goes on.

        Raises:
            PlexError: why the operation was refused or failed.
        """
        arrived: asyncio.Queue[Sample | None] = asyncio.Queue()
        collecting = self._lane.session.background.start(lambda: self.collect(arrived.put_nowait))
        collecting.add_done_callback(lambda _: arrived.put_nowait(None))
        batch: list[Sample] = []
        while (sample := await arrived.get()) is not None:
            batch.append(sample)
            if len(batch) >= min_samples and arrived.empty():
                yield Samples(batch, metrics={})
                batch = []
        whole = collecting.result()
        if batch:
            yield Samples(batch, metrics=whole.metrics)

    async def deltas(self) -> AsyncGenerator[Delta]:
        """Yield new tokens as they come; resumes after a cut. Left early, the operation goes on.

        Raises:
            PlexError: why the operation was refused or failed.
        """
        retry = self._lane.session.retry(
            f"the token stream of {self._ticket.operation_id.hex()[:8]}"
        )
        try:
            await self._ticket.sent.wait()  # a stream of its own would wait on the service
            while self._record.result is None:
                try:
                    async with aclosing(self._frames()) as frames:
                        async for frame in frames:
                            retry.progress()
                            self._ticket.patience.progress()
                            for delta in self._record.add(frame):
                                yield delta
                except PlexError as error:
                    await self._pause(error, retry=retry)
            check(self._record.result)
            # The last frame may come before the answer, which may yet be a failure.
            await asyncio.wrap_future(self._answer)
        finally:
            self._lane.release(self._ticket)

    async def _frames(self) -> AsyncGenerator[operations_pb2.GenerateFrame]:
        """Yield the frames of one attempt, which ends at once when the operation is refused."""
        session = self._lane.session
        # Asked before the stream is: that nobody knows the operation is final only if it was
        # answered.
        self._was_answered = self._answer.done()
        request = service_pb2.StreamGenerateRequest(
            operation_id=self._ticket.operation_id,
            job_id=session.job_id,
            deployment_id=self._lane.deployment_id,
            after_cursor=self._record.cursor,
        )
        timeout_s = session.options.attempt_timeout_s
        call = session.link.open_stream("StreamGenerate", request, timeout_s=timeout_s)
        watch = _cancel_on_failure(call, loop=asyncio.get_running_loop())
        self._answer.add_done_callback(watch)
        try:
            async with aclosing(messages(call)) as frames:
                async for frame in frames:
                    yield frame
        except asyncio.CancelledError:
            # It may be our own watch that ended the call. Then the operation's failure is the
            # reason.
            self._raise_refusal()
            raise
        if self._record.result is None:
            raise unavailable("the token stream ended before its last frame")

    async def _pause(self, error: PlexError, *, retry: Retry) -> None:
        """Wait before the next attempt; the operation's own failure comes first."""
        self._raise_refusal()
        if error.code is ErrorCode.NOT_FOUND and not self._was_answered:
            # The stream was asked for before the operation was known.
            error = unavailable(error.message, **error.facts)
        await retry.pause(error)

    def _raise_refusal(self) -> None:
        if self._answer.done() and (refusal := self._answer.exception()) is not None:
            raise refusal


def _cancel_on_failure(
    call: Any,
    *,
    loop: asyncio.AbstractEventLoop,
) -> Callable[[Future[operations_pb2.OperationResult]], None]:
    """Return a callback that ends `call` when the operation failed; both live on `loop`."""

    def done(answer: Future[operations_pb2.OperationResult]) -> None:
        if answer.exception() is not None and not loop.is_closed():
            call.cancel()

    return done
