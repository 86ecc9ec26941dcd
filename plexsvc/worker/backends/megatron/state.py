"""A rank's tensors in its memory regions: parameters, gradients, moments, masters.

With Megatron's distributed optimizer each data-parallel rank holds moments and masters of its share
alone: an even part of a buffer in which parameters lie end to end, cut without regard to them.
Experts that are split over ranks lie in a buffer of their own: fewer ranks hold each.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import torch
import torch.distributed as dist
from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig
from megatron.core.optimizer import OptimizerConfig, get_megatron_optimizer
from megatron.core.transformer.module import Float16Module
from torch import Tensor
from torch.overrides import TorchFunctionMode

from plexclient.specs import AdamW
from plexclient.wire.v1 import statemanager_pb2
from plexsvc.residency import Home
from plexsvc.statelink.client import RegionSpec
from plexsvc.worker.backends.adamw import Tensors, Update
from plexsvc.worker.canonical import RowRun, TensorSlice, piece, slices, slices_of_range
from plexsvc.worker.regions import RegionLayout, TensorPlace, view

PARAMS: Final = "params"
GRADS: Final = "grads"
MOMENTS: Final = "moments"
MASTERS: Final = "masters"

MOMENT_KINDS: Final = ("exp_avg", "exp_avg_sq")

Memory = Mapping[str, Tensor]


@dataclass(frozen=True, slots=True, kw_only=True)
class Param:
    """One local parameter and what it holds."""

    name: str
    tensor: Any
    runs: tuple[RowRun, ...]

    @property
    def is_split_expert(self) -> bool:
        """Whether only some data-parallel ranks hold it: Megatron's mark of experts."""
        return not getattr(self.tensor, "allreduce", True)


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrangement:
    """Where a rank's parameters lie in its regions, and which elements its optimizer holds."""

    itemsize: int
    places: tuple[TensorPlace, ...]
    """Of each parameter in `params`."""
    param_bytes: int
    buffers: tuple[range, ...]
    """Elements of `grads` that each of Megatron's buffers takes, and of `params` where shared."""
    kept: tuple[range, ...]
    """Elements of each parameter whose moments and master this rank holds."""
    is_shared: bool
    """Whether data-parallel ranks hold a share each instead of all."""

    def regions(self, *, is_trained: bool, steps_on_host: bool = False) -> tuple[RegionSpec, ...]:
        """Return the regions the rank needs, those of an optimizer on the host there."""
        lent, host = (Home.LENT, Home.HOST) if steps_on_host else (Home.DEVICE, Home.DEVICE)
        specs = [RegionSpec(name=PARAMS, nbytes=self.param_bytes, home=lent)]
        if is_trained:
            layout = RegionLayout(itemsize=4)
            for kept in self.kept:
                layout.add((len(kept),))
            nbytes = 4 * self.buffers[-1].stop
            specs.append(RegionSpec(name=MOMENTS, nbytes=2 * layout.nbytes, home=host))
            specs.append(RegionSpec(name=GRADS, nbytes=nbytes, droppable=True, home=lent))
            if self.itemsize < 4:
                specs.append(RegionSpec(name=MASTERS, nbytes=layout.nbytes, home=host))
        return tuple(specs)


def whole_layout(params: Sequence[Param], *, itemsize: int) -> Arrangement:
    """Return the layout of a rank whose optimizer holds all of its parameters."""
    layout = RegionLayout(itemsize=itemsize)
    sizes = [param.tensor.numel() for param in params]
    total = sum(sizes)
    experts = sum(param.tensor.numel() for param in params if param.is_split_expert)
    buffers = (range(total - experts), range(total - experts, total))
    return Arrangement(
        itemsize=itemsize,
        places=tuple(layout.add(param.tensor.shape) for param in params),
        param_bytes=layout.nbytes,
        buffers=tuple(buffer for buffer in buffers if buffer),
        kept=tuple(range(size) for size in sizes),
        is_shared=False,
    )


