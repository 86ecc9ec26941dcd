from plexclient.wire.v1 import common_pb2 as _common_pb2
from plexclient.wire.v1 import operations_pb2 as _operations_pb2
from plexclient.wire.v1 import service_pb2 as _service_pb2
from plexclient.wire.v1 import statemanager_pb2 as _statemanager_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class ExecuteRequest(_message.Message):
    __slots__ = ("fence", "wpg_id", "operation", "deployment", "instance_addresses", "published", "attempt", "trained", "is_asked", "pulled_seq")
    FENCE_FIELD_NUMBER: _ClassVar[int]
    WPG_ID_FIELD_NUMBER: _ClassVar[int]
    OPERATION_FIELD_NUMBER: _ClassVar[int]
    DEPLOYMENT_FIELD_NUMBER: _ClassVar[int]
    INSTANCE_ADDRESSES_FIELD_NUMBER: _ClassVar[int]
    PUBLISHED_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    TRAINED_FIELD_NUMBER: _ClassVar[int]
    IS_ASKED_FIELD_NUMBER: _ClassVar[int]
    PULLED_SEQ_FIELD_NUMBER: _ClassVar[int]
    fence: _common_pb2.Fence
    wpg_id: str
    operation: _operations_pb2.Operation
    deployment: _service_pb2.Deployment
    instance_addresses: _containers.RepeatedScalarFieldContainer[str]
    published: _statemanager_pb2.PublishedVersion
    attempt: int
    trained: Trained
    is_asked: bool
    pulled_seq: int
    def __init__(self, fence: _Optional[_Union[_common_pb2.Fence, _Mapping]] = ..., wpg_id: _Optional[str] = ..., operation: _Optional[_Union[_operations_pb2.Operation, _Mapping]] = ..., deployment: _Optional[_Union[_service_pb2.Deployment, _Mapping]] = ..., instance_addresses: _Optional[_Iterable[str]] = ..., published: _Optional[_Union[_statemanager_pb2.PublishedVersion, _Mapping]] = ..., attempt: _Optional[int] = ..., trained: _Optional[_Union[Trained, _Mapping]] = ..., is_asked: _Optional[bool] = ..., pulled_seq: _Optional[int] = ...) -> None: ...

class Trained(_message.Message):
    __slots__ = ("train_us", "ended_ago_us")
    TRAIN_US_FIELD_NUMBER: _ClassVar[int]
    ENDED_AGO_US_FIELD_NUMBER: _ClassVar[int]
    train_us: int
    ended_ago_us: int
    def __init__(self, train_us: _Optional[int] = ..., ended_ago_us: _Optional[int] = ...) -> None: ...

class ExecuteReply(_message.Message):
    __slots__ = ("result", "applied_seq", "digest", "run_us", "log_tail", "asleep", "position")
    RESULT_FIELD_NUMBER: _ClassVar[int]
    APPLIED_SEQ_FIELD_NUMBER: _ClassVar[int]
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    RUN_US_FIELD_NUMBER: _ClassVar[int]
    LOG_TAIL_FIELD_NUMBER: _ClassVar[int]
    ASLEEP_FIELD_NUMBER: _ClassVar[int]
    POSITION_FIELD_NUMBER: _ClassVar[int]
    result: _operations_pb2.OperationResult
    applied_seq: int
    digest: bytes
    run_us: int
    log_tail: str
    asleep: _containers.RepeatedScalarFieldContainer[str]
    position: str
    def __init__(self, result: _Optional[_Union[_operations_pb2.OperationResult, _Mapping]] = ..., applied_seq: _Optional[int] = ..., digest: _Optional[bytes] = ..., run_us: _Optional[int] = ..., log_tail: _Optional[str] = ..., asleep: _Optional[_Iterable[str]] = ..., position: _Optional[str] = ...) -> None: ...

class DescribeRequest(_message.Message):
    __slots__ = ("wpg_id",)
    WPG_ID_FIELD_NUMBER: _ClassVar[int]
    wpg_id: str
    def __init__(self, wpg_id: _Optional[str] = ...) -> None: ...

