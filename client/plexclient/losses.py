"""The built-in losses by name, and the per-token arrays that each of them reads."""

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

LOSS_ARGUMENTS: Final[Mapping[str, tuple[str, ...]]] = {
    "ppo": ("clip", "clip_high"),
    "cispo": ("clip", "clip_high"),
    "dro": ("beta",),
}
"""Loss → the numbers it may be given, each finite and not negative; the others take none."""
