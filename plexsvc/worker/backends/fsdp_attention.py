"""Packed attention as the fsdp backend registers it with transformers."""

# T = packed tokens, D = head size.

from __future__ import annotations

from itertools import pairwise
from typing import Any, Final

import torch
from torch import Tensor

from plexsvc.errors import ErrorCode, PlexError
from plexsvc.worker.backends.packed import Packing, attend, attends_at_once

NO_OPTIONS: Final = frozenset({"output_router_logits", "position_ids", "use_cache"})
"""What transformers passes to attention that changes nothing of it."""


def packed_attention(  # noqa: PLR0913 - the signature of transformers
    module: torch.nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    packing: Packing,
    scaling: float,
    dropout: float = 0.0,
    sliding_window: int | None = None,
    softcap: float | None = None,
    **options: Any,
) -> tuple[Tensor, None]:
    """Attend causally inside each packed sequence; tensors are [1, heads, T, D].

    One call a sequence on a CPU, one a batch on a GPU where no window cuts a sequence and no cap
    bends the scores. Ranks that share out the tokens share out the heads here. Registered with
    transformers as `plex_packed`.

    Raises:
        PlexError: `unknown_model` for an option that would change what is computed.
    """
    del module
    asked = {"attention_mask": attention_mask, "dropout": dropout or None, **options}
    unknown = sorted(name for name in asked.keys() - NO_OPTIONS if asked[name] is not None)
    if unknown:
        raise PlexError(
            ErrorCode.UNKNOWN_MODEL,
            f"the model passes attention {', '.join(unknown)}, which the fsdp backend does not "
            "compute; use a model without",
        )
    shares = packing.shares
    query, key, value = shares.by_heads(query, key, value)
    is_cut = sliding_window is not None and sliding_window < packing.longest
    if attends_at_once(query) and not is_cut and softcap is None:
        q, k, v = (tensor[0].transpose(0, 1) for tensor in (query, key, value))
        return shares.by_tokens(attend(q, k, v, packing, scale=scaling)[None]), None
    parts = [
        _attend(
            query[:, :, a:b],
            key[:, :, a:b],
            value[:, :, a:b],
            scaling=scaling,
            window=sliding_window,
            softcap=softcap,
        )
        for a, b in pairwise(packing.bounds)
    ]
    return shares.by_tokens(torch.cat(parts, dim=2).transpose(1, 2)).contiguous(), None


def _attend(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    scaling: float,
    window: int | None,
    softcap: float | None,
) -> Tensor:
    """Attend causally within one sequence of L tokens, each to at most the `window` latest."""
    length = query.size(2)
    is_cut = window is not None and window < length
    if softcap is None:
        return torch.nn.functional.scaled_dot_product_attention(
            query,
            key,
            value,
            attn_mask=_seen(length, window, device=query.device) if is_cut else None,
            is_causal=not is_cut,
            scale=scaling,
            enable_gqa=query.size(1) != key.size(1),
        )
    groups = query.size(1) // key.size(1)
    key, value = (x.repeat_interleave(groups, dim=1) for x in (key, value))
    scores = torch.tanh(query @ key.transpose(2, 3) * scaling / softcap) * softcap
    hidden = ~_seen(length, window if is_cut else None, device=query.device)
    weights = scores.masked_fill(hidden, -torch.inf).softmax(-1, dtype=torch.float32)
    return weights.to(value.dtype) @ value


def _seen(length: int, window: int | None, *, device: torch.device) -> Tensor:
    """Return bool[L, L]: whether a token (row) attends to another (column)."""
    seen = torch.ones(length, length, dtype=torch.bool, device=device).tril()
    return seen if window is None else seen.triu(1 - window)
