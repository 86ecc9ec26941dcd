from plexclient.wire.v1 import common_pb2 as _common_pb2
from plexclient.wire.v1 import service_pb2 as _service_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class MoveRequest(_message.Message):
    __slots__ = ("fence", "wpg_id", "move_id", "to", "next")
    FENCE_FIELD_NUMBER: _ClassVar[int]
    WPG_ID_FIELD_NUMBER: _ClassVar[int]
    MOVE_ID_FIELD_NUMBER: _ClassVar[int]
    TO_FIELD_NUMBER: _ClassVar[int]
    NEXT_FIELD_NUMBER: _ClassVar[int]
    fence: _common_pb2.Fence
    wpg_id: str
    move_id: bytes
    to: _common_pb2.Residency
    next: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, fence: _Optional[_Union[_common_pb2.Fence, _Mapping]] = ..., wpg_id: _Optional[str] = ..., move_id: _Optional[bytes] = ..., to: _Optional[_Union[_common_pb2.Residency, str]] = ..., next: _Optional[_Iterable[str]] = ...) -> None: ...

class MoveReply(_message.Message):
    __slots__ = ("error", "nbytes", "copy_us", "total_us", "residency", "step_us")
    class StepUsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    ERROR_FIELD_NUMBER: _ClassVar[int]
    NBYTES_FIELD_NUMBER: _ClassVar[int]
    COPY_US_FIELD_NUMBER: _ClassVar[int]
    TOTAL_US_FIELD_NUMBER: _ClassVar[int]
    RESIDENCY_FIELD_NUMBER: _ClassVar[int]
    STEP_US_FIELD_NUMBER: _ClassVar[int]
    error: _common_pb2.Error
    nbytes: int
    copy_us: int
    total_us: int
    residency: _common_pb2.Residency
    step_us: _containers.ScalarMap[str, int]
    def __init__(self, error: _Optional[_Union[_common_pb2.Error, _Mapping]] = ..., nbytes: _Optional[int] = ..., copy_us: _Optional[int] = ..., total_us: _Optional[int] = ..., residency: _Optional[_Union[_common_pb2.Residency, str]] = ..., step_us: _Optional[_Mapping[str, int]] = ...) -> None: ...

class PublishRequest(_message.Message):
    __slots__ = ("fence", "wpg_id", "deployment_id", "version", "complete", "mid_window", "gradients", "beside", "incarnation", "copy_of", "job_id")
    FENCE_FIELD_NUMBER: _ClassVar[int]
    WPG_ID_FIELD_NUMBER: _ClassVar[int]
    DEPLOYMENT_ID_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    COMPLETE_FIELD_NUMBER: _ClassVar[int]
    MID_WINDOW_FIELD_NUMBER: _ClassVar[int]
    GRADIENTS_FIELD_NUMBER: _ClassVar[int]
    BESIDE_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    COPY_OF_FIELD_NUMBER: _ClassVar[int]
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    fence: _common_pb2.Fence
    wpg_id: str
    deployment_id: str
    version: int
    complete: bool
    mid_window: bool
    gradients: bool
    beside: bool
    incarnation: int
    copy_of: PublishedVersion
    job_id: str
    def __init__(self, fence: _Optional[_Union[_common_pb2.Fence, _Mapping]] = ..., wpg_id: _Optional[str] = ..., deployment_id: _Optional[str] = ..., version: _Optional[int] = ..., complete: _Optional[bool] = ..., mid_window: _Optional[bool] = ..., gradients: _Optional[bool] = ..., beside: _Optional[bool] = ..., incarnation: _Optional[int] = ..., copy_of: _Optional[_Union[PublishedVersion, _Mapping]] = ..., job_id: _Optional[str] = ...) -> None: ...

class PublishReply(_message.Message):
    __slots__ = ("error", "nbytes", "copy_us", "part", "step")
    ERROR_FIELD_NUMBER: _ClassVar[int]
    NBYTES_FIELD_NUMBER: _ClassVar[int]
    COPY_US_FIELD_NUMBER: _ClassVar[int]
    PART_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    error: _common_pb2.Error
    nbytes: int
    copy_us: int
    part: str
    step: int
    def __init__(self, error: _Optional[_Union[_common_pb2.Error, _Mapping]] = ..., nbytes: _Optional[int] = ..., copy_us: _Optional[int] = ..., part: _Optional[str] = ..., step: _Optional[int] = ...) -> None: ...

