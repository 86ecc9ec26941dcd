"""AdamW in place, in two parts: what may fail, and what changes the weights and cannot fail.

A step that ran out of memory between two tensors would leave a model that no step made. So all it
needs beside the tensors is allocated when it is planned; applying it allocates nothing. In host
memory torch's fused kernel makes it, which reads and writes each value once.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Final, TypeVar

import torch
from torch import Tensor

from plexclient.specs import AdamW
from plexsvc import progress
from plexsvc.errors import ErrorCode, PlexError

P = TypeVar("P")
R = TypeVar("R")

SCRATCH_ELEMENTS: Final = 1 << 24
"""Most elements that are updated at once: the scratch memory is four bytes for each."""


PART_ELEMENTS: Final = 1 << 22
"""Elements that a thread updates at once in host memory."""

NORM_ELEMENTS: Final = 1 << 16
"""Gradients whose squares are summed in single precision."""


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
                flat = (tensor.view(-1).split(SCRATCH_ELEMENTS) for tensor in _four(one))
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


class HostUpdate:
    """A step in host memory, equal to an `Update` but for rounding.

    It is made in parts of a fixed size, so the number of threads changes no bit.
    """

    def __init__(self, tensors: Sequence[Tensors], hyper: AdamW, *, num_threads: int) -> None:
        """Allocate what it needs."""
        self._hyper = hyper
        self._num_threads = num_threads
        self._steps = torch.zeros(())  # the kernel takes the count as a tensor
        self._parts = [
            (one.decays, [[part] for part in parts])
            for one in tensors
            for parts in zip(*(t.view(-1).split(PART_ELEMENTS) for t in _four(one)), strict=True)
            if one.param.numel()
        ]

    def apply(self, *, steps: int) -> None:
        """Make it: the step with the number `steps`, counted from 1."""
        self._steps.fill_(steps)
        for _ in _each(self._apply, self._parts, num_threads=self._num_threads):
            progress.advance()

    def _apply(self, part: tuple[bool, list[list[Tensor]]]) -> None:
        hyper, (decays, four) = self._hyper, part
        torch._fused_adamw_(
            *four,
            [],
            [self._steps],
            lr=hyper.lr,
            beta1=hyper.beta1,
            beta2=hyper.beta2,
            weight_decay=hyper.weight_decay if decays else 0.0,
            eps=hyper.eps,
            amsgrad=False,
            maximize=False,
        )


def host_squares(grads: Sequence[Tensor], *, num_threads: int) -> Tensor:
    """Return the sum of squares of gradients in host memory, in double precision over parts.

    To convert all of them to double and square them takes fifty times as long.
    """
    parts = [part for grad in grads for part in grad.view(-1).split(PART_ELEMENTS)]
    norms = torch.cat([torch.zeros(1), *_each(_norms, parts, num_threads=num_threads)])
    return norms.double().square().sum()


def _norms(part: Tensor) -> Tensor:
    """Return the norm of each `NORM_ELEMENTS`, and of the rest.

    One call makes them: threads that call for each wait for each other in Python.
    """
    count = part.numel() // NORM_ELEMENTS
    whole, rest = part.split([count * NORM_ELEMENTS, part.numel() - count * NORM_ELEMENTS])
    norms = torch.linalg.vector_norm(whole.view(count, NORM_ELEMENTS), dim=1)
    return torch.cat([norms, torch.linalg.vector_norm(rest, dim=0, keepdim=True)])


def _each(work: Callable[[P], R], parts: Sequence[P], *, num_threads: int) -> Iterator[R]:
    """Yield what is made of each part, in their order, on threads that take one after another."""
    if num_threads == 1:
        yield from map(work, parts)
        return
    alone = {"initializer": torch.set_num_threads, "initargs": (1,)}
    with ThreadPoolExecutor(num_threads, **alone) as pool:
        yield from pool.map(work, parts)


def check_norm(norm: float) -> float:
    """Return the norm of gradients that a step can be made of.

    Raises:
        PlexError: `window_broken` when it is not finite.
    """
    if math.isfinite(norm):
        return norm
    raise PlexError(
        ErrorCode.WINDOW_BROKEN,
        f"the gradients' norm is {norm}; parameters are unchanged. Call zero_grad and send the "
        "batches again without the ones that overflow",
        grad_norm=norm,
    )


def clip(grads: Sequence[Tensor], hyper: AdamW, *, norm: Tensor) -> None:
    """Scale gradients so that their norm is at most what is asked, if anything is."""
    if hyper.clip_grad_norm > 0:
        # As torch's own `clip_grad_norm_` does it.
        scale = torch.clamp(hyper.clip_grad_norm / (norm + 1e-6), max=1.0)
        for grad in grads:
            grad.mul_(scale)


def host_threads(num_ranks: int) -> int:
    """Return how many threads make a rank's step in host memory: one where no GPU does the rest."""
    if not torch.cuda.is_available():
        return 1
    return max(1, len(os.sched_getaffinity(0)) // num_ranks)


def _four(one: Tensors) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    return one.param, one.grad, one.exp_avg, one.exp_avg_sq
