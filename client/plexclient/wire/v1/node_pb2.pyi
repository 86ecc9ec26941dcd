from plexclient.wire.v1 import common_pb2 as _common_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class ProcSpec(_message.Message):
    __slots__ = ("proc_id", "image", "config_json", "job_id", "tenant", "wpg_id", "rank", "shares")
    PROC_ID_FIELD_NUMBER: _ClassVar[int]
    IMAGE_FIELD_NUMBER: _ClassVar[int]
    CONFIG_JSON_FIELD_NUMBER: _ClassVar[int]
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    TENANT_FIELD_NUMBER: _ClassVar[int]
    WPG_ID_FIELD_NUMBER: _ClassVar[int]
    RANK_FIELD_NUMBER: _ClassVar[int]
    SHARES_FIELD_NUMBER: _ClassVar[int]
    proc_id: str
    image: str
    config_json: str
    job_id: str
    tenant: str
    wpg_id: str
    rank: int
    shares: str
    def __init__(self, proc_id: _Optional[str] = ..., image: _Optional[str] = ..., config_json: _Optional[str] = ..., job_id: _Optional[str] = ..., tenant: _Optional[str] = ..., wpg_id: _Optional[str] = ..., rank: _Optional[int] = ..., shares: _Optional[str] = ...) -> None: ...

class SpawnRequest(_message.Message):
    __slots__ = ("fence", "spec")
    FENCE_FIELD_NUMBER: _ClassVar[int]
    SPEC_FIELD_NUMBER: _ClassVar[int]
    fence: _common_pb2.Fence
    spec: ProcSpec
    def __init__(self, fence: _Optional[_Union[_common_pb2.Fence, _Mapping]] = ..., spec: _Optional[_Union[ProcSpec, _Mapping]] = ...) -> None: ...

class SpawnReply(_message.Message):
    __slots__ = ("error", "pid", "address", "log_path")
    ERROR_FIELD_NUMBER: _ClassVar[int]
    PID_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    LOG_PATH_FIELD_NUMBER: _ClassVar[int]
    error: _common_pb2.Error
    pid: int
    address: str
    log_path: str
    def __init__(self, error: _Optional[_Union[_common_pb2.Error, _Mapping]] = ..., pid: _Optional[int] = ..., address: _Optional[str] = ..., log_path: _Optional[str] = ...) -> None: ...

class StopRequest(_message.Message):
    __slots__ = ("fence", "proc_id", "grace_us")
    FENCE_FIELD_NUMBER: _ClassVar[int]
    PROC_ID_FIELD_NUMBER: _ClassVar[int]
    GRACE_US_FIELD_NUMBER: _ClassVar[int]
    fence: _common_pb2.Fence
    proc_id: str
    grace_us: int
    def __init__(self, fence: _Optional[_Union[_common_pb2.Fence, _Mapping]] = ..., proc_id: _Optional[str] = ..., grace_us: _Optional[int] = ...) -> None: ...