class PublishedVersion(_message.Message):
    __slots__ = ("deployment_id", "version", "holders", "incarnation")
    DEPLOYMENT_ID_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    HOLDERS_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    deployment_id: str
    version: int
    holders: _containers.RepeatedCompositeFieldContainer[VersionHolder]
    incarnation: int
    def __init__(self, deployment_id: _Optional[str] = ..., version: _Optional[int] = ..., holders: _Optional[_Iterable[_Union[VersionHolder, _Mapping]]] = ..., incarnation: _Optional[int] = ...) -> None: ...

class VersionHolder(_message.Message):
    __slots__ = ("node_id", "data_socket", "state_manager", "part")
    NODE_ID_FIELD_NUMBER: _ClassVar[int]
    DATA_SOCKET_FIELD_NUMBER: _ClassVar[int]
    STATE_MANAGER_FIELD_NUMBER: _ClassVar[int]
    PART_FIELD_NUMBER: _ClassVar[int]
    node_id: str
    data_socket: str
    state_manager: str
    part: str
    def __init__(self, node_id: _Optional[str] = ..., data_socket: _Optional[str] = ..., state_manager: _Optional[str] = ..., part: _Optional[str] = ...) -> None: ...

class VersionId(_message.Message):
    __slots__ = ("deployment_id", "incarnation", "version")
    DEPLOYMENT_ID_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    deployment_id: str
    incarnation: int
    version: int
    def __init__(self, deployment_id: _Optional[str] = ..., incarnation: _Optional[int] = ..., version: _Optional[int] = ...) -> None: ...

class GetManifestRequest(_message.Message):
    __slots__ = ("deployment_id", "version", "incarnation")
    DEPLOYMENT_ID_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    deployment_id: str
    version: int
    incarnation: int
    def __init__(self, deployment_id: _Optional[str] = ..., version: _Optional[int] = ..., incarnation: _Optional[int] = ...) -> None: ...

class VersionManifest(_message.Message):
    __slots__ = ("deployment_id", "version", "nbytes", "pieces", "block_checksums", "node_id", "scalars_json", "applied_seq", "incarnation", "bytes_at")
    DEPLOYMENT_ID_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    NBYTES_FIELD_NUMBER: _ClassVar[int]
    PIECES_FIELD_NUMBER: _ClassVar[int]
    BLOCK_CHECKSUMS_FIELD_NUMBER: _ClassVar[int]
    NODE_ID_FIELD_NUMBER: _ClassVar[int]
    SCALARS_JSON_FIELD_NUMBER: _ClassVar[int]
    APPLIED_SEQ_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    BYTES_AT_FIELD_NUMBER: _ClassVar[int]
    deployment_id: str
    version: int
    nbytes: int
    pieces: _containers.RepeatedCompositeFieldContainer[CanonicalPiece]
    block_checksums: _containers.RepeatedScalarFieldContainer[bytes]
    node_id: str
    scalars_json: str
    applied_seq: int
    incarnation: int
    bytes_at: str
    def __init__(self, deployment_id: _Optional[str] = ..., version: _Optional[int] = ..., nbytes: _Optional[int] = ..., pieces: _Optional[_Iterable[_Union[CanonicalPiece, _Mapping]]] = ..., block_checksums: _Optional[_Iterable[bytes]] = ..., node_id: _Optional[str] = ..., scalars_json: _Optional[str] = ..., applied_seq: _Optional[int] = ..., incarnation: _Optional[int] = ..., bytes_at: _Optional[str] = ...) -> None: ...

class CanonicalPiece(_message.Message):
    __slots__ = ("kind", "name", "global_shape", "start", "size", "dtype", "region", "offset", "stride", "rank")
    KIND_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    GLOBAL_SHAPE_FIELD_NUMBER: _ClassVar[int]
    START_FIELD_NUMBER: _ClassVar[int]
    SIZE_FIELD_NUMBER: _ClassVar[int]
    DTYPE_FIELD_NUMBER: _ClassVar[int]
    REGION_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    STRIDE_FIELD_NUMBER: _ClassVar[int]
    RANK_FIELD_NUMBER: _ClassVar[int]
    kind: str
    name: str
    global_shape: _containers.RepeatedScalarFieldContainer[int]
    start: _containers.RepeatedScalarFieldContainer[int]
    size: _containers.RepeatedScalarFieldContainer[int]
    dtype: str
    region: str
    offset: int
    stride: _containers.RepeatedScalarFieldContainer[int]
    rank: int
    def __init__(self, kind: _Optional[str] = ..., name: _Optional[str] = ..., global_shape: _Optional[_Iterable[int]] = ..., start: _Optional[_Iterable[int]] = ..., size: _Optional[_Iterable[int]] = ..., dtype: _Optional[str] = ..., region: _Optional[str] = ..., offset: _Optional[int] = ..., stride: _Optional[_Iterable[int]] = ..., rank: _Optional[int] = ...) -> None: ...

