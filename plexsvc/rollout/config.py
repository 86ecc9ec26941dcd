"""Configuration: of an instance (from the scheduler) and of managers (from the cluster)."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from plexsvc.errors import bad_request
from plexsvc.fixed import Fixed
from plexsvc.statelink.member import Member


@dataclass(frozen=True, slots=True, kw_only=True)
class InstanceConfig(Member):
    """What the scheduler tells a rollout process at its start."""

    dtype: str = ""
    """`float32`, `bfloat16`; empty: the device's default."""
    max_model_len: int = 0
    """Longest prompt with answer, in tokens; 0: what the model was made for."""
    kv_cache_bytes: int = 0
    """Memory of the KV cache; 0: 64 MiB on a CPU, on a GPU what the device's budget leaves."""
    max_num_seqs: int = 0
    """Samples in one step; 0: 64 on a CPU, 256 on a GPU."""
    device_bytes: int = 0
    """Budget of its device, which may be a part of a GPU; 0: all of it."""
    lora_rank: int = 0
    """Highest rank of the adapters of an engine that deployments share; 0: one of its own."""
    tp: int = 1
    """Tensor ranks of the engine, one on each GPU of its device. `kv_cache_bytes` and
    `device_bytes` are of all together."""
    adapter_bytes: int = 0
    """Memory for such adapters: those that it has room for may have seats at once."""


NOTICES_US: Final = (0, 30_000_000, 120_000_000)
"""What clouds give: nothing, half a minute, two minutes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SpotConfig:
    """Where spot devices come from: nodes with devices of kind `spot`, perhaps by a trace."""

    price: float = 0.0
    """What an instance costs an hour, until the trace says otherwise. Jobs that pay less get none,
    and their instances are drained when a price rises."""
    trace: str = ""
    """A CSV file of nodes that come and go; empty: spot devices are there while their nodes are."""
    segment: str = ""
    """Which rows of the trace: their trace_id, segment or variant; several separated by `/`."""
    scale: float = 1.0
    """How much faster than recorded the trace is played."""
    notice_us: int = 0
    """How long before a node of the trace goes its instance is drained: 0, 30 or 120 s, of
    recorded time."""

    def __post_init__(self) -> None:
        if not (0 <= self.price < float("inf")):
            raise bad_request(f"spot.price is {self.price}; it must be a number from 0")
        if not (0 < self.scale < float("inf")):
            raise bad_request(f"spot.scale is {self.scale}; it must be above 0")
        if self.notice_us not in NOTICES_US:
            raise bad_request(f"spot.notice_us is {self.notice_us}; it is one of {NOTICES_US}")


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutConfig:
    """Bounds and cadence of each rollout manager, and how many there are."""

    managers: int = 1
    """Processes on each node that collect tokens, where the node leads rollouts; jobs are spread
    over them."""
    frame_us: Fixed[int] = 20_000
    """Between two frames of a generate; what arrives meanwhile is gathered."""
    record_bytes: int = 4 << 30
    """Token records kept, all operations together, running ones by the most that they may become
    (32 bytes a token). Those of a tenant may take as much as is left free; of finished ones the
    oldest go first, of the tenant that has most."""
    max_operations: Fixed[int] = 8192
    """Generates of one manager that may run at once; the next is refused with `queue_full`. A
    tenant has as many of them at most as are left free."""
    max_samples_per_operation: Fixed[int] = 65_536
    """Prompts times n of one generate."""
    max_tries_per_sample: Fixed[int] = 3
    """Instances that may be lost under one sample, in a row and without a token of it in between,
    before its operation fails."""
    max_pending: Fixed[int] = 64
    """Samples that an instance is given before it has sent a token of them; others wait, and go to
    whichever instance has room first."""
    balance_us: int = 500_000
    """How often loads of instances are measured and samples moved from full to idle ones."""
    probe_us: Fixed[int] = 500_000
    """Pause between two looks at a lost instance."""
    stall_us: int = 120_000_000
    """An instance that sends no token of any sample for so long, with work to do, counts as
    lost. A generate may take as long as it likes while tokens come."""
    load_stall_us: Fixed[int] = 120_000_000
    """An instance that loads weights and has read none of them for so long counts as lost. A load
    may take as long as it likes while it gets on."""
    frames_wait_us: Fixed[int] = 3_600_000_000
    """How long a stream waits for its operation to start: it may be queued behind training."""
    max_streams: Fixed[int] = 8192
    """Streams open at once; the next is refused with `queue_full`. A tenant has as many of them at
    most as are left free."""
    cuts_at: float = 0.0
    """Share of an instance's samples that have ended at which the others move to instances with
    room for them, and it is left to others until the generates under way end; 0: never."""
    call_bytes: Fixed[int] = 2 << 20
    """Requests sent to an instance in one call."""
    spot: SpotConfig = field(default_factory=SpotConfig)
    """Spot devices."""

    def __post_init__(self) -> None:
        if not 0 <= self.cuts_at < 1:
            raise bad_request(f"rollout.cuts_at is {self.cuts_at}; it is 0 for never, or below 1")
        if self.managers < 1:
            raise bad_request(f"rollout.managers is {self.managers}; it must be at least 1")


@dataclass(frozen=True, slots=True, kw_only=True)
class ManagerConfig(RolloutConfig):
    """What a manager reads: the `[rollout]` table, and what its node's agent says."""

    listen: str = ""
    """Where it serves."""
    keys_file: Path = Path()
    """The cluster's keys."""
    records_dir: Path = Path()
    """Where it keeps its token records for its successor."""
