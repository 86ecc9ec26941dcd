"""Configuration of a rank, given by the scheduler when the rank is started."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from plexclient.specs import AdamW, Parallel
from plexsvc import config as plex_config


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerConfig:
    """One rank of one WPG."""

    wpg_id: str
    """The group this rank belongs to."""
    rank: int
    """This rank's number in the group."""
    world_size: int
    """Ranks in the group."""
    incarnation: int
    """Which generation of the group's processes this is."""
    scheduler_epoch: int
    """The epoch of the scheduler that asked for it."""
    tenant: str
    """Whose job it is."""
    job_id: str
    """The job it works for."""
    deployment_id: str
    """The deployment it realises."""
    role: str
    """actor, critic or reference."""
    backend: str
    """megatron, fsdp or noop."""
    model: str
    """Hugging Face directory."""
    model_root: str = ""
    """The root of its tenant that it lies below."""
    parallel: Parallel = field(default_factory=Parallel)
    """How the model and the batch are split."""
    optimizer: AdamW | None = None
    """The deployment's hyper-parameters, each overridden by a step that sets it; None: no optimizer
    state and no gradients."""
    max_logprob_gap: float = 0.0
    """How far a sampler's logprob may be from the policy's in a policy loss; 0 is no bound."""
    dtype: str = "float32"
    """float32 or bfloat16; empty reads as float32."""
    seed: int = 0
    """The deployment's seed; each operation draws from (seed, seq)."""
    rendezvous: str = ""
    """Where ranks find each other: file:///path or tcp://host:port; unused by a group of one."""
    device_index: int = 0
    """The device on this node."""
    node_id: str = ""
    """The node this rank runs on."""
    data_socket: str = ""
    """The state manager's data plane; also carries staged payloads."""
    listen: str = ""
    """Where it serves: `HOST:0` or `unix:PATH`, from the node agent."""
    keys_file: Path = Path()
    """The cluster's keys, from the node agent."""
    kv: dict[str, str] = field(default_factory=dict)
    """Backend-specific settings by name."""
    max_recorded_replies: int = 256
    """Replies kept to answer repeated operations."""
    max_pending: int = 16
    """Operations that may wait on this rank; the next is refused with `queue_full`."""
    collective_timeout_s: int = 600
    """How long a rank waits for its peers in a collective before it fails."""

    @property
    def has_optimizer(self) -> bool:
        """Whether this rank keeps gradients and moments."""
        return self.optimizer is not None and self.role != "reference"


def parse(table: Mapping[str, Any]) -> WorkerConfig:
    """Return the configuration in `table`; keys that are None take their defaults.

    Raises:
        PlexError: `bad_request`, naming the key, for what does not fit.
    """
    given = {key: value for key, value in table.items() if value is not None}
    return plex_config.parse(given, WorkerConfig, where="worker")
