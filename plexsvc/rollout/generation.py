"""One generate in progress: its calls to instances, as the rollout core orders them."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from math import isnan
from typing import Final

import grpc.aio

from plexclient.wire.v1 import operations_pb2, rollout_pb2
from plexsvc.errors import ErrorCode, PlexError, unavailable
from plexsvc.ids import OperationId, show
from plexsvc.log import Log
from plexsvc.rollout.core import events, orders
from plexsvc.rollout.core.events import InstanceId, SampleKey, SampleTokens
from plexsvc.rollout.deployment import RolloutDeployment
from plexsvc.rollout.engines.base import FINISH_ABORT
from plexsvc.rollout.lines import PROBE_CALL_S, InstanceLine
from plexsvc.rollout.records import OperationRecord
from plexsvc.rollout.sampling import root_of_seed, sample_seed
from plexsvc.rpc.errors import error_from, first_failure

log = Log(__name__)


class RunningGenerate:
    """One generate; its tasks live in a group of its own."""

    def __init__(self, record: OperationRecord, deployment: RolloutDeployment) -> None:
        self._record, self._deployment = record, deployment
        self._config, self._clock = deployment.config, deployment.clock
        operation = record.operation
        self._id = OperationId(operation.operation_id)
        sampling = operation.generate.sampling
        self._root = (
            root_of_seed(sampling.seed) if sampling.HasField("seed") else operation.operation_id
        )
        self._tries: Counter[SampleKey] = Counter()
        self._arrived: Iterable[tuple[operations_pb2.SampleDelta, events.SampleTokens]]
        self._answer: asyncio.Future[orders.AnswerSamples]
        self._group: asyncio.TaskGroup

    async def run(self) -> int:
        """Generate every sample; return how many calls were lost meanwhile.

        Raises:
            PlexError: `worker_died`, or what an instance refused the request with.
        """
        found = self._record.samples.items()
        samples = {key: len(one.tokens) for key, one in found if not one.is_complete}
        if not samples:  # a manager before had all of them, and no time to say so
            return 0
        self._answer = asyncio.get_running_loop().create_future()
        self._deployment.begin(self._id, self.perform)
        prompts = self._record.operation.generate.prompts
        submitted = events.SamplesSubmitted(
            operation_id=self._id,
            samples=samples,
            prompt_tokens=tuple(len(prompt.token_ids) for prompt in prompts),
            is_turn=not self._record.operation.seq,
            session=self._record.operation.generate.session,
            at_us=self._clock.monotonic_us(),
        )
        try:
            async with asyncio.TaskGroup() as self._group:
                try:
                    pump = self._group.create_task(self._pump())
                    self._deployment.post(submitted)
                    answer = await self._answer
                    pump.cancel()
                    if answer.error is not None:
                        raise answer.error
                    return answer.losses
                finally:  # before the group ends: no order may come for one that takes no tasks
                    now_us = self._clock.monotonic_us()
                    self._deployment.post(
                        events.OperationEnded(operation_id=self._id, at_us=now_us)
                    )
                    self._deployment.end(self._id)
        except BaseExceptionGroup as errors:
            raise first_failure(errors) from errors

    async def _pump(self) -> None:
        """Seal deltas into frames: at once, if the last frame was long enough ago."""
        while True:
            await self._record.dirty.wait()
            self._record.seal()
            await self._clock.sleep(self._config.frame_us)

    def perform(self, order: orders.SampleOrder) -> None:
        """Do what the core orders for this generate."""
        match order:
            case orders.StartSamples():
                self._start(order)
            case orders.StopSamples():
                # Now: once they go on elsewhere, their ids are those of the next try. Less one:
                # `_request` has counted the try that runs.
                ids = [self._request_id(key, attempt=self._tries[key] - 1) for key in order.samples]
                self._group.create_task(self._stop(order.instance_id, ids))
            case orders.RecordTokens():
                for (delta, at), known in zip(self._arrived, order.known, strict=True):
                    if known is not None:
                        self._record.add(at.key, delta, known=known, is_last=at.is_last)
            case orders.AnswerSamples():
                if not self._answer.done():
                    self._answer.set_result(order)

    def _start(self, order: orders.StartSamples) -> None:
        if any(self._tries[key] for key in order.samples):
            name, count = show(self._id), len(order.samples)
            log.warning("samples continue elsewhere", operation=name, samples=count)
        line = self._deployment.lines[order.instance_id]
        for requests in self._calls(order.samples):
            self._group.create_task(self._follow(line, order, requests))

    def _calls(self, keys: list[SampleKey]) -> Iterator[list[rollout_pb2.InstanceRequest]]:
        """Yield the requests of one instance in calls of at most `call_bytes`."""
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
        sampling.n = 1  # a request for each sample, so that one can move alone
        sampling.prompt_logprobs &= not sample.has_prompt_logprobs
        sampling.seed = sample_seed(
            self._root, prompt_index=prompt_index, sample_index=sample_index
        )
        new_tokens = len(sample.tokens) - sample.had
        attempt = self._tries[key]
        self._tries[key] += 1
        return rollout_pb2.InstanceRequest(
            request_id=self._request_id(key, attempt=attempt),
            prompt=operations_pb2.Prompt(
                token_ids=given.token_ids,
                generated=sample.tokens,
                draws_used=given.draws_used + new_tokens,
            ),
            sampling=sampling,
            prompt_index=prompt_index,
            sample_index=sample_index,
            cache_salt=operation.tenant,
        )

    def _request_id(self, key: SampleKey, *, attempt: int) -> str:
        return f"{self._id.hex()}/{key[0]}/{key[1]}/{attempt}"

    async def _stop(self, instance_id: InstanceId, ids: list[str]) -> None:
        """Have an instance abort requests; one that does not hear it sends them to their end."""
        line = self._deployment.lines.get(instance_id)
        if line is None:
            return
        request = rollout_pb2.InstanceAbortRequest(request_ids=ids)
        with suppress(grpc.aio.AioRpcError, grpc.aio.UsageError):
            await line.stub.Abort(request, timeout=PROBE_CALL_S)

    async def _follow(
        self,
        line: InstanceLine,
        order: orders.StartSamples,
        requests: list[rollout_pb2.InstanceRequest],
    ) -> None:
        """Read one call to its end and report that."""
        error = unavailable("its stream ended early")
        is_garbage = False
        try:
            await self._read(line, order, requests)
        except grpc.aio.AioRpcError as failure:
            error = error_from(failure)
        except GarbageError as garbage:
            error, is_garbage = garbage, True
        except TimeoutError:
            silence = f"it sent nothing for {self._config.stall_us} us (rollout.stall_us)"
            error = unavailable(silence)
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is None or task.cancelling():
                raise
            error = unavailable("its channel was closed")
        ended = events.CallEnded(
            operation_id=self._id,
            call=order.call,
            instance_id=order.instance_id,
            address=line.address,
            samples=[(request.prompt_index, request.sample_index) for request in requests],
            error=error,
            is_garbage=is_garbage,
        )
        self._deployment.post(ended)

    async def _read(
        self,
        line: InstanceLine,
        order: orders.StartSamples,
        requests: list[rollout_pb2.InstanceRequest],
    ) -> None:
        request = rollout_pb2.InstanceGenerateRequest(
            fence=line.fence or self._deployment.fence,
            requests=requests,
            version=order.version._asdict(),
        )
        answers = Answers(requests, vocab_size=self._deployment.limits.vocab_size)
        stream = line.stub.Generate(request)
        try:
            async with line.heard_within(self._config.stall_us):
                while isinstance(frame := await stream.read(), rollout_pb2.InstanceFrame):
                    line.hear(self._config.stall_us)
                    self._deployment.progress += 1
                    arrivals = answers.take(frame.deltas)
                    self._arrived = zip(frame.deltas, arrivals, strict=True)
                    arrived = events.TokensArrived(
                        operation_id=self._id, instance_id=order.instance_id, arrivals=arrivals
                    )
                    self._deployment.post(arrived)
        finally:
            stream.cancel()


def metrics_of(record: OperationRecord, *, wall_us: int, losses: int) -> Mapping[str, float]:
    """Return the figures a finished generate reports."""
    return {
        "prompts": float(len(record.operation.generate.prompts)),
        "samples": float(len(record.samples)),
        "generated_tokens": float(record.generated),
        "tokens_per_s": record.generated / max(wall_us / 1e6, 1e-9),
        "instances_lost": float(losses),
    }


UNFINISHED: Final = (operations_pb2.FINISH_REASON_UNSPECIFIED, FINISH_ABORT)
"""Finish reasons that leave a sample incomplete."""


class GarbageError(PlexError):
    """An instance sent what no engine in order sends."""

    def __init__(self, flaw: str) -> None:
        super().__init__(ErrorCode.INTERNAL, f"it sent garbage: {flaw}")


class Answers:
    """The samples of one call, and where each stands."""

    def __init__(self, requests: Iterable[rollout_pb2.InstanceRequest], *, vocab_size: int) -> None:
        """Take ids below `vocab_size`; 0: any."""
        self._due = {
            (one.prompt_index, one.sample_index): len(one.prompt.generated) for one in requests
        }
        self._vocab_size = vocab_size

    def take(self, deltas: Iterable[operations_pb2.SampleDelta]) -> list[SampleTokens]:
        """Return deltas, in the order they came, as the core sees them. `O(tokens)`.

        An abort ends a call, never a sample.

        Raises:
            GarbageError: a delta that nobody asked for, that leaves a gap or repeats, or that holds
                ids outside the vocabulary or logprobs that are none.
        """
        arrivals = []  # reading a list is several times as fast as reading a repeated field
        for delta in deltas:
            key = (delta.prompt_index, delta.sample_index)
            due, position, tokens = self._due.get(key), delta.position, delta.token_ids[:]
            if due is None:
                raise GarbageError(f"a delta, without being asked, of sample {key}")
            wrong = "" if position == due else f"position {position} instead of {due}"
            if flaw := wrong or self._flaw(tokens, delta.logprobs[:]):
                raise GarbageError(f"{flaw} of sample {key}")
            count, reason = len(tokens), delta.finish_reason
            self._due[key] = due + count
            is_last = reason not in UNFINISHED
            arrivals.append(SampleTokens(key, position, count, is_last, reason == FINISH_ABORT))
        return arrivals

    def _flaw(self, tokens: Sequence[int], logprobs: Sequence[float]) -> str:
        if len(logprobs) != len(tokens):
            return f"{len(logprobs)} logprobs for {len(tokens)} tokens"
        if tokens and self._vocab_size and max(tokens) >= self._vocab_size:
            return f"token {max(tokens)}, with a vocabulary of {self._vocab_size},"
        return "a logprob that is no number" if isnan(sum(logprobs)) else ""
