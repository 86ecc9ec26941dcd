"""The built-in losses: pure functions of per-token tensors, each a sum over tokens.

Every loss maps `outputs[T]` (the policy's logprobs of `target_tokens`; for `value_mse` a critic's
values) and the batch's per-token arrays to a sum to minimise and to sums worth reporting. Nothing
is divided by the number of tokens: callers put their normalisation into weights, mask or
advantages. A position whose weight or mask is 0 counts nothing, whatever else stands there: its
terms are replaced before they could overflow. `docs/losses.md` tells users the formulas.
"""

# T = packed tokens of one micro-batch.

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

import torch
from torch import Tensor

from plexclient.losses import BUILT_IN_LOSSES
from plexsvc.batches import GRAD_ARRAY, check_loss
from plexsvc.worker.backends.base import LossTerms, MicroBatch, TokenLoss

Arrays = Mapping[str, Tensor]
Args = Mapping[str, float]
LossFunction = Callable[[Tensor, Arrays, Args], LossTerms]

DEFAULT_CLIP: Final = 0.2
GSPO_CLIPS: Final = (3e-4, 4e-4)
"""Ratios of whole sequences hardly move: the paper's bounds."""
DEFAULT_BETA: Final = 0.05

_FUNCTIONS: Final[dict[str, LossFunction]] = {}


def built_in(function: LossFunction) -> LossFunction:
    """Make `function` the built-in loss of its name, which `plexclient.losses` describes."""
    assert function.__name__ in BUILT_IN_LOSSES, function
    _FUNCTIONS[function.__name__] = function
    return function


@built_in
def cross_entropy(logprobs_T: Tensor, arrays: Arrays, args: Args) -> LossTerms:
    """Return `-sum(weights * logp)`."""
    del args
    weights_T = arrays["weights"]
    loss = -(weights_T * _where_counted(logprobs_T, weights_T)).sum()
    return LossTerms(loss=loss, sums={"loss": loss.detach(), "tokens": _count(weights_T)})


@built_in
def importance_sampling(logprobs_T: Tensor, arrays: Arrays, args: Args) -> LossTerms:
    """Return `-sum(r * adv * mask)`, `r = exp(logp - old)`."""
    del args
    gap_T = _gap(logprobs_T, arrays)
    loss = -(gap_T.exp() * arrays["advantages"] * arrays["mask"]).sum()
    return _policy_terms(loss, gap_T=gap_T, mask_T=arrays["mask"])


@built_in
def ppo(logprobs_T: Tensor, arrays: Arrays, args: Args) -> LossTerms:
    """Return PPO's clipped surrogate (Schulman et al. 2017, eq. 7), negated and summed.

    `-sum(min(r * adv, clamp(r, 1 - clip, 1 + clip_high) * adv) * mask)`, `r = exp(logp - old)`;
    `clip_high` defaults to `clip` (DAPO sets it apart).
    """
    gap_T = _gap(logprobs_T, arrays)
    return _clipped_surrogate(gap_T.exp(), gap_T, arrays, range_=_clip_range(args))


@built_in
def cispo(logprobs_T: Tensor, arrays: Arrays, args: Args) -> LossTerms:
    """Return CISPO's loss (MiniMax-M1, 2025): the importance weight is clipped and held constant.

    `-sum(stop_grad(clamp(r, 1 - clip, 1 + clip_high)) * adv * logp * mask)`: unlike in PPO, clipped
    tokens keep their gradient.
    """
    gap_T, mask_T = _gap(logprobs_T, arrays), arrays["mask"]
    ratio_T = gap_T.exp()
    low, high = _clip_range(args)
    weight_T = ratio_T.clamp(low, high).detach()
    kept_T = _where_counted(logprobs_T, mask_T)
    loss = -(weight_T * arrays["advantages"] * kept_T * mask_T).sum()
    clipped_T = weight_T != ratio_T
    return _policy_terms(loss, gap_T=gap_T, mask_T=arrays["mask"], clipped_T=clipped_T)


@built_in
def dro(logprobs_T: Tensor, arrays: Arrays, args: Args) -> LossTerms:
    """Return DRO's loss as Tinker states it (after Richemond et al. 2024).

    `-sum((logp * adv - beta / 2 * (logp - old)^2) * mask)`: a quadratic pull to the sampler instead
    of clipping.
    """
    beta = args.get("beta", DEFAULT_BETA)
    gap_T, mask_T = _gap(logprobs_T, arrays), arrays["mask"]
    kept_T = _where_counted(logprobs_T, mask_T)
    objective_T = kept_T * arrays["advantages"] - 0.5 * beta * gap_T.square()
    loss = -(objective_T * mask_T).sum()
    return _policy_terms(loss, gap_T=gap_T, mask_T=mask_T)


@built_in
def gspo(logprobs_T: Tensor, arrays: Arrays, args: Args) -> LossTerms:
    """Return GSPO-token's loss (Zheng et al. 2025, eq. 13), summed: `ppo` by the sequence's ratio.

    `s` is the exponential of the mean of `logp - old` over a sequence's tokens that count. Each
    token has this value and the gradient of its own logprob.
    """
    gap_T, mask_T = _gap(logprobs_T, arrays), arrays["mask"]
    mean_T = _sequence_means(gap_T.detach(), mask_T, arrays["cu_seqlens"])
    ratio_T = (mean_T + gap_T - gap_T.detach()).exp()
    return _clipped_surrogate(ratio_T, gap_T, arrays, range_=_clip_range(args, defaults=GSPO_CLIPS))


