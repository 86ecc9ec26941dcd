"""Causal attention over packed sequences, and the norm, in plain torch."""

# T = packed tokens, N = query heads, G = key-value heads, D = head size.

from __future__ import annotations

import itertools
from typing import Any

import torch
from megatron.core.transformer.module import MegatronModule
from torch import Tensor


class PackedAttention(MegatronModule):
    """Core attention for `thd` inputs: causal inside each sequence, grouped queries.

    One scaled-dot-product call a sequence: the result of a sequence does not depend on its
    neighbours, and torch's deterministic mode covers its backward.
    """

    def __init__(
        self,
        config: Any,  # noqa: ANN401 - Megatron passes its own types
        softmax_scale: float | None = None,
        **_unused: Any,  # noqa: ANN401 - Megatron passes its own types
    ) -> None:
        super().__init__(config=config)
        self.scale = softmax_scale
        self.current_max_attn_logits = None

    def forward(
        self,
        query_TND: Tensor,
        key_TGD: Tensor,
        value_TGD: Tensor,
        *_masks: object,
        packed_seq_params: Any = None,  # noqa: ANN401 - Megatron's type
        **_unused: Any,  # noqa: ANN401 - Megatron passes its own types
    ) -> Tensor:
        """Return attended values [T, N * D]."""
        bounds = packed_seq_params.cu_seqlens_host
        parts = [
            self._one(query_TND[a:b], key_TGD[a:b], value_TGD[a:b])
            for a, b in itertools.pairwise(bounds)
        ]
        out = torch.cat(parts)
        return out.reshape(out.size(0), -1)

    def _one(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        q, k, v = (t.transpose(0, 1)[None] for t in (query, key, value))
        out = torch.nn.functional.scaled_dot_product_attention(
            q, k, v, is_causal=True, scale=self.scale, enable_gqa=q.size(1) != k.size(1)
        )
        return out[0].transpose(0, 1)


class RMSNorm(torch.nn.RMSNorm):
    """Torch's RMSNorm with the tag that sums its gradient over sequence-parallel ranks."""

    def __init__(
        self,
        config: Any,  # noqa: ANN401 - Megatron's type
        hidden_size: int,
        eps: float = 1e-5,
        **_unused: Any,  # noqa: ANN401 - Megatron passes its own types
    ) -> None:
        super().__init__(hidden_size, eps=eps, dtype=config.params_dtype)
        for param in self.parameters():
            param.sequence_parallel = config.sequence_parallel
