"""Causal attention over packed sequences, rotary angles and the norm, in plain torch."""

# T = packed tokens, N = query heads, G = key-value heads, D = head size.

from __future__ import annotations

import itertools
from typing import Any

import torch
from megatron.core.packed_seq_params import PackedSeqParams
from megatron.core.transformer.enums import AttnMaskType
from megatron.core.transformer.module import MegatronModule
from torch import Tensor

from plexsvc.errors import PlexError, bad_request
from plexsvc.worker.backends import packed
from plexsvc.worker.backends.packed import Packing


class PackedAttention(MegatronModule):
    """Core attention for `thd` inputs: causal inside each sequence, grouped queries.

    One call a sequence on a CPU, one a batch on a GPU (`backends.packed`). Torch's deterministic
    mode covers the backward of both. Every argument that Megatron passes is named: one that is new
    could change what is computed, so it is refused, and so is what is not causal self-attention.
    """

    def __init__(
        self,
        config: Any,
        *,
        layer_number: int,
        attn_mask_type: AttnMaskType,
        attention_type: str,
        softmax_scale: float | None = None,
        cp_comm_type: str | None = None,
        pg_collection: object = None,
    ) -> None:
        """Build it.

        Raises:
            PlexError: `bad_request` for attention that it does not compute.
        """
        del layer_number, pg_collection
        if attention_type != "self" or cp_comm_type is not None:
            found = f"{attention_type!r} attention with context parallelism {cp_comm_type!r}"
            raise _refused(found)
        _check_causal(attn_mask_type)
        super().__init__(config=config)
        self.scale = softmax_scale
        self.current_max_attn_logits = None

    def forward(
        self,
        query_TND: Tensor,
        key_TGD: Tensor,
        value_TGD: Tensor,
        attention_mask: Tensor | None = None,
        *,
        attn_mask_type: AttnMaskType,
        attention_bias: Tensor | None = None,
        packed_seq_params: Any,
    ) -> Tensor:
        """Return attended values [T, N * D].

        Raises:
            PlexError: `bad_request` for a mask of its own, or a bias.
        """
        _check_causal(attn_mask_type)
        if attention_mask is not None or attention_bias is not None:
            raise _refused("attention with a mask of its own, or a bias")
        packing: Packing = packed_seq_params.packing
        shares = packing.shares
        heads = (t.transpose(0, 1)[None] for t in (query_TND, key_TGD, value_TGD))
        query_TND, key_TGD, value_TGD = (t[0].transpose(0, 1) for t in shares.by_heads(*heads))
        if packed.attends_at_once(query_TND):
            out = packed.attend(query_TND, key_TGD, value_TGD, packing, scale=self.scale)
        else:
            parts = [
                self._one(query_TND[a:b], key_TGD[a:b], value_TGD[a:b])
                for a, b in itertools.pairwise(packing.bounds)
            ]
            out = torch.cat(parts)
        return shares.by_tokens(out[None])[0].flatten(1)

    def _one(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        q, k, v = (t.transpose(0, 1)[None] for t in (query, key, value))
        out = torch.nn.functional.scaled_dot_product_attention(
            q, k, v, is_causal=True, scale=self.scale, enable_gqa=q.size(1) != k.size(1)
        )
        return out[0].transpose(0, 1)


def _check_causal(mask: AttnMaskType) -> None:
    if mask is not AttnMaskType.causal:
        raise _refused(f"attention with the mask {mask}")


def _refused(found: str) -> PlexError:
    return bad_request(
        f"Megatron asks for {found}; computed is causal self-attention over packed sequences; "
        "train a model whose layers need no other"
    )


class PackedParams(PackedSeqParams):
    """Megatron's description of a packed batch, with ours: `cu_seqlens_q` stays None.

    With it Megatron would cut the rotary angles to sequences in every layer, on the host, and wait
    for the device each time.
    """

    packing: Packing


class PackedRotary(torch.nn.Module):
    """Megatron's rotary embedding, whose angles come in the order of the packed tokens."""

    def __init__(self, rope: Any) -> None:
        super().__init__()
        self.rope = rope

    def get_rotary_seq_len(
        self,
        _context: object,
        _decoder: object,
        _hidden: object,
        _config: object,
        params: PackedParams,
    ) -> Packing:
        """Return what Megatron hands on to `forward`."""
        return params.packing

    def forward(self, packing: Packing, *, packed_seq: bool, cp_group: object) -> Tensor:
        """Return the angles [t, 1, D] of this rank's tokens, once a micro-batch."""
        assert packed_seq, packing
        assert cp_group is None, cp_group
        angles: Tensor = self.rope.get_emb(packing.longest)[:, 0]
        return angles.index_select(0, packing.shares.mine(packing.positions))


class RMSNorm(torch.nn.RMSNorm):
    """Torch's RMSNorm with the tag that sums its gradient over sequence-parallel ranks."""

    def __init__(
        self,
        config: Any,
        hidden_size: int,
        eps: float = 1e-5,
    ) -> None:
        super().__init__(hidden_size, eps=eps, dtype=config.params_dtype)
        for param in self.parameters():
            param.sequence_parallel = config.sequence_parallel