def shared_layout(
    params: Sequence[Param],
    *,
    itemsize: int,
    dense: tuple[int, int],
    experts: tuple[int, int] = (0, 1),
) -> Arrangement:
    """Return the layout of a rank that holds one share: that of the buffers Megatron makes.

    `dense` is its place among the ranks that share, and how many these are; `experts` is that of
    experts that are split over ranks. Parameters lie in reverse order, each at a multiple of 64
    elements. A tied embedding has a bucket of its own, so that both ends of a pipeline share it out
    alike. Each bucket is padded so that its shares are even.
    """
    starts: dict[int, int] = {}
    buckets: list[range] = []
    buffers: list[range] = []
    begin = end = 0
    for is_expert, (_, num_shares) in ((False, dense), (True, experts)):
        start = end
        for index in reversed(range(len(params))):
            tensor = params[index].tensor
            if params[index].is_split_expert != is_expert:
                continue
            is_alone = getattr(tensor, "shared_embedding", False)
            end = _up(end, 64)
            if is_alone and end > begin:
                begin = end = _close(buckets, begin, end, num_shares=num_shares)
            starts[index] = end
            end += tensor.numel()
            if is_alone:
                begin = end = _close(buckets, begin, end, num_shares=num_shares)
        if end > begin:
            begin = end = _close(buckets, begin, end, num_shares=num_shares)
        if end > start:
            buffers.append(range(start, end))
    places, kept = [], []
    for index, param in enumerate(params):
        first, size = starts[index], param.tensor.numel()
        places.append(TensorPlace(offset=first * itemsize, shape=tuple(param.tensor.shape)))
        bucket = next(bucket for bucket in buckets if first in bucket)
        rank, num_shares = experts if param.is_split_expert else dense
        share = len(bucket) // num_shares
        low = min(max(bucket.start + rank * share - first, 0), size)
        high = min(max(bucket.start + (rank + 1) * share - first, 0), size)
        kept.append(range(low, high))
    return Arrangement(
        itemsize=itemsize,
        places=tuple(places),
        param_bytes=end * itemsize,
        buffers=tuple(buffers),
        kept=tuple(kept),
        is_shared=True,
    )


def _close(buckets: list[range], begin: int, end: int, *, num_shares: int) -> int:
    """Add the bucket `[begin, end)`, padded; return where the next begins."""
    # Padded as Megatron pads, which `_check_buffers` compares.
    buckets.append(range(begin, begin + _up(end - begin, math.lcm(num_shares, 128))))
    return buckets[-1].stop


