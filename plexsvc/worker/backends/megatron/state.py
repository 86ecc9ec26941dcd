"""A rank's tensors in its memory regions: parameters, gradients, moments, masters."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

import torch
from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig
from megatron.core.optimizer import (
    OptimizerConfig,
    get_megatron_optimizer,
    get_standard_config_overrides,
)
from megatron.core.transformer.module import Float16Module
from torch import Tensor
from torch.overrides import TorchFunctionMode

from plexclient.specs import AdamW
from plexclient.wire.v1 import statemanager_pb2
from plexsvc.statelink.client import RegionSpec
from plexsvc.worker.backends.adamw import Tensors, Update
from plexsvc.worker.canonical import Run, Slice, piece, slices
from plexsvc.worker.regions import RegionLayout, view

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
    runs: tuple[Run, ...]


def region_specs(params: list[Param], *, itemsize: int, is_trained: bool) -> tuple[RegionSpec, ...]:
    """Return the regions a rank with `params` needs."""
    weights = _nbytes(params, itemsize=itemsize)
    specs = [RegionSpec(name=PARAMS, nbytes=weights)]
    if is_trained:
        fp32 = _nbytes(params, itemsize=4)
        numel = sum(p.tensor.numel() for p in params)
        specs.append(RegionSpec(name=MOMENTS, nbytes=2 * fp32))
        specs.append(RegionSpec(name=GRADS, nbytes=4 * numel, droppable=True))
        if itemsize < 4:
            specs.append(RegionSpec(name=MASTERS, nbytes=fp32))
    return tuple(specs)


def move_params(params: list[Param], memory: Memory) -> None:
    """Point every parameter at its place in the `params` region; must precede the DDP wrapper."""
    if not params:
        return
    dtype = params[0].tensor.dtype
    layout = RegionLayout(itemsize=dtype.itemsize)
    for param in params:
        place = layout.add(param.tensor.shape)
        param.tensor.data = view(memory[PARAMS], place, dtype=dtype)


class Trained:
    """Gradients and the optimizer of a rank that trains."""

    def __init__(
        self,
        model: Any,
        config: Any,
        *,
        params: list[Param],
        memory: Memory,
        is_new: bool,
    ) -> None:
        """Wrap `model`; unless it `is_new`, `memory` holds gradients and masters to go on with."""
        self.steps = 0
        self._params = params
        self._memory = memory
        is_bf16 = bool(config.bf16)
        wrapped = Float16Module(config, model) if is_bf16 else model
        with _AllocatingIn(memory, is_new=is_new):
            self.ddp = _wrap(config, wrapped)
            ddp = self.ddp
            settings = OptimizerConfig(
                optimizer="adam",
                lr=0.0,  # every step brings its own
                weight_decay=0.01,  # non-zero, so that vectors get a group of their own
                bf16=is_bf16,
                params_dtype=torch.bfloat16 if is_bf16 else torch.float32,
                use_distributed_optimizer=False,
            )
            self.optimizer = get_megatron_optimizer(
                settings,
                [ddp],
                config_overrides=get_standard_config_overrides(settings),
                use_gloo_process_groups=torch.cuda.is_available(),
            )
        _check_grads(self.ddp, memory[GRADS])
        self._main = {id(p.tensor): self._main_of(p) for p in params}
        if is_bf16:
            assert all(_lies_in(main, memory[MASTERS]) for main in self._main.values())
        layout, self._moments = RegionLayout(itemsize=4), []
        for param in params:
            places = (layout.add(param.tensor.shape) for _ in MOMENT_KINDS)
            views = (view(memory[MOMENTS], place, dtype=torch.float32) for place in places)
            self._moments.append(dict(zip(MOMENT_KINDS, views, strict=True)))

    def _main_of(self, param: Param) -> Any:
        main = getattr(param.tensor, "main_param", None)
        return param.tensor if main is None else main

    def plan_update(self, hyper: AdamW) -> Update:
        """Return the step that the clipped gradients make.

        Megatron marks with `wd_mult` 0 the vectors, which no weight decay pulls at.
        """
        shares = {
            id(main): group.get("wd_mult", 1.0)
            for group in self.optimizer.param_groups
            for main in group["params"]
        }
        tensors = []
        for param, moments in zip(self._params, self._moments, strict=True):
            main = self._main[id(param.tensor)]
            decays = hyper.decay_vectors or shares[id(main)] > 0
            grad = param.tensor.main_grad
            tensors.append(Tensors(param=main.data, grad=grad, decays=decays, **moments))
        return Update(tensors, hyper)

    def apply(self, update: Update) -> None:
        """Make a step; parameters in less than float32 are rounded from their masters."""
        self.steps += 1
        update.apply(steps=self.steps)
        for param in self._params:
            main = self._main[id(param.tensor)]
            if main is not param.tensor:
                param.tensor.data.copy_(main.data)

    def zero_grad(self) -> None:
        """Clear the gradient buffer."""
        self.ddp.zero_grad_buffer()
        self.optimizer.zero_grad()

    def moments(self, kind: str) -> Iterator[Slice]:
        """Yield the slices of `exp_avg`, `exp_avg_sq` or `master`: in float32 the parameters."""
        for param, moments in zip(self._params, self._moments, strict=True):
            masters = self._main[id(param.tensor)].data
            yield from slices(masters if kind == "master" else moments[kind], param.runs)

    def grads(self) -> Iterator[Slice]:
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


def _nbytes(params: list[Param], *, itemsize: int) -> int:
    layout = RegionLayout(itemsize=itemsize)
    for param in params:
        layout.add(param.tensor.shape)
    return layout.nbytes


def _wrap(config: Any, model: Any) -> Any:
    settings = DistributedDataParallelConfig(
        grad_reduce_in_fp32=True,
        overlap_grad_reduce=False,  # gradients accumulate over calls; they are reduced in step
        use_distributed_optimizer=False,
        check_for_nan_in_grad=False,  # step refuses them
    )
    return DistributedDataParallel(config, settings, model)


class _AllocatingIn(TorchFunctionMode):
    """Gives Megatron the regions where it would allocate gradients and masters of its own.

    Those would be 8 bytes a parameter beside the regions: dead at once, and kept by torch's pool.
    """

    def __init__(self, memory: Memory, *, is_new: bool) -> None:
        super().__init__()
        self._memory = memory
        self._is_new = is_new
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
        if func is torch.zeros and args == (self._memory[GRADS].numel() // 4,):
            grads = self._memory[GRADS].view(torch.float32)
            return grads.zero_() if self._is_new else grads
        if func is torch.Tensor.float and args[0].dtype is torch.bfloat16:
            param = args[0]
            place = self._masters.add(param.shape)
            master = view(self._memory[MASTERS], place, dtype=torch.float32)
            return master.copy_(param) if self._is_new else master
        return func(*args, **given)


def _check_grads(ddp: Any, memory: Tensor) -> None:
    """Assert that Megatron's only gradient buffer is the region."""
    assert len(ddp.buffers) <= 1, f"{len(ddp.buffers)} gradient buffers; one dtype was expected"
    for buffer in ddp.buffers:
        assert buffer.grad_data.data_ptr() == memory.data_ptr(), "Megatron made a buffer of its own"


def _lies_in(tensor: Tensor, memory: Tensor) -> bool:
    return 0 <= tensor.data_ptr() - memory.data_ptr() < memory.numel()
