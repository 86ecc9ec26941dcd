"""Forward and backward passes through Megatron's pipeline schedules."""

# T = packed tokens of a micro-batch, V = this rank's rows of the vocabulary.

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from megatron.core import parallel_state, tensor_parallel
from megatron.core.packed_seq_params import PackedSeqParams
from megatron.core.pipeline_parallel import get_forward_backward_func
from torch import Tensor

from plexsvc.worker.backends.base import MicroBatch, PassResult, TokenLoss


class HostPackedSeqParams(PackedSeqParams):
    """Megatron's description of a packed batch, with the bounds also as Python integers."""

    cu_seqlens_host: list[int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Pass:
    """What a pass computes."""

    loss: TokenLoss | None
    """None: forward only."""
    temperature: float
    keep_outputs: bool
    is_critic: bool
    vocab_size: int


def run(model: Any, batch: Sequence[MicroBatch], what: Pass, *, device: Any) -> PassResult:  # noqa: ANN401 - foreign types
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
    owns = parallel_state.get_tensor_model_parallel_rank() == 0
    outputs = tuple(a["outputs"] for a in answers) if what.keep_outputs and owns else ()
    return PassResult(outputs=outputs, sums=_reduce([a["sums"] for a in answers], device=device))


def _forward_step(what: Pass, *, device: Any) -> Callable[..., Any]:  # noqa: ANN401 - a torch device
    def step(batch: Iterator[MicroBatch], model: Any) -> tuple[Any, Callable[[Tensor], Any]]:  # noqa: ANN401 - foreign types
        micro = next(batch)
        tokens = micro.tokens.to(device)[None]
        positions = _positions(micro.cu_seqlens).to(device)[None]
        out = model(tokens, positions, None, packed_seq_params=_packing(micro, device=device))
        return out, lambda logits: _finish(logits[0], micro, what)

    return step


def _finish(logits_TV: Tensor, micro: MicroBatch, what: Pass) -> tuple[Tensor, Tensor, Any]:
    """Return (loss, token count, answer): with a count, Megatron divides the loss by nothing."""
    arrays = {name: array.to(logits_TV.device) for name, array in micro.arrays.items()}
    if what.is_critic:
        outputs_T = logits_TV[:, 0].float()
    else:
        outputs_T = token_logprobs(logits_TV, arrays["target_tokens"], what)
    one = torch.tensor(1, dtype=torch.int)
    kept = outputs_T.detach()[: micro.num_tokens] if what.keep_outputs else None
    if what.loss is None:
        return outputs_T.sum() * 0, one, {"outputs": kept, "sums": {}}
    terms = what.loss(outputs_T, arrays)
    sums = {name: float(value) for name, value in terms.sums.items()}
    return terms.loss, one, {"outputs": kept, "sums": sums}


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


def _packing(micro: MicroBatch, *, device: Any) -> HostPackedSeqParams:  # noqa: ANN401 - a torch device
    bounds = micro.cu_seqlens.tolist()
    longest = max(b - a for a, b in itertools.pairwise(bounds))
    cu_seqlens = micro.cu_seqlens.to(device)
    packing = HostPackedSeqParams(
        qkv_format="thd",
        cu_seqlens_q=cu_seqlens,
        cu_seqlens_kv=cu_seqlens,
        max_seqlen_q=longest,
        max_seqlen_kv=longest,
    )
    packing.cu_seqlens_host = bounds
    return packing


def _positions(cu_seqlens: Tensor) -> Tensor:
    bounds = cu_seqlens.tolist()
    return torch.cat([torch.arange(b - a) for a, b in itertools.pairwise(bounds)])


def _reduce(parts: Sequence[Mapping[str, float]], *, device: Any) -> dict[str, float]:  # noqa: ANN401 - a torch device
    """Return the sums over micro-batches, in order, and over data-parallel ranks."""
    names = sorted({name for part in parts for name in part})
    if not names:
        return {}
    totals = [sum(part.get(name, 0.0) for part in parts) for name in names]
    tensor = torch.tensor(totals, dtype=torch.float64, device=device)
    if parallel_state.get_data_parallel_world_size() > 1:
        torch.distributed.all_reduce(tensor, group=parallel_state.get_data_parallel_group())
    return dict(zip(names, tensor.tolist(), strict=True))
