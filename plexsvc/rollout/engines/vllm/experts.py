"""Experts on a CPU, computed from weights that lie as a checkpoint has them.

vLLM's own kernel packs the weights of experts when they are loaded. Weights that are replaced in
place afterwards would land in another order, and nothing would say so.
"""

# T = tokens, H = hidden size, I = inner size of an expert, E = experts, K = experts of a token.

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import linear, silu

from plexsvc.errors import PlexError, bad_request


def compute_unpacked() -> None:
    """Have engines of this process compute experts so; safe to repeat."""
    from vllm.model_executor.layers.fused_moe.experts.cpu_moe import CPUUnquantizedExperts

    CPUUnquantizedExperts.process_weights_after_loading = lambda _experts, _layer: None
    CPUUnquantizedExperts.apply = _apply


def _apply(  # noqa: PLR0913, PLR0917 - the signature of vLLM
    experts: Any,
    output: Tensor,
    hidden_states: Tensor,
    w1: Tensor,
    w2: Tensor,
    topk_weights: Tensor,
    topk_ids: Tensor,
    activation: Any,
    global_num_experts: int,
    expert_map: Tensor | None,
    a1q_scale: Tensor | None,
    a2_scale: Tensor | None,
    workspace13: Tensor,
    workspace2: Tensor,
    expert_tokens_meta: object,
    apply_router_weight_on_input: bool,
) -> None:
    """Write into `output[T, H]` what the experts `w1[E, 2I, H]`, `w2[E, H, I]` make of the tokens.

    Raises:
        PlexError: `bad_request` for experts that are not computed here.
    """
    del global_num_experts, workspace13, workspace2, expert_tokens_meta
    others = (expert_map, a1q_scale, a2_scale, experts.w1_bias, experts.w2_bias)
    if any(x is not None for x in others) or apply_router_weight_on_input:
        raise _refused("biases, scales, a map, or weights on their inputs")
    if activation.value != "silu":
        raise _refused(f"the activation {activation.value}")
    output.zero_()
    for expert in topk_ids.unique().tolist():
        tokens, place = torch.where(topk_ids == expert)
        gate, up = linear(hidden_states[tokens], w1[expert]).chunk(2, dim=-1)
        made = linear(silu(gate) * up, w2[expert])
        shares = topk_weights[tokens, place, None].to(made.dtype)
        output.index_add_(0, tokens, (made * shares).to(output.dtype))


def _refused(what: str) -> PlexError:
    return bad_request(
        f"the model's experts have {what}; on a CPU only plain ones with silu are computed; deploy "
        "the rollout on a GPU"
    )