class StopReply(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class WriteStacksRequest(_message.Message):
    __slots__ = ("fence", "proc_id")
    FENCE_FIELD_NUMBER: _ClassVar[int]
    PROC_ID_FIELD_NUMBER: _ClassVar[int]
    fence: _common_pb2.Fence
    proc_id: str
    def __init__(self, fence: _Optional[_Union[_common_pb2.Fence, _Mapping]] = ..., proc_id: _Optional[str] = ...) -> None: ...

class WriteStacksReply(_message.Message):
    __slots__ = ("log_path", "stacks")
    LOG_PATH_FIELD_NUMBER: _ClassVar[int]
    STACKS_FIELD_NUMBER: _ClassVar[int]
    log_path: str
    stacks: str
    def __init__(self, log_path: _Optional[str] = ..., stacks: _Optional[str] = ...) -> None: ...

class EventsRequest(_message.Message):
    __slots__ = ("after_index",)
    AFTER_INDEX_FIELD_NUMBER: _ClassVar[int]
    after_index: int
    def __init__(self, after_index: _Optional[int] = ...) -> None: ...

class NodeEvent(_message.Message):
    __slots__ = ("index", "ready", "exited", "state_manager_restarted")
    INDEX_FIELD_NUMBER: _ClassVar[int]
    READY_FIELD_NUMBER: _ClassVar[int]
    EXITED_FIELD_NUMBER: _ClassVar[int]
    STATE_MANAGER_RESTARTED_FIELD_NUMBER: _ClassVar[int]
    index: int
    ready: ProcReady
    exited: ProcExited
    state_manager_restarted: StateManagerRestarted
    def __init__(self, index: _Optional[int] = ..., ready: _Optional[_Union[ProcReady, _Mapping]] = ..., exited: _Optional[_Union[ProcExited, _Mapping]] = ..., state_manager_restarted: _Optional[_Union[StateManagerRestarted, _Mapping]] = ...) -> None: ...

class ProcReady(_message.Message):
    __slots__ = ("proc_id", "address", "incarnation")
    PROC_ID_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    proc_id: str
    address: str
    incarnation: int
    def __init__(self, proc_id: _Optional[str] = ..., address: _Optional[str] = ..., incarnation: _Optional[int] = ...) -> None: ...

class ProcExited(_message.Message):
    __slots__ = ("proc_id", "exit_code", "signal", "log_tail", "incarnation", "pid")
    PROC_ID_FIELD_NUMBER: _ClassVar[int]
    EXIT_CODE_FIELD_NUMBER: _ClassVar[int]
    SIGNAL_FIELD_NUMBER: _ClassVar[int]
    LOG_TAIL_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    PID_FIELD_NUMBER: _ClassVar[int]
    proc_id: str
    exit_code: int
    signal: int
    log_tail: str
    incarnation: int
    pid: int
    def __init__(self, proc_id: _Optional[str] = ..., exit_code: _Optional[int] = ..., signal: _Optional[int] = ..., log_tail: _Optional[str] = ..., incarnation: _Optional[int] = ..., pid: _Optional[int] = ...) -> None: ...

class StateManagerRestarted(_message.Message):
    __slots__ = ("address",)
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    address: str
    def __init__(self, address: _Optional[str] = ...) -> None: ...

class RenewRequest(_message.Message):
    __slots__ = ("scheduler_epoch", "ttl_us", "shut_out", "look_us", "witnesses", "certificate")
    SCHEDULER_EPOCH_FIELD_NUMBER: _ClassVar[int]
    TTL_US_FIELD_NUMBER: _ClassVar[int]
    SHUT_OUT_FIELD_NUMBER: _ClassVar[int]
    LOOK_US_FIELD_NUMBER: _ClassVar[int]
    WITNESSES_FIELD_NUMBER: _ClassVar[int]
    CERTIFICATE_FIELD_NUMBER: _ClassVar[int]
    scheduler_epoch: int
    ttl_us: int
    shut_out: _containers.RepeatedScalarFieldContainer[str]
    look_us: int
    witnesses: _containers.RepeatedScalarFieldContainer[str]
    certificate: str
    def __init__(self, scheduler_epoch: _Optional[int] = ..., ttl_us: _Optional[int] = ..., shut_out: _Optional[_Iterable[str]] = ..., look_us: _Optional[int] = ..., witnesses: _Optional[_Iterable[str]] = ..., certificate: _Optional[str] = ...) -> None: ...

class RenewReply(_message.Message):
    __slots__ = ("error", "max_scheduler_epoch", "processes", "state_manager_restarts", "serial")
    class ProcessesEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    ERROR_FIELD_NUMBER: _ClassVar[int]
    MAX_SCHEDULER_EPOCH_FIELD_NUMBER: _ClassVar[int]
    PROCESSES_FIELD_NUMBER: _ClassVar[int]
    STATE_MANAGER_RESTARTS_FIELD_NUMBER: _ClassVar[int]
    SERIAL_FIELD_NUMBER: _ClassVar[int]
    error: _common_pb2.Error
    max_scheduler_epoch: int
    processes: _containers.ScalarMap[str, int]
    state_manager_restarts: int
    serial: str
    def __init__(self, error: _Optional[_Union[_common_pb2.Error, _Mapping]] = ..., max_scheduler_epoch: _Optional[int] = ..., processes: _Optional[_Mapping[str, int]] = ..., state_manager_restarts: _Optional[int] = ..., serial: _Optional[str] = ...) -> None: ...

class NodeDescribeRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class NodeDescription(_message.Message):
    __slots__ = ("node_id", "devices", "host_bytes", "state_manager", "data_socket", "hostname", "procs", "next_event_index", "runtime_dir", "disk_bytes")
    NODE_ID_FIELD_NUMBER: _ClassVar[int]
    DEVICES_FIELD_NUMBER: _ClassVar[int]
    HOST_BYTES_FIELD_NUMBER: _ClassVar[int]
    STATE_MANAGER_FIELD_NUMBER: _ClassVar[int]
    DATA_SOCKET_FIELD_NUMBER: _ClassVar[int]
    HOSTNAME_FIELD_NUMBER: _ClassVar[int]
    PROCS_FIELD_NUMBER: _ClassVar[int]
    NEXT_EVENT_INDEX_FIELD_NUMBER: _ClassVar[int]
    RUNTIME_DIR_FIELD_NUMBER: _ClassVar[int]
    DISK_BYTES_FIELD_NUMBER: _ClassVar[int]
    node_id: str
    devices: _containers.RepeatedCompositeFieldContainer[DeviceDescription]
    host_bytes: int
    state_manager: str
    data_socket: str
    hostname: str
    procs: _containers.RepeatedCompositeFieldContainer[ProcSummary]
    next_event_index: int
    runtime_dir: str
    disk_bytes: int
    def __init__(self, node_id: _Optional[str] = ..., devices: _Optional[_Iterable[_Union[DeviceDescription, _Mapping]]] = ..., host_bytes: _Optional[int] = ..., state_manager: _Optional[str] = ..., data_socket: _Optional[str] = ..., hostname: _Optional[str] = ..., procs: _Optional[_Iterable[_Union[ProcSummary, _Mapping]]] = ..., next_event_index: _Optional[int] = ..., runtime_dir: _Optional[str] = ..., disk_bytes: _Optional[int] = ...) -> None: ...

class DeviceDescription(_message.Message):
    __slots__ = ("index", "kind", "bytes_total", "model", "cpus", "is_reward_gpu")
    INDEX_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    BYTES_TOTAL_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    CPUS_FIELD_NUMBER: _ClassVar[int]
    IS_REWARD_GPU_FIELD_NUMBER: _ClassVar[int]
    index: int
    kind: str
    bytes_total: int
    model: str
    cpus: int
    is_reward_gpu: bool
    def __init__(self, index: _Optional[int] = ..., kind: _Optional[str] = ..., bytes_total: _Optional[int] = ..., model: _Optional[str] = ..., cpus: _Optional[int] = ..., is_reward_gpu: _Optional[bool] = ...) -> None: ...

class ProcSummary(_message.Message):
    __slots__ = ("proc_id", "pid", "wpg_id", "rank", "incarnation", "address")
    PROC_ID_FIELD_NUMBER: _ClassVar[int]
    PID_FIELD_NUMBER: _ClassVar[int]
    WPG_ID_FIELD_NUMBER: _ClassVar[int]
    RANK_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    proc_id: str
    pid: int
    wpg_id: str
    rank: int
    incarnation: int
    address: str
    def __init__(self, proc_id: _Optional[str] = ..., pid: _Optional[int] = ..., wpg_id: _Optional[str] = ..., rank: _Optional[int] = ..., incarnation: _Optional[int] = ..., address: _Optional[str] = ...) -> None: ...

class ExamineRequest(_message.Message):
    __slots__ = ("roots", "reaches")
    ROOTS_FIELD_NUMBER: _ClassVar[int]
    REACHES_FIELD_NUMBER: _ClassVar[int]
    roots: _containers.RepeatedScalarFieldContainer[str]
    reaches: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, roots: _Optional[_Iterable[str]] = ..., reaches: _Optional[_Iterable[str]] = ...) -> None: ...