class ReleaseVersionRequest(_message.Message):
    __slots__ = ("deployment_id", "version", "fence", "incarnation")
    DEPLOYMENT_ID_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    FENCE_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    deployment_id: str
    version: int
    fence: _common_pb2.Fence
    incarnation: int
    def __init__(self, deployment_id: _Optional[str] = ..., version: _Optional[int] = ..., fence: _Optional[_Union[_common_pb2.Fence, _Mapping]] = ..., incarnation: _Optional[int] = ...) -> None: ...

class ReleaseVersionReply(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class MaterializeRequest(_message.Message):
    __slots__ = ("fence", "wpg_id", "path", "optimizer", "model", "copies", "root", "model_root", "tenant", "about_json", "kept", "written")
    FENCE_FIELD_NUMBER: _ClassVar[int]
    WPG_ID_FIELD_NUMBER: _ClassVar[int]
    PATH_FIELD_NUMBER: _ClassVar[int]
    OPTIMIZER_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    COPIES_FIELD_NUMBER: _ClassVar[int]
    ROOT_FIELD_NUMBER: _ClassVar[int]
    MODEL_ROOT_FIELD_NUMBER: _ClassVar[int]
    TENANT_FIELD_NUMBER: _ClassVar[int]
    ABOUT_JSON_FIELD_NUMBER: _ClassVar[int]
    KEPT_FIELD_NUMBER: _ClassVar[int]
    WRITTEN_FIELD_NUMBER: _ClassVar[int]
    fence: _common_pb2.Fence
    wpg_id: str
    path: str
    optimizer: bool
    model: str
    copies: PublishedVersion
    root: str
    model_root: str
    tenant: str
    about_json: str
    kept: int
    written: _containers.RepeatedCompositeFieldContainer[Shard]
    def __init__(self, fence: _Optional[_Union[_common_pb2.Fence, _Mapping]] = ..., wpg_id: _Optional[str] = ..., path: _Optional[str] = ..., optimizer: _Optional[bool] = ..., model: _Optional[str] = ..., copies: _Optional[_Union[PublishedVersion, _Mapping]] = ..., root: _Optional[str] = ..., model_root: _Optional[str] = ..., tenant: _Optional[str] = ..., about_json: _Optional[str] = ..., kept: _Optional[int] = ..., written: _Optional[_Iterable[_Union[Shard, _Mapping]]] = ...) -> None: ...

class MaterializeReply(_message.Message):
    __slots__ = ("error", "nbytes", "files", "shares", "directory", "written")
    ERROR_FIELD_NUMBER: _ClassVar[int]
    NBYTES_FIELD_NUMBER: _ClassVar[int]
    FILES_FIELD_NUMBER: _ClassVar[int]
    SHARES_FIELD_NUMBER: _ClassVar[int]
    DIRECTORY_FIELD_NUMBER: _ClassVar[int]
    WRITTEN_FIELD_NUMBER: _ClassVar[int]
    error: _common_pb2.Error
    nbytes: int
    files: _containers.RepeatedScalarFieldContainer[str]
    shares: _containers.RepeatedCompositeFieldContainer[Share]
    directory: str
    written: _containers.RepeatedCompositeFieldContainer[Shard]
    def __init__(self, error: _Optional[_Union[_common_pb2.Error, _Mapping]] = ..., nbytes: _Optional[int] = ..., files: _Optional[_Iterable[str]] = ..., shares: _Optional[_Iterable[_Union[Share, _Mapping]]] = ..., directory: _Optional[str] = ..., written: _Optional[_Iterable[_Union[Shard, _Mapping]]] = ...) -> None: ...

class Shard(_message.Message):
    __slots__ = ("file", "tensors", "nbytes", "blocks")
    FILE_FIELD_NUMBER: _ClassVar[int]
    TENSORS_FIELD_NUMBER: _ClassVar[int]
    NBYTES_FIELD_NUMBER: _ClassVar[int]
    BLOCKS_FIELD_NUMBER: _ClassVar[int]
    file: str
    tensors: _containers.RepeatedScalarFieldContainer[str]
    nbytes: int
    blocks: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, file: _Optional[str] = ..., tensors: _Optional[_Iterable[str]] = ..., nbytes: _Optional[int] = ..., blocks: _Optional[_Iterable[str]] = ...) -> None: ...

