from google.protobuf import descriptor_pb2 as _descriptor_pb2
from plexclient.wire.v1 import common_pb2 as _common_pb2
from plexclient.wire.v1 import operations_pb2 as _operations_pb2
from plexclient.wire.v1 import reward_pb2 as _reward_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class JobState(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    JOB_STATE_UNSPECIFIED: _ClassVar[JobState]
    JOB_STATE_QUEUED: _ClassVar[JobState]
    JOB_STATE_RUNNING: _ClassVar[JobState]
    JOB_STATE_COMPLETED: _ClassVar[JobState]
    JOB_STATE_FAILED: _ClassVar[JobState]
    JOB_STATE_CANCELLED: _ClassVar[JobState]

class NodeChange(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    NODE_CHANGE_UNSPECIFIED: _ClassVar[NodeChange]
    NODE_CHANGE_CORDON: _ClassVar[NodeChange]
    NODE_CHANGE_DRAIN: _ClassVar[NodeChange]
    NODE_CHANGE_UNCORDON: _ClassVar[NodeChange]
JOB_STATE_UNSPECIFIED: JobState
JOB_STATE_QUEUED: JobState
JOB_STATE_RUNNING: JobState
JOB_STATE_COMPLETED: JobState
JOB_STATE_FAILED: JobState
JOB_STATE_CANCELLED: JobState
NODE_CHANGE_UNSPECIFIED: NodeChange
NODE_CHANGE_CORDON: NodeChange
NODE_CHANGE_DRAIN: NodeChange
NODE_CHANGE_UNCORDON: NodeChange
OPERATORS_ONLY_FIELD_NUMBER: _ClassVar[int]
operators_only: _descriptor.FieldDescriptor
WAITS_FIELD_NUMBER: _ClassVar[int]
waits: _descriptor.FieldDescriptor
READS_FIELD_NUMBER: _ClassVar[int]
reads: _descriptor.FieldDescriptor
MEMBERS_ONLY_FIELD_NUMBER: _ClassVar[int]
members_only: _descriptor.FieldDescriptor

class Record(_message.Message):
    __slots__ = ("key", "body")
    KEY_FIELD_NUMBER: _ClassVar[int]
    BODY_FIELD_NUMBER: _ClassVar[int]
    key: str
    body: bytes
    def __init__(self, key: _Optional[str] = ..., body: _Optional[bytes] = ...) -> None: ...

class KeepRecordsRequest(_message.Message):
    __slots__ = ("tenant", "records", "gone")
    TENANT_FIELD_NUMBER: _ClassVar[int]
    RECORDS_FIELD_NUMBER: _ClassVar[int]
    GONE_FIELD_NUMBER: _ClassVar[int]
    tenant: str
    records: _containers.RepeatedCompositeFieldContainer[Record]
    gone: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, tenant: _Optional[str] = ..., records: _Optional[_Iterable[_Union[Record, _Mapping]]] = ..., gone: _Optional[_Iterable[str]] = ...) -> None: ...

class KeepRecordsReply(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class GetRecordsRequest(_message.Message):
    __slots__ = ("tenant", "prefix", "after")
    TENANT_FIELD_NUMBER: _ClassVar[int]
    PREFIX_FIELD_NUMBER: _ClassVar[int]
    AFTER_FIELD_NUMBER: _ClassVar[int]
    tenant: str
    prefix: str
    after: str
    def __init__(self, tenant: _Optional[str] = ..., prefix: _Optional[str] = ..., after: _Optional[str] = ...) -> None: ...

class GetRecordsReply(_message.Message):
    __slots__ = ("records", "has_more")
    RECORDS_FIELD_NUMBER: _ClassVar[int]
    HAS_MORE_FIELD_NUMBER: _ClassVar[int]
    records: _containers.RepeatedCompositeFieldContainer[Record]
    has_more: bool
    def __init__(self, records: _Optional[_Iterable[_Union[Record, _Mapping]]] = ..., has_more: _Optional[bool] = ...) -> None: ...

class CreateJobRequest(_message.Message):
    __slots__ = ("job_id", "name", "tenant", "session_ttl_us", "labels", "priority", "max_slowdown", "expected_steps", "resume_id", "is_seen_dead")
    class LabelsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    TENANT_FIELD_NUMBER: _ClassVar[int]
    SESSION_TTL_US_FIELD_NUMBER: _ClassVar[int]
    LABELS_FIELD_NUMBER: _ClassVar[int]
    PRIORITY_FIELD_NUMBER: _ClassVar[int]
    MAX_SLOWDOWN_FIELD_NUMBER: _ClassVar[int]
    EXPECTED_STEPS_FIELD_NUMBER: _ClassVar[int]
    RESUME_ID_FIELD_NUMBER: _ClassVar[int]
    IS_SEEN_DEAD_FIELD_NUMBER: _ClassVar[int]
    job_id: str
    name: str
    tenant: str
    session_ttl_us: int
    labels: _containers.ScalarMap[str, str]
    priority: int
    max_slowdown: float
    expected_steps: int
    resume_id: str
    is_seen_dead: bool
    def __init__(self, job_id: _Optional[str] = ..., name: _Optional[str] = ..., tenant: _Optional[str] = ..., session_ttl_us: _Optional[int] = ..., labels: _Optional[_Mapping[str, str]] = ..., priority: _Optional[int] = ..., max_slowdown: _Optional[float] = ..., expected_steps: _Optional[int] = ..., resume_id: _Optional[str] = ..., is_seen_dead: _Optional[bool] = ...) -> None: ...

class Job(_message.Message):
    __slots__ = ("job_id", "name", "tenant", "state", "reason", "exit_code", "created_us", "ended_us", "session_ttl_us", "labels", "deployment_ids", "operations_done", "device_us", "phase", "notice", "controller")
    class LabelsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    TENANT_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    EXIT_CODE_FIELD_NUMBER: _ClassVar[int]
    CREATED_US_FIELD_NUMBER: _ClassVar[int]
    ENDED_US_FIELD_NUMBER: _ClassVar[int]
    SESSION_TTL_US_FIELD_NUMBER: _ClassVar[int]
    LABELS_FIELD_NUMBER: _ClassVar[int]
    DEPLOYMENT_IDS_FIELD_NUMBER: _ClassVar[int]
    OPERATIONS_DONE_FIELD_NUMBER: _ClassVar[int]
    DEVICE_US_FIELD_NUMBER: _ClassVar[int]
    PHASE_FIELD_NUMBER: _ClassVar[int]
    NOTICE_FIELD_NUMBER: _ClassVar[int]
    CONTROLLER_FIELD_NUMBER: _ClassVar[int]
    job_id: str
    name: str
    tenant: str
    state: JobState
    reason: str
    exit_code: int
    created_us: int
    ended_us: int
    session_ttl_us: int
    labels: _containers.ScalarMap[str, str]
    deployment_ids: _containers.RepeatedScalarFieldContainer[str]
    operations_done: int
    device_us: int
    phase: str
    notice: str
    controller: int
    def __init__(self, job_id: _Optional[str] = ..., name: _Optional[str] = ..., tenant: _Optional[str] = ..., state: _Optional[_Union[JobState, str]] = ..., reason: _Optional[str] = ..., exit_code: _Optional[int] = ..., created_us: _Optional[int] = ..., ended_us: _Optional[int] = ..., session_ttl_us: _Optional[int] = ..., labels: _Optional[_Mapping[str, str]] = ..., deployment_ids: _Optional[_Iterable[str]] = ..., operations_done: _Optional[int] = ..., device_us: _Optional[int] = ..., phase: _Optional[str] = ..., notice: _Optional[str] = ..., controller: _Optional[int] = ...) -> None: ...

class KeepAliveRequest(_message.Message):
    __slots__ = ("job_id", "tenant", "acks", "metrics", "controller", "period_us")
    class AcksEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    class MetricsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: float
        def __init__(self, key: _Optional[str] = ..., value: _Optional[float] = ...) -> None: ...
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    TENANT_FIELD_NUMBER: _ClassVar[int]
    ACKS_FIELD_NUMBER: _ClassVar[int]
    METRICS_FIELD_NUMBER: _ClassVar[int]
    CONTROLLER_FIELD_NUMBER: _ClassVar[int]
    PERIOD_US_FIELD_NUMBER: _ClassVar[int]
    job_id: str
    tenant: str
    acks: _containers.ScalarMap[str, int]
    metrics: _containers.ScalarMap[str, float]
    controller: int
    period_us: int
    def __init__(self, job_id: _Optional[str] = ..., tenant: _Optional[str] = ..., acks: _Optional[_Mapping[str, int]] = ..., metrics: _Optional[_Mapping[str, float]] = ..., controller: _Optional[int] = ..., period_us: _Optional[int] = ...) -> None: ...

class KeepAliveReply(_message.Message):
    __slots__ = ("durable_seqs", "state", "reason", "notice")
    class DurableSeqsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    DURABLE_SEQS_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    NOTICE_FIELD_NUMBER: _ClassVar[int]
    durable_seqs: _containers.ScalarMap[str, int]
    state: JobState
    reason: str
    notice: str
    def __init__(self, durable_seqs: _Optional[_Mapping[str, int]] = ..., state: _Optional[_Union[JobState, str]] = ..., reason: _Optional[str] = ..., notice: _Optional[str] = ...) -> None: ...

class EndJobRequest(_message.Message):
    __slots__ = ("job_id", "tenant", "outcome", "reason", "exit_code", "controller")
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    TENANT_FIELD_NUMBER: _ClassVar[int]
    OUTCOME_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    EXIT_CODE_FIELD_NUMBER: _ClassVar[int]
    CONTROLLER_FIELD_NUMBER: _ClassVar[int]
    job_id: str
    tenant: str
    outcome: JobState
    reason: str
    exit_code: int
    controller: int
    def __init__(self, job_id: _Optional[str] = ..., tenant: _Optional[str] = ..., outcome: _Optional[_Union[JobState, str]] = ..., reason: _Optional[str] = ..., exit_code: _Optional[int] = ..., controller: _Optional[int] = ...) -> None: ...

class Optimizer(_message.Message):
    __slots__ = ("kind", "lr", "beta1", "beta2", "eps", "weight_decay", "clip_grad_norm", "decay_vectors", "on")
    KIND_FIELD_NUMBER: _ClassVar[int]
    LR_FIELD_NUMBER: _ClassVar[int]
    BETA1_FIELD_NUMBER: _ClassVar[int]
    BETA2_FIELD_NUMBER: _ClassVar[int]
    EPS_FIELD_NUMBER: _ClassVar[int]
    WEIGHT_DECAY_FIELD_NUMBER: _ClassVar[int]
    CLIP_GRAD_NORM_FIELD_NUMBER: _ClassVar[int]
    DECAY_VECTORS_FIELD_NUMBER: _ClassVar[int]
    ON_FIELD_NUMBER: _ClassVar[int]
    kind: str
    lr: float
    beta1: float
    beta2: float
    eps: float
    weight_decay: float
    clip_grad_norm: float
    decay_vectors: bool
    on: str
    def __init__(self, kind: _Optional[str] = ..., lr: _Optional[float] = ..., beta1: _Optional[float] = ..., beta2: _Optional[float] = ..., eps: _Optional[float] = ..., weight_decay: _Optional[float] = ..., clip_grad_norm: _Optional[float] = ..., decay_vectors: _Optional[bool] = ..., on: _Optional[str] = ...) -> None: ...

class LoRA(_message.Message):
    __slots__ = ("rank", "alpha", "targets", "unembedding")
    RANK_FIELD_NUMBER: _ClassVar[int]
    ALPHA_FIELD_NUMBER: _ClassVar[int]
    TARGETS_FIELD_NUMBER: _ClassVar[int]
    UNEMBEDDING_FIELD_NUMBER: _ClassVar[int]
    rank: int
    alpha: float
    targets: _containers.RepeatedScalarFieldContainer[str]
    unembedding: bool
    def __init__(self, rank: _Optional[int] = ..., alpha: _Optional[float] = ..., targets: _Optional[_Iterable[str]] = ..., unembedding: _Optional[bool] = ...) -> None: ...

class InstanceRange(_message.Message):
    __slots__ = ("kind", "least", "most", "price")
    KIND_FIELD_NUMBER: _ClassVar[int]
    LEAST_FIELD_NUMBER: _ClassVar[int]
    MOST_FIELD_NUMBER: _ClassVar[int]
    PRICE_FIELD_NUMBER: _ClassVar[int]
    kind: str
    least: int
    most: int
    price: float
    def __init__(self, kind: _Optional[str] = ..., least: _Optional[int] = ..., most: _Optional[int] = ..., price: _Optional[float] = ...) -> None: ...

class DeploymentSpec(_message.Message):
    __slots__ = ("role", "model", "backend", "parallel", "optimizer", "dtype", "seed", "micro_batch_tokens", "max_model_len", "num_instances", "model_deployment_id", "kv_cache_bytes", "max_logprob_gap", "instances", "shares_devices", "where_it_trains", "seeds", "is_durable", "model_root", "recompute", "checkpoint_every", "checkpoints_kept", "checkpoint_root", "lora")
    ROLE_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    BACKEND_FIELD_NUMBER: _ClassVar[int]
    PARALLEL_FIELD_NUMBER: _ClassVar[int]
    OPTIMIZER_FIELD_NUMBER: _ClassVar[int]
    DTYPE_FIELD_NUMBER: _ClassVar[int]
    SEED_FIELD_NUMBER: _ClassVar[int]
    MICRO_BATCH_TOKENS_FIELD_NUMBER: _ClassVar[int]
    MAX_MODEL_LEN_FIELD_NUMBER: _ClassVar[int]
    NUM_INSTANCES_FIELD_NUMBER: _ClassVar[int]
    MODEL_DEPLOYMENT_ID_FIELD_NUMBER: _ClassVar[int]
    KV_CACHE_BYTES_FIELD_NUMBER: _ClassVar[int]
    MAX_LOGPROB_GAP_FIELD_NUMBER: _ClassVar[int]
    INSTANCES_FIELD_NUMBER: _ClassVar[int]
    SHARES_DEVICES_FIELD_NUMBER: _ClassVar[int]
    WHERE_IT_TRAINS_FIELD_NUMBER: _ClassVar[int]
    SEEDS_FIELD_NUMBER: _ClassVar[int]
    IS_DURABLE_FIELD_NUMBER: _ClassVar[int]
    MODEL_ROOT_FIELD_NUMBER: _ClassVar[int]
    RECOMPUTE_FIELD_NUMBER: _ClassVar[int]
    CHECKPOINT_EVERY_FIELD_NUMBER: _ClassVar[int]
    CHECKPOINTS_KEPT_FIELD_NUMBER: _ClassVar[int]
    CHECKPOINT_ROOT_FIELD_NUMBER: _ClassVar[int]
    LORA_FIELD_NUMBER: _ClassVar[int]
    role: str
    model: str
    backend: str
    parallel: _common_pb2.Parallel
    optimizer: Optimizer
    dtype: str
    seed: int
    micro_batch_tokens: int
    max_model_len: int
    num_instances: int
    model_deployment_id: str
    kv_cache_bytes: int
    max_logprob_gap: float
    instances: _containers.RepeatedCompositeFieldContainer[InstanceRange]
    shares_devices: bool
    where_it_trains: bool
    seeds: str
    is_durable: bool
    model_root: str
    recompute: str
    checkpoint_every: int
    checkpoints_kept: int
    checkpoint_root: str
    lora: LoRA
    def __init__(self, role: _Optional[str] = ..., model: _Optional[str] = ..., backend: _Optional[str] = ..., parallel: _Optional[_Union[_common_pb2.Parallel, _Mapping]] = ..., optimizer: _Optional[_Union[Optimizer, _Mapping]] = ..., dtype: _Optional[str] = ..., seed: _Optional[int] = ..., micro_batch_tokens: _Optional[int] = ..., max_model_len: _Optional[int] = ..., num_instances: _Optional[int] = ..., model_deployment_id: _Optional[str] = ..., kv_cache_bytes: _Optional[int] = ..., max_logprob_gap: _Optional[float] = ..., instances: _Optional[_Iterable[_Union[InstanceRange, _Mapping]]] = ..., shares_devices: _Optional[bool] = ..., where_it_trains: _Optional[bool] = ..., seeds: _Optional[str] = ..., is_durable: _Optional[bool] = ..., model_root: _Optional[str] = ..., recompute: _Optional[str] = ..., checkpoint_every: _Optional[int] = ..., checkpoints_kept: _Optional[int] = ..., checkpoint_root: _Optional[str] = ..., lora: _Optional[_Union[LoRA, _Mapping]] = ...) -> None: ...

class CreateDeploymentRequest(_message.Message):
    __slots__ = ("deployment_id", "job_id", "tenant", "name", "spec")
    DEPLOYMENT_ID_FIELD_NUMBER: _ClassVar[int]
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    TENANT_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    SPEC_FIELD_NUMBER: _ClassVar[int]
    deployment_id: str
    job_id: str
    tenant: str
    name: str
    spec: DeploymentSpec
    def __init__(self, deployment_id: _Optional[str] = ..., job_id: _Optional[str] = ..., tenant: _Optional[str] = ..., name: _Optional[str] = ..., spec: _Optional[_Union[DeploymentSpec, _Mapping]] = ...) -> None: ...

class CreateDeploymentsRequest(_message.Message):
    __slots__ = ("job_id", "tenant", "deployments")
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    TENANT_FIELD_NUMBER: _ClassVar[int]
    DEPLOYMENTS_FIELD_NUMBER: _ClassVar[int]
    job_id: str
    tenant: str
    deployments: _containers.RepeatedCompositeFieldContainer[CreateDeploymentRequest]
    def __init__(self, job_id: _Optional[str] = ..., tenant: _Optional[str] = ..., deployments: _Optional[_Iterable[_Union[CreateDeploymentRequest, _Mapping]]] = ...) -> None: ...

class CreateDeploymentsReply(_message.Message):
    __slots__ = ("deployments",)
    DEPLOYMENTS_FIELD_NUMBER: _ClassVar[int]
    deployments: _containers.RepeatedCompositeFieldContainer[Deployment]
    def __init__(self, deployments: _Optional[_Iterable[_Union[Deployment, _Mapping]]] = ...) -> None: ...

class GetDeploymentRequest(_message.Message):
    __slots__ = ("deployment_id", "job_id", "tenant")
    DEPLOYMENT_ID_FIELD_NUMBER: _ClassVar[int]
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    TENANT_FIELD_NUMBER: _ClassVar[int]
    deployment_id: str
    job_id: str
    tenant: str
    def __init__(self, deployment_id: _Optional[str] = ..., job_id: _Optional[str] = ..., tenant: _Optional[str] = ...) -> None: ...

class Deployment(_message.Message):
    __slots__ = ("deployment_id", "job_id", "tenant", "name", "spec", "state", "error", "incarnation", "blocks", "vocab_size", "max_sequence_length", "staging_nodes", "executor_address", "state_bytes", "wpg_id", "residency", "model_files", "former_nodes", "position", "applied_seq", "next_seq")
    DEPLOYMENT_ID_FIELD_NUMBER: _ClassVar[int]
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    TENANT_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    SPEC_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    BLOCKS_FIELD_NUMBER: _ClassVar[int]
    VOCAB_SIZE_FIELD_NUMBER: _ClassVar[int]
    MAX_SEQUENCE_LENGTH_FIELD_NUMBER: _ClassVar[int]
    STAGING_NODES_FIELD_NUMBER: _ClassVar[int]
    EXECUTOR_ADDRESS_FIELD_NUMBER: _ClassVar[int]
    STATE_BYTES_FIELD_NUMBER: _ClassVar[int]
    WPG_ID_FIELD_NUMBER: _ClassVar[int]
    RESIDENCY_FIELD_NUMBER: _ClassVar[int]
    MODEL_FILES_FIELD_NUMBER: _ClassVar[int]
    FORMER_NODES_FIELD_NUMBER: _ClassVar[int]
    POSITION_FIELD_NUMBER: _ClassVar[int]
    APPLIED_SEQ_FIELD_NUMBER: _ClassVar[int]
    NEXT_SEQ_FIELD_NUMBER: _ClassVar[int]
    deployment_id: str
    job_id: str
    tenant: str
    name: str
    spec: DeploymentSpec
    state: str
    error: _common_pb2.Error
    incarnation: int
    blocks: _containers.RepeatedCompositeFieldContainer[_common_pb2.DeviceBlock]
    vocab_size: int
    max_sequence_length: int
    staging_nodes: _containers.RepeatedCompositeFieldContainer[NodeAddress]
    executor_address: str
    state_bytes: int
    wpg_id: str
    residency: _common_pb2.Residency
    model_files: _containers.RepeatedScalarFieldContainer[str]
    former_nodes: _containers.RepeatedCompositeFieldContainer[NodeAddress]
    position: str
    applied_seq: int
    next_seq: int
    def __init__(self, deployment_id: _Optional[str] = ..., job_id: _Optional[str] = ..., tenant: _Optional[str] = ..., name: _Optional[str] = ..., spec: _Optional[_Union[DeploymentSpec, _Mapping]] = ..., state: _Optional[str] = ..., error: _Optional[_Union[_common_pb2.Error, _Mapping]] = ..., incarnation: _Optional[int] = ..., blocks: _Optional[_Iterable[_Union[_common_pb2.DeviceBlock, _Mapping]]] = ..., vocab_size: _Optional[int] = ..., max_sequence_length: _Optional[int] = ..., staging_nodes: _Optional[_Iterable[_Union[NodeAddress, _Mapping]]] = ..., executor_address: _Optional[str] = ..., state_bytes: _Optional[int] = ..., wpg_id: _Optional[str] = ..., residency: _Optional[_Union[_common_pb2.Residency, str]] = ..., model_files: _Optional[_Iterable[str]] = ..., former_nodes: _Optional[_Iterable[_Union[NodeAddress, _Mapping]]] = ..., position: _Optional[str] = ..., applied_seq: _Optional[int] = ..., next_seq: _Optional[int] = ...) -> None: ...

class NodeAddress(_message.Message):
    __slots__ = ("node_id", "agent", "state_manager")
    NODE_ID_FIELD_NUMBER: _ClassVar[int]
    AGENT_FIELD_NUMBER: _ClassVar[int]
    STATE_MANAGER_FIELD_NUMBER: _ClassVar[int]
    node_id: str
    agent: str
    state_manager: str
    def __init__(self, node_id: _Optional[str] = ..., agent: _Optional[str] = ..., state_manager: _Optional[str] = ...) -> None: ...

class StageRequest(_message.Message):
    __slots__ = ("header", "chunk")
    HEADER_FIELD_NUMBER: _ClassVar[int]
    CHUNK_FIELD_NUMBER: _ClassVar[int]
    header: StageHeader
    chunk: _common_pb2.Chunk
    def __init__(self, header: _Optional[_Union[StageHeader, _Mapping]] = ..., chunk: _Optional[_Union[_common_pb2.Chunk, _Mapping]] = ...) -> None: ...

class StageHeader(_message.Message):
    __slots__ = ("operation_id", "job_id", "deployment_id", "tenant", "tensors", "nbytes", "rules")
    OPERATION_ID_FIELD_NUMBER: _ClassVar[int]
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    DEPLOYMENT_ID_FIELD_NUMBER: _ClassVar[int]
    TENANT_FIELD_NUMBER: _ClassVar[int]
    TENSORS_FIELD_NUMBER: _ClassVar[int]
    NBYTES_FIELD_NUMBER: _ClassVar[int]
    RULES_FIELD_NUMBER: _ClassVar[int]
    operation_id: bytes
    job_id: str
    deployment_id: str
    tenant: str
    tensors: _containers.RepeatedCompositeFieldContainer[_common_pb2.TensorSpec]
    nbytes: int
    rules: BatchRules
    def __init__(self, operation_id: _Optional[bytes] = ..., job_id: _Optional[str] = ..., deployment_id: _Optional[str] = ..., tenant: _Optional[str] = ..., tensors: _Optional[_Iterable[_Union[_common_pb2.TensorSpec, _Mapping]]] = ..., nbytes: _Optional[int] = ..., rules: _Optional[_Union[BatchRules, _Mapping]] = ...) -> None: ...

class BatchRules(_message.Message):
    __slots__ = ("vocab_size", "max_sequence_length", "required")
    VOCAB_SIZE_FIELD_NUMBER: _ClassVar[int]
    MAX_SEQUENCE_LENGTH_FIELD_NUMBER: _ClassVar[int]
    REQUIRED_FIELD_NUMBER: _ClassVar[int]
    vocab_size: int
    max_sequence_length: int
    required: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, vocab_size: _Optional[int] = ..., max_sequence_length: _Optional[int] = ..., required: _Optional[_Iterable[str]] = ...) -> None: ...

class StageReply(_message.Message):
    __slots__ = ("nbytes", "error")
    NBYTES_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    nbytes: int
    error: _common_pb2.Error
    def __init__(self, nbytes: _Optional[int] = ..., error: _Optional[_Union[_common_pb2.Error, _Mapping]] = ...) -> None: ...

class GetResultRequest(_message.Message):
    __slots__ = ("operation_id", "job_id", "tenant", "no_wait")
    OPERATION_ID_FIELD_NUMBER: _ClassVar[int]
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    TENANT_FIELD_NUMBER: _ClassVar[int]
    NO_WAIT_FIELD_NUMBER: _ClassVar[int]
    operation_id: bytes
    job_id: str
    tenant: str
    no_wait: bool
    def __init__(self, operation_id: _Optional[bytes] = ..., job_id: _Optional[str] = ..., tenant: _Optional[str] = ..., no_wait: _Optional[bool] = ...) -> None: ...

class PayloadStagedRequest(_message.Message):
    __slots__ = ("operation_id", "job_id", "tenant", "deployment_id", "error", "plan", "node_ids", "is_under_way")
    OPERATION_ID_FIELD_NUMBER: _ClassVar[int]
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    TENANT_FIELD_NUMBER: _ClassVar[int]
    DEPLOYMENT_ID_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    PLAN_FIELD_NUMBER: _ClassVar[int]
    NODE_IDS_FIELD_NUMBER: _ClassVar[int]
    IS_UNDER_WAY_FIELD_NUMBER: _ClassVar[int]
    operation_id: bytes
    job_id: str
    tenant: str
    deployment_id: str
    error: _common_pb2.Error
    plan: _operations_pb2.DispatchPlan
    node_ids: _containers.RepeatedScalarFieldContainer[str]
    is_under_way: bool
    def __init__(self, operation_id: _Optional[bytes] = ..., job_id: _Optional[str] = ..., tenant: _Optional[str] = ..., deployment_id: _Optional[str] = ..., error: _Optional[_Union[_common_pb2.Error, _Mapping]] = ..., plan: _Optional[_Union[_operations_pb2.DispatchPlan, _Mapping]] = ..., node_ids: _Optional[_Iterable[str]] = ..., is_under_way: _Optional[bool] = ...) -> None: ...

class PayloadStagedReply(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class FetchResultRequest(_message.Message):
    __slots__ = ("operation_id", "job_id", "deployment_id", "shard", "offset")
    OPERATION_ID_FIELD_NUMBER: _ClassVar[int]
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    DEPLOYMENT_ID_FIELD_NUMBER: _ClassVar[int]
    SHARD_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    operation_id: bytes
    job_id: str
    deployment_id: str
    shard: int
    offset: int
    def __init__(self, operation_id: _Optional[bytes] = ..., job_id: _Optional[str] = ..., deployment_id: _Optional[str] = ..., shard: _Optional[int] = ..., offset: _Optional[int] = ...) -> None: ...

class StreamGenerateRequest(_message.Message):
    __slots__ = ("operation_id", "job_id", "deployment_id", "after_cursor")
    OPERATION_ID_FIELD_NUMBER: _ClassVar[int]
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    DEPLOYMENT_ID_FIELD_NUMBER: _ClassVar[int]
    AFTER_CURSOR_FIELD_NUMBER: _ClassVar[int]
    operation_id: bytes
    job_id: str
    deployment_id: str
    after_cursor: int
    def __init__(self, operation_id: _Optional[bytes] = ..., job_id: _Optional[str] = ..., deployment_id: _Optional[str] = ..., after_cursor: _Optional[int] = ...) -> None: ...

class FetchModelFileRequest(_message.Message):
    __slots__ = ("deployment_id", "job_id", "name", "offset")
    DEPLOYMENT_ID_FIELD_NUMBER: _ClassVar[int]
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    deployment_id: str
    job_id: str
    name: str
    offset: int
    def __init__(self, deployment_id: _Optional[str] = ..., job_id: _Optional[str] = ..., name: _Optional[str] = ..., offset: _Optional[int] = ...) -> None: ...

class GetCheckpointsRequest(_message.Message):
    __slots__ = ("name", "verifies")
    NAME_FIELD_NUMBER: _ClassVar[int]
    VERIFIES_FIELD_NUMBER: _ClassVar[int]
    name: str
    verifies: bool
    def __init__(self, name: _Optional[str] = ..., verifies: _Optional[bool] = ...) -> None: ...

class GetCheckpointsReply(_message.Message):
    __slots__ = ("checkpoints",)
    CHECKPOINTS_FIELD_NUMBER: _ClassVar[int]
    checkpoints: _containers.RepeatedCompositeFieldContainer[Checkpoint]
    def __init__(self, checkpoints: _Optional[_Iterable[_Union[Checkpoint, _Mapping]]] = ...) -> None: ...

class Checkpoint(_message.Message):
    __slots__ = ("name", "job", "step", "position", "spec", "nbytes", "made_us", "files")
    NAME_FIELD_NUMBER: _ClassVar[int]
    JOB_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    POSITION_FIELD_NUMBER: _ClassVar[int]
    SPEC_FIELD_NUMBER: _ClassVar[int]
    NBYTES_FIELD_NUMBER: _ClassVar[int]
    MADE_US_FIELD_NUMBER: _ClassVar[int]
    FILES_FIELD_NUMBER: _ClassVar[int]
    name: str
    job: str
    step: int
    position: str
    spec: DeploymentSpec
    nbytes: int
    made_us: int
    files: _containers.RepeatedCompositeFieldContainer[CheckpointFile]
    def __init__(self, name: _Optional[str] = ..., job: _Optional[str] = ..., step: _Optional[int] = ..., position: _Optional[str] = ..., spec: _Optional[_Union[DeploymentSpec, _Mapping]] = ..., nbytes: _Optional[int] = ..., made_us: _Optional[int] = ..., files: _Optional[_Iterable[_Union[CheckpointFile, _Mapping]]] = ...) -> None: ...

class CheckpointFile(_message.Message):
    __slots__ = ("name", "nbytes")
    NAME_FIELD_NUMBER: _ClassVar[int]
    NBYTES_FIELD_NUMBER: _ClassVar[int]
    name: str
    nbytes: int
    def __init__(self, name: _Optional[str] = ..., nbytes: _Optional[int] = ...) -> None: ...

class ChangeCheckpointRequest(_message.Message):
    __slots__ = ("name", "export_to")
    NAME_FIELD_NUMBER: _ClassVar[int]
    EXPORT_TO_FIELD_NUMBER: _ClassVar[int]
    name: str
    export_to: str
    def __init__(self, name: _Optional[str] = ..., export_to: _Optional[str] = ...) -> None: ...

class ListJobsRequest(_message.Message):
    __slots__ = ("tenant", "include_ended")
    TENANT_FIELD_NUMBER: _ClassVar[int]
    INCLUDE_ENDED_FIELD_NUMBER: _ClassVar[int]
    tenant: str
    include_ended: bool
    def __init__(self, tenant: _Optional[str] = ..., include_ended: _Optional[bool] = ...) -> None: ...

class ListJobsReply(_message.Message):
    __slots__ = ("jobs",)
    JOBS_FIELD_NUMBER: _ClassVar[int]
    jobs: _containers.RepeatedCompositeFieldContainer[Job]
    def __init__(self, jobs: _Optional[_Iterable[_Union[Job, _Mapping]]] = ...) -> None: ...

class GetStatusRequest(_message.Message):
    __slots__ = ("tenant",)
    TENANT_FIELD_NUMBER: _ClassVar[int]
    tenant: str
    def __init__(self, tenant: _Optional[str] = ...) -> None: ...

class ClusterStatus(_message.Message):
    __slots__ = ("now_us", "scheduler_epoch", "nodes", "devices", "jobs", "deployments", "progress")
    class ProgressEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: JobProgress
        def __init__(self, key: _Optional[str] = ..., value: _Optional[_Union[JobProgress, _Mapping]] = ...) -> None: ...
    NOW_US_FIELD_NUMBER: _ClassVar[int]
    SCHEDULER_EPOCH_FIELD_NUMBER: _ClassVar[int]
    NODES_FIELD_NUMBER: _ClassVar[int]
    DEVICES_FIELD_NUMBER: _ClassVar[int]
    JOBS_FIELD_NUMBER: _ClassVar[int]
    DEPLOYMENTS_FIELD_NUMBER: _ClassVar[int]
    PROGRESS_FIELD_NUMBER: _ClassVar[int]
    now_us: int
    scheduler_epoch: int
    nodes: _containers.RepeatedCompositeFieldContainer[NodeStatus]
    devices: _containers.RepeatedCompositeFieldContainer[DeviceStatus]
    jobs: _containers.RepeatedCompositeFieldContainer[Job]
    deployments: _containers.RepeatedCompositeFieldContainer[Deployment]
    progress: _containers.MessageMap[str, JobProgress]
    def __init__(self, now_us: _Optional[int] = ..., scheduler_epoch: _Optional[int] = ..., nodes: _Optional[_Iterable[_Union[NodeStatus, _Mapping]]] = ..., devices: _Optional[_Iterable[_Union[DeviceStatus, _Mapping]]] = ..., jobs: _Optional[_Iterable[_Union[Job, _Mapping]]] = ..., deployments: _Optional[_Iterable[_Union[Deployment, _Mapping]]] = ..., progress: _Optional[_Mapping[str, JobProgress]] = ...) -> None: ...

class JobProgress(_message.Message):
    __slots__ = ("metrics", "at_us")
    class MetricsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: float
        def __init__(self, key: _Optional[str] = ..., value: _Optional[float] = ...) -> None: ...
    METRICS_FIELD_NUMBER: _ClassVar[int]
    AT_US_FIELD_NUMBER: _ClassVar[int]
    metrics: _containers.ScalarMap[str, float]
    at_us: int
    def __init__(self, metrics: _Optional[_Mapping[str, float]] = ..., at_us: _Optional[int] = ...) -> None: ...

class NodeStatus(_message.Message):
    __slots__ = ("node_id", "state", "host_bytes_used", "host_bytes_total", "address")
    NODE_ID_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    HOST_BYTES_USED_FIELD_NUMBER: _ClassVar[int]
    HOST_BYTES_TOTAL_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    node_id: str
    state: str
    host_bytes_used: int
    host_bytes_total: int
    address: NodeAddress
    def __init__(self, node_id: _Optional[str] = ..., state: _Optional[str] = ..., host_bytes_used: _Optional[int] = ..., host_bytes_total: _Optional[int] = ..., address: _Optional[_Union[NodeAddress, _Mapping]] = ...) -> None: ...

class DeviceStatus(_message.Message):
    __slots__ = ("node_id", "index", "kind", "bytes_used", "bytes_total", "resident_wpgs", "running_wpg", "busy_us", "switch_us", "switches", "since_us", "lease_no")
    NODE_ID_FIELD_NUMBER: _ClassVar[int]
    INDEX_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    BYTES_USED_FIELD_NUMBER: _ClassVar[int]
    BYTES_TOTAL_FIELD_NUMBER: _ClassVar[int]
    RESIDENT_WPGS_FIELD_NUMBER: _ClassVar[int]
    RUNNING_WPG_FIELD_NUMBER: _ClassVar[int]
    BUSY_US_FIELD_NUMBER: _ClassVar[int]
    SWITCH_US_FIELD_NUMBER: _ClassVar[int]
    SWITCHES_FIELD_NUMBER: _ClassVar[int]
    SINCE_US_FIELD_NUMBER: _ClassVar[int]
    LEASE_NO_FIELD_NUMBER: _ClassVar[int]
    node_id: str
    index: int
    kind: str
    bytes_used: int
    bytes_total: int
    resident_wpgs: _containers.RepeatedScalarFieldContainer[str]
    running_wpg: str
    busy_us: int
    switch_us: int
    switches: int
    since_us: int
    lease_no: int
    def __init__(self, node_id: _Optional[str] = ..., index: _Optional[int] = ..., kind: _Optional[str] = ..., bytes_used: _Optional[int] = ..., bytes_total: _Optional[int] = ..., resident_wpgs: _Optional[_Iterable[str]] = ..., running_wpg: _Optional[str] = ..., busy_us: _Optional[int] = ..., switch_us: _Optional[int] = ..., switches: _Optional[int] = ..., since_us: _Optional[int] = ..., lease_no: _Optional[int] = ...) -> None: ...

class CancelOperationRequest(_message.Message):
    __slots__ = ("operation_id", "job_id", "tenant")
    OPERATION_ID_FIELD_NUMBER: _ClassVar[int]
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    TENANT_FIELD_NUMBER: _ClassVar[int]
    operation_id: bytes
    job_id: str
    tenant: str
    def __init__(self, operation_id: _Optional[bytes] = ..., job_id: _Optional[str] = ..., tenant: _Optional[str] = ...) -> None: ...

class CancelOperationReply(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ExplainRequest(_message.Message):
    __slots__ = ("operation_id", "job_id", "tenant", "is_operator")
    OPERATION_ID_FIELD_NUMBER: _ClassVar[int]
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    TENANT_FIELD_NUMBER: _ClassVar[int]
    IS_OPERATOR_FIELD_NUMBER: _ClassVar[int]
    operation_id: bytes
    job_id: str
    tenant: str
    is_operator: bool
    def __init__(self, operation_id: _Optional[bytes] = ..., job_id: _Optional[str] = ..., tenant: _Optional[str] = ..., is_operator: _Optional[bool] = ...) -> None: ...

class ExplainReply(_message.Message):
    __slots__ = ("text", "facts", "state")
    TEXT_FIELD_NUMBER: _ClassVar[int]
    FACTS_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    text: str
    facts: _containers.RepeatedScalarFieldContainer[str]
    state: _operations_pb2.OperationState
    def __init__(self, text: _Optional[str] = ..., facts: _Optional[_Iterable[str]] = ..., state: _Optional[_Union[_operations_pb2.OperationState, str]] = ...) -> None: ...

class TimelineRequest(_message.Message):
    __slots__ = ("tenant", "after_index", "is_operator")
    TENANT_FIELD_NUMBER: _ClassVar[int]
    AFTER_INDEX_FIELD_NUMBER: _ClassVar[int]
    IS_OPERATOR_FIELD_NUMBER: _ClassVar[int]
    tenant: str
    after_index: int
    is_operator: bool
    def __init__(self, tenant: _Optional[str] = ..., after_index: _Optional[int] = ..., is_operator: _Optional[bool] = ...) -> None: ...

class TimelineReply(_message.Message):
    __slots__ = ("spans", "next_index")
    SPANS_FIELD_NUMBER: _ClassVar[int]
    NEXT_INDEX_FIELD_NUMBER: _ClassVar[int]
    spans: _containers.RepeatedCompositeFieldContainer[Span]
    next_index: int
    def __init__(self, spans: _Optional[_Iterable[_Union[Span, _Mapping]]] = ..., next_index: _Optional[int] = ...) -> None: ...

class Span(_message.Message):
    __slots__ = ("index", "node_id", "device", "kind", "job_id", "deployment_id", "operation_id", "start_us", "end_us", "nbytes")
    INDEX_FIELD_NUMBER: _ClassVar[int]
    NODE_ID_FIELD_NUMBER: _ClassVar[int]
    DEVICE_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    DEPLOYMENT_ID_FIELD_NUMBER: _ClassVar[int]
    OPERATION_ID_FIELD_NUMBER: _ClassVar[int]
    START_US_FIELD_NUMBER: _ClassVar[int]
    END_US_FIELD_NUMBER: _ClassVar[int]
    NBYTES_FIELD_NUMBER: _ClassVar[int]
    index: int
    node_id: str
    device: int
    kind: str
    job_id: str
    deployment_id: str
    operation_id: bytes
    start_us: int
    end_us: int
    nbytes: int
    def __init__(self, index: _Optional[int] = ..., node_id: _Optional[str] = ..., device: _Optional[int] = ..., kind: _Optional[str] = ..., job_id: _Optional[str] = ..., deployment_id: _Optional[str] = ..., operation_id: _Optional[bytes] = ..., start_us: _Optional[int] = ..., end_us: _Optional[int] = ..., nbytes: _Optional[int] = ...) -> None: ...

class ListNodesRequest(_message.Message):
    __slots__ = ("tenant", "is_operator")
    TENANT_FIELD_NUMBER: _ClassVar[int]
    IS_OPERATOR_FIELD_NUMBER: _ClassVar[int]
    tenant: str
    is_operator: bool
    def __init__(self, tenant: _Optional[str] = ..., is_operator: _Optional[bool] = ...) -> None: ...

class ListNodesReply(_message.Message):
    __slots__ = ("nodes",)
    NODES_FIELD_NUMBER: _ClassVar[int]
    nodes: _containers.RepeatedCompositeFieldContainer[NodeView]
    def __init__(self, nodes: _Optional[_Iterable[_Union[NodeView, _Mapping]]] = ...) -> None: ...

class NodeView(_message.Message):
    __slots__ = ("node_id", "state", "reason", "address", "host_bytes_used", "host_bytes_total", "devices", "residents", "disk_bytes_used", "disk_bytes_total", "sunk_bytes", "risen_bytes", "processes", "state_manager_restarts", "lease_age_us", "queued_bytes", "spared_bytes", "replica_bytes")
    class ProcessesEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    NODE_ID_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    HOST_BYTES_USED_FIELD_NUMBER: _ClassVar[int]
    HOST_BYTES_TOTAL_FIELD_NUMBER: _ClassVar[int]
    DEVICES_FIELD_NUMBER: _ClassVar[int]
    RESIDENTS_FIELD_NUMBER: _ClassVar[int]
    DISK_BYTES_USED_FIELD_NUMBER: _ClassVar[int]
    DISK_BYTES_TOTAL_FIELD_NUMBER: _ClassVar[int]
    SUNK_BYTES_FIELD_NUMBER: _ClassVar[int]
    RISEN_BYTES_FIELD_NUMBER: _ClassVar[int]
    PROCESSES_FIELD_NUMBER: _ClassVar[int]
    STATE_MANAGER_RESTARTS_FIELD_NUMBER: _ClassVar[int]
    LEASE_AGE_US_FIELD_NUMBER: _ClassVar[int]
    QUEUED_BYTES_FIELD_NUMBER: _ClassVar[int]
    SPARED_BYTES_FIELD_NUMBER: _ClassVar[int]
    REPLICA_BYTES_FIELD_NUMBER: _ClassVar[int]
    node_id: str
    state: str
    reason: str
    address: NodeAddress
    host_bytes_used: int
    host_bytes_total: int
    devices: _containers.RepeatedCompositeFieldContainer[DeviceStatus]
    residents: _containers.RepeatedCompositeFieldContainer[NodeResident]
    disk_bytes_used: int
    disk_bytes_total: int
    sunk_bytes: int
    risen_bytes: int
    processes: _containers.ScalarMap[str, int]
    state_manager_restarts: int
    lease_age_us: int
    queued_bytes: int
    spared_bytes: int
    replica_bytes: int
    def __init__(self, node_id: _Optional[str] = ..., state: _Optional[str] = ..., reason: _Optional[str] = ..., address: _Optional[_Union[NodeAddress, _Mapping]] = ..., host_bytes_used: _Optional[int] = ..., host_bytes_total: _Optional[int] = ..., devices: _Optional[_Iterable[_Union[DeviceStatus, _Mapping]]] = ..., residents: _Optional[_Iterable[_Union[NodeResident, _Mapping]]] = ..., disk_bytes_used: _Optional[int] = ..., disk_bytes_total: _Optional[int] = ..., sunk_bytes: _Optional[int] = ..., risen_bytes: _Optional[int] = ..., processes: _Optional[_Mapping[str, int]] = ..., state_manager_restarts: _Optional[int] = ..., lease_age_us: _Optional[int] = ..., queued_bytes: _Optional[int] = ..., spared_bytes: _Optional[int] = ..., replica_bytes: _Optional[int] = ...) -> None: ...

class NodeResident(_message.Message):
    __slots__ = ("deployment_id", "job_id", "job_name", "tenant", "role", "devices", "residency", "moving_to", "next", "name", "disk_bytes", "device_bytes", "host_bytes", "move_us", "moved_bytes")
    DEPLOYMENT_ID_FIELD_NUMBER: _ClassVar[int]
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    JOB_NAME_FIELD_NUMBER: _ClassVar[int]
    TENANT_FIELD_NUMBER: _ClassVar[int]
    ROLE_FIELD_NUMBER: _ClassVar[int]
    DEVICES_FIELD_NUMBER: _ClassVar[int]
    RESIDENCY_FIELD_NUMBER: _ClassVar[int]
    MOVING_TO_FIELD_NUMBER: _ClassVar[int]
    NEXT_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    DISK_BYTES_FIELD_NUMBER: _ClassVar[int]
    DEVICE_BYTES_FIELD_NUMBER: _ClassVar[int]
    HOST_BYTES_FIELD_NUMBER: _ClassVar[int]
    MOVE_US_FIELD_NUMBER: _ClassVar[int]
    MOVED_BYTES_FIELD_NUMBER: _ClassVar[int]
    deployment_id: str
    job_id: str
    job_name: str
    tenant: str
    role: str
    devices: _containers.RepeatedScalarFieldContainer[str]
    residency: _common_pb2.Residency
    moving_to: _containers.RepeatedScalarFieldContainer[str]
    next: str
    name: str
    disk_bytes: int
    device_bytes: int
    host_bytes: int
    move_us: int
    moved_bytes: int
    def __init__(self, deployment_id: _Optional[str] = ..., job_id: _Optional[str] = ..., job_name: _Optional[str] = ..., tenant: _Optional[str] = ..., role: _Optional[str] = ..., devices: _Optional[_Iterable[str]] = ..., residency: _Optional[_Union[_common_pb2.Residency, str]] = ..., moving_to: _Optional[_Iterable[str]] = ..., next: _Optional[str] = ..., name: _Optional[str] = ..., disk_bytes: _Optional[int] = ..., device_bytes: _Optional[int] = ..., host_bytes: _Optional[int] = ..., move_us: _Optional[int] = ..., moved_bytes: _Optional[int] = ...) -> None: ...

class ChangeNodeRequest(_message.Message):
    __slots__ = ("tenant", "is_operator", "node_id", "change")
    TENANT_FIELD_NUMBER: _ClassVar[int]
    IS_OPERATOR_FIELD_NUMBER: _ClassVar[int]
    NODE_ID_FIELD_NUMBER: _ClassVar[int]
    CHANGE_FIELD_NUMBER: _ClassVar[int]
    tenant: str
    is_operator: bool
    node_id: str
    change: NodeChange
    def __init__(self, tenant: _Optional[str] = ..., is_operator: _Optional[bool] = ..., node_id: _Optional[str] = ..., change: _Optional[_Union[NodeChange, str]] = ...) -> None: ...

class AddNodeRequest(_message.Message):
    __slots__ = ("tenant", "is_operator", "agent")
    TENANT_FIELD_NUMBER: _ClassVar[int]
    IS_OPERATOR_FIELD_NUMBER: _ClassVar[int]
    AGENT_FIELD_NUMBER: _ClassVar[int]
    tenant: str
    is_operator: bool
    agent: str
    def __init__(self, tenant: _Optional[str] = ..., is_operator: _Optional[bool] = ..., agent: _Optional[str] = ...) -> None: ...

class CycleSegment(_message.Message):
    __slots__ = ("phase", "offset_us", "duration_us")
    PHASE_FIELD_NUMBER: _ClassVar[int]
    OFFSET_US_FIELD_NUMBER: _ClassVar[int]
    DURATION_US_FIELD_NUMBER: _ClassVar[int]
    phase: str
    offset_us: int
    duration_us: int
    def __init__(self, phase: _Optional[str] = ..., offset_us: _Optional[int] = ..., duration_us: _Optional[int] = ...) -> None: ...

class BusySpan(_message.Message):
    __slots__ = ("start_us", "end_us")
    START_US_FIELD_NUMBER: _ClassVar[int]
    END_US_FIELD_NUMBER: _ClassVar[int]
    start_us: int
    end_us: int
    def __init__(self, start_us: _Optional[int] = ..., end_us: _Optional[int] = ...) -> None: ...

class PackRequest(_message.Message):
    __slots__ = ("tenant", "is_operator", "window_us")
    TENANT_FIELD_NUMBER: _ClassVar[int]
    IS_OPERATOR_FIELD_NUMBER: _ClassVar[int]
    WINDOW_US_FIELD_NUMBER: _ClassVar[int]
    tenant: str
    is_operator: bool
    window_us: int
    def __init__(self, tenant: _Optional[str] = ..., is_operator: _Optional[bool] = ..., window_us: _Optional[int] = ...) -> None: ...

class PackReply(_message.Message):
    __slots__ = ("now_us", "horizon_us", "window_us", "groups", "waiting", "idle", "policy", "prefetches", "prefetch_hits", "prefetches_wasted", "demand")
    NOW_US_FIELD_NUMBER: _ClassVar[int]
    HORIZON_US_FIELD_NUMBER: _ClassVar[int]
    WINDOW_US_FIELD_NUMBER: _ClassVar[int]
    GROUPS_FIELD_NUMBER: _ClassVar[int]
    WAITING_FIELD_NUMBER: _ClassVar[int]
    IDLE_FIELD_NUMBER: _ClassVar[int]
    POLICY_FIELD_NUMBER: _ClassVar[int]
    PREFETCHES_FIELD_NUMBER: _ClassVar[int]
    PREFETCH_HITS_FIELD_NUMBER: _ClassVar[int]
    PREFETCHES_WASTED_FIELD_NUMBER: _ClassVar[int]
    DEMAND_FIELD_NUMBER: _ClassVar[int]
    now_us: int
    horizon_us: int
    window_us: int
    groups: _containers.RepeatedCompositeFieldContainer[PackGroup]
    waiting: _containers.RepeatedCompositeFieldContainer[PackWaiting]
    idle: _containers.RepeatedScalarFieldContainer[str]
    policy: str
    prefetches: int
    prefetch_hits: int
    prefetches_wasted: int
    demand: _containers.RepeatedCompositeFieldContainer[KindDemand]
    def __init__(self, now_us: _Optional[int] = ..., horizon_us: _Optional[int] = ..., window_us: _Optional[int] = ..., groups: _Optional[_Iterable[_Union[PackGroup, _Mapping]]] = ..., waiting: _Optional[_Iterable[_Union[PackWaiting, _Mapping]]] = ..., idle: _Optional[_Iterable[str]] = ..., policy: _Optional[str] = ..., prefetches: _Optional[int] = ..., prefetch_hits: _Optional[int] = ..., prefetches_wasted: _Optional[int] = ..., demand: _Optional[_Iterable[_Union[KindDemand, _Mapping]]] = ...) -> None: ...

class KindDemand(_message.Message):
    __slots__ = ("kind", "idle", "wanted", "missing")
    class WantedEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    KIND_FIELD_NUMBER: _ClassVar[int]
    IDLE_FIELD_NUMBER: _ClassVar[int]
    WANTED_FIELD_NUMBER: _ClassVar[int]
    MISSING_FIELD_NUMBER: _ClassVar[int]
    kind: str
    idle: int
    wanted: _containers.ScalarMap[str, int]
    missing: int
    def __init__(self, kind: _Optional[str] = ..., idle: _Optional[int] = ..., wanted: _Optional[_Mapping[str, int]] = ..., missing: _Optional[int] = ...) -> None: ...

class PackGroup(_message.Message):
    __slots__ = ("kind", "group_id", "devices", "duty_ppm", "duty_cap_ppm", "state_bytes", "parked_bytes", "closed", "residents", "booked")
    KIND_FIELD_NUMBER: _ClassVar[int]
    GROUP_ID_FIELD_NUMBER: _ClassVar[int]
    DEVICES_FIELD_NUMBER: _ClassVar[int]
    DUTY_PPM_FIELD_NUMBER: _ClassVar[int]
    DUTY_CAP_PPM_FIELD_NUMBER: _ClassVar[int]
    STATE_BYTES_FIELD_NUMBER: _ClassVar[int]
    PARKED_BYTES_FIELD_NUMBER: _ClassVar[int]
    CLOSED_FIELD_NUMBER: _ClassVar[int]
    RESIDENTS_FIELD_NUMBER: _ClassVar[int]
    BOOKED_FIELD_NUMBER: _ClassVar[int]
    kind: str
    group_id: int
    devices: _containers.RepeatedScalarFieldContainer[str]
    duty_ppm: int
    duty_cap_ppm: int
    state_bytes: int
    parked_bytes: int
    closed: str
    residents: _containers.RepeatedCompositeFieldContainer[PackResident]
    booked: _containers.RepeatedCompositeFieldContainer[HostUse]
    def __init__(self, kind: _Optional[str] = ..., group_id: _Optional[int] = ..., devices: _Optional[_Iterable[str]] = ..., duty_ppm: _Optional[int] = ..., duty_cap_ppm: _Optional[int] = ..., state_bytes: _Optional[int] = ..., parked_bytes: _Optional[int] = ..., closed: _Optional[str] = ..., residents: _Optional[_Iterable[_Union[PackResident, _Mapping]]] = ..., booked: _Optional[_Iterable[_Union[HostUse, _Mapping]]] = ...) -> None: ...

class HostUse(_message.Message):
    __slots__ = ("use", "nbytes")
    USE_FIELD_NUMBER: _ClassVar[int]
    NBYTES_FIELD_NUMBER: _ClassVar[int]
    use: str
    nbytes: int
    def __init__(self, use: _Optional[str] = ..., nbytes: _Optional[int] = ...) -> None: ...

class PackResident(_message.Message):
    __slots__ = ("deployment_id", "job_id", "job_name", "tenant", "devices", "shift_us", "period_us", "segments", "duty_ppm", "bound_ppm", "predicted_ppm", "measured_ppm", "wait_us", "wait_ratio_ppm", "state_bytes", "is_cold", "is_pinned", "is_late", "moving_to", "residency", "is_running", "name", "busy", "place")
    DEPLOYMENT_ID_FIELD_NUMBER: _ClassVar[int]
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    JOB_NAME_FIELD_NUMBER: _ClassVar[int]
    TENANT_FIELD_NUMBER: _ClassVar[int]
    DEVICES_FIELD_NUMBER: _ClassVar[int]
    SHIFT_US_FIELD_NUMBER: _ClassVar[int]
    PERIOD_US_FIELD_NUMBER: _ClassVar[int]
    SEGMENTS_FIELD_NUMBER: _ClassVar[int]
    DUTY_PPM_FIELD_NUMBER: _ClassVar[int]
    BOUND_PPM_FIELD_NUMBER: _ClassVar[int]
    PREDICTED_PPM_FIELD_NUMBER: _ClassVar[int]
    MEASURED_PPM_FIELD_NUMBER: _ClassVar[int]
    WAIT_US_FIELD_NUMBER: _ClassVar[int]
    WAIT_RATIO_PPM_FIELD_NUMBER: _ClassVar[int]
    STATE_BYTES_FIELD_NUMBER: _ClassVar[int]
    IS_COLD_FIELD_NUMBER: _ClassVar[int]
    IS_PINNED_FIELD_NUMBER: _ClassVar[int]
    IS_LATE_FIELD_NUMBER: _ClassVar[int]
    MOVING_TO_FIELD_NUMBER: _ClassVar[int]
    RESIDENCY_FIELD_NUMBER: _ClassVar[int]
    IS_RUNNING_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    BUSY_FIELD_NUMBER: _ClassVar[int]
    PLACE_FIELD_NUMBER: _ClassVar[int]
    deployment_id: str
    job_id: str
    job_name: str
    tenant: str
    devices: _containers.RepeatedScalarFieldContainer[str]
    shift_us: int
    period_us: int
    segments: _containers.RepeatedCompositeFieldContainer[CycleSegment]
    duty_ppm: int
    bound_ppm: int
    predicted_ppm: int
    measured_ppm: int
    wait_us: int
    wait_ratio_ppm: int
    state_bytes: int
    is_cold: bool
    is_pinned: bool
    is_late: bool
    moving_to: _containers.RepeatedScalarFieldContainer[str]
    residency: _common_pb2.Residency
    is_running: bool
    name: str
    busy: _containers.RepeatedCompositeFieldContainer[BusySpan]
    place: str
    def __init__(self, deployment_id: _Optional[str] = ..., job_id: _Optional[str] = ..., job_name: _Optional[str] = ..., tenant: _Optional[str] = ..., devices: _Optional[_Iterable[str]] = ..., shift_us: _Optional[int] = ..., period_us: _Optional[int] = ..., segments: _Optional[_Iterable[_Union[CycleSegment, _Mapping]]] = ..., duty_ppm: _Optional[int] = ..., bound_ppm: _Optional[int] = ..., predicted_ppm: _Optional[int] = ..., measured_ppm: _Optional[int] = ..., wait_us: _Optional[int] = ..., wait_ratio_ppm: _Optional[int] = ..., state_bytes: _Optional[int] = ..., is_cold: _Optional[bool] = ..., is_pinned: _Optional[bool] = ..., is_late: _Optional[bool] = ..., moving_to: _Optional[_Iterable[str]] = ..., residency: _Optional[_Union[_common_pb2.Residency, str]] = ..., is_running: _Optional[bool] = ..., name: _Optional[str] = ..., busy: _Optional[_Iterable[_Union[BusySpan, _Mapping]]] = ..., place: _Optional[str] = ...) -> None: ...

class PackWaiting(_message.Message):
    __slots__ = ("deployment_id", "job_id", "job_name", "tenant", "since_us", "reason", "name", "short_of")
    DEPLOYMENT_ID_FIELD_NUMBER: _ClassVar[int]
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    JOB_NAME_FIELD_NUMBER: _ClassVar[int]
    TENANT_FIELD_NUMBER: _ClassVar[int]
    SINCE_US_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    SHORT_OF_FIELD_NUMBER: _ClassVar[int]
    deployment_id: str
    job_id: str
    job_name: str
    tenant: str
    since_us: int
    reason: str
    name: str
    short_of: str
    def __init__(self, deployment_id: _Optional[str] = ..., job_id: _Optional[str] = ..., job_name: _Optional[str] = ..., tenant: _Optional[str] = ..., since_us: _Optional[int] = ..., reason: _Optional[str] = ..., name: _Optional[str] = ..., short_of: _Optional[str] = ...) -> None: ...

class JobShape(_message.Message):
    __slots__ = ("job_id", "num_devices", "period_us", "segments", "mode", "jitter_ppm", "max_slowdown_ppm", "state_bytes", "rollout_devices", "priority", "expected_us")
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    NUM_DEVICES_FIELD_NUMBER: _ClassVar[int]
    PERIOD_US_FIELD_NUMBER: _ClassVar[int]
    SEGMENTS_FIELD_NUMBER: _ClassVar[int]
    MODE_FIELD_NUMBER: _ClassVar[int]
    JITTER_PPM_FIELD_NUMBER: _ClassVar[int]
    MAX_SLOWDOWN_PPM_FIELD_NUMBER: _ClassVar[int]
    STATE_BYTES_FIELD_NUMBER: _ClassVar[int]
    ROLLOUT_DEVICES_FIELD_NUMBER: _ClassVar[int]
    PRIORITY_FIELD_NUMBER: _ClassVar[int]
    EXPECTED_US_FIELD_NUMBER: _ClassVar[int]
    job_id: str
    num_devices: int
    period_us: int
    segments: _containers.RepeatedCompositeFieldContainer[CycleSegment]
    mode: str
    jitter_ppm: int
    max_slowdown_ppm: int
    state_bytes: int
    rollout_devices: int
    priority: int
    expected_us: int
    def __init__(self, job_id: _Optional[str] = ..., num_devices: _Optional[int] = ..., period_us: _Optional[int] = ..., segments: _Optional[_Iterable[_Union[CycleSegment, _Mapping]]] = ..., mode: _Optional[str] = ..., jitter_ppm: _Optional[int] = ..., max_slowdown_ppm: _Optional[int] = ..., state_bytes: _Optional[int] = ..., rollout_devices: _Optional[int] = ..., priority: _Optional[int] = ..., expected_us: _Optional[int] = ...) -> None: ...

class WhatIfRequest(_message.Message):
    __slots__ = ("tenant", "is_operator", "job", "kind")
    TENANT_FIELD_NUMBER: _ClassVar[int]
    IS_OPERATOR_FIELD_NUMBER: _ClassVar[int]
    JOB_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    tenant: str
    is_operator: bool
    job: JobShape
    kind: str
    def __init__(self, tenant: _Optional[str] = ..., is_operator: _Optional[bool] = ..., job: _Optional[_Union[JobShape, _Mapping]] = ..., kind: _Optional[str] = ...) -> None: ...

class WhatIfReply(_message.Message):
    __slots__ = ("fits", "devices", "opens_group", "group_ids", "shift_us", "predicted_ppm", "neighbours", "reasons", "place")
    FITS_FIELD_NUMBER: _ClassVar[int]
    DEVICES_FIELD_NUMBER: _ClassVar[int]
    OPENS_GROUP_FIELD_NUMBER: _ClassVar[int]
    GROUP_IDS_FIELD_NUMBER: _ClassVar[int]
    SHIFT_US_FIELD_NUMBER: _ClassVar[int]
    PREDICTED_PPM_FIELD_NUMBER: _ClassVar[int]
    NEIGHBOURS_FIELD_NUMBER: _ClassVar[int]
    REASONS_FIELD_NUMBER: _ClassVar[int]
    PLACE_FIELD_NUMBER: _ClassVar[int]
    fits: bool
    devices: _containers.RepeatedScalarFieldContainer[str]
    opens_group: bool
    group_ids: _containers.RepeatedScalarFieldContainer[int]
    shift_us: int
    predicted_ppm: int
    neighbours: _containers.RepeatedCompositeFieldContainer[WhatIfNeighbour]
    reasons: _containers.RepeatedScalarFieldContainer[str]
    place: str
    def __init__(self, fits: _Optional[bool] = ..., devices: _Optional[_Iterable[str]] = ..., opens_group: _Optional[bool] = ..., group_ids: _Optional[_Iterable[int]] = ..., shift_us: _Optional[int] = ..., predicted_ppm: _Optional[int] = ..., neighbours: _Optional[_Iterable[_Union[WhatIfNeighbour, _Mapping]]] = ..., reasons: _Optional[_Iterable[str]] = ..., place: _Optional[str] = ...) -> None: ...

class WhatIfNeighbour(_message.Message):
    __slots__ = ("deployment_id", "job_id", "job_name", "tenant", "before_ppm", "after_ppm", "bound_ppm", "name")
    DEPLOYMENT_ID_FIELD_NUMBER: _ClassVar[int]
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    JOB_NAME_FIELD_NUMBER: _ClassVar[int]
    TENANT_FIELD_NUMBER: _ClassVar[int]
    BEFORE_PPM_FIELD_NUMBER: _ClassVar[int]
    AFTER_PPM_FIELD_NUMBER: _ClassVar[int]
    BOUND_PPM_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    deployment_id: str
    job_id: str
    job_name: str
    tenant: str
    before_ppm: int
    after_ppm: int
    bound_ppm: int
    name: str
    def __init__(self, deployment_id: _Optional[str] = ..., job_id: _Optional[str] = ..., job_name: _Optional[str] = ..., tenant: _Optional[str] = ..., before_ppm: _Optional[int] = ..., after_ppm: _Optional[int] = ..., bound_ppm: _Optional[int] = ..., name: _Optional[str] = ...) -> None: ...

class RepackRequest(_message.Message):
    __slots__ = ("tenant", "is_operator")
    TENANT_FIELD_NUMBER: _ClassVar[int]
    IS_OPERATOR_FIELD_NUMBER: _ClassVar[int]
    tenant: str
    is_operator: bool
    def __init__(self, tenant: _Optional[str] = ..., is_operator: _Optional[bool] = ...) -> None: ...

class MoveJobRequest(_message.Message):
    __slots__ = ("tenant", "is_operator", "job_id", "node_id")
    TENANT_FIELD_NUMBER: _ClassVar[int]
    IS_OPERATOR_FIELD_NUMBER: _ClassVar[int]
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    NODE_ID_FIELD_NUMBER: _ClassVar[int]
    tenant: str
    is_operator: bool
    job_id: str
    node_id: str
    def __init__(self, tenant: _Optional[str] = ..., is_operator: _Optional[bool] = ..., job_id: _Optional[str] = ..., node_id: _Optional[str] = ...) -> None: ...

class MovesReply(_message.Message):
    __slots__ = ("moves", "reasons")
    MOVES_FIELD_NUMBER: _ClassVar[int]
    REASONS_FIELD_NUMBER: _ClassVar[int]
    moves: _containers.RepeatedCompositeFieldContainer[JobMove]
    reasons: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, moves: _Optional[_Iterable[_Union[JobMove, _Mapping]]] = ..., reasons: _Optional[_Iterable[str]] = ...) -> None: ...

class JobMove(_message.Message):
    __slots__ = ("deployment_id", "job_id", "job_name", "from_devices", "to_devices", "state_bytes", "reason", "name")
    DEPLOYMENT_ID_FIELD_NUMBER: _ClassVar[int]
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    JOB_NAME_FIELD_NUMBER: _ClassVar[int]
    FROM_DEVICES_FIELD_NUMBER: _ClassVar[int]
    TO_DEVICES_FIELD_NUMBER: _ClassVar[int]
    STATE_BYTES_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    deployment_id: str
    job_id: str
    job_name: str
    from_devices: _containers.RepeatedScalarFieldContainer[str]
    to_devices: _containers.RepeatedScalarFieldContainer[str]
    state_bytes: int
    reason: str
    name: str
    def __init__(self, deployment_id: _Optional[str] = ..., job_id: _Optional[str] = ..., job_name: _Optional[str] = ..., from_devices: _Optional[_Iterable[str]] = ..., to_devices: _Optional[_Iterable[str]] = ..., state_bytes: _Optional[int] = ..., reason: _Optional[str] = ..., name: _Optional[str] = ...) -> None: ...

class PinJobRequest(_message.Message):
    __slots__ = ("tenant", "is_operator", "job_id", "is_pinned")
    TENANT_FIELD_NUMBER: _ClassVar[int]
    IS_OPERATOR_FIELD_NUMBER: _ClassVar[int]
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    IS_PINNED_FIELD_NUMBER: _ClassVar[int]
    tenant: str
    is_operator: bool
    job_id: str
    is_pinned: bool
    def __init__(self, tenant: _Optional[str] = ..., is_operator: _Optional[bool] = ..., job_id: _Optional[str] = ..., is_pinned: _Optional[bool] = ...) -> None: ...

class PinJobReply(_message.Message):
    __slots__ = ("job_id", "is_pinned")
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    IS_PINNED_FIELD_NUMBER: _ClassVar[int]
    job_id: str
    is_pinned: bool
    def __init__(self, job_id: _Optional[str] = ..., is_pinned: _Optional[bool] = ...) -> None: ...

class ReportRequest(_message.Message):
    __slots__ = ("tenant", "is_operator")
    TENANT_FIELD_NUMBER: _ClassVar[int]
    IS_OPERATOR_FIELD_NUMBER: _ClassVar[int]
    tenant: str
    is_operator: bool
    def __init__(self, tenant: _Optional[str] = ..., is_operator: _Optional[bool] = ...) -> None: ...

class ReportReply(_message.Message):
    __slots__ = ("now_us", "since_us", "tenants", "matrix", "jobs")
    NOW_US_FIELD_NUMBER: _ClassVar[int]
    SINCE_US_FIELD_NUMBER: _ClassVar[int]
    TENANTS_FIELD_NUMBER: _ClassVar[int]
    MATRIX_FIELD_NUMBER: _ClassVar[int]
    JOBS_FIELD_NUMBER: _ClassVar[int]
    now_us: int
    since_us: int
    tenants: _containers.RepeatedCompositeFieldContainer[TenantUse]
    matrix: _containers.RepeatedCompositeFieldContainer[Interference]
    jobs: _containers.RepeatedCompositeFieldContainer[JobUse]
    def __init__(self, now_us: _Optional[int] = ..., since_us: _Optional[int] = ..., tenants: _Optional[_Iterable[_Union[TenantUse, _Mapping]]] = ..., matrix: _Optional[_Iterable[_Union[Interference, _Mapping]]] = ..., jobs: _Optional[_Iterable[_Union[JobUse, _Mapping]]] = ...) -> None: ...

class CostRequest(_message.Message):
    __slots__ = ("tenant", "is_operator", "owner", "job_id", "since_us", "by_operation")
    TENANT_FIELD_NUMBER: _ClassVar[int]
    IS_OPERATOR_FIELD_NUMBER: _ClassVar[int]
    OWNER_FIELD_NUMBER: _ClassVar[int]
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    SINCE_US_FIELD_NUMBER: _ClassVar[int]
    BY_OPERATION_FIELD_NUMBER: _ClassVar[int]
    tenant: str
    is_operator: bool
    owner: str
    job_id: str
    since_us: int
    by_operation: bool
    def __init__(self, tenant: _Optional[str] = ..., is_operator: _Optional[bool] = ..., owner: _Optional[str] = ..., job_id: _Optional[str] = ..., since_us: _Optional[int] = ..., by_operation: _Optional[bool] = ...) -> None: ...

class CostReply(_message.Message):
    __slots__ = ("now_us", "costs")
    NOW_US_FIELD_NUMBER: _ClassVar[int]
    COSTS_FIELD_NUMBER: _ClassVar[int]
    now_us: int
    costs: _containers.RepeatedCompositeFieldContainer[Cost]
    def __init__(self, now_us: _Optional[int] = ..., costs: _Optional[_Iterable[_Union[Cost, _Mapping]]] = ...) -> None: ...

class Cost(_message.Message):
    __slots__ = ("owner", "job_id", "job_name", "kind", "count", "device_us", "switch_us", "tokens", "nbytes", "host_mib_s", "operation_id", "deployment_id", "seq", "at_us")
    OWNER_FIELD_NUMBER: _ClassVar[int]
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    JOB_NAME_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    COUNT_FIELD_NUMBER: _ClassVar[int]
    DEVICE_US_FIELD_NUMBER: _ClassVar[int]
    SWITCH_US_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    NBYTES_FIELD_NUMBER: _ClassVar[int]
    HOST_MIB_S_FIELD_NUMBER: _ClassVar[int]
    OPERATION_ID_FIELD_NUMBER: _ClassVar[int]
    DEPLOYMENT_ID_FIELD_NUMBER: _ClassVar[int]
    SEQ_FIELD_NUMBER: _ClassVar[int]
    AT_US_FIELD_NUMBER: _ClassVar[int]
    owner: str
    job_id: str
    job_name: str
    kind: str
    count: int
    device_us: int
    switch_us: int
    tokens: int
    nbytes: int
    host_mib_s: int
    operation_id: bytes
    deployment_id: str
    seq: int
    at_us: int
    def __init__(self, owner: _Optional[str] = ..., job_id: _Optional[str] = ..., job_name: _Optional[str] = ..., kind: _Optional[str] = ..., count: _Optional[int] = ..., device_us: _Optional[int] = ..., switch_us: _Optional[int] = ..., tokens: _Optional[int] = ..., nbytes: _Optional[int] = ..., host_mib_s: _Optional[int] = ..., operation_id: _Optional[bytes] = ..., deployment_id: _Optional[str] = ..., seq: _Optional[int] = ..., at_us: _Optional[int] = ...) -> None: ...

class TenantUse(_message.Message):
    __slots__ = ("tenant", "jobs", "device_us", "wait_us", "switches", "switch_us", "weight", "share_ppm", "waiting", "max_priority", "pooled_us", "cost")
    TENANT_FIELD_NUMBER: _ClassVar[int]
    JOBS_FIELD_NUMBER: _ClassVar[int]
    DEVICE_US_FIELD_NUMBER: _ClassVar[int]
    WAIT_US_FIELD_NUMBER: _ClassVar[int]
    SWITCHES_FIELD_NUMBER: _ClassVar[int]
    SWITCH_US_FIELD_NUMBER: _ClassVar[int]
    WEIGHT_FIELD_NUMBER: _ClassVar[int]
    SHARE_PPM_FIELD_NUMBER: _ClassVar[int]
    WAITING_FIELD_NUMBER: _ClassVar[int]
    MAX_PRIORITY_FIELD_NUMBER: _ClassVar[int]
    POOLED_US_FIELD_NUMBER: _ClassVar[int]
    COST_FIELD_NUMBER: _ClassVar[int]
    tenant: str
    jobs: int
    device_us: int
    wait_us: int
    switches: int
    switch_us: int
    weight: int
    share_ppm: int
    waiting: int
    max_priority: int
    pooled_us: int
    cost: float
    def __init__(self, tenant: _Optional[str] = ..., jobs: _Optional[int] = ..., device_us: _Optional[int] = ..., wait_us: _Optional[int] = ..., switches: _Optional[int] = ..., switch_us: _Optional[int] = ..., weight: _Optional[int] = ..., share_ppm: _Optional[int] = ..., waiting: _Optional[int] = ..., max_priority: _Optional[int] = ..., pooled_us: _Optional[int] = ..., cost: _Optional[float] = ...) -> None: ...

class Interference(_message.Message):
    __slots__ = ("waiting", "blocking", "wait_us")
    WAITING_FIELD_NUMBER: _ClassVar[int]
    BLOCKING_FIELD_NUMBER: _ClassVar[int]
    WAIT_US_FIELD_NUMBER: _ClassVar[int]
    waiting: str
    blocking: str
    wait_us: int
    def __init__(self, waiting: _Optional[str] = ..., blocking: _Optional[str] = ..., wait_us: _Optional[int] = ...) -> None: ...

class JobUse(_message.Message):
    __slots__ = ("job_id", "name", "tenant", "state", "lasted_us", "device_us", "wait_us", "wait_ratio_ppm", "switches", "switch_us", "predicted_ppm", "measured_ppm", "bound_ppm", "waits", "pooled_us", "cost")
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    TENANT_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    LASTED_US_FIELD_NUMBER: _ClassVar[int]
    DEVICE_US_FIELD_NUMBER: _ClassVar[int]
    WAIT_US_FIELD_NUMBER: _ClassVar[int]
    WAIT_RATIO_PPM_FIELD_NUMBER: _ClassVar[int]
    SWITCHES_FIELD_NUMBER: _ClassVar[int]
    SWITCH_US_FIELD_NUMBER: _ClassVar[int]
    PREDICTED_PPM_FIELD_NUMBER: _ClassVar[int]
    MEASURED_PPM_FIELD_NUMBER: _ClassVar[int]
    BOUND_PPM_FIELD_NUMBER: _ClassVar[int]
    WAITS_FIELD_NUMBER: _ClassVar[int]
    POOLED_US_FIELD_NUMBER: _ClassVar[int]
    COST_FIELD_NUMBER: _ClassVar[int]
    job_id: str
    name: str
    tenant: str
    state: JobState
    lasted_us: int
    device_us: int
    wait_us: int
    wait_ratio_ppm: int
    switches: int
    switch_us: int
    predicted_ppm: int
    measured_ppm: int
    bound_ppm: int
    waits: _containers.RepeatedCompositeFieldContainer[JobWait]
    pooled_us: int
    cost: float
    def __init__(self, job_id: _Optional[str] = ..., name: _Optional[str] = ..., tenant: _Optional[str] = ..., state: _Optional[_Union[JobState, str]] = ..., lasted_us: _Optional[int] = ..., device_us: _Optional[int] = ..., wait_us: _Optional[int] = ..., wait_ratio_ppm: _Optional[int] = ..., switches: _Optional[int] = ..., switch_us: _Optional[int] = ..., predicted_ppm: _Optional[int] = ..., measured_ppm: _Optional[int] = ..., bound_ppm: _Optional[int] = ..., waits: _Optional[_Iterable[_Union[JobWait, _Mapping]]] = ..., pooled_us: _Optional[int] = ..., cost: _Optional[float] = ...) -> None: ...

class JobWait(_message.Message):
    __slots__ = ("job_id", "job_name", "wait_us")
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    JOB_NAME_FIELD_NUMBER: _ClassVar[int]
    WAIT_US_FIELD_NUMBER: _ClassVar[int]
    job_id: str
    job_name: str
    wait_us: int
    def __init__(self, job_id: _Optional[str] = ..., job_name: _Optional[str] = ..., wait_us: _Optional[int] = ...) -> None: ...

class ListInstancesRequest(_message.Message):
    __slots__ = ("tenant", "is_operator")
    TENANT_FIELD_NUMBER: _ClassVar[int]
    IS_OPERATOR_FIELD_NUMBER: _ClassVar[int]
    tenant: str
    is_operator: bool
    def __init__(self, tenant: _Optional[str] = ..., is_operator: _Optional[bool] = ...) -> None: ...

class ListInstancesReply(_message.Message):
    __slots__ = ("instances",)
    INSTANCES_FIELD_NUMBER: _ClassVar[int]
    instances: _containers.RepeatedCompositeFieldContainer[InstanceView]
    def __init__(self, instances: _Optional[_Iterable[_Union[InstanceView, _Mapping]]] = ...) -> None: ...

class InstanceView(_message.Message):
    __slots__ = ("device", "kind", "phase", "deployment_id", "job_id", "tenant", "version", "running", "pending", "tokens_per_s", "price", "because", "engine")
    DEVICE_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    PHASE_FIELD_NUMBER: _ClassVar[int]
    DEPLOYMENT_ID_FIELD_NUMBER: _ClassVar[int]
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    TENANT_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    RUNNING_FIELD_NUMBER: _ClassVar[int]
    PENDING_FIELD_NUMBER: _ClassVar[int]
    TOKENS_PER_S_FIELD_NUMBER: _ClassVar[int]
    PRICE_FIELD_NUMBER: _ClassVar[int]
    BECAUSE_FIELD_NUMBER: _ClassVar[int]
    ENGINE_FIELD_NUMBER: _ClassVar[int]
    device: str
    kind: str
    phase: str
    deployment_id: str
    job_id: str
    tenant: str
    version: int
    running: int
    pending: int
    tokens_per_s: float
    price: float
    because: str
    engine: str
    def __init__(self, device: _Optional[str] = ..., kind: _Optional[str] = ..., phase: _Optional[str] = ..., deployment_id: _Optional[str] = ..., job_id: _Optional[str] = ..., tenant: _Optional[str] = ..., version: _Optional[int] = ..., running: _Optional[int] = ..., pending: _Optional[int] = ..., tokens_per_s: _Optional[float] = ..., price: _Optional[float] = ..., because: _Optional[str] = ..., engine: _Optional[str] = ...) -> None: ...

class DrainInstanceRequest(_message.Message):
    __slots__ = ("tenant", "is_operator", "device")
    TENANT_FIELD_NUMBER: _ClassVar[int]
    IS_OPERATOR_FIELD_NUMBER: _ClassVar[int]
    DEVICE_FIELD_NUMBER: _ClassVar[int]
    tenant: str
    is_operator: bool
    device: str
    def __init__(self, tenant: _Optional[str] = ..., is_operator: _Optional[bool] = ..., device: _Optional[str] = ...) -> None: ...

class OpenInstanceRequest(_message.Message):
    __slots__ = ("tenant", "is_operator", "device")
    TENANT_FIELD_NUMBER: _ClassVar[int]
    IS_OPERATOR_FIELD_NUMBER: _ClassVar[int]
    DEVICE_FIELD_NUMBER: _ClassVar[int]
    tenant: str
    is_operator: bool
    device: str
    def __init__(self, tenant: _Optional[str] = ..., is_operator: _Optional[bool] = ..., device: _Optional[str] = ...) -> None: ...

class LendInstanceRequest(_message.Message):
    __slots__ = ("tenant", "is_operator", "name", "address", "model", "price", "owner", "lend_to", "lease_us")
    TENANT_FIELD_NUMBER: _ClassVar[int]
    IS_OPERATOR_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    PRICE_FIELD_NUMBER: _ClassVar[int]
    OWNER_FIELD_NUMBER: _ClassVar[int]
    LEND_TO_FIELD_NUMBER: _ClassVar[int]
    LEASE_US_FIELD_NUMBER: _ClassVar[int]
    tenant: str
    is_operator: bool
    name: str
    address: str
    model: str
    price: float
    owner: str
    lend_to: _containers.RepeatedScalarFieldContainer[str]
    lease_us: int
    def __init__(self, tenant: _Optional[str] = ..., is_operator: _Optional[bool] = ..., name: _Optional[str] = ..., address: _Optional[str] = ..., model: _Optional[str] = ..., price: _Optional[float] = ..., owner: _Optional[str] = ..., lend_to: _Optional[_Iterable[str]] = ..., lease_us: _Optional[int] = ...) -> None: ...

class TokenView(_message.Message):
    __slots__ = ("token_id", "owner", "scope", "name", "created_us", "expires_us", "revoked_us", "hash", "used_by")
    TOKEN_ID_FIELD_NUMBER: _ClassVar[int]
    OWNER_FIELD_NUMBER: _ClassVar[int]
    SCOPE_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    CREATED_US_FIELD_NUMBER: _ClassVar[int]
    EXPIRES_US_FIELD_NUMBER: _ClassVar[int]
    REVOKED_US_FIELD_NUMBER: _ClassVar[int]
    HASH_FIELD_NUMBER: _ClassVar[int]
    USED_BY_FIELD_NUMBER: _ClassVar[int]
    token_id: str
    owner: str
    scope: str
    name: str
    created_us: int
    expires_us: int
    revoked_us: int
    hash: bytes
    used_by: str
    def __init__(self, token_id: _Optional[str] = ..., owner: _Optional[str] = ..., scope: _Optional[str] = ..., name: _Optional[str] = ..., created_us: _Optional[int] = ..., expires_us: _Optional[int] = ..., revoked_us: _Optional[int] = ..., hash: _Optional[bytes] = ..., used_by: _Optional[str] = ...) -> None: ...

class CreateTokenRequest(_message.Message):
    __slots__ = ("tenant", "is_operator", "owner", "scope", "name", "lifetime_us")
    TENANT_FIELD_NUMBER: _ClassVar[int]
    IS_OPERATOR_FIELD_NUMBER: _ClassVar[int]
    OWNER_FIELD_NUMBER: _ClassVar[int]
    SCOPE_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    LIFETIME_US_FIELD_NUMBER: _ClassVar[int]
    tenant: str
    is_operator: bool
    owner: str
    scope: str
    name: str
    lifetime_us: int
    def __init__(self, tenant: _Optional[str] = ..., is_operator: _Optional[bool] = ..., owner: _Optional[str] = ..., scope: _Optional[str] = ..., name: _Optional[str] = ..., lifetime_us: _Optional[int] = ...) -> None: ...

class CreateTokenReply(_message.Message):
    __slots__ = ("token", "secret")
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    SECRET_FIELD_NUMBER: _ClassVar[int]
    token: TokenView
    secret: str
    def __init__(self, token: _Optional[_Union[TokenView, _Mapping]] = ..., secret: _Optional[str] = ...) -> None: ...

class ListTokensRequest(_message.Message):
    __slots__ = ("tenant", "is_operator")
    TENANT_FIELD_NUMBER: _ClassVar[int]
    IS_OPERATOR_FIELD_NUMBER: _ClassVar[int]
    tenant: str
    is_operator: bool
    def __init__(self, tenant: _Optional[str] = ..., is_operator: _Optional[bool] = ...) -> None: ...

class ListTokensReply(_message.Message):
    __slots__ = ("tokens",)
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    tokens: _containers.RepeatedCompositeFieldContainer[TokenView]
    def __init__(self, tokens: _Optional[_Iterable[_Union[TokenView, _Mapping]]] = ...) -> None: ...

class RevokeTokenRequest(_message.Message):
    __slots__ = ("tenant", "is_operator", "token_id")
    TENANT_FIELD_NUMBER: _ClassVar[int]
    IS_OPERATOR_FIELD_NUMBER: _ClassVar[int]
    TOKEN_ID_FIELD_NUMBER: _ClassVar[int]
    tenant: str
    is_operator: bool
    token_id: str
    def __init__(self, tenant: _Optional[str] = ..., is_operator: _Optional[bool] = ..., token_id: _Optional[str] = ...) -> None: ...

class WatchTokensRequest(_message.Message):
    __slots__ = ("revision",)
    REVISION_FIELD_NUMBER: _ClassVar[int]
    revision: int
    def __init__(self, revision: _Optional[int] = ...) -> None: ...

class WatchTokensReply(_message.Message):
    __slots__ = ("revision", "tokens", "quotas")
    REVISION_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    QUOTAS_FIELD_NUMBER: _ClassVar[int]
    revision: int
    tokens: _containers.RepeatedCompositeFieldContainer[TokenView]
    quotas: _containers.RepeatedCompositeFieldContainer[QuotaView]
    def __init__(self, revision: _Optional[int] = ..., tokens: _Optional[_Iterable[_Union[TokenView, _Mapping]]] = ..., quotas: _Optional[_Iterable[_Union[QuotaView, _Mapping]]] = ...) -> None: ...

class JoinNodeRequest(_message.Message):
    __slots__ = ("tenant", "token_id", "request", "agent")
    TENANT_FIELD_NUMBER: _ClassVar[int]
    TOKEN_ID_FIELD_NUMBER: _ClassVar[int]
    REQUEST_FIELD_NUMBER: _ClassVar[int]
    AGENT_FIELD_NUMBER: _ClassVar[int]
    tenant: str
    token_id: str
    request: str
    agent: str
    def __init__(self, tenant: _Optional[str] = ..., token_id: _Optional[str] = ..., request: _Optional[str] = ..., agent: _Optional[str] = ...) -> None: ...

class JoinNodeReply(_message.Message):
    __slots__ = ("certificate", "authority", "version", "roots", "wall_us")
    CERTIFICATE_FIELD_NUMBER: _ClassVar[int]
    AUTHORITY_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    ROOTS_FIELD_NUMBER: _ClassVar[int]
    WALL_US_FIELD_NUMBER: _ClassVar[int]
    certificate: str
    authority: str
    version: str
    roots: _containers.RepeatedScalarFieldContainer[str]
    wall_us: int
    def __init__(self, certificate: _Optional[str] = ..., authority: _Optional[str] = ..., version: _Optional[str] = ..., roots: _Optional[_Iterable[str]] = ..., wall_us: _Optional[int] = ...) -> None: ...

class ShutOutNodeRequest(_message.Message):
    __slots__ = ("tenant", "is_operator", "node_id")
    TENANT_FIELD_NUMBER: _ClassVar[int]
    IS_OPERATOR_FIELD_NUMBER: _ClassVar[int]
    NODE_ID_FIELD_NUMBER: _ClassVar[int]
    tenant: str
    is_operator: bool
    node_id: str
    def __init__(self, tenant: _Optional[str] = ..., is_operator: _Optional[bool] = ..., node_id: _Optional[str] = ...) -> None: ...

class ShutOutNodeReply(_message.Message):
    __slots__ = ("node_id", "serials")
    NODE_ID_FIELD_NUMBER: _ClassVar[int]
    SERIALS_FIELD_NUMBER: _ClassVar[int]
    node_id: str
    serials: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, node_id: _Optional[str] = ..., serials: _Optional[_Iterable[str]] = ...) -> None: ...

class QuotaView(_message.Message):
    __slots__ = ("owner", "what", "most", "used")
    OWNER_FIELD_NUMBER: _ClassVar[int]
    WHAT_FIELD_NUMBER: _ClassVar[int]
    MOST_FIELD_NUMBER: _ClassVar[int]
    USED_FIELD_NUMBER: _ClassVar[int]
    owner: str
    what: str
    most: int
    used: int
    def __init__(self, owner: _Optional[str] = ..., what: _Optional[str] = ..., most: _Optional[int] = ..., used: _Optional[int] = ...) -> None: ...

class SetQuotaRequest(_message.Message):
    __slots__ = ("tenant", "is_operator", "owner", "what", "most", "is_lifted")
    TENANT_FIELD_NUMBER: _ClassVar[int]
    IS_OPERATOR_FIELD_NUMBER: _ClassVar[int]
    OWNER_FIELD_NUMBER: _ClassVar[int]
    WHAT_FIELD_NUMBER: _ClassVar[int]
    MOST_FIELD_NUMBER: _ClassVar[int]
    IS_LIFTED_FIELD_NUMBER: _ClassVar[int]
    tenant: str
    is_operator: bool
    owner: str
    what: str
    most: int
    is_lifted: bool
    def __init__(self, tenant: _Optional[str] = ..., is_operator: _Optional[bool] = ..., owner: _Optional[str] = ..., what: _Optional[str] = ..., most: _Optional[int] = ..., is_lifted: _Optional[bool] = ...) -> None: ...

class ListQuotasRequest(_message.Message):
    __slots__ = ("tenant", "is_operator")
    TENANT_FIELD_NUMBER: _ClassVar[int]
    IS_OPERATOR_FIELD_NUMBER: _ClassVar[int]
    tenant: str
    is_operator: bool
    def __init__(self, tenant: _Optional[str] = ..., is_operator: _Optional[bool] = ...) -> None: ...

class ListQuotasReply(_message.Message):
    __slots__ = ("quotas",)
    QUOTAS_FIELD_NUMBER: _ClassVar[int]
    quotas: _containers.RepeatedCompositeFieldContainer[QuotaView]
    def __init__(self, quotas: _Optional[_Iterable[_Union[QuotaView, _Mapping]]] = ...) -> None: ...
