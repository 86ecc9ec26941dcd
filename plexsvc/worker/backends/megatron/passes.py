"""Forward and backward passes through Megatron's pipeline schedules."""

# T = packed tokens of a micro-batch, t = this rank's share, V = its rows of the vocabulary.

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from megatron.core import parallel_state, tensor_parallel
from megatron.core.pipeline_parallel import get_forward_backward_func
from torch import Tensor

from plexsvc import progress
from plexsvc.worker.backends.base import MicroBatch, PassResult, TokenLoss
from plexsvc.worker.backends.megatron.attention import PackedParams
from plexsvc.worker.backends.packed import Packing, Totals, logprobs_in_parts, packing_of
from plexsvc.worker.backends.ulysses import TokenShares


@dataclass(frozen=True, slots=True, kw_only=True)
class Pass:
    """What a pass computes."""

    loss: TokenLoss | None
    """None: forward only."""
    temperature: float
    keep_outputs: bool
    is_critic: bool
    vocab_size: int
    shares: TokenShares
    """Of the tokens, over context-parallel ranks."""


def run(model: Any, batch: Sequence[MicroBatch], what: Pass, *, device: Any) -> PassResult:
    """Run one pass over `batch`; gradients accumulate when `what.loss` is set."""
    step = _forward_step(what, device=device)
    longest = max(int(mb.tokens.shape[0]) for mb in batch)
    with torch.set_grad_enabled(what.loss is not None):
        answers = get_forward_backward_func()(
            forward_step_func=step,
            data_iterator=iter(batch),
            model=[model],
            num_microbatches=len(batch),
            seq_length=longest,
            micro_batch_size=1,
            decoder_seq_length=longest,
            forward_only=what.loss is None,
        )
    if not parallel_state.is_pipeline_last_stage():
        return PassResult()
    owns = parallel_state.get_tensor_model_parallel_rank() == what.shares.rank == 0
    outputs = tuple(a["outputs"] for a in answers) if what.keep_outputs and owns else ()
    totals = Totals()
    for answer in answers:
        if answer["terms"] is not None:
            totals.add(answer["terms"])
    sums, maxima = totals.over(parallel_state.get_data_parallel_group())
    return PassResult(outputs=outputs, sums=sums, maxima=maxima)


def _forward_step(what: Pass, *, device: Any) -> Callable[..., Any]:
    def step(batch: Iterator[MicroBatch], model: Any) -> tuple[Any, Callable[[Tensor], Any]]:
        progress.advance()
        micro = next(batch)
        packing = packing_of(micro.cu_seqlens, device=device, shares=what.shares)
        tokens = what.shares.mine(micro.tokens).to(device, non_blocking=True)[None]
        positions = what.shares.mine(packing.positions)[None]
        out = model(tokens, positions, None, packed_seq_params=_params(packing))
        return out, lambda logits: _finish(logits[0], micro, what)

    return step


def _finish(logits_tV: Tensor, micro: MicroBatch, what: Pass) -> tuple[Tensor, Tensor, Any]:
    """Return (loss, token count, answer): with a count, Megatron divides the loss by nothing."""
    arrays = {
        name: array.to(logits_tV.device, non_blocking=True) for name, array in micro.arrays.items()
    }
    if what.is_critic:
        outputs_T = what.shares.whole(logits_tV[:, 0].float())
    else:
        outputs_t = logprobs_in_parts(
            lambda logits, targets: token_logprobs(logits, targets, what),
            logits_tV,
            what.shares.mine(arrays["target_tokens"]),
        )
        outputs_T = what.shares.whole(outputs_t)
    one = torch.tensor(1, dtype=torch.int)
    kept = outputs_T.detach()[: micro.num_tokens] if what.keep_outputs else None
    if what.loss is None:
        # The schedule wants a loss, and drops it.
        return outputs_T.sum() * 0, one, {"outputs": kept, "terms": None}
    terms = what.loss(outputs_T, arrays)
    return terms.loss, one, {"outputs": kept, "terms": replace(terms, loss=terms.loss.detach())}


def token_logprobs(logits_TV: Tensor, targets_T: Tensor, what: Pass) -> Tensor:
    """Return float32 logprobs[T] of the targets, whose logits are split over tensor ranks by rows.

    Rows that pad the vocabulary do not enter the softmax. The logits are overwritten.
    """
    logits_TV = logits_TV.float()
    if what.temperature != 1.0:
        logits_TV = logits_TV / what.temperature
    rows = logits_TV.size(-1)
    first = parallel_state.get_tensor_model_parallel_rank() * rows
    if first + rows > what.vocab_size:
        real = max(0, what.vocab_size - first)
        padding = torch.zeros(rows, dtype=torch.bool, device=logits_TV.device)
        padding[real:] = True
        logits_TV = logits_TV.masked_fill(padding, torch.finfo(torch.float32).min)
    loss_T1 = tensor_parallel.vocab_parallel_cross_entropy(logits_TV[:, None], targets_T[:, None])
    result: Tensor = -loss_T1[:, 0]
    return result


def _params(packing: Packing) -> PackedParams:
    params = PackedParams(
        qkv_format="thd", max_seqlen_q=packing.longest, max_seqlen_kv=packing.longest
    )
    params.packing = packing
    return params
