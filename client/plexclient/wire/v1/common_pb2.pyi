from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Residency(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    RESIDENCY_UNSPECIFIED: _ClassVar[Residency]
    RESIDENCY_NONE: _ClassVar[Residency]
    RESIDENCY_DEVICE: _ClassVar[Residency]
    RESIDENCY_HOST: _ClassVar[Residency]
    RESIDENCY_DISK: _ClassVar[Residency]
RESIDENCY_UNSPECIFIED: Residency
RESIDENCY_NONE: Residency
RESIDENCY_DEVICE: Residency
RESIDENCY_HOST: Residency
RESIDENCY_DISK: Residency

class Fence(_message.Message):
    __slots__ = ("scheduler_epoch", "lease_no", "incarnation")
    SCHEDULER_EPOCH_FIELD_NUMBER: _ClassVar[int]
    LEASE_NO_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    scheduler_epoch: int
    lease_no: int
    incarnation: int
    def __init__(self, scheduler_epoch: _Optional[int] = ..., lease_no: _Optional[int] = ..., incarnation: _Optional[int] = ...) -> None: ...

class Parallel(_message.Message):
    __slots__ = ("tp", "pp", "dp", "cp", "ep", "sequence_parallel", "distributed_optimizer")
    TP_FIELD_NUMBER: _ClassVar[int]
    PP_FIELD_NUMBER: _ClassVar[int]
    DP_FIELD_NUMBER: _ClassVar[int]
    CP_FIELD_NUMBER: _ClassVar[int]
    EP_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_PARALLEL_FIELD_NUMBER: _ClassVar[int]
    DISTRIBUTED_OPTIMIZER_FIELD_NUMBER: _ClassVar[int]
    tp: int
    pp: int
    dp: int
    cp: int
    ep: int
    sequence_parallel: bool
    distributed_optimizer: bool
    def __init__(self, tp: _Optional[int] = ..., pp: _Optional[int] = ..., dp: _Optional[int] = ..., cp: _Optional[int] = ..., ep: _Optional[int] = ..., sequence_parallel: _Optional[bool] = ..., distributed_optimizer: _Optional[bool] = ...) -> None: ...

class TensorSpec(_message.Message):
    __slots__ = ("name", "dtype", "shape", "offset", "nbytes")
    NAME_FIELD_NUMBER: _ClassVar[int]
    DTYPE_FIELD_NUMBER: _ClassVar[int]
    SHAPE_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    NBYTES_FIELD_NUMBER: _ClassVar[int]
    name: str
    dtype: str
    shape: _containers.RepeatedScalarFieldContainer[int]
    offset: int
    nbytes: int
    def __init__(self, name: _Optional[str] = ..., dtype: _Optional[str] = ..., shape: _Optional[_Iterable[int]] = ..., offset: _Optional[int] = ..., nbytes: _Optional[int] = ...) -> None: ...

class TensorBundle(_message.Message):
    __slots__ = ("tensors", "data")
    TENSORS_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    tensors: _containers.RepeatedCompositeFieldContainer[TensorSpec]
    data: bytes
    def __init__(self, tensors: _Optional[_Iterable[_Union[TensorSpec, _Mapping]]] = ..., data: _Optional[bytes] = ...) -> None: ...

class StagedBundle(_message.Message):
    __slots__ = ("tensors", "nbytes", "staging_id", "node_ids")
    TENSORS_FIELD_NUMBER: _ClassVar[int]
    NBYTES_FIELD_NUMBER: _ClassVar[int]
    STAGING_ID_FIELD_NUMBER: _ClassVar[int]
    NODE_IDS_FIELD_NUMBER: _ClassVar[int]
    tensors: _containers.RepeatedCompositeFieldContainer[TensorSpec]
    nbytes: int
    staging_id: bytes
    node_ids: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, tensors: _Optional[_Iterable[_Union[TensorSpec, _Mapping]]] = ..., nbytes: _Optional[int] = ..., staging_id: _Optional[bytes] = ..., node_ids: _Optional[_Iterable[str]] = ...) -> None: ...

class Payload(_message.Message):
    __slots__ = ("inline", "staged", "checksum")
    INLINE_FIELD_NUMBER: _ClassVar[int]
    STAGED_FIELD_NUMBER: _ClassVar[int]
    CHECKSUM_FIELD_NUMBER: _ClassVar[int]
    inline: TensorBundle
    staged: StagedBundle
    checksum: bytes
    def __init__(self, inline: _Optional[_Union[TensorBundle, _Mapping]] = ..., staged: _Optional[_Union[StagedBundle, _Mapping]] = ..., checksum: _Optional[bytes] = ...) -> None: ...

class Error(_message.Message):
    __slots__ = ("code", "message", "retryable", "facts")
    class FactsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    CODE_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    RETRYABLE_FIELD_NUMBER: _ClassVar[int]
    FACTS_FIELD_NUMBER: _ClassVar[int]
    code: str
    message: str
    retryable: bool
    facts: _containers.ScalarMap[str, str]
    def __init__(self, code: _Optional[str] = ..., message: _Optional[str] = ..., retryable: _Optional[bool] = ..., facts: _Optional[_Mapping[str, str]] = ...) -> None: ...

class Chunk(_message.Message):
    __slots__ = ("offset", "data")
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    offset: int
    data: bytes
    def __init__(self, offset: _Optional[int] = ..., data: _Optional[bytes] = ...) -> None: ...

class DeviceBlock(_message.Message):
    __slots__ = ("node_id", "first", "count")
    NODE_ID_FIELD_NUMBER: _ClassVar[int]
    FIRST_FIELD_NUMBER: _ClassVar[int]
    COUNT_FIELD_NUMBER: _ClassVar[int]
    node_id: str
    first: int
    count: int
    def __init__(self, node_id: _Optional[str] = ..., first: _Optional[int] = ..., count: _Optional[int] = ...) -> None: ...
