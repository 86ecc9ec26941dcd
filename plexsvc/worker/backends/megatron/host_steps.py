"""Steps of Megatron's optimizer in host memory, on one rank or on many.

Others have the devices during a step, so each pass ends with the sum of the gradients over ranks.
The next pass adds to sums, which several ranks have. All but one of them drop theirs before it
(`keep_own`), so that they count once when that pass is summed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.distributed as dist
from megatron.core import parallel_state
from megatron.core.distributed import finalize_model_grads
from megatron.core.tensor_parallel import param_is_not_tensor_parallel_duplicate
from torch import Tensor

from plexclient.specs import AdamW
from plexsvc.statelink.regions import on_host
from plexsvc.worker.backends.adamw import HostUpdate, check_norm, clip, host_squares, host_threads
from plexsvc.worker.backends.megatron.state import (
    GRADS,
    PARAMS,
    Memory,
    OptimizerShard,
    Param,
    TrainerState,
    rounded,
    spread,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class HostSteps:
    """A rank's part of steps in host memory, and of the passes before them."""

    trained: TrainerState
    memory: Memory
    num_ranks: int

    def keep_own(self) -> None:
        """Drop the sums of earlier passes that another rank adds to the next."""
        for param, kept in self.trained.kept:
            own = kept if self._is_own(param) else range(0)
            flat = param.tensor.main_grad.view(-1)
            flat[: own.start].zero_()
            flat[own.stop :].zero_()

    def sum_gradients(self) -> None:
        """Sum the gradients over ranks, on their devices."""
        finalize_model_grads([self.trained.ddp], None)

    def plan(self, hyper: AdamW, *, has_gradients: bool) -> tuple[float, Callable[[], None]]:
        """Return the norm of all gradients where the ranks are parked, and what makes the step.

        Raises:
            PlexError: `window_broken` when the gradients are not finite.
        """
        if not has_gradients:  # they were dropped, and what lies there is old
            self.memory[on_host(GRADS)].zero_()
        held = [self._parked(one) for one in self.trained.held]
        threads = host_threads(self.num_ranks)
        counted = [one.grad for one in held if self._counts(one.param)]
        total = host_squares(counted, num_threads=threads)
        if self.num_ranks > 1:
            on_device = total.to(self.memory[PARAMS].device)
            dist.all_reduce(on_device)
            total = on_device.cpu()
        norm = total.sqrt()
        check_norm(float(norm))
        clip([one.grad for one in held], hyper, norm=norm)
        update = HostUpdate([one.tensors(hyper) for one in held], hyper, num_threads=threads)

        def apply() -> None:
            self.trained.steps += 1
            update.apply(steps=self.trained.steps)
            rounded(held)
            for params, group in self._shared():
                spread(params, group)

        return float(norm), apply

    def _is_own(self, param: Param) -> bool:
        """Whether this rank adds its sum of a gradient to the next, where others have the same."""
        if not self.trained.is_shared:
            copy = parallel_state.get_data_parallel_rank(with_context_parallel=True)
            if param.is_split_expert:
                copy = parallel_state.get_expert_data_parallel_rank()
            if copy > 0:
                return False
        # What Megatron sums beside that: a tied embedding over the ends of a pipeline, and over
        # tensor ranks what each computes from its own tokens or heads.
        tensor, config = param.tensor, self.trained.ddp.config
        if getattr(tensor, "shared", False):
            return False
        is_of_tokens = config.sequence_parallel and getattr(tensor, "sequence_parallel", False)
        norms = (".q_layernorm.", ".k_layernorm.")
        is_of_heads = config.qk_layernorm and any(norm in param.name for norm in norms)
        is_summed = is_of_tokens or is_of_heads
        return not is_summed or parallel_state.get_tensor_model_parallel_rank() == 0

    def _counts(self, param: Param) -> bool:
        """Whether this rank counts its part of a gradient in the norm."""
        return self._is_own(param) and param_is_not_tensor_parallel_duplicate(param.tensor)

    def _parked(self, held: OptimizerShard) -> OptimizerShard:
        """Return what the optimizer holds of a parameter, where it is parked."""
        weight, grad = self._beside(held.weight, PARAMS), self._beside(held.grad, GRADS)
        main = weight if held.main is held.weight else held.main
        return replace(held, weight=weight, grad=grad, main=main)

    def _beside(self, tensor: Tensor, region: str) -> Tensor:
        """Return what lies where a flat tensor of a region is parked."""
        first = tensor.data_ptr() - self.memory[region].data_ptr()
        nbytes = tensor.numel() * tensor.dtype.itemsize
        return self.memory[on_host(region)].narrow(0, first, nbytes).view(tensor.dtype)

    def _shared(self) -> Iterator[tuple[Tensor, Any]]:
        """Yield parked parameters that ranks have a share of each, and these ranks' group."""
        ddp = self.trained.ddp
        for buffer in self.trained.buffers if self.trained.is_shared else ():
            group = buffer.data_parallel_group
            if torch.cuda.is_available():  # that one is of devices
                is_dense = any(buffer is one for one in ddp.buffers)
                group = (
                    parallel_state.get_data_parallel_group_gloo(with_context_parallel=True)
                    if is_dense
                    else parallel_state.get_expert_data_parallel_group_gloo()
                )
            for bucket in buffer.buckets:
                yield self._beside(bucket.param_data, PARAMS), group
