"""One rollout deployment: what its operations do to its fleet of instances."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from plexclient.wire.errors import to_wire
from plexclient.wire.v1 import operations_pb2, worker_pb2
from plexsvc.clock import Clock
from plexsvc.errors import ErrorCode, PlexError
from plexsvc.ids import OperationId
from plexsvc.rollout.config import RolloutConfig
from plexsvc.rollout.core.events import Trained
from plexsvc.rollout.core.orders import LeaveDevice
from plexsvc.rollout.engines.base import MODEL
from plexsvc.rollout.fleet import Fleet, Gone
from plexsvc.rollout.generation import Generation, metrics_of
from plexsvc.rollout.store import RecordStore
from plexsvc.rollout.validation import GenerateLimits, check_generate, check_ids
from plexsvc.rpc.keys import ClusterKeys

APPLIED = operations_pb2.OPERATION_STATE_APPLIED
FAILED = operations_pb2.OPERATION_STATE_FAILED
REFUSED = operations_pb2.OPERATION_STATE_REFUSED


class RolloutDeployment:
    """A deployment's fleet and limits, and how far its order has come."""

    def __init__(
        self,
        deployment_id: str,
        *,
        wpg_id: str,
        config: RolloutConfig,
        clock: Clock,
        group: asyncio.TaskGroup,
        keys: ClusterKeys,
        gone: Callable[[RolloutDeployment, Gone | LeaveDevice], None],
    ) -> None:
        self.deployment_id, self.wpg_id = deployment_id, wpg_id
        self.applied_seq = 0
        self.exclusive_seq = 0
        """Highest Pull; an operation before it that is not known comes too late."""
        self.describe = worker_pb2.DescribeReply()
        self.fleet = Fleet(
            deployment_id,
            config=config,
            clock=clock,
            group=group,
            keys=keys,
            gone=lambda order: gone(self, order),
        )
        self._config, self._clock = config, clock
        self.seeds = ""
        """The deployment whose generates these instances serve, if they have none of their own."""
        self._takes_weights = False
        """Whether its weights come from another deployment, by `sync`."""
        self._limits = GenerateLimits(vocab_size=0, max_model_len=0, max_samples=0)

    async def initialize(self, request: worker_pb2.ExecuteRequest) -> worker_pb2.ExecuteReply:
        """Connect to the instances; those it had are let go, their samples go on with these.

        Raises:
            PlexError: `bad_request` without addresses; `unavailable` when one does not answer.
        """
        if not request.instance_addresses:
            raise PlexError(
                ErrorCode.BAD_REQUEST, f"{self.deployment_id} came without instance addresses"
            )
        given = request.deployment
        self.fleet.core.is_shared = given.spec.shares_devices
        self.describe = await self.fleet.connect(request.instance_addresses, fence=request.fence)
        self._takes_weights = bool(given.spec.model_deployment_id)
        self.seeds = given.spec.seeds
        self._limits = GenerateLimits(
            vocab_size=given.vocab_size or self.describe.vocab_size,
            max_model_len=_shorter(given.spec.max_model_len, self.describe.max_sequence_length),
            max_samples=self._config.max_samples_per_operation,
        )
        reply = success(request.operation)
        reply.result.metrics["instances"] = len(request.instance_addresses)
        return reply

    async def pull(self, request: worker_pb2.ExecuteRequest) -> worker_pb2.ExecuteReply:
        """Load a published version on every instance; only those that have it serve.

        Raises:
            PlexError: what an instance refused it with.
        """
        operation, version = request.operation, request.published.version
        self.fleet.fence.CopyFrom(request.fence)
        if operation.pull.finishes_turns:
            await self.fleet.finish_turns()
        loaded = await self.fleet.load(request.published)
        self.exclusive_seq = max(self.exclusive_seq, operation.seq)
        reply = success(operation)
        reply.result.weight_version = version
        reply.result.metrics["nbytes"] = max(one.nbytes for one in loaded)
        reply.result.metrics["load_us"] = max(one.load_us for one in loaded)
        reply.result.metrics["instances"] = len(loaded)
        reply.result.texts["checksum"] = next((one.checksum for one in loaded if one.checksum), "")
        reply.digest = reply.result.texts["checksum"].encode()
        return reply

    async def prepare(self, operation: operations_pb2.Operation) -> None:
        """Turn the texts and chats of a sample into token ids, and say how long it may get.

        Raises:
            PlexError: `not_found` before the first sync of a deployment that takes the weights of
                another; `bad_request`; `unavailable` when no instance could encode.
        """
        if self._takes_weights and self.fleet.core.version == MODEL:
            raise PlexError(
                ErrorCode.NOT_FOUND,
                f"{self.deployment_id} has no weights yet: `sync` it before sampling",
            )
        generate = operation.generate
        texts = generate.prompt_texts
        encoded = [p for p in generate.prompts if p.text or p.chat or texts]
        for index, prompt in enumerate(generate.prompts):  # before a tokenizer is asked about them
            check_ids(prompt.token_ids, what=f"prompt {index}", limits=self._limits)
        await self.fleet.encode(encoded, texts=texts)
        longest = max((len(prompt.token_ids) for prompt in generate.prompts), default=0)
        if not generate.sampling.max_tokens:
            generate.sampling.max_tokens = max(1, self._limits.max_model_len - longest)

    async def generate(
        self, request: worker_pb2.ExecuteRequest, records: RecordStore
    ) -> worker_pb2.ExecuteReply:
        """Generate every sample into a token record, whose frames others read meanwhile.

        Raises:
            PlexError: `bad_request`, `payload_too_large`, `queue_full`, `worker_died`.
        """
        operation = request.operation
        check_generate(operation.generate, self._limits)
        self.fleet.fence.CopyFrom(request.fence)
        record = records.open(operation)
        record.open_samples(operation)
        sampling = operation.generate.sampling
        width = (1 + sampling.texts) * (1 + sampling.top_logprobs)
        most_tokens = len(record.samples) * sampling.max_tokens * width
        if sampling.prompt_logprobs:
            prompts = sum(len(prompt.token_ids) for prompt in operation.generate.prompts)
            width = (1 + sampling.texts) * (1 + sampling.top_prompt_logprobs)
            most_tokens += prompts * max(1, sampling.n) * width
        records.admit(record, most_tokens=most_tokens)
        generation = Generation(
            record,
            self.fleet,
            config=self._config,
            clock=self._clock,
            vocab_size=self._limits.vocab_size,
        )
        started_us, held_us = self._clock.monotonic_us(), self.fleet.held_us()
        try:
            losses = await generation.run()
        finally:
            await self.fleet.left()  # before another order may wake them
        wall_us = self._clock.monotonic_us() - started_us
        reply = success(operation)
        for name, value in metrics_of(record, wall_us=wall_us, losses=losses).items():
            reply.result.metrics[name] = value
        reply.result.metrics["instance_s"] = (self.fleet.held_us() - held_us) / 1e6
        reply.result.weight_version = self.fleet.core.version.version
        reply.digest = record.digest()
        return reply

    async def seed(
        self, request: worker_pb2.ExecuteRequest, served: RolloutDeployment
    ) -> worker_pb2.ExecuteReply:
        """Serve a generate of another deployment until its seeding window is over."""
        operation, now_us = request.operation, self._clock.monotonic_us()
        trained = None
        if request.HasField("trained"):
            ended_us = now_us - request.trained.ended_ago_us
            trained = Trained(train_us=request.trained.train_us, ended_us=ended_us)
        over = await served.fleet.seed(
            OperationId(operation.after[0]),
            [line.address for line in self.fleet.lines.values()],
            fence=request.fence,
            trained=trained,
        )
        reply = success(operation)
        reply.result.metrics["seeded_s"] = over.seeded_us / 1e6
        if over.next_window_us is not None:
            reply.result.metrics["next_window_s"] = over.next_window_us / 1e6
        if over.most_instances is not None:
            reply.result.metrics["most_instances"] = over.most_instances
        return reply


def _shorter(asked: int, able: int) -> int:
    """Return the smaller of two lengths, of which 0 is none."""
    return min(asked, able) if asked and able else asked or able


def success(operation: operations_pb2.Operation) -> worker_pb2.ExecuteReply:
    """Return the reply of an operation that was applied."""
    result = operations_pb2.OperationResult(operation_id=operation.operation_id, state=APPLIED)
    return worker_pb2.ExecuteReply(result=result)


def failure(
    operation: operations_pb2.Operation, error: PlexError, *, state: int = FAILED
) -> worker_pb2.ExecuteReply:
    """Return the reply of an operation that was refused or failed."""
    result = operations_pb2.OperationResult(
        operation_id=operation.operation_id,
        state=state,  # type: ignore[arg-type]  # an int of that enum
        error=to_wire(error),
    )
    return worker_pb2.ExecuteReply(result=result)
