"""Configuration of a rank, given by the scheduler when the rank is started."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from plexclient.specs import HOST, AdamW, Parallel
from plexsvc import config as plex_config
from plexsvc.fixed import Fixed
from plexsvc.lora import Lora
from plexsvc.sizes import MICRO_BATCH_TOKENS
from plexsvc.statelink.member import Member


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerConfig(Member):
    """One rank of one WPG. Each operation draws from (`seed`, its number)."""

    world_size: int
    """Ranks in the group."""
    role: str
    """actor, critic or reference."""
    backend: str
    """megatron, fsdp or noop."""
    parallel: Parallel = field(default_factory=Parallel)
    """How the model and the batch are split."""
    optimizer: AdamW | None = None
    """The deployment's hyper-parameters, each overridden by a step that sets it; None: no optimizer
    state and no gradients."""
    lora: Lora | None = None
    """The adapters that are trained in place of the model."""
    base: str = ""
    """The model as it was asked for, which checkpoints of adapters name."""
    max_logprob_gap: float = 0.0
    """How far a sampler's logprob may be from the policy's in a policy loss; 0 is no bound."""
    dtype: str = "float32"
    """float32 or bfloat16; empty reads as float32."""
    recompute: str = ""
    """What of each layer the backward pass computes again: full, selective (its MLP) or nothing."""
    micro_batch_tokens: int = MICRO_BATCH_TOKENS
    """Tokens of a micro-batch; only a single longer sequence is one of more."""
    rendezvous: str = ""
    """Where ranks find each other: file:///path or tcp://host:port; unused by a group of one."""
    kv: dict[str, str] = field(default_factory=dict)
    """Backend-specific settings by name."""
    max_recorded_replies: Fixed[int] = 256
    """Replies kept to answer repeated operations."""
    max_pending: int = 16
    """Operations that may wait on this rank; the next is refused with `queue_full`."""
    collective_timeout_s: int = 600
    """How long a rank waits for its peers in a collective before it fails."""

    @property
    def has_optimizer(self) -> bool:
        """Whether this rank keeps gradients and moments."""
        return self.optimizer is not None and self.role != "reference"

    @property
    def steps_on_host(self) -> bool:
        """Whether its optimizer is in host memory."""
        return self.optimizer is not None and self.optimizer.on == HOST

    @property
    def trains_model(self) -> bool:
        """Whether it keeps them for the model's own parameters."""
        return self.has_optimizer and self.lora is None


def parse(table: Mapping[str, Any]) -> WorkerConfig:
    """Return the configuration in `table`; keys that are None take their defaults.

    Raises:
        PlexError: `bad_request`, naming the key, for what does not fit.
    """
    given = {key: value for key, value in table.items() if value is not None}
    return plex_config.parse(given, WorkerConfig, where="worker")
