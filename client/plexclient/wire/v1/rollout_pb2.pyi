from plexclient.wire.v1 import common_pb2 as _common_pb2
from plexclient.wire.v1 import operations_pb2 as _operations_pb2
from plexclient.wire.v1 import service_pb2 as _service_pb2
from plexclient.wire.v1 import statemanager_pb2 as _statemanager_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class InstancesMove(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    INSTANCES_MOVE_UNSPECIFIED: _ClassVar[InstancesMove]
    INSTANCES_MOVE_SLEEP: _ClassVar[InstancesMove]
    INSTANCES_MOVE_WAKE: _ClassVar[InstancesMove]
    INSTANCES_MOVE_AWAIT_PULL: _ClassVar[InstancesMove]
INSTANCES_MOVE_UNSPECIFIED: InstancesMove
INSTANCES_MOVE_SLEEP: InstancesMove
INSTANCES_MOVE_WAKE: InstancesMove
INSTANCES_MOVE_AWAIT_PULL: InstancesMove

class TakeSeatRequest(_message.Message):
    __slots__ = ("proc_id", "config_json")
    PROC_ID_FIELD_NUMBER: _ClassVar[int]
    CONFIG_JSON_FIELD_NUMBER: _ClassVar[int]
    proc_id: str
    config_json: str
    def __init__(self, proc_id: _Optional[str] = ..., config_json: _Optional[str] = ...) -> None: ...

class TakeSeatReply(_message.Message):
    __slots__ = ("error", "address")
    ERROR_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    error: _common_pb2.Error
    address: str
    def __init__(self, error: _Optional[_Union[_common_pb2.Error, _Mapping]] = ..., address: _Optional[str] = ...) -> None: ...

class LeaveSeatRequest(_message.Message):
    __slots__ = ("proc_id",)
    PROC_ID_FIELD_NUMBER: _ClassVar[int]
    proc_id: str
    def __init__(self, proc_id: _Optional[str] = ...) -> None: ...

class LeaveSeatReply(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class InstanceRequest(_message.Message):
    __slots__ = ("request_id", "prompt", "sampling", "prompt_index", "sample_index", "cache_salt")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    PROMPT_FIELD_NUMBER: _ClassVar[int]
    SAMPLING_FIELD_NUMBER: _ClassVar[int]
    PROMPT_INDEX_FIELD_NUMBER: _ClassVar[int]
    SAMPLE_INDEX_FIELD_NUMBER: _ClassVar[int]
    CACHE_SALT_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    prompt: _operations_pb2.Prompt
    sampling: _operations_pb2.SamplingParams
    prompt_index: int
    sample_index: int
    cache_salt: str
    def __init__(self, request_id: _Optional[str] = ..., prompt: _Optional[_Union[_operations_pb2.Prompt, _Mapping]] = ..., sampling: _Optional[_Union[_operations_pb2.SamplingParams, _Mapping]] = ..., prompt_index: _Optional[int] = ..., sample_index: _Optional[int] = ..., cache_salt: _Optional[str] = ...) -> None: ...

class EncodeRequest(_message.Message):
    __slots__ = ("prompts", "texts")
    PROMPTS_FIELD_NUMBER: _ClassVar[int]
    TEXTS_FIELD_NUMBER: _ClassVar[int]
    prompts: _containers.RepeatedCompositeFieldContainer[_operations_pb2.Prompt]
    texts: bool
    def __init__(self, prompts: _Optional[_Iterable[_Union[_operations_pb2.Prompt, _Mapping]]] = ..., texts: _Optional[bool] = ...) -> None: ...

class EncodeReply(_message.Message):
    __slots__ = ("prompts",)
    PROMPTS_FIELD_NUMBER: _ClassVar[int]
    prompts: _containers.RepeatedCompositeFieldContainer[_operations_pb2.Prompt]
    def __init__(self, prompts: _Optional[_Iterable[_Union[_operations_pb2.Prompt, _Mapping]]] = ...) -> None: ...

class InstanceGenerateRequest(_message.Message):
    __slots__ = ("fence", "requests", "version")
    FENCE_FIELD_NUMBER: _ClassVar[int]
    REQUESTS_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    fence: _common_pb2.Fence
    requests: _containers.RepeatedCompositeFieldContainer[InstanceRequest]
    version: _statemanager_pb2.VersionId
    def __init__(self, fence: _Optional[_Union[_common_pb2.Fence, _Mapping]] = ..., requests: _Optional[_Iterable[_Union[InstanceRequest, _Mapping]]] = ..., version: _Optional[_Union[_statemanager_pb2.VersionId, _Mapping]] = ...) -> None: ...

class InstanceFrame(_message.Message):
    __slots__ = ("deltas",)
    DELTAS_FIELD_NUMBER: _ClassVar[int]
    deltas: _containers.RepeatedCompositeFieldContainer[_operations_pb2.SampleDelta]
    def __init__(self, deltas: _Optional[_Iterable[_Union[_operations_pb2.SampleDelta, _Mapping]]] = ...) -> None: ...

class InstanceAbortRequest(_message.Message):
    __slots__ = ("request_ids",)
    REQUEST_IDS_FIELD_NUMBER: _ClassVar[int]
    request_ids: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, request_ids: _Optional[_Iterable[str]] = ...) -> None: ...

class InstanceAbortReply(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class LoadVersionRequest(_message.Message):
    __slots__ = ("fence", "published")
    FENCE_FIELD_NUMBER: _ClassVar[int]
    PUBLISHED_FIELD_NUMBER: _ClassVar[int]
    fence: _common_pb2.Fence
    published: _statemanager_pb2.PublishedVersion
    def __init__(self, fence: _Optional[_Union[_common_pb2.Fence, _Mapping]] = ..., published: _Optional[_Union[_statemanager_pb2.PublishedVersion, _Mapping]] = ...) -> None: ...

class LoadVersionReply(_message.Message):
    __slots__ = ("error", "nbytes", "load_us", "version", "checksum")
    ERROR_FIELD_NUMBER: _ClassVar[int]
    NBYTES_FIELD_NUMBER: _ClassVar[int]
    LOAD_US_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    CHECKSUM_FIELD_NUMBER: _ClassVar[int]
    error: _common_pb2.Error
    nbytes: int
    load_us: int
    version: _statemanager_pb2.VersionId
    checksum: str
    def __init__(self, error: _Optional[_Union[_common_pb2.Error, _Mapping]] = ..., nbytes: _Optional[int] = ..., load_us: _Optional[int] = ..., version: _Optional[_Union[_statemanager_pb2.VersionId, _Mapping]] = ..., checksum: _Optional[str] = ...) -> None: ...

class SleepRequest(_message.Message):
    __slots__ = ("fence",)
    FENCE_FIELD_NUMBER: _ClassVar[int]
    fence: _common_pb2.Fence
    def __init__(self, fence: _Optional[_Union[_common_pb2.Fence, _Mapping]] = ...) -> None: ...

class SleepReply(_message.Message):
    __slots__ = ("error", "nbytes")
    ERROR_FIELD_NUMBER: _ClassVar[int]
    NBYTES_FIELD_NUMBER: _ClassVar[int]
    error: _common_pb2.Error
    nbytes: int
    def __init__(self, error: _Optional[_Union[_common_pb2.Error, _Mapping]] = ..., nbytes: _Optional[int] = ...) -> None: ...

class InstanceStatsRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class InstanceStats(_message.Message):
    __slots__ = ("running", "waiting", "kv_usage", "version", "generated_tokens", "checksum", "broken", "progress", "is_asleep")
    RUNNING_FIELD_NUMBER: _ClassVar[int]
    WAITING_FIELD_NUMBER: _ClassVar[int]
    KV_USAGE_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    GENERATED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    CHECKSUM_FIELD_NUMBER: _ClassVar[int]
    BROKEN_FIELD_NUMBER: _ClassVar[int]
    PROGRESS_FIELD_NUMBER: _ClassVar[int]
    IS_ASLEEP_FIELD_NUMBER: _ClassVar[int]
    running: int
    waiting: int
    kv_usage: float
    version: _statemanager_pb2.VersionId
    generated_tokens: int
    checksum: str
    broken: _common_pb2.Error
    progress: int
    is_asleep: bool
    def __init__(self, running: _Optional[int] = ..., waiting: _Optional[int] = ..., kv_usage: _Optional[float] = ..., version: _Optional[_Union[_statemanager_pb2.VersionId, _Mapping]] = ..., generated_tokens: _Optional[int] = ..., checksum: _Optional[str] = ..., broken: _Optional[_Union[_common_pb2.Error, _Mapping]] = ..., progress: _Optional[int] = ..., is_asleep: _Optional[bool] = ...) -> None: ...

class FollowRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ManagerNews(_message.Message):
    __slots__ = ("incarnation", "gone", "left", "turns")
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    GONE_FIELD_NUMBER: _ClassVar[int]
    LEFT_FIELD_NUMBER: _ClassVar[int]
    TURNS_FIELD_NUMBER: _ClassVar[int]
    incarnation: int
    gone: InstanceGone
    left: InstanceLeft
    turns: TurnsTaken
    def __init__(self, incarnation: _Optional[int] = ..., gone: _Optional[_Union[InstanceGone, _Mapping]] = ..., left: _Optional[_Union[InstanceLeft, _Mapping]] = ..., turns: _Optional[_Union[TurnsTaken, _Mapping]] = ...) -> None: ...

class TurnsTaken(_message.Message):
    __slots__ = ("wpg_id", "device_us")
    WPG_ID_FIELD_NUMBER: _ClassVar[int]
    DEVICE_US_FIELD_NUMBER: _ClassVar[int]
    wpg_id: str
    device_us: int
    def __init__(self, wpg_id: _Optional[str] = ..., device_us: _Optional[int] = ...) -> None: ...

class InstanceGone(_message.Message):
    __slots__ = ("wpg_id", "address", "because", "is_dedicated")
    WPG_ID_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    BECAUSE_FIELD_NUMBER: _ClassVar[int]
    IS_DEDICATED_FIELD_NUMBER: _ClassVar[int]
    wpg_id: str
    address: str
    because: str
    is_dedicated: bool
    def __init__(self, wpg_id: _Optional[str] = ..., address: _Optional[str] = ..., because: _Optional[str] = ..., is_dedicated: _Optional[bool] = ...) -> None: ...

class InstanceLeft(_message.Message):
    __slots__ = ("wpg_id", "address", "operation_id")
    WPG_ID_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    OPERATION_ID_FIELD_NUMBER: _ClassVar[int]
    wpg_id: str
    address: str
    operation_id: bytes
    def __init__(self, wpg_id: _Optional[str] = ..., address: _Optional[str] = ..., operation_id: _Optional[bytes] = ...) -> None: ...

class ChangeInstanceRequest(_message.Message):
    __slots__ = ("fence", "wpg_id", "deployment_id", "address", "replaces", "joins_as", "drains", "ended", "located")
    FENCE_FIELD_NUMBER: _ClassVar[int]
    WPG_ID_FIELD_NUMBER: _ClassVar[int]
    DEPLOYMENT_ID_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    REPLACES_FIELD_NUMBER: _ClassVar[int]
    JOINS_AS_FIELD_NUMBER: _ClassVar[int]
    DRAINS_FIELD_NUMBER: _ClassVar[int]
    ENDED_FIELD_NUMBER: _ClassVar[int]
    LOCATED_FIELD_NUMBER: _ClassVar[int]
    fence: _common_pb2.Fence
    wpg_id: str
    deployment_id: str
    address: str
    replaces: int
    joins_as: str
    drains: bool
    ended: str
    located: _statemanager_pb2.PublishedVersion
    def __init__(self, fence: _Optional[_Union[_common_pb2.Fence, _Mapping]] = ..., wpg_id: _Optional[str] = ..., deployment_id: _Optional[str] = ..., address: _Optional[str] = ..., replaces: _Optional[int] = ..., joins_as: _Optional[str] = ..., drains: _Optional[bool] = ..., ended: _Optional[str] = ..., located: _Optional[_Union[_statemanager_pb2.PublishedVersion, _Mapping]] = ...) -> None: ...

class ChangeInstanceReply(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class MoveInstancesRequest(_message.Message):
    __slots__ = ("fence", "wpg_id", "deployment_id", "to")
    FENCE_FIELD_NUMBER: _ClassVar[int]
    WPG_ID_FIELD_NUMBER: _ClassVar[int]
    DEPLOYMENT_ID_FIELD_NUMBER: _ClassVar[int]
    TO_FIELD_NUMBER: _ClassVar[int]
    fence: _common_pb2.Fence
    wpg_id: str
    deployment_id: str
    to: InstancesMove
    def __init__(self, fence: _Optional[_Union[_common_pb2.Fence, _Mapping]] = ..., wpg_id: _Optional[str] = ..., deployment_id: _Optional[str] = ..., to: _Optional[_Union[InstancesMove, str]] = ...) -> None: ...

class MoveInstancesReply(_message.Message):
    __slots__ = ("nbytes", "unreached")
    NBYTES_FIELD_NUMBER: _ClassVar[int]
    UNREACHED_FIELD_NUMBER: _ClassVar[int]
    nbytes: int
    unreached: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, nbytes: _Optional[int] = ..., unreached: _Optional[_Iterable[str]] = ...) -> None: ...

class ArrangeRequest(_message.Message):
    __slots__ = ("leads", "others", "copies_to", "number", "fence")
    LEADS_FIELD_NUMBER: _ClassVar[int]
    OTHERS_FIELD_NUMBER: _ClassVar[int]
    COPIES_TO_FIELD_NUMBER: _ClassVar[int]
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    FENCE_FIELD_NUMBER: _ClassVar[int]
    leads: _containers.RepeatedScalarFieldContainer[str]
    others: _containers.RepeatedScalarFieldContainer[str]
    copies_to: str
    number: int
    fence: _common_pb2.Fence
    def __init__(self, leads: _Optional[_Iterable[str]] = ..., others: _Optional[_Iterable[str]] = ..., copies_to: _Optional[str] = ..., number: _Optional[int] = ..., fence: _Optional[_Union[_common_pb2.Fence, _Mapping]] = ...) -> None: ...

class ArrangeReply(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class KeepCopiesRequest(_message.Message):
    __slots__ = ("restarts", "parts")
    RESTARTS_FIELD_NUMBER: _ClassVar[int]
    PARTS_FIELD_NUMBER: _ClassVar[int]
    restarts: _containers.RepeatedScalarFieldContainer[str]
    parts: _containers.RepeatedCompositeFieldContainer[CopiedBytes]
    def __init__(self, restarts: _Optional[_Iterable[str]] = ..., parts: _Optional[_Iterable[_Union[CopiedBytes, _Mapping]]] = ...) -> None: ...

class CopiedBytes(_message.Message):
    __slots__ = ("deployment_id", "operation_id", "offset", "data", "is_gone")
    DEPLOYMENT_ID_FIELD_NUMBER: _ClassVar[int]
    OPERATION_ID_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    IS_GONE_FIELD_NUMBER: _ClassVar[int]
    deployment_id: str
    operation_id: bytes
    offset: int
    data: bytes
    is_gone: bool
    def __init__(self, deployment_id: _Optional[str] = ..., operation_id: _Optional[bytes] = ..., offset: _Optional[int] = ..., data: _Optional[bytes] = ..., is_gone: _Optional[bool] = ...) -> None: ...

class KeepCopiesReply(_message.Message):
    __slots__ = ("refused",)
    REFUSED_FIELD_NUMBER: _ClassVar[int]
    refused: _containers.RepeatedScalarFieldContainer[bytes]
    def __init__(self, refused: _Optional[_Iterable[bytes]] = ...) -> None: ...

class InspectRequest(_message.Message):
    __slots__ = ("operation_id",)
    OPERATION_ID_FIELD_NUMBER: _ClassVar[int]
    operation_id: bytes
    def __init__(self, operation_id: _Optional[bytes] = ...) -> None: ...

class ManagerFacts(_message.Message):
    __slots__ = ("instances", "progress")
    INSTANCES_FIELD_NUMBER: _ClassVar[int]
    PROGRESS_FIELD_NUMBER: _ClassVar[int]
    instances: _containers.RepeatedCompositeFieldContainer[_service_pb2.InstanceView]
    progress: int
    def __init__(self, instances: _Optional[_Iterable[_Union[_service_pb2.InstanceView, _Mapping]]] = ..., progress: _Optional[int] = ...) -> None: ...
