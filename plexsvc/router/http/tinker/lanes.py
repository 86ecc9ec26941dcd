"""Operations of one deployment, sent under numbers that its Tinker client gave.

Theory of operation. A client numbers its requests, and each is one operation: its id and its number
follow from the request's. So a request that comes twice is one operation, and what a service that
died had under way is sent again as it was. The scheduler brings operations into order, whenever
they come. One that is refused before it is sent leaves its number to a no-op.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass
from heapq import heappop, heappush
from typing import Any, Final, TypeVar

import numpy as np
import numpy.typing as npt
import xxhash

from plexclient.payloads import add_chunk, inputs, stage_requests
from plexclient.results import Shard, check, gather
from plexclient.session import Answered
from plexclient.wire import tensors
from plexclient.wire.v1 import common_pb2, operations_pb2, service_pb2
from plexsvc.clock import Clock
from plexsvc.errors import PlexError
from plexsvc.ids import TenantId
from plexsvc.log import Log
from plexsvc.router.downloads import Downloads
from plexsvc.router.relay import Uploads
from plexsvc.rpc.retry import Patience, retry

log = Log(__name__)

T = TypeVar("T")
Submit = Callable[..., Awaitable[operations_pb2.OperationResult]]

MAX_UNDER_WAY: Final = 32
"""Operations of a deployment that the service has at once: it refuses many more for a while."""
PATIENCE: Final = Patience(
    pause_us=50_000, longest_pause_us=2_000_000, within_us=7 * 86_400_000_000
)
"""With what the service refuses for now: its session ends before."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Wire:
    """How operations reach the service: as every client's."""

    submit: Submit
    uploads: Uploads
    downloads: Downloads
    clock: Clock


async def persist(call: Callable[[], Awaitable[T]], *, clock: Clock, what: str) -> T:
    """Return what a call answers, made again while it is refused for now.

    Raises:
        PlexError: a refusal that stays.
    """

    async def may_pass(error: PlexError) -> bool:
        return error.retryable

    return await retry(
        call, on=PlexError, clock=clock, patience=PATIENCE, what=what, again=may_pass
    )


class OrderedSemaphore:
    """Lets operations of a lane be under way, few at once, lower numbers first.

    One that is lower than any under way is let in at once: they may wait for it.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._inside: set[int] = set()
        self._outside: list[tuple[int, asyncio.Event]] = []

    @asynccontextmanager
    async def through(self, seq: int) -> AsyncIterator[None]:
        """Hold a place inside."""
        if len(self._inside) >= self._limit and seq > max(self._inside):
            opened = asyncio.Event()
            heappush(self._outside, (seq, opened))
            await opened.wait()
        self._inside.add(seq)
        try:
            yield
        finally:
            self._inside.discard(seq)
            if self._outside and len(self._inside) < self._limit:
                heappop(self._outside)[1].set()


class OperationLane:
    """Sends and answers the operations of one deployment."""

    def __init__(self, wire: Wire, *, tenant: TenantId, job_id: str, deployment_id: str) -> None:
        self._wire = wire
        self._tenant = tenant
        self._job_id = job_id
        self.deployment_id = deployment_id
        self.answered = Answered()
        """Numbers whose answers were read."""
        self._gate = OrderedSemaphore(MAX_UNDER_WAY)
        self._uploading: set[int] = set()
        self._uploaded = asyncio.Event()

    def operation_id(self, seq: int) -> bytes:
        """Return the id of the operation of a number."""
        return xxhash.xxh3_128_digest(f"{self._tenant}/{self.deployment_id}/{seq}".encode())

    async def run(
        self,
        operation: operations_pb2.Operation,
        *,
        seq: int,
        arrays: Mapping[str, npt.NDArray[Any]] | None = None,
    ) -> operations_pb2.OperationResult:
        """Return the answer of an operation that was applied; `operation` is the lane's from now.

        Raises:
            PlexError: why it was refused or failed.
        """
        operation.operation_id = self.operation_id(seq)
        operation.job_id, operation.deployment_id = self._job_id, self.deployment_id
        operation.seq = seq
        given = inputs(arrays) if arrays is not None else None
        if given is not None:
            operation.payload.CopyFrom(given.payload(operation.operation_id))

        async def attempt() -> operations_pb2.OperationResult:
            sent = operations_pb2.Operation()
            sent.CopyFrom(operation)  # the router fills in what it sends on
            if given is None or given.is_inline:
                return check(await self._wire.submit(sent, tenant=self._tenant))
            requests = [one.SerializeToString() for one in stage_requests(operation, given)]
            async with asyncio.TaskGroup() as group:
                sending = group.create_task(self._upload(requests, seq=seq))
                result = await self._wire.submit(sent, tenant=self._tenant)
                # It is answered: the nodes had all that they needed, or it was refused.
                sending.cancel()
            return check(result)

        what = f"number {seq} of {self.deployment_id}"
        async with self._gate.through(seq):
            return await persist(attempt, clock=self._wire.clock, what=what)

    async def fill(self, seq: int) -> None:
        """Take a number whose operation was refused before it was sent."""
        await self.run(operations_pb2.Operation(noop=operations_pb2.Noop()), seq=seq)

    async def _upload(self, requests: list[bytes], *, seq: int) -> None:
        """Upload inputs, those of earlier numbers first: they might wait for room behind later."""
        self._uploading.add(seq)
        try:
            while min(self._uploading) != seq:
                self._uploaded.clear()
                await self._uploaded.wait()

            async def send() -> None:
                await self._wire.uploads.relay(_each(requests), tenant=self._tenant)

            await persist(send, clock=self._wire.clock, what=f"inputs of {self.deployment_id}")
        except PlexError as error:  # the operation ends with its session
            log.warning("inputs not taken", deployment_id=self.deployment_id, error=error)
        finally:
            self._uploading.discard(seq)
            self._uploaded.set()

    async def logprobs(
        self, result: operations_pb2.OperationResult, *, bounds: npt.NDArray[np.int32]
    ) -> npt.NDArray[np.float32]:
        """Return the logprob of each target, in the order of the batch.

        Raises:
            PlexError: `result_gone`, or that they are not what the ranks answered.
        """
        shards = []
        for index, shard in enumerate(result.shards):

            async def read(index: int = index, shard: Any = shard) -> Mapping[str, Any]:
                return await self._arrays(result, index, payload=shard.payload)

            arrays = await persist(read, clock=self._wire.clock, what=self.deployment_id)
            shards.append(Shard(sequences=tuple(shard.sequences), arrays=arrays))
        return gather(shards, cu_seqlens=bounds, name="logprobs")

    async def _arrays(
        self, result: operations_pb2.OperationResult, index: int, *, payload: common_pb2.Payload
    ) -> Mapping[str, npt.NDArray[Any]]:
        if payload.WhichOneof("form") != "staged":
            return tensors.decode(payload.inline)
        request = service_pb2.FetchResultRequest(
            operation_id=result.operation_id,
            job_id=self._job_id,
            deployment_id=self.deployment_id,
            shard=index,
        )
        data = bytearray()
        stream = self._wire.downloads.result(request, tenant=self._tenant)
        async with aclosing(stream) as chunks:
            async for chunk in chunks:
                found = common_pb2.Chunk.FromString(chunk)
                add_chunk(data, found, most=payload.staged.nbytes)
        tensors.verify(payload, data, what="a fetched result")
        return tensors.views(payload.staged.tensors, data)


async def _each(messages: list[bytes]) -> AsyncIterator[bytes]:
    for message in messages:
        yield message