class Examination(_message.Message):
    __slots__ = ("versions", "wall_us", "roots", "unreached", "free_bytes")
    class VersionsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    class FreeBytesEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    VERSIONS_FIELD_NUMBER: _ClassVar[int]
    WALL_US_FIELD_NUMBER: _ClassVar[int]
    ROOTS_FIELD_NUMBER: _ClassVar[int]
    UNREACHED_FIELD_NUMBER: _ClassVar[int]
    FREE_BYTES_FIELD_NUMBER: _ClassVar[int]
    versions: _containers.ScalarMap[str, str]
    wall_us: int
    roots: _containers.RepeatedCompositeFieldContainer[RootFound]
    unreached: _containers.RepeatedScalarFieldContainer[str]
    free_bytes: _containers.ScalarMap[str, int]
    def __init__(self, versions: _Optional[_Mapping[str, str]] = ..., wall_us: _Optional[int] = ..., roots: _Optional[_Iterable[_Union[RootFound, _Mapping]]] = ..., unreached: _Optional[_Iterable[str]] = ..., free_bytes: _Optional[_Mapping[str, int]] = ...) -> None: ...

class RootFound(_message.Message):
    __slots__ = ("path", "problem", "models")
    class ModelsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    PATH_FIELD_NUMBER: _ClassVar[int]
    PROBLEM_FIELD_NUMBER: _ClassVar[int]
    MODELS_FIELD_NUMBER: _ClassVar[int]
    path: str
    problem: str
    models: _containers.ScalarMap[str, str]
    def __init__(self, path: _Optional[str] = ..., problem: _Optional[str] = ..., models: _Optional[_Mapping[str, str]] = ...) -> None: ...
