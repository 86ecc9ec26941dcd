"""The megatron-core backend: one rank with tensor, sequence, pipeline and data parallelism."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

import torch
from megatron.core import parallel_state
from megatron.core.distributed import finalize_model_grads
from megatron.core.optimizer.clip_grads import clip_grad_by_total_norm_fp32
from megatron.core.tensor_parallel.random import model_parallel_cuda_manual_seed
from torch import Tensor

from plexclient.specs import AdamW
from plexclient.wire.v1 import statemanager_pb2
from plexsvc.errors import ErrorCode, PlexError
from plexsvc.statelink.client import RegionSpec
from plexsvc.weights.manifests import STEPS, Scalars
from plexsvc.worker import process_group
from plexsvc.worker.backends import hf, packed
from plexsvc.worker.backends.adamw import check_norm
from plexsvc.worker.backends.base import (
    DataShard,
    MicroBatch,
    ModelFacts,
    PassResult,
    TokenLoss,
)
from plexsvc.worker.backends.megatron import mapping, model, passes, state
from plexsvc.worker.backends.megatron.host_steps import HostSteps
from plexsvc.worker.backends.ulysses import TokenShares
from plexsvc.worker.canonical import TensorSlice, piece, slices
from plexsvc.worker.config import WorkerConfig
from plexsvc.worker.sources import (
    Read,
    TensorSource,
    check_finite,
    copy,
    has_masters,
    reads,
)

DTYPES: Final = {"": torch.float32, "float32": torch.float32, "bfloat16": torch.bfloat16}


class MegatronBackend:
    """One rank of a model on megatron-core; see `plexsvc.worker.backends.base.Backend`."""

    def __init__(self, config: WorkerConfig) -> None:
        self._config = config
        self._is_critic = config.role == "critic"
        self._is_grad_dirty = False
        self._trained: state.TrainerState | None = None
        self._host_steps: HostSteps | None = None
        self._memory: Mapping[str, Tensor] = {}
        self._regions: tuple[RegionSpec, ...] = ()

    @property
    def facts(self) -> ModelFacts:
        """Return the model's limits."""
        return ModelFacts(
            vocab_size=self._hf.vocab_size, max_sequence_length=self._hf.max_position_embeddings
        )

    @property
    def shard(self) -> DataShard:
        """Return this rank's place in the data-parallel split."""
        parallel = self._config.parallel
        is_last = parallel_state.is_pipeline_last_stage()
        return DataShard(
            dp_rank=parallel_state.get_data_parallel_rank(),
            dp_size=parallel_state.get_data_parallel_world_size(),
            owns_results=is_last
            and parallel_state.get_tensor_model_parallel_rank() == self._shares.rank == 0,
            token_multiple=parallel.cp * (parallel.tp if parallel.sequence_parallel else 1),
        )

    @property
    def is_grad_dirty(self) -> bool:
        """Whether gradients were accumulated since the last step or zero_grad."""
        return self._is_grad_dirty

    def build(self) -> None:
        """Join the process group and build this rank's part of the model in host memory."""
        config = self._config
        self._dtype = DTYPES[config.dtype]
        self._hf = hf.read_config(config.model, backend="megatron")
        process_group.join(config)
        parallel_state.initialize_model_parallel(
            tensor_model_parallel_size=config.parallel.tp,
            pipeline_model_parallel_size=config.parallel.pp,
            context_parallel_size=config.parallel.cp,
            expert_model_parallel_size=config.parallel.ep,
            expert_tensor_parallel_size=1,
            distributed_timeout_minutes=max(1, config.collective_timeout_s // 60),  # whole minutes
            create_gloo_process_groups=torch.cuda.is_available(),  # else the groups are gloo's
        )
        self._shares = TokenShares(
            group=parallel_state.get_context_parallel_group(),
            rank=parallel_state.get_context_parallel_rank(),
            size=config.parallel.cp,
        )
        self.reseed(config.seed)
        self._megatron = model.megatron_config(self._hf, config.parallel, dtype=self._dtype)
        self._model = model.build_model(self._hf, self._megatron, is_critic=self._is_critic)
        packed.recompute(self._model.decoder.layers, config.recompute)
        layer_of = {i: layer.layer_number - 1 for i, layer in enumerate(self._model.decoder.layers)}
        geometry = model.geometry(self._hf, is_critic=self._is_critic)
        found = []
        for name, tensor in self._model.named_parameters():
            runs = mapping.runs_of(name, tuple(tensor.shape), layer_of=layer_of, geometry=geometry)
            found.append(state.Param(name=name, tensor=tensor, runs=tuple(runs)))
        self._params = found
        self._layout = self._planned(found)
        self._regions = self._layout.regions(
            is_trained=config.has_optimizer, steps_on_host=config.steps_on_host
        )

    def _planned(self, params: list[state.Param]) -> state.Arrangement:
        parallel = self._config.parallel
        itemsize, copies = self._dtype.itemsize, parallel.dp * parallel.cp
        if copies == 1 or not parallel.distributed_optimizer:
            return state.whole_layout(params, itemsize=itemsize)
        dense = parallel_state.get_data_parallel_rank(with_context_parallel=True), copies
        rank = parallel_state.get_expert_data_parallel_rank()
        experts = rank, parallel_state.get_expert_data_parallel_world_size()
        return state.shared_layout(params, itemsize=itemsize, dense=dense, experts=experts)

    def regions(self) -> tuple[RegionSpec, ...]:
        """Return the device memory this rank needs."""
        return self._regions

    def attach(
        self,
        memory: Mapping[str, Tensor],
        weights: TensorSource | None,
        *,
        filled: Collection[str] = (),
    ) -> None:
        """Move parameters into `memory`, wrap the model for training, and read `weights`."""
        del filled
        self._memory = memory
        state.move_params(self._params, memory, self._layout)
        self._device = memory[state.PARAMS].device
        for module in self._model.modules():
            for name, buffer in list(module.named_buffers(recurse=False)):
                module.register_buffer(name, buffer.to(self._device), persistent=False)
        if self._config.has_optimizer:
            self._trained = state.TrainerState(
                self._model,
                self._megatron,
                params=self._params,
                layout=self._layout,
                memory=memory,
                is_new=weights is not None,
            )
        if self._trained is not None and self._config.steps_on_host:
            self._host_steps = HostSteps(
                trained=self._trained, memory=memory, num_ranks=self._config.world_size
            )
        if weights is not None:
            planned = self.params_from(weights)
            copy(planned)
            check_finite(planned, is_copied=True)

    def leave(self) -> None:
        """Let go of the model and of Megatron's groups."""
        self._trained, self._host_steps, self._params = None, None, []
        del self._model, self._shares
        parallel_state.destroy_model_parallel()

    def pieces(self) -> list[statemanager_pb2.CanonicalPiece]:
        """Return where every state tensor lies."""
        rank, base = self._config.rank, self._memory[state.PARAMS]
        found = [
            piece("param", held, region=state.PARAMS, base=base, rank=rank)
            for held in self._param_slices()
        ]
        if self._trained is not None:
            found.extend(self._trained.pieces(rank=rank))
        return found

    def reseed(self, seed: int) -> None:
        """Set torch's and Megatron's generators from `seed`."""
        torch.manual_seed(seed)
        # Megatron adds its ranks' offsets, and torch takes 64 bits.
        model_parallel_cuda_manual_seed(seed % (1 << 62))

    def forward(self, batch: Sequence[MicroBatch], *, temperature: float) -> PassResult:
        """Return logprobs of the targets (a critic: values)."""
        return self._run(batch, loss=None, temperature=temperature, keep_outputs=True)

    def forward_backward(
        self,
        batch: Sequence[MicroBatch],
        *,
        loss: TokenLoss,
        temperature: float,
        keep_outputs: bool,
    ) -> PassResult:
        """Accumulate the gradients of the sum of `loss` over `batch`."""
        self._training()
        sums = self._host_steps if self._config.world_size > 1 else None
        if sums is not None and self._is_grad_dirty:
            sums.keep_own()
        self._is_grad_dirty = True
        found = self._run(batch, loss=loss, temperature=temperature, keep_outputs=keep_outputs)
        if sums is not None:
            sums.sum_gradients()
        return found

    def _run(
        self,
        batch: Sequence[MicroBatch],
        *,
        loss: TokenLoss | None,
        temperature: float,
        keep_outputs: bool,
    ) -> PassResult:
        what = passes.Pass(
            loss=loss,
            temperature=temperature,
            keep_outputs=keep_outputs,
            is_critic=self._is_critic,
            vocab_size=self._hf.vocab_size,
            shares=self._shares,
        )
        runnable = self._model if self._trained is None else self._trained.ddp
        return passes.run(runnable, batch, what, device=self._device)

    def plan_step(self, hyper: AdamW) -> Callable[[], dict[str, float]]:
        """Sum the gradients over ranks and clip them; return what applies and clears them."""
        trained = self._training()
        if self._host_steps is not None:
            return self._plan_on_host(hyper, self._host_steps)
        optimizer = trained.optimizer
        self._is_grad_dirty = True  # until all of it is done
        finalize_model_grads([trained.ddp], None)
        optimizer.prepare_grads()
        norm = check_norm(float(optimizer.get_grad_norm()))
        if hyper.clip_grad_norm > 0.0:
            tensors = [tensor for group in optimizer.param_groups for tensor in group["params"]]
            clip_grad_by_total_norm_fp32(tensors, max_norm=hyper.clip_grad_norm, total_norm=norm)
        update = trained.plan_update(hyper)

        def apply() -> dict[str, float]:
            trained.apply(update)
            self.zero_grad()
            return {"grad_norm": norm, "steps": float(trained.steps)}

        return apply

    def _plan_on_host(self, hyper: AdamW, steps: HostSteps) -> Callable[[], dict[str, float]]:
        norm, step = steps.plan(hyper, has_gradients=self._is_grad_dirty)

        def apply() -> dict[str, float]:
            step()
            self._is_grad_dirty = False  # what is parked and clean is dropped
            return {"grad_norm": norm, "steps": float(steps.trained.steps)}

        return apply

    def zero_grad(self) -> None:
        """Clear the gradients."""
        self._training().zero_grad()
        self._is_grad_dirty = False

    def params_from(self, weights: TensorSource) -> list[Read]:
        """Return the reads of parameters and masters; a head that `weights` lacks is kept."""
        known = mapping.names_of(
            (run for param in self._params for run in param.runs),
            num_layers=self._hf.num_hidden_layers,
            num_experts=model.num_experts(self._hf),
            is_tied=self._hf.tie_word_embeddings,
            is_critic=self._is_critic,
        )
        hf.check_leftovers(weights, known, hf=self._hf, is_critic=self._is_critic)
        found = reads(_wanted(self._param_slices(), weights), weights)
        if self._trained is not None and state.MASTERS in self._memory:
            found += reads(_wanted(self._trained.moments("master"), weights), weights)
        return found

    def _param_slices(self) -> Iterator[TensorSlice]:
        for param in self._params:
            yield from slices(param.tensor.data, param.runs)

    def moments_from(self, moments: TensorSource) -> list[Read]:
        """Return the reads of the moments, and of the masters where the source has them."""
        kinds = ["exp_avg", "exp_avg_sq", *(["master"] if has_masters(moments) else ())]
        trained = self._training()
        found: list[Read] = []
        for kind in kinds:
            found += reads(trained.moments(kind), moments, prefix=f"{kind}/")
        return found

    def scalars(self) -> Scalars:
        """Return the optimizer's step count."""
        return {} if self._trained is None else {STEPS: self._trained.steps}

    def restore_scalars(self, scalars: Mapping[str, int | float | str]) -> None:
        """Set the optimizer's step count."""
        if self._trained is not None and STEPS in scalars:
            self._trained.steps = int(scalars[STEPS])

    def _training(self) -> Any:
        if self._trained is None:
            raise PlexError(
                ErrorCode.BAD_REQUEST,
                f"{self._config.deployment_id} (role {self._config.role!r}) has no optimizer; "
                "deploy an actor or critic with optimizer=AdamW(...) to train",
            )
        return self._trained


def _wanted(held: Iterable[TensorSlice], weights: TensorSource) -> Iterator[TensorSlice]:
    for item in held:
        if item.key.name != mapping.VALUE_HEAD or mapping.VALUE_HEAD in weights.names:
            yield item
