"""FSDP2's sharded tensors laid out in a rank's flat memory regions.

FSDP2 gathers from each parameter's flat padded shard (`_sharded_param_data`), of which the
DTensor's local tensor is a view, and adds into `grad._local_tensor` when a gradient is already
there. So a rank whose shards and gradients alias its regions from the start needs no copies later:
parking takes the pages away under them.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from plexsvc.residency import Home
from plexsvc.statelink.client import RegionSpec
from plexsvc.statelink.regions import on_host
from plexsvc.weights.boxes import Box, TensorBox
from plexsvc.worker.canonical import RowRun, TensorSlice, slices
from plexsvc.worker.regions import RegionLayout, TensorPlace, view

if TYPE_CHECKING:
    import torch

MOMENTS = ("exp_avg", "exp_avg_sq")
MATRIX_DIMS = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class ParameterShard:
    """One parameter's shard on this rank: rows `[first_row, first_row + local_shape[0])`."""

    name: str
    """Hugging Face's name in memory: that in checkpoints, but for experts."""
    sharded: Any
    """FSDP2's bookkeeping of the parameter (`FSDPParam`)."""
    global_shape: tuple[int, ...]
    local_shape: tuple[int, ...]
    first_row: int
    padded: TensorPlace
    """The shard with FSDP2's padding rows, in the `params` region."""
    place: TensorPlace
    """The shard without padding, in `grads` and in each half of `moments`."""

    def slices_of(self, tensor: torch.Tensor) -> list[TensorSlice]:
        """Return the canonical boxes that `tensor`, of the shard's shape, holds.

        Transformers keeps the experts of a layer in one tensor, and checkpoints each by itself.
        """
        if len(self.local_shape) <= MATRIX_DIMS:
            return [self.slice_of(tensor)]
        local = range(self.first_row, self.first_row + self.local_shape[0])
        parts = [name for expert in local for name in self.names_of(expert)]
        columns, rows = self.local_shape[2], math.prod(self.local_shape[:2]) // len(parts)
        runs = [
            RowRun(row=i * rows, num_rows=rows, name=name, global_shape=(rows, columns))
            for i, name in enumerate(parts)
        ]
        return list(slices(tensor.view(-1, columns), runs))

    @property
    def names(self) -> list[str]:
        """Return the checkpoint's tensors that make this one."""
        if len(self.global_shape) <= MATRIX_DIMS:
            return [self.name]
        return [name for expert in range(self.global_shape[0]) for name in self.names_of(expert)]

    def names_of(self, expert: int) -> list[str]:
        """Return the checkpoint's tensors that one expert of this tensor is cut from, by rows."""
        layer, _, fused = self.name.rpartition(".")
        parts = fused.removesuffix("_proj").split("_")  # "gate_up_proj" is gate_proj over up_proj
        return [f"{layer}.{expert}.{part}_proj.weight" for part in parts]

    def slice_of(self, tensor: torch.Tensor) -> TensorSlice:
        """Return the canonical box that `tensor`, of the shard's shape, holds."""
        start = (self.first_row, *(0 for _ in self.local_shape[1:]))
        box = Box(start, self.local_shape)
        return TensorSlice(
            key=TensorBox(name=self.name, shape=self.global_shape, box=box), view=tensor
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """Where every shard lies in this rank's regions."""

    held: tuple[ParameterShard, ...]
    param_bytes: int
    shard_bytes: int

    def regions(self, *, is_trained: bool, steps_on_host: bool = False) -> tuple[RegionSpec, ...]:
        """Return the regions; only a trained model has gradients and moments.

        Where it steps on the host, parameters and gradients are lent there.
        """
        lent, host = (Home.LENT, Home.HOST) if steps_on_host else (Home.DEVICE, Home.DEVICE)
        params = RegionSpec(name="params", nbytes=self.param_bytes, home=lent)
        if not is_trained:
            return (params,)
        return (
            params,
            RegionSpec(name="moments", nbytes=2 * self.shard_bytes, home=host),
            RegionSpec(name="grads", nbytes=self.shard_bytes, droppable=True, home=lent),
        )


def plan_layout(model: torch.nn.Module) -> Layout:
    """Return where the shards of a `fully_shard`ed model go."""
    (itemsize,) = {param.dtype.itemsize for param in model.parameters()}
    params, shards, held = RegionLayout(itemsize=itemsize), RegionLayout(itemsize=4), []
    for name, sharded in sharded_params(model):
        local_shape, first_row = _own_rows(sharded)
        held.append(
            ParameterShard(
                name=name,
                sharded=sharded,
                global_shape=tuple(sharded.sharded_param.shape),
                local_shape=local_shape,
                first_row=first_row,
                padded=params.add(sharded.padded_sharded_param_size),
                place=shards.add(local_shape),
            )
        )
    return Layout(held=tuple(held), param_bytes=params.nbytes, shard_bytes=shards.nbytes)


def sharded_params(model: torch.nn.Module) -> Iterator[tuple[str, Any]]:
    """Yield (name, FSDPParam) once for each parameter, in the model's order."""
    from torch.distributed.fsdp import FSDPModule

    of: dict[int, Any] = {}
    for module in model.modules():
        if isinstance(module, FSDPModule):
            for sharded in _params_of(module):
                of[id(sharded.sharded_param)] = sharded
    for name, param in model.named_parameters():
        yield name, of[id(param)]


def adopt_params(held: ParameterShard, memory: torch.Tensor) -> torch.Tensor:
    """Make FSDP2 keep this shard in `memory` (the `params` region); return the shard's view."""
    local = param_view(held, memory)
    padded = view(memory, held.padded, dtype=local.dtype)
    held.sharded._sharded_param_data = padded.view(-1)
    held.sharded.sharded_param._local_tensor = local
    return local


def param_view(held: ParameterShard, memory: torch.Tensor) -> torch.Tensor:
    """Return this shard in `memory` (the `params` region, or where it is parked)."""
    padded = view(memory, held.padded, dtype=held.sharded.sharded_param.dtype)
    return padded.narrow(0, 0, held.local_shape[0])


def adopt_grad(held: ParameterShard, memory: torch.Tensor) -> torch.Tensor:
    """Make FSDP2 add this shard's gradients into `memory` (the `grads` region); return the view."""
    import torch

    local = view(memory, held.place, dtype=torch.float32)
    held.sharded.sharded_param.grad = held.sharded.to_sharded_dtensor(local)
    return local


def parked_views(
    layout: Layout, memory: Mapping[str, torch.Tensor], *, is_dirty: bool
) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """Return the shards and their gradients where they are parked; those that are clean: zeroes."""
    import torch

    params, grads = memory[on_host("params")], memory[on_host("grads")]
    if not is_dirty:  # they were dropped, and what lies there is old
        grads.zero_()
    return (
        [param_view(held, params) for held in layout.held],
        [view(grads, held.place, dtype=torch.float32) for held in layout.held],
    )


def moment_views(
    held: ParameterShard, memory: torch.Tensor, *, shard_bytes: int
) -> list[torch.Tensor]:
    """Return the shard's two moments in `memory` (the `moments` region)."""
    import torch

    halves = (memory.narrow(0, half * shard_bytes, shard_bytes) for half in range(2))
    return [view(half, held.place, dtype=torch.float32) for half in halves]


def _params_of(module: Any) -> Iterator[Any]:
    state = module._get_fsdp_state()
    groups = getattr(state, "_fsdp_param_groups", None)  # torch 2.13; one group before
    if groups is None:
        groups = [state._fsdp_param_group] if state._fsdp_param_group else []
    for group in groups:
        yield from group.fsdp_params


def _own_rows(sharded: Any) -> tuple[tuple[int, ...], int]:
    from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

    param = sharded.sharded_param
    shape, offset = compute_local_shape_and_global_offset(
        param.shape, param.device_mesh, param.placements
    )
    is_empty = math.prod(shape) == 0
    return tuple(shape), 0 if is_empty else int(offset[0])
