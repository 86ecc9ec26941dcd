from plexclient.wire.v1 import common_pb2 as _common_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class OperationState(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    OPERATION_STATE_UNSPECIFIED: _ClassVar[OperationState]
    OPERATION_STATE_RECEIVED: _ClassVar[OperationState]
    OPERATION_STATE_QUEUED: _ClassVar[OperationState]
    OPERATION_STATE_STAGED: _ClassVar[OperationState]
    OPERATION_STATE_GRANTED: _ClassVar[OperationState]
    OPERATION_STATE_RUNNING: _ClassVar[OperationState]
    OPERATION_STATE_APPLIED: _ClassVar[OperationState]
    OPERATION_STATE_ANSWERED: _ClassVar[OperationState]
    OPERATION_STATE_RELEASED: _ClassVar[OperationState]
    OPERATION_STATE_REFUSED: _ClassVar[OperationState]
    OPERATION_STATE_FAILED: _ClassVar[OperationState]

class FinishReason(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    FINISH_REASON_UNSPECIFIED: _ClassVar[FinishReason]
    FINISH_REASON_STOP: _ClassVar[FinishReason]
    FINISH_REASON_LENGTH: _ClassVar[FinishReason]
    FINISH_REASON_ABORT: _ClassVar[FinishReason]
OPERATION_STATE_UNSPECIFIED: OperationState
OPERATION_STATE_RECEIVED: OperationState
OPERATION_STATE_QUEUED: OperationState
OPERATION_STATE_STAGED: OperationState
OPERATION_STATE_GRANTED: OperationState
OPERATION_STATE_RUNNING: OperationState
OPERATION_STATE_APPLIED: OperationState
OPERATION_STATE_ANSWERED: OperationState
OPERATION_STATE_RELEASED: OperationState
OPERATION_STATE_REFUSED: OperationState
OPERATION_STATE_FAILED: OperationState
FINISH_REASON_UNSPECIFIED: FinishReason
FINISH_REASON_STOP: FinishReason
FINISH_REASON_LENGTH: FinishReason
FINISH_REASON_ABORT: FinishReason

class Operation(_message.Message):
    __slots__ = ("operation_id", "tenant", "job_id", "deployment_id", "seq", "after", "payload", "plan", "refusal", "digest", "controller", "traceparent", "position", "initialize", "forward", "forward_backward", "backward", "step", "zero_grad", "publish", "pull", "generate", "save", "load", "export", "state_digest", "noop", "seed")
    OPERATION_ID_FIELD_NUMBER: _ClassVar[int]
    TENANT_FIELD_NUMBER: _ClassVar[int]
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    DEPLOYMENT_ID_FIELD_NUMBER: _ClassVar[int]
    SEQ_FIELD_NUMBER: _ClassVar[int]
    AFTER_FIELD_NUMBER: _ClassVar[int]
    PAYLOAD_FIELD_NUMBER: _ClassVar[int]
    PLAN_FIELD_NUMBER: _ClassVar[int]
    REFUSAL_FIELD_NUMBER: _ClassVar[int]
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    CONTROLLER_FIELD_NUMBER: _ClassVar[int]
    TRACEPARENT_FIELD_NUMBER: _ClassVar[int]
    POSITION_FIELD_NUMBER: _ClassVar[int]
    INITIALIZE_FIELD_NUMBER: _ClassVar[int]
    FORWARD_FIELD_NUMBER: _ClassVar[int]
    FORWARD_BACKWARD_FIELD_NUMBER: _ClassVar[int]
    BACKWARD_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    ZERO_GRAD_FIELD_NUMBER: _ClassVar[int]
    PUBLISH_FIELD_NUMBER: _ClassVar[int]
    PULL_FIELD_NUMBER: _ClassVar[int]
    GENERATE_FIELD_NUMBER: _ClassVar[int]
    SAVE_FIELD_NUMBER: _ClassVar[int]
    LOAD_FIELD_NUMBER: _ClassVar[int]
    EXPORT_FIELD_NUMBER: _ClassVar[int]
    STATE_DIGEST_FIELD_NUMBER: _ClassVar[int]
    NOOP_FIELD_NUMBER: _ClassVar[int]
    SEED_FIELD_NUMBER: _ClassVar[int]
    operation_id: bytes
    tenant: str
    job_id: str
    deployment_id: str
    seq: int
    after: _containers.RepeatedScalarFieldContainer[bytes]
    payload: _common_pb2.Payload
    plan: DispatchPlan
    refusal: _common_pb2.Error
    digest: bytes
    controller: int
    traceparent: str
    position: str
    initialize: Initialize
    forward: Forward
    forward_backward: ForwardBackward
    backward: Backward
    step: Step
    zero_grad: ZeroGrad
    publish: Publish
    pull: Pull
    generate: Generate
    save: Save
    load: Load
    export: Export
    state_digest: StateDigest
    noop: Noop
    seed: Seed
    def __init__(self, operation_id: _Optional[bytes] = ..., tenant: _Optional[str] = ..., job_id: _Optional[str] = ..., deployment_id: _Optional[str] = ..., seq: _Optional[int] = ..., after: _Optional[_Iterable[bytes]] = ..., payload: _Optional[_Union[_common_pb2.Payload, _Mapping]] = ..., plan: _Optional[_Union[DispatchPlan, _Mapping]] = ..., refusal: _Optional[_Union[_common_pb2.Error, _Mapping]] = ..., digest: _Optional[bytes] = ..., controller: _Optional[int] = ..., traceparent: _Optional[str] = ..., position: _Optional[str] = ..., initialize: _Optional[_Union[Initialize, _Mapping]] = ..., forward: _Optional[_Union[Forward, _Mapping]] = ..., forward_backward: _Optional[_Union[ForwardBackward, _Mapping]] = ..., backward: _Optional[_Union[Backward, _Mapping]] = ..., step: _Optional[_Union[Step, _Mapping]] = ..., zero_grad: _Optional[_Union[ZeroGrad, _Mapping]] = ..., publish: _Optional[_Union[Publish, _Mapping]] = ..., pull: _Optional[_Union[Pull, _Mapping]] = ..., generate: _Optional[_Union[Generate, _Mapping]] = ..., save: _Optional[_Union[Save, _Mapping]] = ..., load: _Optional[_Union[Load, _Mapping]] = ..., export: _Optional[_Union[Export, _Mapping]] = ..., state_digest: _Optional[_Union[StateDigest, _Mapping]] = ..., noop: _Optional[_Union[Noop, _Mapping]] = ..., seed: _Optional[_Union[Seed, _Mapping]] = ...) -> None: ...

class Initialize(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ZeroGrad(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class StateDigest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class Noop(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class Seed(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class Forward(_message.Message):
    __slots__ = ("temperature",)
    TEMPERATURE_FIELD_NUMBER: _ClassVar[int]
    temperature: float
    def __init__(self, temperature: _Optional[float] = ...) -> None: ...

class ForwardBackward(_message.Message):
    __slots__ = ("loss", "loss_args", "return_logprobs", "temperature")
    class LossArgsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: float
        def __init__(self, key: _Optional[str] = ..., value: _Optional[float] = ...) -> None: ...
    LOSS_FIELD_NUMBER: _ClassVar[int]
    LOSS_ARGS_FIELD_NUMBER: _ClassVar[int]
    RETURN_LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    TEMPERATURE_FIELD_NUMBER: _ClassVar[int]
    loss: str
    loss_args: _containers.ScalarMap[str, float]
    return_logprobs: bool
    temperature: float
    def __init__(self, loss: _Optional[str] = ..., loss_args: _Optional[_Mapping[str, float]] = ..., return_logprobs: _Optional[bool] = ..., temperature: _Optional[float] = ...) -> None: ...

class Backward(_message.Message):
    __slots__ = ("temperature",)
    TEMPERATURE_FIELD_NUMBER: _ClassVar[int]
    temperature: float
    def __init__(self, temperature: _Optional[float] = ...) -> None: ...

class Step(_message.Message):
    __slots__ = ("lr", "beta1", "beta2", "eps", "weight_decay", "clip_grad_norm", "decay_vectors")
    LR_FIELD_NUMBER: _ClassVar[int]
    BETA1_FIELD_NUMBER: _ClassVar[int]
    BETA2_FIELD_NUMBER: _ClassVar[int]
    EPS_FIELD_NUMBER: _ClassVar[int]
    WEIGHT_DECAY_FIELD_NUMBER: _ClassVar[int]
    CLIP_GRAD_NORM_FIELD_NUMBER: _ClassVar[int]
    DECAY_VECTORS_FIELD_NUMBER: _ClassVar[int]
    lr: float
    beta1: float
    beta2: float
    eps: float
    weight_decay: float
    clip_grad_norm: float
    decay_vectors: bool
    def __init__(self, lr: _Optional[float] = ..., beta1: _Optional[float] = ..., beta2: _Optional[float] = ..., eps: _Optional[float] = ..., weight_decay: _Optional[float] = ..., clip_grad_norm: _Optional[float] = ..., decay_vectors: _Optional[bool] = ...) -> None: ...

class Publish(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class Pull(_message.Message):
    __slots__ = ("source_deployment_id", "version", "finishes_turns")
    SOURCE_DEPLOYMENT_ID_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    FINISHES_TURNS_FIELD_NUMBER: _ClassVar[int]
    source_deployment_id: str
    version: int
    finishes_turns: bool
    def __init__(self, source_deployment_id: _Optional[str] = ..., version: _Optional[int] = ..., finishes_turns: _Optional[bool] = ...) -> None: ...

class Save(_message.Message):
    __slots__ = ("path", "optimizer", "root")
    PATH_FIELD_NUMBER: _ClassVar[int]
    OPTIMIZER_FIELD_NUMBER: _ClassVar[int]
    ROOT_FIELD_NUMBER: _ClassVar[int]
    path: str
    optimizer: bool
    root: str
    def __init__(self, path: _Optional[str] = ..., optimizer: _Optional[bool] = ..., root: _Optional[str] = ...) -> None: ...

class Load(_message.Message):
    __slots__ = ("path", "optimizer", "root")
    PATH_FIELD_NUMBER: _ClassVar[int]
    OPTIMIZER_FIELD_NUMBER: _ClassVar[int]
    ROOT_FIELD_NUMBER: _ClassVar[int]
    path: str
    optimizer: bool
    root: str
    def __init__(self, path: _Optional[str] = ..., optimizer: _Optional[bool] = ..., root: _Optional[str] = ...) -> None: ...

class Export(_message.Message):
    __slots__ = ("path", "root")
    PATH_FIELD_NUMBER: _ClassVar[int]
    ROOT_FIELD_NUMBER: _ClassVar[int]
    path: str
    root: str
    def __init__(self, path: _Optional[str] = ..., root: _Optional[str] = ...) -> None: ...

class SamplingParams(_message.Message):
    __slots__ = ("n", "max_tokens", "min_tokens", "temperature", "top_p", "top_k", "stop_token_ids", "stop", "ignore_eos", "seed", "prompt_logprobs", "texts", "min_p", "repetition_penalty", "presence_penalty", "frequency_penalty", "logit_bias", "top_logprobs", "special_texts", "top_prompt_logprobs", "structured")
    class LogitBiasEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: int
        value: float
        def __init__(self, key: _Optional[int] = ..., value: _Optional[float] = ...) -> None: ...
    N_FIELD_NUMBER: _ClassVar[int]
    MAX_TOKENS_FIELD_NUMBER: _ClassVar[int]
    MIN_TOKENS_FIELD_NUMBER: _ClassVar[int]
    TEMPERATURE_FIELD_NUMBER: _ClassVar[int]
    TOP_P_FIELD_NUMBER: _ClassVar[int]
    TOP_K_FIELD_NUMBER: _ClassVar[int]
    STOP_TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    STOP_FIELD_NUMBER: _ClassVar[int]
    IGNORE_EOS_FIELD_NUMBER: _ClassVar[int]
    SEED_FIELD_NUMBER: _ClassVar[int]
    PROMPT_LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    TEXTS_FIELD_NUMBER: _ClassVar[int]
    MIN_P_FIELD_NUMBER: _ClassVar[int]
    REPETITION_PENALTY_FIELD_NUMBER: _ClassVar[int]
    PRESENCE_PENALTY_FIELD_NUMBER: _ClassVar[int]
    FREQUENCY_PENALTY_FIELD_NUMBER: _ClassVar[int]
    LOGIT_BIAS_FIELD_NUMBER: _ClassVar[int]
    TOP_LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    SPECIAL_TEXTS_FIELD_NUMBER: _ClassVar[int]
    TOP_PROMPT_LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    STRUCTURED_FIELD_NUMBER: _ClassVar[int]
    n: int
    max_tokens: int
    min_tokens: int
    temperature: float
    top_p: float
    top_k: int
    stop_token_ids: _containers.RepeatedScalarFieldContainer[int]
    stop: _containers.RepeatedScalarFieldContainer[str]
    ignore_eos: bool
    seed: int
    prompt_logprobs: bool
    texts: bool
    min_p: float
    repetition_penalty: float
    presence_penalty: float
    frequency_penalty: float
    logit_bias: _containers.ScalarMap[int, float]
    top_logprobs: int
    special_texts: bool
    top_prompt_logprobs: int
    structured: str
    def __init__(self, n: _Optional[int] = ..., max_tokens: _Optional[int] = ..., min_tokens: _Optional[int] = ..., temperature: _Optional[float] = ..., top_p: _Optional[float] = ..., top_k: _Optional[int] = ..., stop_token_ids: _Optional[_Iterable[int]] = ..., stop: _Optional[_Iterable[str]] = ..., ignore_eos: _Optional[bool] = ..., seed: _Optional[int] = ..., prompt_logprobs: _Optional[bool] = ..., texts: _Optional[bool] = ..., min_p: _Optional[float] = ..., repetition_penalty: _Optional[float] = ..., presence_penalty: _Optional[float] = ..., frequency_penalty: _Optional[float] = ..., logit_bias: _Optional[_Mapping[int, float]] = ..., top_logprobs: _Optional[int] = ..., special_texts: _Optional[bool] = ..., top_prompt_logprobs: _Optional[int] = ..., structured: _Optional[str] = ...) -> None: ...

class Prompt(_message.Message):
    __slots__ = ("token_ids", "generated", "draws_used", "text", "chat", "texts")
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    GENERATED_FIELD_NUMBER: _ClassVar[int]
    DRAWS_USED_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    CHAT_FIELD_NUMBER: _ClassVar[int]
    TEXTS_FIELD_NUMBER: _ClassVar[int]
    token_ids: _containers.RepeatedScalarFieldContainer[int]
    generated: _containers.RepeatedScalarFieldContainer[int]
    draws_used: int
    text: str
    chat: str
    texts: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, token_ids: _Optional[_Iterable[int]] = ..., generated: _Optional[_Iterable[int]] = ..., draws_used: _Optional[int] = ..., text: _Optional[str] = ..., chat: _Optional[str] = ..., texts: _Optional[_Iterable[str]] = ...) -> None: ...

class Generate(_message.Message):
    __slots__ = ("prompts", "sampling", "session", "prompt_texts", "encodes_only")
    PROMPTS_FIELD_NUMBER: _ClassVar[int]
    SAMPLING_FIELD_NUMBER: _ClassVar[int]
    SESSION_FIELD_NUMBER: _ClassVar[int]
    PROMPT_TEXTS_FIELD_NUMBER: _ClassVar[int]
    ENCODES_ONLY_FIELD_NUMBER: _ClassVar[int]
    prompts: _containers.RepeatedCompositeFieldContainer[Prompt]
    sampling: SamplingParams
    session: str
    prompt_texts: bool
    encodes_only: bool
    def __init__(self, prompts: _Optional[_Iterable[_Union[Prompt, _Mapping]]] = ..., sampling: _Optional[_Union[SamplingParams, _Mapping]] = ..., session: _Optional[str] = ..., prompt_texts: _Optional[bool] = ..., encodes_only: _Optional[bool] = ...) -> None: ...

class DispatchPlan(_message.Message):
    __slots__ = ("version", "ranks", "lengths")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    RANKS_FIELD_NUMBER: _ClassVar[int]
    LENGTHS_FIELD_NUMBER: _ClassVar[int]
    version: int
    ranks: _containers.RepeatedCompositeFieldContainer[RankPlan]
    lengths: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, version: _Optional[int] = ..., ranks: _Optional[_Iterable[_Union[RankPlan, _Mapping]]] = ..., lengths: _Optional[_Iterable[int]] = ...) -> None: ...

class RankPlan(_message.Message):
    __slots__ = ("micro_batches",)
    MICRO_BATCHES_FIELD_NUMBER: _ClassVar[int]
    micro_batches: _containers.RepeatedCompositeFieldContainer[MicroBatch]
    def __init__(self, micro_batches: _Optional[_Iterable[_Union[MicroBatch, _Mapping]]] = ...) -> None: ...

class MicroBatch(_message.Message):
    __slots__ = ("sequences",)
    SEQUENCES_FIELD_NUMBER: _ClassVar[int]
    sequences: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, sequences: _Optional[_Iterable[int]] = ...) -> None: ...

class ResultShard(_message.Message):
    __slots__ = ("sequences", "payload")
    SEQUENCES_FIELD_NUMBER: _ClassVar[int]
    PAYLOAD_FIELD_NUMBER: _ClassVar[int]
    sequences: _containers.RepeatedScalarFieldContainer[int]
    payload: _common_pb2.Payload
    def __init__(self, sequences: _Optional[_Iterable[int]] = ..., payload: _Optional[_Union[_common_pb2.Payload, _Mapping]] = ...) -> None: ...

class OperationResult(_message.Message):
    __slots__ = ("operation_id", "state", "error", "metrics", "texts", "shards", "weight_version", "times")
    class MetricsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: float
        def __init__(self, key: _Optional[str] = ..., value: _Optional[float] = ...) -> None: ...
    class TextsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    OPERATION_ID_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    METRICS_FIELD_NUMBER: _ClassVar[int]
    TEXTS_FIELD_NUMBER: _ClassVar[int]
    SHARDS_FIELD_NUMBER: _ClassVar[int]
    WEIGHT_VERSION_FIELD_NUMBER: _ClassVar[int]
    TIMES_FIELD_NUMBER: _ClassVar[int]
    operation_id: bytes
    state: OperationState
    error: _common_pb2.Error
    metrics: _containers.ScalarMap[str, float]
    texts: _containers.ScalarMap[str, str]
    shards: _containers.RepeatedCompositeFieldContainer[ResultShard]
    weight_version: int
    times: OperationTimes
    def __init__(self, operation_id: _Optional[bytes] = ..., state: _Optional[_Union[OperationState, str]] = ..., error: _Optional[_Union[_common_pb2.Error, _Mapping]] = ..., metrics: _Optional[_Mapping[str, float]] = ..., texts: _Optional[_Mapping[str, str]] = ..., shards: _Optional[_Iterable[_Union[ResultShard, _Mapping]]] = ..., weight_version: _Optional[int] = ..., times: _Optional[_Union[OperationTimes, _Mapping]] = ...) -> None: ...

class OperationTimes(_message.Message):
    __slots__ = ("queued_us", "switch_us", "run_us")
    QUEUED_US_FIELD_NUMBER: _ClassVar[int]
    SWITCH_US_FIELD_NUMBER: _ClassVar[int]
    RUN_US_FIELD_NUMBER: _ClassVar[int]
    queued_us: int
    switch_us: int
    run_us: int
    def __init__(self, queued_us: _Optional[int] = ..., switch_us: _Optional[int] = ..., run_us: _Optional[int] = ...) -> None: ...

class VersionSpan(_message.Message):
    __slots__ = ("version", "start", "end", "deployment_id", "incarnation")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    START_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    DEPLOYMENT_ID_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    version: int
    start: int
    end: int
    deployment_id: str
    incarnation: int
    def __init__(self, version: _Optional[int] = ..., start: _Optional[int] = ..., end: _Optional[int] = ..., deployment_id: _Optional[str] = ..., incarnation: _Optional[int] = ...) -> None: ...

class SampleDelta(_message.Message):
    __slots__ = ("prompt_index", "sample_index", "position", "token_ids", "logprobs", "finish_reason", "versions", "stop_reason", "prompt_logprobs", "texts", "cached_tokens", "likely", "prompt_likely")
    PROMPT_INDEX_FIELD_NUMBER: _ClassVar[int]
    SAMPLE_INDEX_FIELD_NUMBER: _ClassVar[int]
    POSITION_FIELD_NUMBER: _ClassVar[int]
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    FINISH_REASON_FIELD_NUMBER: _ClassVar[int]
    VERSIONS_FIELD_NUMBER: _ClassVar[int]
    STOP_REASON_FIELD_NUMBER: _ClassVar[int]
    PROMPT_LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    TEXTS_FIELD_NUMBER: _ClassVar[int]
    CACHED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    LIKELY_FIELD_NUMBER: _ClassVar[int]
    PROMPT_LIKELY_FIELD_NUMBER: _ClassVar[int]
    prompt_index: int
    sample_index: int
    position: int
    token_ids: _containers.RepeatedScalarFieldContainer[int]
    logprobs: _containers.RepeatedScalarFieldContainer[float]
    finish_reason: FinishReason
    versions: _containers.RepeatedCompositeFieldContainer[VersionSpan]
    stop_reason: str
    prompt_logprobs: _containers.RepeatedScalarFieldContainer[float]
    texts: _containers.RepeatedScalarFieldContainer[str]
    cached_tokens: int
    likely: _containers.RepeatedCompositeFieldContainer[LikelyTokens]
    prompt_likely: _containers.RepeatedCompositeFieldContainer[LikelyTokens]
    def __init__(self, prompt_index: _Optional[int] = ..., sample_index: _Optional[int] = ..., position: _Optional[int] = ..., token_ids: _Optional[_Iterable[int]] = ..., logprobs: _Optional[_Iterable[float]] = ..., finish_reason: _Optional[_Union[FinishReason, str]] = ..., versions: _Optional[_Iterable[_Union[VersionSpan, _Mapping]]] = ..., stop_reason: _Optional[str] = ..., prompt_logprobs: _Optional[_Iterable[float]] = ..., texts: _Optional[_Iterable[str]] = ..., cached_tokens: _Optional[int] = ..., likely: _Optional[_Iterable[_Union[LikelyTokens, _Mapping]]] = ..., prompt_likely: _Optional[_Iterable[_Union[LikelyTokens, _Mapping]]] = ...) -> None: ...

class LikelyTokens(_message.Message):
    __slots__ = ("token_ids", "logprobs", "texts")
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    TEXTS_FIELD_NUMBER: _ClassVar[int]
    token_ids: _containers.RepeatedScalarFieldContainer[int]
    logprobs: _containers.RepeatedScalarFieldContainer[float]
    texts: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, token_ids: _Optional[_Iterable[int]] = ..., logprobs: _Optional[_Iterable[float]] = ..., texts: _Optional[_Iterable[str]] = ...) -> None: ...

class GenerateFrame(_message.Message):
    __slots__ = ("cursor", "deltas", "result", "prompts")
    CURSOR_FIELD_NUMBER: _ClassVar[int]
    DELTAS_FIELD_NUMBER: _ClassVar[int]
    RESULT_FIELD_NUMBER: _ClassVar[int]
    PROMPTS_FIELD_NUMBER: _ClassVar[int]
    cursor: int
    deltas: _containers.RepeatedCompositeFieldContainer[SampleDelta]
    result: OperationResult
    prompts: _containers.RepeatedCompositeFieldContainer[Prompt]
    def __init__(self, cursor: _Optional[int] = ..., deltas: _Optional[_Iterable[_Union[SampleDelta, _Mapping]]] = ..., result: _Optional[_Union[OperationResult, _Mapping]] = ..., prompts: _Optional[_Iterable[_Union[Prompt, _Mapping]]] = ...) -> None: ...