class Share(_message.Message):
    __slots__ = ("node_id", "shards")
    NODE_ID_FIELD_NUMBER: _ClassVar[int]
    SHARDS_FIELD_NUMBER: _ClassVar[int]
    node_id: str
    shards: _containers.RepeatedCompositeFieldContainer[Shard]
    def __init__(self, node_id: _Optional[str] = ..., shards: _Optional[_Iterable[_Union[Shard, _Mapping]]] = ...) -> None: ...

class WriteShardsRequest(_message.Message):
    __slots__ = ("fence", "copies", "directory", "root", "shards")
    FENCE_FIELD_NUMBER: _ClassVar[int]
    COPIES_FIELD_NUMBER: _ClassVar[int]
    DIRECTORY_FIELD_NUMBER: _ClassVar[int]
    ROOT_FIELD_NUMBER: _ClassVar[int]
    SHARDS_FIELD_NUMBER: _ClassVar[int]
    fence: _common_pb2.Fence
    copies: PublishedVersion
    directory: str
    root: str
    shards: _containers.RepeatedCompositeFieldContainer[Shard]
    def __init__(self, fence: _Optional[_Union[_common_pb2.Fence, _Mapping]] = ..., copies: _Optional[_Union[PublishedVersion, _Mapping]] = ..., directory: _Optional[str] = ..., root: _Optional[str] = ..., shards: _Optional[_Iterable[_Union[Shard, _Mapping]]] = ...) -> None: ...

class ReadVersionRequest(_message.Message):
    __slots__ = ("deployment_id", "version", "incarnation", "offset", "base", "bytes_per_s", "lows", "site", "reader", "without", "part")
    DEPLOYMENT_ID_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    BASE_FIELD_NUMBER: _ClassVar[int]
    BYTES_PER_S_FIELD_NUMBER: _ClassVar[int]
    LOWS_FIELD_NUMBER: _ClassVar[int]
    SITE_FIELD_NUMBER: _ClassVar[int]
    READER_FIELD_NUMBER: _ClassVar[int]
    WITHOUT_FIELD_NUMBER: _ClassVar[int]
    PART_FIELD_NUMBER: _ClassVar[int]
    deployment_id: str
    version: int
    incarnation: int
    offset: int
    base: VersionId
    bytes_per_s: int
    lows: _containers.RepeatedScalarFieldContainer[int]
    site: str
    reader: str
    without: str
    part: str
    def __init__(self, deployment_id: _Optional[str] = ..., version: _Optional[int] = ..., incarnation: _Optional[int] = ..., offset: _Optional[int] = ..., base: _Optional[_Union[VersionId, _Mapping]] = ..., bytes_per_s: _Optional[int] = ..., lows: _Optional[_Iterable[int]] = ..., site: _Optional[str] = ..., reader: _Optional[str] = ..., without: _Optional[str] = ..., part: _Optional[str] = ...) -> None: ...

class VersionChunk(_message.Message):
    __slots__ = ("offset", "nbytes", "width", "relay", "error")
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    NBYTES_FIELD_NUMBER: _ClassVar[int]
    WIDTH_FIELD_NUMBER: _ClassVar[int]
    RELAY_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    offset: int
    nbytes: int
    width: int
    relay: str
    error: _common_pb2.Error
    def __init__(self, offset: _Optional[int] = ..., nbytes: _Optional[int] = ..., width: _Optional[int] = ..., relay: _Optional[str] = ..., error: _Optional[_Union[_common_pb2.Error, _Mapping]] = ...) -> None: ...

class DigestRequest(_message.Message):
    __slots__ = ("wpg_id", "fence", "copies")
    WPG_ID_FIELD_NUMBER: _ClassVar[int]
    FENCE_FIELD_NUMBER: _ClassVar[int]
    COPIES_FIELD_NUMBER: _ClassVar[int]
    wpg_id: str
    fence: _common_pb2.Fence
    copies: PublishedVersion
    def __init__(self, wpg_id: _Optional[str] = ..., fence: _Optional[_Union[_common_pb2.Fence, _Mapping]] = ..., copies: _Optional[_Union[PublishedVersion, _Mapping]] = ...) -> None: ...

