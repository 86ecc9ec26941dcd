"""Bounds of every number and text that a request may carry, by message and field.

One walk over a message checks them all, before anybody computes with them. A field that has no
entry here fails a test. What depends on more than the field (a seq on its deployment, an offset on
its batch) is checked where that is known.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, Final

from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import Message

from plexsvc.errors import bad_request


@dataclass(frozen=True, slots=True)
class Bound:
    """The smallest and the largest value of a number; 0 where the field is not set is no value."""

    low: float
    high: float

    def holds(self, values: Collection[float]) -> bool:
        """Return whether all lie inside; a NaN does not."""
        # Not by min and max: those of several numbers pass over a NaN that is not the first.
        return all(self.low <= value <= self.high for value in values)


UINT32: Final = Bound(0, 2**32 - 1)
INT32: Final = Bound(-(2**31), 2**31 - 1)
UINT64: Final = Bound(0, 2**64 - 1)
_WHOLE: Final = (UINT32, INT32, UINT64)
"""What the wire's own types hold: nothing to look at."""

COUNTER: Final = Bound(0, 2**53)
"""Of operations, cursors, versions: every language counts so far exactly."""

BYTES: Final = Bound(0, 1 << 50)
TOKENS: Final = Bound(0, 1 << 24)
MONTH_US: Final = Bound(0, 30 * 86_400_000_000)
YEAR_US: Final = Bound(0, 366 * 86_400_000_000)
PPM: Final = Bound(0, 10**9)
DEGREE: Final = Bound(0, 1024)
DEVICES: Final = Bound(0, 10**9)
"""A question may be about more devices than there are: the answer is that it does not fit."""

FINITE: Final = Bound(-1e30, 1e30)
POSITIVE: Final = Bound(0, 1e30)
TEMPERATURE: Final = Bound(1e-6, 1e6)

NUMBERS: Final[Mapping[str, Bound]] = {
    "AddProgramRequest.timeout_score": FINITE,
    "Backward.temperature": TEMPERATURE,
    "BatchRules.max_sequence_length": UINT64,
    "BatchRules.vocab_size": UINT64,
    "Chunk.offset": BYTES,
    "CostRequest.since_us": COUNTER,
    "CreateJobRequest.expected_steps": Bound(0, 1_000_000_000),
    "CreateJobRequest.max_slowdown": Bound(0, 1000),
    "CreateJobRequest.priority": Bound(-1_000_000, 1_000_000),
    "CreateJobRequest.session_ttl_us": YEAR_US,
    "EndJobRequest.controller": COUNTER,
    "KeepAliveRequest.controller": COUNTER,
    "KeepAliveRequest.period_us": YEAR_US,
    "Operation.controller": COUNTER,
    "CreateTokenRequest.lifetime_us": Bound(0, 100 * YEAR_US.high),
    "CycleSegment.duration_us": MONTH_US,
    "CycleSegment.offset_us": MONTH_US,
    "DeploymentSpec.checkpoint_every": Bound(0, 1_000_000_000),
    "DeploymentSpec.checkpoints_kept": Bound(0, 1 << 20),
    "DeploymentSpec.kv_cache_bytes": BYTES,
    "DeploymentSpec.max_logprob_gap": POSITIVE,
    "DeploymentSpec.max_model_len": TOKENS,
    "DeploymentSpec.micro_batch_tokens": TOKENS,
    "DeploymentSpec.num_instances": DEGREE,
    "DeploymentSpec.seed": UINT64,
    "DispatchPlan.lengths": UINT32,
    "DispatchPlan.version": UINT32,
    "EndJobRequest.exit_code": INT32,
    "FetchModelFileRequest.offset": BYTES,
    "FetchResultRequest.offset": BYTES,
    "FetchResultRequest.shard": UINT32,
    "Forward.temperature": TEMPERATURE,
    "ForwardBackward.loss_args": FINITE,
    "ForwardBackward.temperature": TEMPERATURE,
    "InstanceRange.least": DEGREE,
    "InstanceRange.most": DEGREE,
    "InstanceRange.price": POSITIVE,
    "JobShape.expected_us": YEAR_US,
    "JobShape.jitter_ppm": PPM,
    "JobShape.max_slowdown_ppm": PPM,
    "JobShape.num_devices": DEVICES,
    "JobShape.period_us": MONTH_US,
    "JobShape.priority": Bound(-1_000_000, 1_000_000),
    "JobShape.rollout_devices": DEVICES,
    "JobShape.state_bytes": BYTES,
    "KeepAliveRequest.acks": COUNTER,
    "MicroBatch.sequences": UINT32,
    "LendInstanceRequest.lease_us": MONTH_US,
    "LendInstanceRequest.price": POSITIVE,
    "LoRA.alpha": POSITIVE,
    "LoRA.rank": Bound(0, 1 << 16),
    "Operation.seq": COUNTER,
    "Optimizer.beta1": POSITIVE,
    "Optimizer.beta2": POSITIVE,
    "Optimizer.clip_grad_norm": POSITIVE,
    "Optimizer.eps": POSITIVE,
    "Optimizer.lr": POSITIVE,
    "Optimizer.weight_decay": POSITIVE,
    "PackRequest.window_us": MONTH_US,
    "Parallel.cp": DEGREE,
    "Parallel.dp": DEGREE,
    "Parallel.ep": DEGREE,
    "Parallel.pp": DEGREE,
    "Parallel.tp": DEGREE,
    "ProgramStage.count": Bound(0, 1 << 20),
    "ProgramStage.memory_bytes": BYTES,
    "ProgramStage.timeout_us": YEAR_US,
    "Prompt.draws_used": COUNTER,
    "Prompt.generated": UINT32,
    "Prompt.token_ids": UINT32,
    "Pull.version": COUNTER,
    "SamplingParams.frequency_penalty": Bound(-2, 2),
    "SamplingParams.logit_bias": Bound(-100, 100),
    "SamplingParams.max_tokens": TOKENS,
    "SamplingParams.min_p": Bound(0, 1),
    "SamplingParams.min_tokens": TOKENS,
    "SamplingParams.n": Bound(0, 1 << 16),
    "SamplingParams.presence_penalty": Bound(-2, 2),
    "SamplingParams.repetition_penalty": Bound(0.01, 100),
    "SamplingParams.seed": UINT64,
    "SamplingParams.stop_token_ids": UINT32,
    "SamplingParams.temperature": Bound(1e-6, 1e6),
    "SamplingParams.top_k": INT32,
    "SamplingParams.top_logprobs": Bound(0, 20),
    "SamplingParams.top_prompt_logprobs": Bound(0, 20),
    "SamplingParams.top_p": Bound(0, 1),
    "ScoreRequest.batch_size": Bound(0, 1 << 20),
    "ScoreSample.index": Bound(0, 1 << 20),
    "SetQuotaRequest.most": COUNTER,
    "StageHeader.nbytes": BYTES,
    "StagedBundle.nbytes": BYTES,
    "Step.beta1": POSITIVE,
    "Step.beta2": POSITIVE,
    "Step.clip_grad_norm": POSITIVE,
    "Step.eps": POSITIVE,
    "Step.lr": POSITIVE,
    "Step.weight_decay": POSITIVE,
    "StreamGenerateRequest.after_cursor": COUNTER,
    "TensorSpec.nbytes": BYTES,
    "TensorSpec.offset": BYTES,
    "TensorSpec.shape": Bound(-(1 << 50), 1 << 50),
    "TimelineRequest.after_index": COUNTER,
}
UNBOUNDED: Final = frozenset({"KeepAliveRequest.metrics"})
"""Numbers that are only shown: a loss that became NaN is shown as that."""

