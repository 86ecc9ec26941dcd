"""One generate in progress: its calls to instances, as the rollout core orders them."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Final

import grpc.aio

from plexclient.wire.v1 import operations_pb2, rollout_pb2
from plexsvc.clock import Clock
from plexsvc.errors import ErrorCode, PlexError
from plexsvc.ids import OperationId, VersionId, show
from plexsvc.log import Log
from plexsvc.rollout.config import RolloutConfig
from plexsvc.rollout.core import events, orders
from plexsvc.rollout.core.events import SampleKey
from plexsvc.rollout.engines.base import FINISH_ABORT
from plexsvc.rollout.fleet import Fleet, Line
from plexsvc.rollout.records import OperationRecord
from plexsvc.rollout.sampling import root_of_seed, sample_seed
from plexsvc.rpc.errors import error_from, first_failure

log = Log(__name__)

UNFINISHED: Final = (operations_pb2.FINISH_REASON_UNSPECIFIED, FINISH_ABORT)
"""Finish reasons that leave a sample incomplete."""


class Generation:
    """One generate; its tasks live in a group of its own."""

    def __init__(
        self, record: OperationRecord, fleet: Fleet, *, config: RolloutConfig, clock: Clock
    ) -> None:
        self._record, self._fleet, self._config, self._clock = record, fleet, config, clock
        operation = record.operation
        self._id = OperationId(operation.operation_id)
        sampling = operation.generate.sampling
        self._root = (
            root_of_seed(sampling.seed) if sampling.HasField("seed") else operation.operation_id
        )
        self._tries: Counter[SampleKey] = Counter()
        self._arrived: Iterable[tuple[operations_pb2.SampleDelta, events.Arrival]]
        self._answer: asyncio.Future[orders.AnswerSamples]
        self._group: asyncio.TaskGroup

    async def run(self) -> int:
        """Generate every sample; return how many calls were lost meanwhile.

        Raises:
            PlexError: `worker_died`, or what an instance refused the request with.
        """
        self._answer = asyncio.get_running_loop().create_future()
        self._fleet.generates[self._id] = self.perform
        samples = {key: len(one.tokens) for key, one in self._record.samples.items()}
        try:
            async with asyncio.TaskGroup() as self._group:
                try:
                    pump = self._group.create_task(self._pump())
                    self._fleet.post(
                        events.SamplesSubmitted(operation_id=self._id, samples=samples)
                    )
                    answer = await self._answer
                    pump.cancel()
                    if answer.error is not None:
                        raise answer.error
                    return answer.losses
                finally:  # before the group ends: no order may come for one that takes no tasks
                    self._fleet.post(events.OperationEnded(operation_id=self._id))
                    del self._fleet.generates[self._id]
        except BaseExceptionGroup as errors:
            raise first_failure(errors) from errors

    async def _pump(self) -> None:
        """Seal deltas into frames at the configured cadence."""
        while True:
            await self._record.dirty.wait()
            await self._clock.sleep(self._config.frame_us)
            self._record.seal()

    def perform(
        self, order: orders.StartSamples | orders.RecordTokens | orders.AnswerSamples
    ) -> None:
        """Do what the core orders for this generate."""
        match order:
            case orders.StartSamples():
                if any(self._tries[key] for key in order.samples):
                    name, count = show(self._id), len(order.samples)
                    log.warning("samples continue elsewhere", operation=name, samples=count)
                line = self._fleet.lines[order.instance_id]
                for requests in self._calls(order.samples):
                    self._group.create_task(self._follow(line, order, requests))
            case orders.RecordTokens():
                for (delta, at), known in zip(self._arrived, order.known, strict=True):
                    if known is not None:
                        self._record.add(at.key, delta, known=known, is_last=at.is_last)
            case orders.AnswerSamples():
                if not self._answer.done():
                    self._answer.set_result(order)

    def _calls(self, keys: list[SampleKey]) -> Iterator[list[rollout_pb2.InstanceRequest]]:
        """Yield the requests of one instance in calls of at most `rollout.call_bytes`."""
        call: list[rollout_pb2.InstanceRequest] = []
        nbytes = 0
        for key in keys:
            request = self._request(key)
            size = request.ByteSize()
            if call and nbytes + size > self._config.call_bytes:
                yield call
                call, nbytes = [], 0
            call.append(request)
            nbytes += size
        yield call

    def _request(self, key: SampleKey) -> rollout_pb2.InstanceRequest:
        """Return what continues a sample: its prompt, its tokens, and the draws they took."""
        prompt_index, sample_index = key
        operation, sample = self._record.operation, self._record.samples[key]
        given = operation.generate.prompts[prompt_index]
        sampling = operations_pb2.SamplingParams()
        sampling.CopyFrom(operation.generate.sampling)
        sampling.n = 1
        sampling.prompt_logprobs &= not sample.has_prompt_logprobs
        sampling.seed = sample_seed(
            self._root, prompt_index=prompt_index, sample_index=sample_index
        )
        new_tokens = len(sample.tokens) - sample.had
        attempt = self._tries[key]
        self._tries[key] += 1
        return rollout_pb2.InstanceRequest(
            request_id=f"{operation.operation_id.hex()}/{prompt_index}/{sample_index}/{attempt}",
            prompt=operations_pb2.Prompt(
                token_ids=given.token_ids,
                generated=sample.tokens,
                draws_used=given.draws_used + new_tokens,
            ),
            sampling=sampling,
            prompt_index=prompt_index,
            sample_index=sample_index,
        )

    async def _follow(
        self, line: Line, order: orders.StartSamples, requests: list[rollout_pb2.InstanceRequest]
    ) -> None:
        """Read one call to its end and report that."""
        error = PlexError(ErrorCode.UNAVAILABLE, "its stream ended early")
        try:
            await self._read(line, order.version, requests)
        except grpc.aio.AioRpcError as failure:
            error = error_from(failure)
        except TimeoutError:
            silence = f"it sent nothing for {self._config.stall_us} us (rollout.stall_us)"
            error = PlexError(ErrorCode.UNAVAILABLE, silence)
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is None or task.cancelling():
                raise
            error = PlexError(ErrorCode.UNAVAILABLE, "its channel was closed")
        ended = events.CallEnded(
            operation_id=self._id,
            instance_id=order.instance_id,
            address=line.address,
            samples=[(request.prompt_index, request.sample_index) for request in requests],
            error=error,
        )
        self._fleet.post(ended)

    async def _read(
        self, line: Line, version: VersionId, requests: list[rollout_pb2.InstanceRequest]
    ) -> None:
        request = rollout_pb2.InstanceGenerateRequest(
            fence=self._fleet.fence, requests=requests, version=version._asdict()
        )
        stream = line.stub.Generate(request)
        try:
            async with line.heard_within(self._config.stall_us):
                while isinstance(frame := await stream.read(), rollout_pb2.InstanceFrame):
                    line.hear(self._config.stall_us)
                    arrivals = [arrival_of(delta) for delta in frame.deltas]
                    self._arrived = zip(frame.deltas, arrivals, strict=True)
                    self._fleet.post(events.TokensArrived(operation_id=self._id, arrivals=arrivals))
        finally:
            stream.cancel()


def arrival_of(delta: operations_pb2.SampleDelta) -> events.Arrival:
    """Return a delta as the core sees it; an abort ends a call, never a sample."""
    return events.Arrival(
        (delta.prompt_index, delta.sample_index),
        delta.position,
        len(delta.token_ids),
        delta.finish_reason not in UNFINISHED,
    )


def metrics_of(record: OperationRecord, *, wall_us: int, losses: int) -> Mapping[str, float]:
    """Return the figures a finished generate reports."""
    return {
        "prompts": float(len(record.operation.generate.prompts)),
        "samples": float(len(record.samples)),
        "generated_tokens": float(record.generated),
        "tokens_per_s": record.generated / max(wall_us / 1e6, 1e-9),
        "instances_lost": float(losses),
    }
