from plexclient.wire.v1 import common_pb2 as _common_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class RewardParcel(_message.Message):
    __slots__ = ("data",)
    DATA_FIELD_NUMBER: _ClassVar[int]
    data: bytes
    def __init__(self, data: _Optional[bytes] = ...) -> None: ...

class UseHostsRequest(_message.Message):
    __slots__ = ("fence", "hosts")
    FENCE_FIELD_NUMBER: _ClassVar[int]
    HOSTS_FIELD_NUMBER: _ClassVar[int]
    fence: _common_pb2.Fence
    hosts: _containers.RepeatedCompositeFieldContainer[HostFacts]
    def __init__(self, fence: _Optional[_Union[_common_pb2.Fence, _Mapping]] = ..., hosts: _Optional[_Iterable[_Union[HostFacts, _Mapping]]] = ...) -> None: ...

class UseHostsReply(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class HostFacts(_message.Message):
    __slots__ = ("node_id", "address", "cpus", "memory_bytes", "gpus", "is_open")
    NODE_ID_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    CPUS_FIELD_NUMBER: _ClassVar[int]
    MEMORY_BYTES_FIELD_NUMBER: _ClassVar[int]
    GPUS_FIELD_NUMBER: _ClassVar[int]
    IS_OPEN_FIELD_NUMBER: _ClassVar[int]
    node_id: str
    address: str
    cpus: int
    memory_bytes: int
    gpus: int
    is_open: bool
    def __init__(self, node_id: _Optional[str] = ..., address: _Optional[str] = ..., cpus: _Optional[int] = ..., memory_bytes: _Optional[int] = ..., gpus: _Optional[int] = ..., is_open: _Optional[bool] = ...) -> None: ...

class PlanRequest(_message.Message):
    __slots__ = ("query",)
    QUERY_FIELD_NUMBER: _ClassVar[int]
    query: bytes
    def __init__(self, query: _Optional[bytes] = ...) -> None: ...

class PlanReply(_message.Message):
    __slots__ = ("answer",)
    ANSWER_FIELD_NUMBER: _ClassVar[int]
    answer: bytes
    def __init__(self, answer: _Optional[bytes] = ...) -> None: ...

class ScoreRequest(_message.Message):
    __slots__ = ("tenant", "job_id", "batch_id", "program", "settings", "batch_size", "samples", "version")
    TENANT_FIELD_NUMBER: _ClassVar[int]
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    BATCH_ID_FIELD_NUMBER: _ClassVar[int]
    PROGRAM_FIELD_NUMBER: _ClassVar[int]
    SETTINGS_FIELD_NUMBER: _ClassVar[int]
    BATCH_SIZE_FIELD_NUMBER: _ClassVar[int]
    SAMPLES_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    tenant: str
    job_id: str
    batch_id: bytes
    program: str
    settings: str
    batch_size: int
    samples: _containers.RepeatedCompositeFieldContainer[ScoreSample]
    version: str
    def __init__(self, tenant: _Optional[str] = ..., job_id: _Optional[str] = ..., batch_id: _Optional[bytes] = ..., program: _Optional[str] = ..., settings: _Optional[str] = ..., batch_size: _Optional[int] = ..., samples: _Optional[_Iterable[_Union[ScoreSample, _Mapping]]] = ..., version: _Optional[str] = ...) -> None: ...

class ScoreSample(_message.Message):
    __slots__ = ("index", "text", "reference")
    INDEX_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    REFERENCE_FIELD_NUMBER: _ClassVar[int]
    index: int
    text: str
    reference: str
    def __init__(self, index: _Optional[int] = ..., text: _Optional[str] = ..., reference: _Optional[str] = ...) -> None: ...

class ScoreReply(_message.Message):
    __slots__ = ("index", "score", "verdict", "time_us", "queue_us", "output", "detail", "version", "files")
    class FilesEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: bytes
        def __init__(self, key: _Optional[str] = ..., value: _Optional[bytes] = ...) -> None: ...
    INDEX_FIELD_NUMBER: _ClassVar[int]
    SCORE_FIELD_NUMBER: _ClassVar[int]
    VERDICT_FIELD_NUMBER: _ClassVar[int]
    TIME_US_FIELD_NUMBER: _ClassVar[int]
    QUEUE_US_FIELD_NUMBER: _ClassVar[int]
    OUTPUT_FIELD_NUMBER: _ClassVar[int]
    DETAIL_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    FILES_FIELD_NUMBER: _ClassVar[int]
    index: int
    score: float
    verdict: str
    time_us: int
    queue_us: int
    output: str
    detail: str
    version: str
    files: _containers.ScalarMap[str, bytes]
    def __init__(self, index: _Optional[int] = ..., score: _Optional[float] = ..., verdict: _Optional[str] = ..., time_us: _Optional[int] = ..., queue_us: _Optional[int] = ..., output: _Optional[str] = ..., detail: _Optional[str] = ..., version: _Optional[str] = ..., files: _Optional[_Mapping[str, bytes]] = ...) -> None: ...

class AddProgramRequest(_message.Message):
    __slots__ = ("tenant", "name", "stages", "files", "timeout_score")
    class FilesEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: bytes
        def __init__(self, key: _Optional[str] = ..., value: _Optional[bytes] = ...) -> None: ...
    TENANT_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    STAGES_FIELD_NUMBER: _ClassVar[int]
    FILES_FIELD_NUMBER: _ClassVar[int]
    TIMEOUT_SCORE_FIELD_NUMBER: _ClassVar[int]
    tenant: str
    name: str
    stages: _containers.RepeatedCompositeFieldContainer[ProgramStage]
    files: _containers.ScalarMap[str, bytes]
    timeout_score: float
    def __init__(self, tenant: _Optional[str] = ..., name: _Optional[str] = ..., stages: _Optional[_Iterable[_Union[ProgramStage, _Mapping]]] = ..., files: _Optional[_Mapping[str, bytes]] = ..., timeout_score: _Optional[float] = ...) -> None: ...

class ProgramStage(_message.Message):
    __slots__ = ("name", "resource", "count", "memory_bytes", "timeout_us", "command", "python", "is_untrusted")
    NAME_FIELD_NUMBER: _ClassVar[int]
    RESOURCE_FIELD_NUMBER: _ClassVar[int]
    COUNT_FIELD_NUMBER: _ClassVar[int]
    MEMORY_BYTES_FIELD_NUMBER: _ClassVar[int]
    TIMEOUT_US_FIELD_NUMBER: _ClassVar[int]
    COMMAND_FIELD_NUMBER: _ClassVar[int]
    PYTHON_FIELD_NUMBER: _ClassVar[int]
    IS_UNTRUSTED_FIELD_NUMBER: _ClassVar[int]
    name: str
    resource: str
    count: int
    memory_bytes: int
    timeout_us: int
    command: str
    python: str
    is_untrusted: bool
    def __init__(self, name: _Optional[str] = ..., resource: _Optional[str] = ..., count: _Optional[int] = ..., memory_bytes: _Optional[int] = ..., timeout_us: _Optional[int] = ..., command: _Optional[str] = ..., python: _Optional[str] = ..., is_untrusted: _Optional[bool] = ...) -> None: ...

class RemoveProgramRequest(_message.Message):
    __slots__ = ("tenant", "name")
    TENANT_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    tenant: str
    name: str
    def __init__(self, tenant: _Optional[str] = ..., name: _Optional[str] = ...) -> None: ...

class GetRewardsRequest(_message.Message):
    __slots__ = ("tenant", "is_operator")
    TENANT_FIELD_NUMBER: _ClassVar[int]
    IS_OPERATOR_FIELD_NUMBER: _ClassVar[int]
    tenant: str
    is_operator: bool
    def __init__(self, tenant: _Optional[str] = ..., is_operator: _Optional[bool] = ...) -> None: ...

class RewardsReply(_message.Message):
    __slots__ = ("programs", "pools", "batches", "sandbox")
    PROGRAMS_FIELD_NUMBER: _ClassVar[int]
    POOLS_FIELD_NUMBER: _ClassVar[int]
    BATCHES_FIELD_NUMBER: _ClassVar[int]
    SANDBOX_FIELD_NUMBER: _ClassVar[int]
    programs: _containers.RepeatedCompositeFieldContainer[RewardProgram]
    pools: _containers.RepeatedCompositeFieldContainer[RewardPool]
    batches: _containers.RepeatedCompositeFieldContainer[RewardBatch]
    sandbox: str
    def __init__(self, programs: _Optional[_Iterable[_Union[RewardProgram, _Mapping]]] = ..., pools: _Optional[_Iterable[_Union[RewardPool, _Mapping]]] = ..., batches: _Optional[_Iterable[_Union[RewardBatch, _Mapping]]] = ..., sandbox: _Optional[str] = ...) -> None: ...

class RewardProgram(_message.Message):
    __slots__ = ("name", "stages", "timeout_score", "text", "version")
    NAME_FIELD_NUMBER: _ClassVar[int]
    STAGES_FIELD_NUMBER: _ClassVar[int]
    TIMEOUT_SCORE_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    name: str
    stages: _containers.RepeatedCompositeFieldContainer[RewardStage]
    timeout_score: float
    text: str
    version: str
    def __init__(self, name: _Optional[str] = ..., stages: _Optional[_Iterable[_Union[RewardStage, _Mapping]]] = ..., timeout_score: _Optional[float] = ..., text: _Optional[str] = ..., version: _Optional[str] = ...) -> None: ...

class RewardStage(_message.Message):
    __slots__ = ("name", "timeout_us", "memory_bytes", "is_sandboxed", "resource", "count")
    NAME_FIELD_NUMBER: _ClassVar[int]
    TIMEOUT_US_FIELD_NUMBER: _ClassVar[int]
    MEMORY_BYTES_FIELD_NUMBER: _ClassVar[int]
    IS_SANDBOXED_FIELD_NUMBER: _ClassVar[int]
    RESOURCE_FIELD_NUMBER: _ClassVar[int]
    COUNT_FIELD_NUMBER: _ClassVar[int]
    name: str
    timeout_us: int
    memory_bytes: int
    is_sandboxed: bool
    resource: str
    count: int
    def __init__(self, name: _Optional[str] = ..., timeout_us: _Optional[int] = ..., memory_bytes: _Optional[int] = ..., is_sandboxed: _Optional[bool] = ..., resource: _Optional[str] = ..., count: _Optional[int] = ...) -> None: ...

class RewardPool(_message.Message):
    __slots__ = ("name", "queued", "idle", "busy", "starting", "limit", "planned", "held", "is_unmet")
    NAME_FIELD_NUMBER: _ClassVar[int]
    QUEUED_FIELD_NUMBER: _ClassVar[int]
    IDLE_FIELD_NUMBER: _ClassVar[int]
    BUSY_FIELD_NUMBER: _ClassVar[int]
    STARTING_FIELD_NUMBER: _ClassVar[int]
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    PLANNED_FIELD_NUMBER: _ClassVar[int]
    HELD_FIELD_NUMBER: _ClassVar[int]
    IS_UNMET_FIELD_NUMBER: _ClassVar[int]
    name: str
    queued: int
    idle: int
    busy: int
    starting: int
    limit: int
    planned: int
    held: int
    is_unmet: bool
    def __init__(self, name: _Optional[str] = ..., queued: _Optional[int] = ..., idle: _Optional[int] = ..., busy: _Optional[int] = ..., starting: _Optional[int] = ..., limit: _Optional[int] = ..., planned: _Optional[int] = ..., held: _Optional[int] = ..., is_unmet: _Optional[bool] = ...) -> None: ...

class RewardBatch(_message.Message):
    __slots__ = ("tenant", "job_id", "batch_id", "program", "size", "queued", "running", "answered", "since_us", "expected_us", "critical")
    TENANT_FIELD_NUMBER: _ClassVar[int]
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    BATCH_ID_FIELD_NUMBER: _ClassVar[int]
    PROGRAM_FIELD_NUMBER: _ClassVar[int]
    SIZE_FIELD_NUMBER: _ClassVar[int]
    QUEUED_FIELD_NUMBER: _ClassVar[int]
    RUNNING_FIELD_NUMBER: _ClassVar[int]
    ANSWERED_FIELD_NUMBER: _ClassVar[int]
    SINCE_US_FIELD_NUMBER: _ClassVar[int]
    EXPECTED_US_FIELD_NUMBER: _ClassVar[int]
    CRITICAL_FIELD_NUMBER: _ClassVar[int]
    tenant: str
    job_id: str
    batch_id: bytes
    program: str
    size: int
    queued: int
    running: int
    answered: int
    since_us: int
    expected_us: int
    critical: str
    def __init__(self, tenant: _Optional[str] = ..., job_id: _Optional[str] = ..., batch_id: _Optional[bytes] = ..., program: _Optional[str] = ..., size: _Optional[int] = ..., queued: _Optional[int] = ..., running: _Optional[int] = ..., answered: _Optional[int] = ..., since_us: _Optional[int] = ..., expected_us: _Optional[int] = ..., critical: _Optional[str] = ...) -> None: ...
