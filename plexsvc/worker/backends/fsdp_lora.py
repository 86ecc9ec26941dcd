"""LoRA on the FSDP2 backend: a frozen model in shards, and adapters that every rank holds whole.

The model has neither masters, moments nor gradients, and no byte of it changes: ranks of all
deployments on the same model share it on a device. Adapters are float32 tensors in the rank's
regions and no parameters of a module, so FSDP2 does not see them: hooks on the linear layers add
what they compute. Each rank adds up the gradients of its own sequences until a step, which sums
them over ranks; then all ranks make the same step.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Collection, Mapping, Sequence
from functools import partial
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn.functional import linear

from plexsvc import lora
from plexsvc.errors import ErrorCode, PlexError
from plexsvc.statelink.client import RegionSpec
from plexsvc.weights.boxes import Box, TensorBox
from plexsvc.worker import canonical
from plexsvc.worker.backends import fsdp, fsdp_state
from plexsvc.worker.backends.hf import check_leftovers
from plexsvc.worker.canonical import TensorSlice
from plexsvc.worker.config import WorkerConfig
from plexsvc.worker.regions import RegionLayout, view
from plexsvc.worker.sources import (
    MODEL,
    Read,
    TensorSource,
    check_finite,
    copy,
    open_checkpoint,
    reads,
)

ADAPTER = "adapter"
"""The region of all adapters."""


class LoraBackend(fsdp.FsdpBackend):
    """One rank of a frozen model with adapters."""

    def __init__(self, config: WorkerConfig) -> None:
        super().__init__(config)
        assert config.lora is not None, config
        self._lora = config.lora
        self._base: list[TensorSlice] = []
        """This rank's shards of the model."""

    def build(self) -> None:
        """Join the ranks, shard the frozen model on the meta device and plan its adapters."""
        super().build()
        self._linears = {
            f"{name}.weight": module
            for name, module in self._model.named_modules()
            if isinstance(module, torch.nn.Linear) and self._adapts(name)
        }
        places, held = RegionLayout(itemsize=torch.float32.itemsize), []
        for weight, module in self._linears.items():
            shapes = (self._lora.rank, module.in_features), (module.out_features, self._lora.rank)
            for name, shape in zip(lora.names_of(weight), shapes, strict=True):
                place = places.add(shape)
                held.append(
                    fsdp_state.ParameterShard(
                        name=name,
                        sharded=None,
                        global_shape=shape,
                        local_shape=shape,
                        first_row=0,
                        padded=place,
                        place=place,
                    )
                )
        nbytes = places.nbytes  # without the scale, which is not trained
        self._scale = places.add((1,))
        self._trained = fsdp_state.Layout(
            held=tuple(held), param_bytes=places.nbytes, shard_bytes=nbytes
        )
        _, moments, grads = self._trained.regions(is_trained=True)
        adapter = RegionSpec(name=ADAPTER, nbytes=places.nbytes)
        params = RegionSpec(
            name="params", nbytes=self._layout.param_bytes, shared=self._model_key()
        )
        self._regions = (params, adapter, moments, grads)

    def attach(
        self,
        memory: Mapping[str, Tensor],
        weights: TensorSource | None,
        *,
        filled: Collection[str] = (),
    ) -> None:
        """Move the shards and the adapters into `memory`; read `weights` or draw new adapters.

        A version of adapters has no model: that is read from the model's directory, unless another
        rank has `filled` it.
        """
        self._attach_model(memory)
        self._model.requires_grad_(False)
        self._params, self._grads, self._pieces = [], [], []
        for held in self._trained.held:
            tensor = view(memory[ADAPTER], held.place, dtype=torch.float32).requires_grad_()
            self._params.append(tensor)
            self._add_piece("param", held, tensor.detach(), memory[ADAPTER], region=ADAPTER)
        self._add_scale(memory[ADAPTER])
        self._attach_training(memory)
        pairs = zip(self._params[::2], self._params[1::2], strict=True)
        for module, (a, b) in zip(self._linears.values(), pairs, strict=True):
            module.register_forward_hook(partial(_add, a=a, b=b, scale=self._lora.scale))
        if weights is None:
            return
        is_read = "params" in filled
        if lora.SCALE not in weights.names:
            if not is_read:
                self._read_model(weights)
            self._draw()
            return
        if not is_read:
            with open_checkpoint(Path(self._config.model)) as model:
                self._read_model(model)
        copy(self.params_from(weights))

    def leave(self) -> None:
        """Let go of the model and its adapters."""
        super().leave()
        self._base, self._linears = [], {}

    def params_from(self, weights: TensorSource) -> list[Read]:
        """Return the reads of all adapters."""
        known = {held.name for held in self._trained.held}
        _check_names(weights.names, known)
        pairs = zip(self._trained.held, self._params, strict=True)
        return reads([held.slice_of(param.detach()) for held, param in pairs], weights)

    def _adapts(self, name: str) -> bool:
        if name == "lm_head":
            return bool(self._lora.head(self._hf.to_dict()))
        return name.startswith("model.layers.") and self._lora.adapts(name)

    def _model_key(self) -> str:
        """Return what all ranks with the same bytes of the same files call them.

        A file's owner may set its mtime, and an inode is used again; nobody sets its ctime.
        """
        files = []
        for path in sorted(Path(self._config.model).glob(MODEL)):
            found = path.stat()
            files.append([found.st_dev, found.st_ino, found.st_size, found.st_ctime_ns])
        places = [[held.name, held.padded.offset, held.local_shape] for held in self._layout.held]
        config = self._config
        key = [files, places, config.dtype, config.rank, config.world_size]
        return hashlib.sha256(json.dumps(key).encode()).hexdigest()

    def _read_model(self, weights: TensorSource) -> None:
        known = {held.name for held in self._layout.held}
        check_leftovers(weights, known, hf=self._hf, is_critic=False)
        planned = reads([one for one in self._base if one.view.numel()], weights)
        copy(planned)
        check_finite(planned, is_copied=True)

    @torch.no_grad()  # type: ignore[untyped-decorator]  # torch is not followed
    def _draw(self) -> None:
        """Draw A as PEFT does, alike on all ranks and devices; B is zeros."""
        generator = torch.Generator().manual_seed(self._config.seed)
        for a, b in zip(self._params[::2], self._params[1::2], strict=True):
            bound = 1 / math.sqrt(a.size(1))
            a.copy_(torch.empty(a.shape).uniform_(-bound, bound, generator=generator))
            b.zero_()

    def _attach_model(self, memory: Mapping[str, Tensor]) -> None:
        fsdp.materialize(self._model, self._hf)
        self._base = [
            held.slice_of(fsdp_state.adopt_params(held, memory["params"]))
            for held in self._layout.held
        ]

    def _add_scale(self, memory: Tensor) -> None:
        scale = view(memory, self._scale, dtype=torch.float32).fill_(self._lora.scale)
        key = TensorBox(name=lora.SCALE_NAME, shape=(1,), box=Box.whole((1,)))
        held = TensorSlice(key=key, view=scale)
        rank = self._config.rank
        self._pieces.append(
            canonical.piece(lora.SCALE_KIND, held, region=ADAPTER, base=memory, rank=rank)
        )

    def _adopt_grad(self, held: fsdp_state.ParameterShard, param: Tensor, memory: Tensor) -> Tensor:
        grad = view(memory, held.place, dtype=torch.float32)
        param.grad = grad
        return grad

    def _grad_norm(self, grads: Sequence[Tensor]) -> Tensor:
        assert self._grad_region is not None
        dist.all_reduce(self._grad_region.view(torch.float32))
        return torch.stack([grad.double().square().sum() for grad in grads]).sum().sqrt()


def _add(
    module: torch.nn.Module,
    given: tuple[Tensor, ...],
    out: Tensor,
    *,
    a: Tensor,
    b: Tensor,
    scale: float,
) -> Tensor:
    """Return a linear layer's output with what its adapter adds, computed in float32."""
    del module
    added = linear(linear(given[0].to(a.dtype), a), b) * scale
    return (out + added).to(out.dtype)


def _check_names(names: Collection[str], known: Collection[str]) -> None:
    """Refuse weights that are no adapters of just these layers.

    Raises:
        PlexError: `unknown_model`.
    """
    found = {name for name in names if "/" not in name}
    if found != set(known):
        other = sorted(found.symmetric_difference(known))
        raise PlexError(
            ErrorCode.UNKNOWN_MODEL,
            f"the weights hold {len(found)} tensors, and the adapters of this deployment are "
            f"{len(known)}; {other[0]!r} is only in one of them. Give adapters of the same targets",
            tensor=other[0],
        )