def _up(count: int, multiple: int) -> int:
    return -(-count // multiple) * multiple


def move_params(params: Sequence[Param], memory: Memory, layout: Arrangement) -> None:
    """Point every parameter at its place in the `params` region; must precede the DDP wrapper."""
    for param, place in zip(params, layout.places, strict=True):
        param.tensor.data = view(memory[PARAMS], place, dtype=param.tensor.dtype)


@dataclass(frozen=True, slots=True, kw_only=True)
class OptimizerShard:
    """What the optimizer of this rank holds of one parameter: `kept` elements, flat."""

    param: Param
    kept: range
    weight: Tensor
    """The elements in the model."""
    main: Tensor
    """Their float32 masters: in float32 `weight`."""
    grad: Tensor
    exp_avg: Tensor
    exp_avg_sq: Tensor

    def tensors(self, hyper: AdamW) -> Tensors:
        """Return what a step works on."""
        return Tensors(
            param=self.main,
            grad=self.grad,
            exp_avg=self.exp_avg,
            exp_avg_sq=self.exp_avg_sq,
            decays=hyper.decay_vectors or self.param.tensor.dim() > 1,
        )

    def slices_of(self, kind: str) -> Iterator[TensorSlice]:
        """Yield the boxes of `exp_avg`, `exp_avg_sq` or `master`."""
        flat = {"exp_avg": self.exp_avg, "exp_avg_sq": self.exp_avg_sq, "master": self.main}[kind]
        shape = self.param.tensor.shape
        return slices_of_range(flat, self.param.runs, shape=shape, first=self.kept.start)


class TrainerState:
    """Gradients and the optimizer of a rank that trains."""

    def __init__(
        self,
        model: Any,
        config: Any,
        *,
        params: Sequence[Param],
        layout: Arrangement,
        memory: Memory,
        is_new: bool,
    ) -> None:
        """Wrap `model`; unless it `is_new`, `memory` holds gradients and masters to go on with."""
        self.steps = 0
        self._params = params
        self._memory = memory
        is_bf16, is_shared = bool(config.bf16), layout.is_shared
        self.is_shared = is_shared
        wrapped = Float16Module(config, model) if is_bf16 else model
        with _AllocatingIn(memory, layout, is_new=is_new):
            self.ddp = _wrap(config, wrapped, is_shared=is_shared)
            ddp = self.ddp
            settings = OptimizerConfig(
                optimizer="adam",
                lr=0.0,  # every step brings its own
                bf16=is_bf16,
                params_dtype=torch.bfloat16 if is_bf16 else torch.float32,
                use_distributed_optimizer=is_shared,
            )
            self.optimizer = get_megatron_optimizer(
                settings, [ddp], use_gloo_process_groups=torch.cuda.is_available()
            )
        # Of what all data-parallel ranks hold, and of split experts.
        self.buffers = [*ddp.buffers, *ddp.expert_parallel_buffers]
        _check_buffers(self.buffers, memory, params=params, layout=layout)
        self.kept = list(zip(params, layout.kept, strict=True))
        moments, self.held = RegionLayout(itemsize=4), list[OptimizerShard]()
        for param, kept in self.kept:
            places = [moments.add((len(kept),)) for _ in MOMENT_KINDS]
            views = [view(memory[MOMENTS], place, dtype=torch.float32) for place in places]
            if kept:
                self.held.append(_held(param, kept, *views))
        if is_bf16:
            base, nbytes = memory[MASTERS].data_ptr(), memory[MASTERS].numel()
            assert all(0 <= held.main.data_ptr() - base < nbytes for held in self.held)

    def plan_update(self, hyper: AdamW) -> Update:
        """Return the step that the clipped gradients make; no weight decay pulls at vectors."""
        return Update([held.tensors(hyper) for held in self.held], hyper)

    def apply(self, update: Update) -> None:
        """Make a step; parameters in less than float32 are rounded from their masters."""
        self.steps += 1
        update.apply(steps=self.steps)
        rounded(self.held)
        for buffer in self.buffers if self.is_shared else ():
            for bucket in buffer.buckets:
                spread(bucket.param_data, buffer.data_parallel_group)

    def zero_grad(self) -> None:
        """Clear the gradient buffer."""
        self.ddp.zero_grad_buffer()
        self.optimizer.zero_grad()

    def moments(self, kind: str) -> Iterator[TensorSlice]:
        """Yield the slices of `exp_avg`, `exp_avg_sq` or `master`: in float32 the parameters."""
        if kind == "master" and MASTERS not in self._memory:
            for param in self._params:
                yield from slices(param.tensor.data, param.runs)
            return
        for held in self.held:
            yield from held.slices_of(kind)

    def grads(self) -> Iterator[TensorSlice]:
        """Yield the slices of the accumulated gradients, not yet reduced over ranks."""
        for param in self._params:
            yield from slices(param.tensor.main_grad, param.runs)

    def pieces(self, *, rank: int) -> Iterator[statemanager_pb2.CanonicalPiece]:
        """Yield where gradients, moments and masters lie."""
        found = [("grad", GRADS, self.grads())]
        found += [(kind, MOMENTS, self.moments(kind)) for kind in MOMENT_KINDS]
        if MASTERS in self._memory:
            found.append(("master", MASTERS, self.moments("master")))
        for kind, region, held in found:
            base = self._memory[region]
            for item in held:
                yield piece(kind, item, region=region, base=base, rank=rank)


def spread(params: Tensor, group: Any) -> None:
    """Have each rank's share of `params` sent to the others, in place: that allocates nothing."""
    # In one order on all ranks: who entered another broadcast first would wait for ever.
    for rank, share in enumerate(params.chunk(group.size())):
        dist.broadcast(share, group=group, group_src=rank)


def rounded(held: Sequence[OptimizerShard]) -> None:
    """Write parameters in less than float32 anew from their masters."""
    for one in held:
        if one.main is not one.weight:
            one.weight.copy_(one.main)


def _held(param: Param, kept: range, exp_avg: Tensor, exp_avg_sq: Tensor) -> OptimizerShard:
    weight = param.tensor.data.view(-1)[kept.start : kept.stop]
    main = getattr(param.tensor, "main_param", None)
    return OptimizerShard(
        param=param,
        kept=kept,
        weight=weight,
        main=weight if main is None else main.data.view(-1),
        grad=param.tensor.main_grad.view(-1)[kept.start : kept.stop],
        exp_avg=exp_avg,
        exp_avg_sq=exp_avg_sq,
    )


def _wrap(config: Any, model: Any, *, is_shared: bool) -> Any:
    settings = DistributedDataParallelConfig(
        grad_reduce_in_fp32=True,
        overlap_grad_reduce=False,  # gradients accumulate over calls; they are reduced in step
        use_distributed_optimizer=is_shared,
        check_for_nan_in_grad=False,  # step refuses them
    )
    return DistributedDataParallel(config, settings, model)


class _AllocatingIn(TorchFunctionMode):
    """Gives Megatron the regions where it would allocate gradients and masters of its own.

    Those would be 8 bytes a parameter beside the regions: dead at once, and kept by torch's pool.
    With a distributed optimizer it makes a buffer of parameters, too, before that of gradients.
    """

    def __init__(self, memory: Memory, layout: Arrangement, *, is_new: bool) -> None:
        super().__init__()
        self._memory = memory
        self._is_new = is_new
        kinds = (PARAMS, GRADS) if layout.is_shared else (GRADS,)
        self._expected = [(kind, buffer) for buffer in layout.buffers for kind in kinds]
        self._masters = RegionLayout(itemsize=4)

    def __torch_function__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Answer what makes the gradient buffer or a master; let all else be."""
        del types
        given = dict(kwargs or {})
        if func is torch.zeros and self._expected and args == (len(self._expected[0][1]),):
            kind, elements = self._expected.pop(0)
            whole = self._memory[kind].view(given["dtype"])
            made = whole[elements.start : elements.stop]
            return made.zero_() if kind == GRADS and self._is_new else made
        if func is torch.Tensor.float and args[0].dtype is torch.bfloat16:
            param = args[0]
            place = self._masters.add(param.shape)
            master = view(self._memory[MASTERS], place, dtype=torch.float32)
            return master.copy_(param) if self._is_new else master
        return func(*args, **given)


def _check_buffers(
    buffers: Sequence[Any], memory: Memory, *, params: Sequence[Param], layout: Arrangement
) -> None:
    """Assert that Megatron's only buffers are the regions, laid out as was planned."""
    for buffer, elements in zip(buffers, layout.buffers, strict=True):
        offset = buffer.grad_data.data_ptr() - memory[GRADS].data_ptr()
        assert offset == 4 * elements.start, "a buffer of Megatron's own"
    for param, place in zip(params, layout.places, strict=True):
        offset = param.tensor.data_ptr() - memory[PARAMS].data_ptr()
        assert offset == place.offset, (param.name, offset, place)