@built_in
def value_mse(values_T: Tensor, arrays: Arrays, args: Args) -> LossTerms:
    """Return `0.5 * sum((value - returns)^2 * mask)`: a critic's regression."""
    del args
    mask_T = arrays["mask"]
    error_T = _where_counted(values_T - arrays["returns"], mask_T)
    loss = 0.5 * (error_T.square() * mask_T).sum()
    sums = {
        "loss": loss.detach(),
        "tokens": _count(mask_T),
        "weight": mask_T.sum(),
        "value": (_where_counted(values_T.detach(), mask_T) * mask_T).sum(),
    }
    return LossTerms(loss=loss, sums=sums)


def given_gradient(outputs_T: Tensor, arrays: Arrays) -> LossTerms:
    """Return `sum(grad * logp)`, whose gradient is the one the client computed."""
    grad_T = arrays[GRAD_ARRAY]
    loss = (grad_T * outputs_T).sum()
    return LossTerms(loss=loss, sums={"tokens": _count(grad_T)})


def resolve(name: str, args: Mapping[str, float], *, role: str) -> TokenLoss:
    """Return the loss `name` with its arguments bound.

    Raises:
        PlexError: as `batches.check_loss`.
    """
    check_loss(name, args, role=role)
    bound = dict(args)
    return lambda outputs_T, arrays: _FUNCTIONS[name](outputs_T, arrays, bound)


def metrics(sums: Mapping[str, float], maxima: Mapping[str, float]) -> dict[str, float]:
    """Return what is reported from sums and maxima over all micro-batches and replicas.

    `loss` and `tokens` stay sums. Means weighted by the mask are `ratio_mean`, `clipfrac`,
    `value_mean` and `kl`, which averages `r - 1 - log r`: over tokens drawn from the sampler it
    estimates KL(sampler || policy). `logprob_gap_mean` and `logprob_gap_max` are of |log r| over
    the tokens that count.
    """
    out = {name: sums[name] for name in ("loss", "tokens") if name in sums}
    weight, tokens = sums.get("weight", 0.0), sums.get("tokens", 0.0)
    named = {"ratio": "ratio_mean", "clipped": "clipfrac", "kl": "kl", "value": "value_mean"}
    for name, shown in named.items():
        if name in sums:
            out[shown] = sums[name] / weight if weight else 0.0
    if "gap" in sums:
        out["logprob_gap_mean"] = sums["gap"] / tokens if tokens else 0.0
    return out | {f"logprob_{name}_max": value for name, value in maxima.items()}


def largest_gap(logprobs_T: Tensor, micro: MicroBatch) -> float:
    """Return the largest |log r| of a micro-batch, whose padding `logprobs[T]` leaves out.

    What is no number reads as infinity.
    """
    arrays = {
        name: micro.arrays[name][: micro.num_tokens].to(logprobs_T.device)
        for name in ("logprobs", "mask")
    }
    gap_T = _gap(logprobs_T, arrays).abs().nan_to_num(nan=torch.inf)
    return float(gap_T.amax()) if micro.num_tokens else 0.0


def _where_counted(values_T: Tensor, weights_T: Tensor) -> Tensor:
    """Return `values`, 0 where nothing counts: infinity times a mask of 0 would be no number."""
    return torch.where(weights_T != 0, values_T, torch.zeros_like(values_T))


def _gap(logprobs_T: Tensor, arrays: Arrays) -> Tensor:
    """Return `log r`, the policy's logprob less the sampler's, where the mask counts."""
    return _where_counted(logprobs_T - arrays["logprobs"], arrays["mask"])


def _sequence_means(values_T: Tensor, mask_T: Tensor, cu_seqlens: Tensor) -> Tensor:
    """Return the mean of each token's sequence over the tokens that count; of none, 0.

    Sums are by segment, because scattered additions on a GPU have no order.
    """
    counts_T = (mask_T != 0).to(values_T.dtype)
    bounds = cu_seqlens.long()
    sums_B, counts_B = (
        torch.segment_reduce(each_T, "sum", offsets=bounds) for each_T in (values_T, counts_T)
    )
    means_B = sums_B / counts_B.clamp(min=1)
    return means_B.repeat_interleave(bounds.diff(), output_size=values_T.numel())


def _clipped_surrogate(
    ratio_T: Tensor, gap_T: Tensor, arrays: Arrays, *, range_: tuple[float, float]
) -> LossTerms:
    """Return the smaller of what a ratio and its clipped value gain, negated and summed."""
    free_T = ratio_T * arrays["advantages"]
    bound_T = ratio_T.clamp(*range_) * arrays["advantages"]
    loss = -(torch.minimum(free_T, bound_T) * arrays["mask"]).sum()
    return _policy_terms(loss, gap_T=gap_T, mask_T=arrays["mask"], clipped_T=bound_T < free_T)


def _policy_terms(
    loss: Tensor, *, gap_T: Tensor, mask_T: Tensor, clipped_T: Tensor | None = None
) -> LossTerms:
    gap_T = gap_T.detach()
    ratio_T = gap_T.exp()
    sums = {
        "loss": loss.detach(),
        "tokens": _count(mask_T),
        "weight": mask_T.sum(),
        "ratio": (ratio_T * mask_T).sum(),
        "kl": ((ratio_T - 1 - gap_T) * mask_T).sum(),
        "gap": gap_T.abs().sum(),
    }
    if clipped_T is not None:
        sums["clipped"] = (clipped_T.to(mask_T.dtype) * mask_T).sum()
    return LossTerms(loss=loss, sums=sums, maxima={"gap": gap_T.abs().max()})


def _clip_range(
    args: Args, *, defaults: tuple[float, float] = (DEFAULT_CLIP, DEFAULT_CLIP)
) -> tuple[float, float]:
    low, high = defaults
    high = args.get("clip_high", args.get("clip", high))
    return 1.0 - args.get("clip", low), 1.0 + high


def _count(weights_T: Tensor) -> Tensor:
    return (weights_T != 0).sum()
