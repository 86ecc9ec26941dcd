"""AdamW in place, in two parts: what may fail, and what changes the weights and cannot fail.

A step that ran out of memory between two tensors would leave a model that no step made. So all it
needs beside the tensors is allocated when it is planned; applying it allocates nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor

from plexclient.specs import AdamW

SCRATCH_ELEMENTS: Final = 1 << 24
"""Most elements that are updated at once: the scratch memory is four bytes for each."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tensors:
    """One parameter's float32 tensors, contiguous and of one shape; `decays` if weight decay."""

    param: Tensor
    grad: Tensor
    exp_avg: Tensor
    exp_avg_sq: Tensor
    decays: bool


class Update:
    """A step that is ready to be made; the gradients are clipped already."""

    def __init__(self, tensors: Sequence[Tensors], hyper: AdamW) -> None:
        """Allocate what it needs."""
        self._tensors = [one for one in tensors if one.param.numel()]
        self._hyper = hyper
        largest = max((one.param.numel() for one in self._tensors), default=0)
        if self._tensors:
            self._scratch = torch.empty(
                min(SCRATCH_ELEMENTS, largest), device=self._tensors[0].param.device
            )

    def apply(self, *, steps: int) -> None:
        """Make it: the step with the number `steps`, counted from 1."""
        with torch.no_grad():
            for one in self._tensors:
                all_four = (one.param, one.grad, one.exp_avg, one.exp_avg_sq)
                flat = (tensor.view(-1).split(SCRATCH_ELEMENTS) for tensor in all_four)
                for part in zip(*flat, strict=True):
                    self._apply(*part, steps=steps, decays=one.decays)

    def _apply(
        self,
        param: Tensor,
        grad: Tensor,
        exp_avg: Tensor,
        exp_avg_sq: Tensor,
        *,
        steps: int,
        decays: bool,
    ) -> None:
        """Compute what `torch.optim.AdamW` does, in its order."""
        hyper = self._hyper
        if decays and hyper.weight_decay:
            param.mul_(1 - hyper.lr * hyper.weight_decay)
        exp_avg.lerp_(grad, 1 - hyper.beta1)
        exp_avg_sq.mul_(hyper.beta2).addcmul_(grad, grad, value=1 - hyper.beta2)
        denominator = torch.sqrt(exp_avg_sq, out=self._scratch[: param.numel()])
        denominator.div_((1 - hyper.beta2**steps) ** 0.5).add_(hyper.eps)
        param.addcdiv_(exp_avg, denominator, value=-hyper.lr / (1 - hyper.beta1**steps))