MAX_TEXT_CHARS: Final = 16 << 10
LONG_TEXTS: Final = frozenset(
    {"Prompt.text", "Prompt.chat", "ScoreSample.text", "ScoreSample.reference"}
)
"""Texts that may fill a message."""


@dataclass(frozen=True, slots=True)
class _Rule:
    """How the values of one field are looked at."""

    name: str
    bound: Bound | None = None
    is_text: bool = False
    is_map: bool = False
    is_repeated: bool = False

    def check(self, value: Any) -> None:
        many = value.values() if self.is_map else value if self.is_repeated else (value,)
        if self.bound is not None:
            if not self.bound.holds(many):
                found = next(v for v in many if not self.bound.holds((v,)))
                raise bad_request(
                    f"{self.name} is {found}; it may be {self.bound.low:.15g} to "
                    f"{self.bound.high:.15g}",
                    field=self.name,
                )
        elif self.is_text:
            longest = max(map(len, many), default=0)
            if longest > MAX_TEXT_CHARS:
                raise bad_request(
                    f"{self.name} has {longest} characters; it may have {MAX_TEXT_CHARS}",
                    field=self.name,
                )
        else:
            for one in many:
                check(one)


def check(message: Message) -> None:
    """Refuse a message with a number outside its bound, or a text too long. `O(its size)`.

    Raises:
        PlexError: `bad_request`, naming the field, what it holds and what it may hold.
    """
    rules = _rules(message.DESCRIPTOR)
    for field, value in message.ListFields():
        rule = rules.get(field.name)
        if rule is not None:
            rule.check(value)


@cache
def _rules(descriptor: Descriptor) -> Mapping[str, _Rule]:
    made = ((field.name, _rule(descriptor, field)) for field in descriptor.fields)
    return {name: rule for name, rule in made if rule is not None}


def _rule(descriptor: Descriptor, field: FieldDescriptor) -> _Rule | None:
    name, inner = f"{descriptor.name}.{field.name}", _value_of(field)
    is_text = inner.cpp_type == FieldDescriptor.CPPTYPE_STRING and name not in LONG_TEXTS
    is_text = is_text and inner.type != FieldDescriptor.TYPE_BYTES
    bound = NUMBERS.get(name)
    bound = None if bound in _WHOLE else bound
    if not (bound or is_text or inner.message_type):
        return None
    is_map = inner is not field
    return _Rule(name, bound, is_text, is_map, field.is_repeated and not is_map)


def _value_of(field: FieldDescriptor) -> FieldDescriptor:
    """Return the field of a map's values, or the field itself."""
    entry = field.message_type
    if entry is None or not entry.GetOptions().map_entry:
        return field
    return entry.fields_by_name["value"]