class DigestReply(_message.Message):
    __slots__ = ("error", "digests", "applied_seq")
    class DigestsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    ERROR_FIELD_NUMBER: _ClassVar[int]
    DIGESTS_FIELD_NUMBER: _ClassVar[int]
    APPLIED_SEQ_FIELD_NUMBER: _ClassVar[int]
    error: _common_pb2.Error
    digests: _containers.ScalarMap[str, str]
    applied_seq: int
    def __init__(self, error: _Optional[_Union[_common_pb2.Error, _Mapping]] = ..., digests: _Optional[_Mapping[str, str]] = ..., applied_seq: _Optional[int] = ...) -> None: ...

class ForgetRequest(_message.Message):
    __slots__ = ("fence", "wpg_id", "job_id")
    FENCE_FIELD_NUMBER: _ClassVar[int]
    WPG_ID_FIELD_NUMBER: _ClassVar[int]
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    fence: _common_pb2.Fence
    wpg_id: str
    job_id: str
    def __init__(self, fence: _Optional[_Union[_common_pb2.Fence, _Mapping]] = ..., wpg_id: _Optional[str] = ..., job_id: _Optional[str] = ...) -> None: ...

class ForgetReply(_message.Message):
    __slots__ = ("freed_bytes",)
    FREED_BYTES_FIELD_NUMBER: _ClassVar[int]
    freed_bytes: int
    def __init__(self, freed_bytes: _Optional[int] = ...) -> None: ...

class InventoryRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class InventoryReply(_message.Message):
    __slots__ = ("node_id", "wpgs", "devices", "host_bytes_used", "host_bytes_total", "staging_bytes_used", "staging_bytes_total", "max_scheduler_epoch", "data_socket", "versions", "disk_bytes_used", "disk_bytes_total", "sunk_bytes", "risen_bytes", "queued_bytes", "spared_bytes", "arrived_bytes", "replica_bytes")
    NODE_ID_FIELD_NUMBER: _ClassVar[int]
    WPGS_FIELD_NUMBER: _ClassVar[int]
    DEVICES_FIELD_NUMBER: _ClassVar[int]
    HOST_BYTES_USED_FIELD_NUMBER: _ClassVar[int]
    HOST_BYTES_TOTAL_FIELD_NUMBER: _ClassVar[int]
    STAGING_BYTES_USED_FIELD_NUMBER: _ClassVar[int]
    STAGING_BYTES_TOTAL_FIELD_NUMBER: _ClassVar[int]
    MAX_SCHEDULER_EPOCH_FIELD_NUMBER: _ClassVar[int]
    DATA_SOCKET_FIELD_NUMBER: _ClassVar[int]
    VERSIONS_FIELD_NUMBER: _ClassVar[int]
    DISK_BYTES_USED_FIELD_NUMBER: _ClassVar[int]
    DISK_BYTES_TOTAL_FIELD_NUMBER: _ClassVar[int]
    SUNK_BYTES_FIELD_NUMBER: _ClassVar[int]
    RISEN_BYTES_FIELD_NUMBER: _ClassVar[int]
    QUEUED_BYTES_FIELD_NUMBER: _ClassVar[int]
    SPARED_BYTES_FIELD_NUMBER: _ClassVar[int]
    ARRIVED_BYTES_FIELD_NUMBER: _ClassVar[int]
    REPLICA_BYTES_FIELD_NUMBER: _ClassVar[int]
    node_id: str
    wpgs: _containers.RepeatedCompositeFieldContainer[WpgState]
    devices: _containers.RepeatedCompositeFieldContainer[DeviceMemory]
    host_bytes_used: int
    host_bytes_total: int
    staging_bytes_used: int
    staging_bytes_total: int
    max_scheduler_epoch: int
    data_socket: str
    versions: _containers.RepeatedCompositeFieldContainer[VersionId]
    disk_bytes_used: int
    disk_bytes_total: int
    sunk_bytes: int
    risen_bytes: int
    queued_bytes: int
    spared_bytes: int
    arrived_bytes: int
    replica_bytes: int
    def __init__(self, node_id: _Optional[str] = ..., wpgs: _Optional[_Iterable[_Union[WpgState, _Mapping]]] = ..., devices: _Optional[_Iterable[_Union[DeviceMemory, _Mapping]]] = ..., host_bytes_used: _Optional[int] = ..., host_bytes_total: _Optional[int] = ..., staging_bytes_used: _Optional[int] = ..., staging_bytes_total: _Optional[int] = ..., max_scheduler_epoch: _Optional[int] = ..., data_socket: _Optional[str] = ..., versions: _Optional[_Iterable[_Union[VersionId, _Mapping]]] = ..., disk_bytes_used: _Optional[int] = ..., disk_bytes_total: _Optional[int] = ..., sunk_bytes: _Optional[int] = ..., risen_bytes: _Optional[int] = ..., queued_bytes: _Optional[int] = ..., spared_bytes: _Optional[int] = ..., arrived_bytes: _Optional[int] = ..., replica_bytes: _Optional[int] = ...) -> None: ...

