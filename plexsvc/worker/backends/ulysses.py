"""Context parallelism as in DeepSpeed-Ulysses (Jacobs et al. 2023): shares of tokens, and of heads.

The ranks of a replica compute each a share of a micro-batch's tokens, and in attention each a share
of the heads of all tokens. Sequences may lie across shares: attention alone looks at other tokens.
"""

# T = packed tokens of a micro-batch, t = those of a share, N = query heads, G = key-value heads,
# D = head size, C = ranks of a replica.

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenShares:
    """This rank's share of each micro-batch, whose tokens are a multiple of the ranks."""

    group: Any = None
    """The ranks of the replica, in the order of their shares."""
    rank: int = 0
    size: int = 1

    def mine(self, whole_T: Tensor) -> Tensor:
        """Return this rank's share of what there is for each token."""
        share = whole_T.size(0) // self.size
        return whole_T.narrow(0, self.rank * share, share)

    def whole(self, share_t: Tensor) -> Tensor:
        """Return [T] of all shares. Each rank's gradient is to be that of all tokens, too."""
        gathered: Tensor = share_t if self.size == 1 else _Gather.apply(share_t, self)
        return gathered

    def by_heads(
        self, query_1NtD: Tensor, key_1GtD: Tensor, value_1GtD: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return [1, heads, T, D]: all tokens of this rank's share of the heads.

        Ranks that share a key-value head have a copy of it each.
        """
        if self.size == 1:
            return query_1NtD, key_1GtD, value_1GtD
        copies = max(1, self.size // key_1GtD.size(1))
        heads = (query_1NtD, *(t.repeat_interleave(copies, 1) for t in (key_1GtD, value_1GtD)))
        parts = [tensor[0].unflatten(0, (self.size, -1)) for tensor in heads]
        all_CHtD: Tensor = _Exchange.apply(torch.cat(parts, dim=1), self.group)
        mine_1HTD = all_CHtD.transpose(0, 1).flatten(1, 2)[None]
        query, key, value = mine_1HTD.split([part.size(1) for part in parts], dim=1)
        return query, key, value

    def by_tokens(self, attended_1THD: Tensor) -> Tensor:
        """Return [1, t, N, D]: all heads of this rank's share of the tokens."""
        if self.size == 1:
            return attended_1THD
        parts_CtHD = attended_1THD[0].unflatten(0, (self.size, -1))
        all_CtHD: Tensor = _Exchange.apply(parts_CtHD, self.group)
        return all_CtHD.transpose(0, 1).flatten(1, 2)[None]


ALL_TOKENS = TokenShares()
"""The one share of a replica of one rank."""


class _Exchange(torch.autograd.Function):
    """Part `i` of each rank for rank `i`, in the order of the ranks: its own transpose."""

    @staticmethod
    def forward(ctx: Any, parts_C: Tensor, group: Any) -> Tensor:
        ctx.group = group
        parts_C = parts_C.contiguous()
        received_C = torch.empty_like(parts_C)
        dist.all_to_all_single(received_C, parts_C, group=group)
        return received_C

    @staticmethod
    def backward(ctx: Any, grad_C: Tensor) -> tuple[Tensor, None]:
        return _Exchange.apply(grad_C, ctx.group), None


class _Gather(torch.autograd.Function):
    """All shares; a gradient, equal on all ranks, goes back to each by its share."""

    @staticmethod
    def forward(ctx: Any, share_t: Tensor, shares: TokenShares) -> Tensor:
        ctx.shares = shares
        whole_T = share_t.new_empty(share_t.size(0) * shares.size)
        dist.all_gather_into_tensor(whole_T, share_t.contiguous(), group=shares.group)
        return whole_T

    @staticmethod
    def backward(ctx: Any, grad_T: Tensor) -> tuple[Tensor, None]:
        return ctx.shares.mine(grad_T), None
