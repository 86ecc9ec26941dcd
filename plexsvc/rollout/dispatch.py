"""Runs one generate over a fleet: who gets which sample, and what happens when one is lost.

Theory of operation. Samples are dealt to the least loaded instances and sent in one stream a call.
When a stream ends before its samples do (its instance died, stalled, was restarted), each of them
is dealt again from prompt + recorded tokens; draws depend on position, so it goes on exactly. A
sample that lost `max_tries_per_sample` instances ends the operation with `worker_died`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import grpc.aio

from plexclient.wire.v1 import operations_pb2, rollout_pb2
from plexsvc.errors import ErrorCode
from plexsvc.ids import show
from plexsvc.log import Log
from plexsvc.rollout.config import RolloutConfig
from plexsvc.rollout.fleet import Fleet, Instance
from plexsvc.rollout.records import OperationRecord, SampleKey
from plexsvc.rollout.sampling import root_of_seed, sample_seed
from plexsvc.rpc.errors import error_from, first_failure

log = Log(__name__)

FATAL: Final = frozenset(
    {ErrorCode.BAD_REQUEST, ErrorCode.STALE_FENCE, ErrorCode.PAYLOAD_TOO_LARGE}
)
"""Refusals that another instance would repeat."""


def deal(keys: Sequence[SampleKey], loads: Sequence[int]) -> list[list[SampleKey]]:
    """Return which keys each instance gets, given how many samples each has.

    Samples of one prompt stay together, where its prefill is cached, unless that would leave an
    instance idle.

    >>> deal([(0, 0), (0, 1), (1, 0), (1, 1)], [0, 0])
    [[(0, 0), (0, 1)], [(1, 0), (1, 1)]]
    >>> deal([(0, 0), (0, 1)], [0, 0])
    [[(0, 0)], [(0, 1)]]
    """
    prompts: dict[int, list[SampleKey]] = {}
    for key in keys:
        prompts.setdefault(key[0], []).append(key)
    groups = list(prompts.values()) if len(prompts) >= len(loads) else [[key] for key in keys]
    hands: list[list[SampleKey]] = [[] for _ in loads]
    load = list(loads)
    for group in groups:
        least = min(range(len(load)), key=lambda index: (load[index], index))
        hands[least].extend(group)
        load[least] += len(group)
    return hands


@dataclass(slots=True)
class _Call:
    """One stream to one instance."""

    instance: Instance
    keys: list[SampleKey]
    requests: list[rollout_pb2.InstanceRequest]
    tried: int


class Generation:
    """One generate in progress; `run` returns when every sample has finished."""

    def __init__(self, record: OperationRecord, fleet: Fleet, config: RolloutConfig) -> None:
        self._record, self._fleet, self._config = record, fleet, config
        operation = record.operation
        sampling = operation.generate.sampling
        self._root = (
            root_of_seed(sampling.seed) if sampling.HasField("seed") else operation.operation_id
        )
        self._attempts: dict[SampleKey, int] = {}
        self.losses = 0

    async def run(self) -> None:
        """Generate every unfinished sample.

        Raises:
            PlexError: `worker_died`, or what an instance refused the request with.
        """
        try:
            async with asyncio.TaskGroup() as group:
                await self._spread(group, self._record.unfinished())
        except BaseExceptionGroup as errors:
            raise first_failure(errors) from errors

    async def _spread(self, group: asyncio.TaskGroup, keys: Sequence[SampleKey]) -> None:
        """Deal `keys` to serving instances and start their calls."""
        serving = await self._fleet.wait_serving()
        hands = deal(keys, [instance.in_flight for instance in serving])
        for instance, hand in zip(serving, hands, strict=True):
            for call in self._calls(instance, hand):
                instance.in_flight += len(call.keys)
                group.create_task(self._follow(group, call))

    def _calls(self, instance: Instance, keys: Sequence[SampleKey]) -> Iterator[_Call]:
        """Yield the hand of one instance in calls of at most `rollout.call_bytes`."""
        call, nbytes = _Call(instance, [], [], 0), 0
        for key in keys:
            request = self._request(key)
            size = request.ByteSize()
            if call.keys and nbytes + size > self._config.call_bytes:
                yield call
                call, nbytes = _Call(instance, [], [], 0), 0
            call.keys.append(key)
            call.requests.append(request)
            nbytes += size
        if call.keys:
            yield call

    def _request(self, key: SampleKey) -> rollout_pb2.InstanceRequest:
        """Return what continues a sample: its prompt, its tokens, and the draws they took."""
        prompt_index, sample_index = key
        operation, sample = self._record.operation, self._record.samples[key]
        attempt = self._attempts[key] = self._attempts.get(key, -1) + 1
        given = operation.generate.prompts[prompt_index]
        sampling = operations_pb2.SamplingParams()
        sampling.CopyFrom(operation.generate.sampling)
        sampling.n = 1
        sampling.prompt_logprobs &= not sample.has_prompt_logprobs
        sampling.seed = sample_seed(
            self._root, prompt_index=prompt_index, sample_index=sample_index
        )
        new_tokens = len(sample.tokens) - sample.had
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

    async def _follow(self, group: asyncio.TaskGroup, call: _Call) -> None:
        """Read one call to its end; deal again what it left unfinished."""
        open_keys = set(call.keys)
        try:
            await self._read(call, open_keys)
            because = "its stream ended early"
        except grpc.aio.AioRpcError as failure:
            error = error_from(failure)
            if error.code in FATAL:
                raise error from failure
            because = error.message
        except TimeoutError:
            because = f"it sent nothing for {self._config.stall_us} us (rollout.stall_us)"
        finally:
            call.instance.in_flight -= len(open_keys)
        left = self._record.unfinished(call.keys)
        if left:
            self._fleet.lose(call.instance, because)
            self._count_loss(left, call.instance, because)
            await self._spread(group, left)

    async def _read(self, call: _Call, open_keys: set[SampleKey]) -> None:
        request = rollout_pb2.InstanceGenerateRequest(
            fence=self._fleet.fence, requests=call.requests, min_version=self._fleet.version
        )
        stream = call.instance.stub.Generate(request, timeout=self._config.operation_us / 1e6)
        try:
            while True:
                async with asyncio.timeout(self._config.stall_us / 1e6):
                    frame = await stream.read()
                if not isinstance(frame, rollout_pb2.InstanceFrame):
                    return  # the end of the stream
                self._take(frame, call.instance, open_keys)
        finally:
            stream.cancel()

    def _take(
        self, frame: rollout_pb2.InstanceFrame, instance: Instance, open_keys: set[SampleKey]
    ) -> None:
        for delta in frame.deltas:
            self._record.apply(delta)
            key = (delta.prompt_index, delta.sample_index)
            if delta.finish_reason and key in open_keys:
                open_keys.remove(key)
                instance.in_flight -= 1

    def _count_loss(self, keys: Sequence[SampleKey], instance: Instance, because: str) -> None:
        """Count a lost instance under each of `keys`.

        Raises:
            PlexError: `worker_died` when one of them lost too many.
        """
        self.losses += 1
        name = show(self._record.operation.operation_id)
        log.warning("samples continue elsewhere", operation=name, samples=len(keys))
        for key in keys:
            sample = self._record.samples[key]
            sample.losses += 1
            if sample.losses >= self._config.max_tries_per_sample:
                raise self._fleet.death(
                    f"sample {key} of {name} lost {sample.losses} instances "
                    f"(rollout.max_tries_per_sample), the last at {instance.address}: {because}; "
                    f"instances"
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
