"""Packed batches on a device: positions, causal attention in one call, logprobs in parts.

A CPU attends sequence by sequence. A GPU gets all sequences of a micro-batch in one call: hundreds
of short ones would otherwise be hundreds of launches a layer.
"""

# T = packed tokens, N = query heads, G = key-value heads, D = head size, V = vocabulary.

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn.attention.varlen import varlen_attn
from torch.utils.checkpoint import checkpoint

from plexsvc.worker.backends.base import LossTerms
from plexsvc.worker.backends.ulysses import ALL_TOKENS, TokenShares

MAX_LOGITS: Final = 1 << 27
"""Logits that are worked on at once; more are done in parts, which are computed again backward."""

_HALF: Final = (torch.bfloat16, torch.float16)
_CAUSAL: Final = (-1, 0)
"""All before, none after: torch's window of a causal mask."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Packing:
    """Where the sequences of a micro-batch lie, for the host and for its device."""

    bounds: Sequence[int]
    cu_seqlens: Tensor
    """int32[B+1] on the device."""
    positions: Tensor
    """int64[T] on the device: each token's place in its sequence."""
    shares: TokenShares
    """How the ranks of the replica share out the tokens."""

    @property
    def longest(self) -> int:
        """Tokens of the longest sequence."""
        return max(b - a for a, b in pairwise(self.bounds))

    @property
    def shortest(self) -> int:
        """Tokens of the shortest sequence."""
        return min(b - a for a, b in pairwise(self.bounds))


def packing_of(
    cu_seqlens: Tensor, *, device: torch.device, shares: TokenShares = ALL_TOKENS
) -> Packing:
    """Return the packing of host bounds int32[B+1]; the device is not waited for."""
    bounds = cu_seqlens.tolist()
    positions = torch.cat([torch.arange(b - a) for a, b in pairwise(bounds)])
    return Packing(
        bounds=bounds,
        cu_seqlens=cu_seqlens.to(device, non_blocking=True),
        positions=positions.to(device, non_blocking=True),
        shares=shares,
    )


def attends_at_once(query: Tensor) -> bool:
    """Whether all sequences of a batch are attended in one call where `query` lies."""
    return query.is_cuda


def attend(
    query_TND: Tensor, key_TGD: Tensor, value_TGD: Tensor, packing: Packing, *, scale: float | None
) -> Tensor:
    """Return [T, N, D]: causal attention inside each sequence, in one call.

    Half precision runs torch's variable-length flash attention. Single precision runs
    scaled-dot-product attention on jagged tensors, whose kernel wants as many key as query heads.
    """
    if query_TND.dtype in _HALF:
        out: Tensor = varlen_attn(
            *(query_TND, key_TGD, value_TGD),
            *(packing.cu_seqlens, packing.cu_seqlens),
            *(packing.longest, packing.longest),
            scale=scale,
            window_size=_CAUSAL,
            **_grouping(query_TND.size(1) != key_TGD.size(1)),
        )
        return out
    groups = query_TND.size(1) // key_TGD.size(1)
    heads = (query_TND, *(t.repeat_interleave(groups, dim=1) for t in (key_TGD, value_TGD)))
    jagged = torch.nn.functional.scaled_dot_product_attention(
        *(_jagged(tensor, packing) for tensor in heads), is_causal=True, scale=scale
    )
    values: Tensor = jagged.transpose(1, 2).values()
    return values


def _grouping(is_grouped: bool) -> dict[str, bool]:
    """Return the option by which query heads share key heads; torch 2.11 asks for none."""
    is_asked = "enable_gqa" in inspect.signature(varlen_attn).parameters
    return {"enable_gqa": is_grouped} if is_asked else {}


def _jagged(tensor_TND: Tensor, packing: Packing) -> Tensor:
    """Return [B, N, lengths, D] over the same memory."""
    nested: Tensor = torch.nested.nested_tensor_from_jagged(
        tensor_TND.contiguous(),
        packing.cu_seqlens,
        min_seqlen=packing.shortest,
        max_seqlen=packing.longest,
    )
    return nested.transpose(1, 2)


def recompute(layers: Iterable[Any], what: str) -> None:
    """Let each layer keep its inputs alone, `full`, or those of its MLP, `selective`; or all.

    The backward pass computes the rest again, by the same kernels and so with the same bits: no
    layer draws random numbers.
    """
    for layer in layers if what else ():
        module = layer if what == "full" else layer.mlp
        module.forward = functools.partial(
            checkpoint, module.forward, use_reentrant=False, preserve_rng_state=False
        )


def logprobs_in_parts(
    logprobs: Callable[[Tensor, Tensor], Tensor], logits_TV: Tensor, targets_T: Tensor
) -> Tensor:
    """Return `logprobs(logits, targets)`, float32[T], a row's value being its own alone.

    Many logits are worked on in parts: they are held whole, but not the float32 copies that a
    softmax makes of them.
    """
    rows = max(1, MAX_LOGITS // logits_TV.size(-1))
    if logits_TV.size(0) <= rows:
        return logprobs(logits_TV, targets_T)
    parts = [
        checkpoint(logprobs, *part, use_reentrant=False, preserve_rng_state=False)
        for part in zip(logits_TV.split(rows), targets_T.split(rows), strict=True)
    ]
    return torch.cat(parts)


class Totals:
    """Sums and maxima of micro-batches, kept on their device until all are asked for at once."""

    def __init__(self) -> None:
        self._sums: dict[str, Tensor] = {}
        self._maxima: dict[str, Tensor] = {}

    def add(self, terms: LossTerms) -> None:
        """Take a micro-batch's, in float64, without waiting for the device."""
        for name, value in terms.sums.items():
            more, so_far = value.detach().double(), self._sums.get(name)
            self._sums[name] = more if so_far is None else so_far + more
        for name, value in terms.maxima.items():
            more, so_far = value.detach().double(), self._maxima.get(name)
            self._maxima[name] = more if so_far is None else torch.maximum(so_far, more)

    def over(self, group: Any) -> tuple[dict[str, float], dict[str, float]]:
        """Return sums and maxima over the ranks of `group`; waits for the device once."""
        found, num_sums = [*self._sums.values(), *self._maxima.values()], len(self._sums)
        if not found:
            return {}, {}
        packed = torch.stack([value.reshape(()) for value in found])
        if dist.get_world_size(group) > 1:
            dist.all_reduce(packed[:num_sums], dist.ReduceOp.SUM, group=group)
            dist.all_reduce(packed[num_sums:], dist.ReduceOp.MAX, group=group)
        values = packed.tolist()
        sums = dict(zip(self._sums, values, strict=False))
        return sums, dict(zip(self._maxima, values[num_sums:], strict=True))