class WpgState(_message.Message):
    __slots__ = ("wpg_id", "incarnation", "residency", "device_bytes", "host_bytes", "switch_bytes", "lease_no", "applied_seq", "disk_bytes", "move_us", "moved_bytes", "worked_bytes")
    WPG_ID_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    RESIDENCY_FIELD_NUMBER: _ClassVar[int]
    DEVICE_BYTES_FIELD_NUMBER: _ClassVar[int]
    HOST_BYTES_FIELD_NUMBER: _ClassVar[int]
    SWITCH_BYTES_FIELD_NUMBER: _ClassVar[int]
    LEASE_NO_FIELD_NUMBER: _ClassVar[int]
    APPLIED_SEQ_FIELD_NUMBER: _ClassVar[int]
    DISK_BYTES_FIELD_NUMBER: _ClassVar[int]
    MOVE_US_FIELD_NUMBER: _ClassVar[int]
    MOVED_BYTES_FIELD_NUMBER: _ClassVar[int]
    WORKED_BYTES_FIELD_NUMBER: _ClassVar[int]
    wpg_id: str
    incarnation: int
    residency: _common_pb2.Residency
    device_bytes: int
    host_bytes: int
    switch_bytes: int
    lease_no: int
    applied_seq: int
    disk_bytes: int
    move_us: int
    moved_bytes: int
    worked_bytes: int
    def __init__(self, wpg_id: _Optional[str] = ..., incarnation: _Optional[int] = ..., residency: _Optional[_Union[_common_pb2.Residency, str]] = ..., device_bytes: _Optional[int] = ..., host_bytes: _Optional[int] = ..., switch_bytes: _Optional[int] = ..., lease_no: _Optional[int] = ..., applied_seq: _Optional[int] = ..., disk_bytes: _Optional[int] = ..., move_us: _Optional[int] = ..., moved_bytes: _Optional[int] = ..., worked_bytes: _Optional[int] = ...) -> None: ...

class DeviceMemory(_message.Message):
    __slots__ = ("index", "bytes_used", "bytes_total", "bytes_peak")
    INDEX_FIELD_NUMBER: _ClassVar[int]
    BYTES_USED_FIELD_NUMBER: _ClassVar[int]
    BYTES_TOTAL_FIELD_NUMBER: _ClassVar[int]
    BYTES_PEAK_FIELD_NUMBER: _ClassVar[int]
    index: int
    bytes_used: int
    bytes_total: int
    bytes_peak: int
    def __init__(self, index: _Optional[int] = ..., bytes_used: _Optional[int] = ..., bytes_total: _Optional[int] = ..., bytes_peak: _Optional[int] = ...) -> None: ...

class ReadStagedRequest(_message.Message):
    __slots__ = ("staging_id", "offset", "job_id")
    STAGING_ID_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    staging_id: bytes
    offset: int
    job_id: str
    def __init__(self, staging_id: _Optional[bytes] = ..., offset: _Optional[int] = ..., job_id: _Optional[str] = ...) -> None: ...

class DropStagedRequest(_message.Message):
    __slots__ = ("staging_ids", "job_id")
    STAGING_IDS_FIELD_NUMBER: _ClassVar[int]
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    staging_ids: _containers.RepeatedScalarFieldContainer[bytes]
    job_id: str
    def __init__(self, staging_ids: _Optional[_Iterable[bytes]] = ..., job_id: _Optional[str] = ...) -> None: ...

class DropStagedReply(_message.Message):
    __slots__ = ("freed_bytes",)
    FREED_BYTES_FIELD_NUMBER: _ClassVar[int]
    freed_bytes: int
    def __init__(self, freed_bytes: _Optional[int] = ...) -> None: ...