class DescribeReply(_message.Message):
    __slots__ = ("wpg_id", "incarnation", "rank", "applied_seq", "device_bytes", "vocab_size", "max_sequence_length", "initialized", "orders_socket", "parked_bytes", "progress", "shared_key", "shared_bytes", "pass_bytes", "engine")
    WPG_ID_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    RANK_FIELD_NUMBER: _ClassVar[int]
    APPLIED_SEQ_FIELD_NUMBER: _ClassVar[int]
    DEVICE_BYTES_FIELD_NUMBER: _ClassVar[int]
    VOCAB_SIZE_FIELD_NUMBER: _ClassVar[int]
    MAX_SEQUENCE_LENGTH_FIELD_NUMBER: _ClassVar[int]
    INITIALIZED_FIELD_NUMBER: _ClassVar[int]
    ORDERS_SOCKET_FIELD_NUMBER: _ClassVar[int]
    PARKED_BYTES_FIELD_NUMBER: _ClassVar[int]
    PROGRESS_FIELD_NUMBER: _ClassVar[int]
    SHARED_KEY_FIELD_NUMBER: _ClassVar[int]
    SHARED_BYTES_FIELD_NUMBER: _ClassVar[int]
    PASS_BYTES_FIELD_NUMBER: _ClassVar[int]
    ENGINE_FIELD_NUMBER: _ClassVar[int]
    wpg_id: str
    incarnation: int
    rank: int
    applied_seq: int
    device_bytes: int
    vocab_size: int
    max_sequence_length: int
    initialized: bool
    orders_socket: str
    parked_bytes: int
    progress: int
    shared_key: str
    shared_bytes: int
    pass_bytes: int
    engine: str
    def __init__(self, wpg_id: _Optional[str] = ..., incarnation: _Optional[int] = ..., rank: _Optional[int] = ..., applied_seq: _Optional[int] = ..., device_bytes: _Optional[int] = ..., vocab_size: _Optional[int] = ..., max_sequence_length: _Optional[int] = ..., initialized: _Optional[bool] = ..., orders_socket: _Optional[str] = ..., parked_bytes: _Optional[int] = ..., progress: _Optional[int] = ..., shared_key: _Optional[str] = ..., shared_bytes: _Optional[int] = ..., pass_bytes: _Optional[int] = ..., engine: _Optional[str] = ...) -> None: ...

class CancelRequest(_message.Message):
    __slots__ = ("operation_id", "wpg_id", "fence")
    OPERATION_ID_FIELD_NUMBER: _ClassVar[int]
    WPG_ID_FIELD_NUMBER: _ClassVar[int]
    FENCE_FIELD_NUMBER: _ClassVar[int]
    operation_id: bytes
    wpg_id: str
    fence: _common_pb2.Fence
    def __init__(self, operation_id: _Optional[bytes] = ..., wpg_id: _Optional[str] = ..., fence: _Optional[_Union[_common_pb2.Fence, _Mapping]] = ...) -> None: ...

class CancelReply(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class StreamFramesRequest(_message.Message):
    __slots__ = ("operation_id", "after_cursor", "deployment_id", "tenant", "is_answered")
    OPERATION_ID_FIELD_NUMBER: _ClassVar[int]
    AFTER_CURSOR_FIELD_NUMBER: _ClassVar[int]
    DEPLOYMENT_ID_FIELD_NUMBER: _ClassVar[int]
    TENANT_FIELD_NUMBER: _ClassVar[int]
    IS_ANSWERED_FIELD_NUMBER: _ClassVar[int]
    operation_id: bytes
    after_cursor: int
    deployment_id: str
    tenant: str
    is_answered: bool
    def __init__(self, operation_id: _Optional[bytes] = ..., after_cursor: _Optional[int] = ..., deployment_id: _Optional[str] = ..., tenant: _Optional[str] = ..., is_answered: _Optional[bool] = ...) -> None: ...
