"""The built-in losses by name, and the per-token arrays each of them reads."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

BUILT_IN_LOSSES: Final[Mapping[str, tuple[str, ...]]] = {
    "cross_entropy": ("target_tokens", "weights"),
    "importance_sampling": ("target_tokens", "logprobs", "advantages", "mask"),
    "ppo": ("target_tokens", "logprobs", "advantages", "mask"),
    "cispo": ("target_tokens", "logprobs", "advantages", "mask"),
    "dro": ("target_tokens", "logprobs", "advantages", "mask"),
    "value_mse": ("returns", "mask"),
}
"""Loss → arrays a batch carries beside `tokens` and `cu_seqlens`; `value_mse` is the critic's."""
