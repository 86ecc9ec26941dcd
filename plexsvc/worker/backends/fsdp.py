"""The FSDP2 backend: causal models of transformers, sharded over all ranks.

Every `cp` ranks are a replica and share out the tokens of its micro-batches (see `ulysses`).

Gradients are sums: FSDP2's averaging is turned off. The optimizer is torch's AdamW over each rank's
own shards, which lie in the rank's regions (see `fsdp_state`). In bfloat16 the shards of what is
trained stay float32: they are rounded when they are gathered, and gradients are summed in float32.
"""

# T = packed tokens, V = vocabulary, H = hidden size, D = head size.

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard

from plexclient.specs import AdamW
from plexclient.wire.v1 import statemanager_pb2
from plexsvc import progress
from plexsvc.errors import ErrorCode, PlexError
from plexsvc.statelink.client import RegionSpec
from plexsvc.weights.manifests import STEPS
from plexsvc.worker import canonical, process_group
from plexsvc.worker.backends import fsdp_state
from plexsvc.worker.backends.adamw import (
    HostUpdate,
    Tensors,
    Update,
    check_norm,
    clip,
    host_squares,
    host_threads,
)
from plexsvc.worker.backends.base import (
    DataShard,
    LossTerms,
    MicroBatch,
    ModelFacts,
    PassResult,
    TokenLoss,
)
from plexsvc.worker.backends.fsdp_attention import packed_attention
from plexsvc.worker.backends.hf import ValueModel, check_leftovers, read_config
from plexsvc.worker.backends.packed import (
    Totals,
    logprobs_in_parts,
    packing_of,
    recompute,
)
from plexsvc.worker.backends.ulysses import ALL_TOKENS, TokenShares
from plexsvc.worker.config import WorkerConfig
from plexsvc.worker.sources import (
    Read,
    TensorSource,
    check_finite,
    copy,
    has_masters,
    reads,
)

ATTENTION: Final = "plex_packed"
VALUE_HEAD: Final = "value_head.weight"
VECTOR_DIMS: Final = 1
"""Parameters of this many dimensions (norms, biases) take no weight decay unless asked."""


class FsdpBackend:
    """One rank of a fully sharded model; the world is `dp` replicas of `cp` ranks."""

    def __init__(self, config: WorkerConfig) -> None:
        self._config = config
        self._is_critic = config.role == "critic"
        self._steps = 0
        self._is_grad_dirty = False
        self._grad_region: Tensor | None = None
        self._params: list[Tensor] = []
        self._grads: list[Tensor] = []
        self._memory: Mapping[str, Tensor] = {}
        self._pieces: list[statemanager_pb2.CanonicalPiece] = []
        self._views: list[list[Tensor]] = []
        self._moments: dict[str, list[canonical.TensorSlice]] = {}
        self._regions: tuple[RegionSpec, ...] = ()

    @property
    def facts(self) -> ModelFacts:
        """Return the model's limits."""
        hf = self._hf
        return ModelFacts(vocab_size=hf.vocab_size, max_sequence_length=hf.max_position_embeddings)

    @property
    def shard(self) -> DataShard:
        """Return this rank's place: the first of each replica answers for it."""
        replica, place = divmod(self._config.rank, self._config.parallel.cp)
        return DataShard(
            dp_rank=replica,
            dp_size=self._config.parallel.dp,
            owns_results=place == 0,
            token_multiple=self._config.parallel.cp,
        )

    @property
    def is_grad_dirty(self) -> bool:
        """Whether gradients were accumulated since the last step."""
        return self._is_grad_dirty

    def build(self) -> None:
        """Join the ranks and shard the model on the meta device."""
        config = self._config
        ranks = config.parallel.dp * config.parallel.cp
        assert ranks == config.world_size, config  # the router refused other degrees
        process_group.join(self._config)
        self._shares = _shares(config)
        self._hf = read_config(self._config.model, backend="fsdp")
        mesh = init_device_mesh(_device().type, (self._config.world_size,))
        half = torch.bfloat16 if config.dtype == "bfloat16" else None
        policy, dtype = MixedPrecisionPolicy(), half or torch.float32
        if half and config.trains_model:
            policy = MixedPrecisionPolicy(param_dtype=half, reduce_dtype=torch.float32)
            dtype = torch.float32
        with torch.device("meta"):
            self._model = _build_model(self._hf, is_critic=self._is_critic, dtype=dtype)
        recompute(self._model.model.layers, config.recompute)
        for layer in self._model.model.layers:
            fully_shard(layer, mesh=mesh, mp_policy=policy)
        fully_shard(self._model, mesh=mesh, mp_policy=policy)
        for module in self._sharded_modules():
            module.set_gradient_divide_factor(1.0)
            module.set_force_sum_reduction_for_comms(True)
        self._layout = self._trained = fsdp_state.plan_layout(self._model)
        self._regions = self._layout.regions(
            is_trained=config.trains_model, steps_on_host=config.steps_on_host
        )

    def regions(self) -> tuple[RegionSpec, ...]:
        """Return the regions this rank needs."""
        return self._regions

    def attach(
        self,
        memory: Mapping[str, Tensor],
        weights: TensorSource | None,
        *,
        filled: Collection[str] = (),
    ) -> None:
        """Move the shards into `memory` and read `weights`."""
        del filled
        materialize(self._model, self._hf)
        self._params, self._grads, self._pieces = [], [], []
        for held in self._layout.held:
            local = fsdp_state.adopt_params(held, memory["params"])
            self._params.append(local)
            self._add_piece("param", held, local, memory["params"], region="params")
        if self._config.has_optimizer:
            self._attach_training(memory)
        else:
            self._model.requires_grad_(False)
        if weights is not None:
            planned = self.params_from(weights)
            copy(planned)
            check_finite(planned, is_copied=True)

    def leave(self) -> None:
        """Let go of the model, whose modules hold the ranks' groups."""
        self._params, self._grads, self._views, self._moments = [], [], [], {}
        self._memory = {}
        del self._model, self._layout, self._trained, self._shares

    def _attach_training(self, memory: Mapping[str, Tensor]) -> None:
        self._grad_region = memory["grads"]
        self._memory = memory
        self._views, self._moments = [], {kind: [] for kind in fsdp_state.MOMENTS}
        for held, param in zip(self._trained.held, self._params, strict=True):
            grad = self._adopt_grad(held, param, memory["grads"])
            self._grads.append(grad)
            self._add_piece("grad", held, grad, memory["grads"], region="grads")
            moments = fsdp_state.moment_views(
                held, memory["moments"], shard_bytes=self._trained.shard_bytes
            )
            self._views.append(moments)
            for kind, moment in zip(fsdp_state.MOMENTS, moments, strict=True):
                self._moments[kind] += held.slices_of(moment)
                self._add_piece(kind, held, moment, memory["moments"], region="moments")

    def _adopt_grad(self, held: fsdp_state.ParameterShard, param: Tensor, memory: Tensor) -> Tensor:
        """Have the gradients of a parameter added into `memory`; return where they lie."""
        del param
        return fsdp_state.adopt_grad(held, memory)

    def pieces(self) -> list[statemanager_pb2.CanonicalPiece]:
        """Return where every state tensor lies."""
        return self._pieces

    def reseed(self, seed: int) -> None:
        """Seed torch's generators."""
        torch.manual_seed(seed)

    def forward(self, batch: Sequence[MicroBatch], *, temperature: float) -> PassResult:
        """Return logprobs of the targets, or a critic's values."""
        with torch.no_grad():
            outputs = [
                self._outputs(micro, temperature=temperature) for micro in map(_on_device, batch)
            ]
        self._reshard()
        return PassResult(outputs=tuple(map(_without_padding, outputs, batch)))

    def forward_backward(
        self,
        batch: Sequence[MicroBatch],
        *,
        loss: TokenLoss,
        temperature: float,
        keep_outputs: bool,
    ) -> PassResult:
        """Accumulate the gradients of `loss` over `batch`."""
        self._is_grad_dirty = True
        outputs, totals = [], Totals()
        for micro in map(_on_device, batch):
            output = self._outputs(micro, temperature=temperature)
            terms: LossTerms = loss(output, micro.arrays)
            terms.loss.backward()
            totals.add(terms)
            outputs.append(_without_padding(output.detach(), micro))
        self._reshard()
        sums, maxima = totals.over(dist.group.WORLD)
        return PassResult(
            outputs=tuple(outputs) if keep_outputs else (),
            # Each rank of a replica has the sums of all its tokens.
            sums={name: value / self._shares.size for name, value in sums.items()},
            maxima=maxima,
        )

    def plan_step(self, hyper: AdamW) -> Callable[[], dict[str, float]]:
        """Return what applies AdamW to this rank's shards, clipped by the whole gradient's norm."""
        params, grads = self._stepped()
        total = self._grad_norm(grads)
        norm = check_norm(float(total))
        clip(grads, hyper, norm=total)
        tensors = [
            Tensors(
                param=param,
                grad=grad,
                exp_avg=exp_avg,
                exp_avg_sq=exp_avg_sq,
                decays=hyper.decay_vectors or len(held.global_shape) > VECTOR_DIMS,
            )
            for held, param, grad, (exp_avg, exp_avg_sq) in zip(
                self._trained.held, params, grads, self._views, strict=True
            )
        ]
        update: Update | HostUpdate = Update(tensors, hyper)
        if self._config.steps_on_host:
            threads = host_threads(self._config.world_size)
            update = HostUpdate(tensors, hyper, num_threads=threads)

        def apply() -> dict[str, float]:
            self._steps += 1
            update.apply(steps=self._steps)
            self._is_grad_dirty = False
            if not self._config.steps_on_host:  # what is parked and clean is dropped
                self.zero_grad()
            return {"grad_norm": norm, "steps": float(self._steps)}

        return apply

    def _stepped(self) -> tuple[Sequence[Tensor], Sequence[Tensor]]:
        """Return the shards and their gradients where the step finds them."""
        if not self._config.steps_on_host:
            return self._params, self._grads
        return fsdp_state.parked_views(self._trained, self._memory, is_dirty=self._is_grad_dirty)

    def zero_grad(self) -> None:
        """Clear the gradients in place."""
        if self._grad_region is not None:
            self._grad_region.zero_()
        self._is_grad_dirty = False

    def params_from(self, weights: TensorSource) -> list[Read]:
        """Return the reads of this rank's shards; a head that `weights` lacks is kept."""
        known = {name for held in self._layout.held for name in held.names}
        check_leftovers(weights, known, hf=self._hf, is_critic=self._is_critic)
        wanted = [
            part
            for held, param in zip(self._layout.held, self._params, strict=True)
            if param.numel() and (held.name != VALUE_HEAD or VALUE_HEAD in weights.names)
            for part in held.slices_of(param)
        ]
        return reads(wanted, weights)

    def moments_from(self, moments: TensorSource) -> list[Read]:
        """Return the reads of this rank's shards of both moments, and of masters if there are."""
        found: list[Read] = []
        shards = zip(self._trained.held, self._params, strict=True)
        masters = [part for held, param in shards for part in held.slices_of(param)]
        masters = masters if has_masters(moments) else []
        for kind, slices in {**self._moments, "master": masters}.items():
            held = [item for item in slices if item.view.numel()]
            found += reads(held, moments, prefix=f"{kind}/")
        return found

    def scalars(self) -> dict[str, int | float | str]:
        """Return the optimizer's step count."""
        return {STEPS: self._steps}

    def restore_scalars(self, scalars: Mapping[str, int | float | str]) -> None:
        """Take back the optimizer's step count."""
        self._steps = int(scalars.get(STEPS, self._steps))

    def _outputs(self, micro: MicroBatch, *, temperature: float) -> Tensor:
        progress.advance()
        shares = self._shares
        packing = packing_of(micro.cu_seqlens, device=micro.tokens.device, shares=shares)
        out = self._model(
            input_ids=shares.mine(micro.tokens)[None],
            position_ids=shares.mine(packing.positions)[None],
            use_cache=False,
            packing=packing,
        )
        if self._is_critic:
            return shares.whole(out[0].float())

        def logprobs(logits_TV: Tensor, targets_T: Tensor) -> Tensor:
            logprobs_TV = torch.log_softmax(logits_TV.float() / temperature, -1)
            return logprobs_TV.gather(-1, targets_T[:, None])[:, 0]

        targets_t = shares.mine(micro.arrays["target_tokens"])
        return shares.whole(logprobs_in_parts(logprobs, out.logits[0], targets_t))

    def _grad_norm(self, grads: Sequence[Tensor]) -> Tensor:
        """Return the norm of all gradients, which are complete from here on."""
        if self._config.steps_on_host:
            threads = host_threads(self._config.world_size)
            total = host_squares(grads, num_threads=threads).to(_device())
        else:
            total = torch.stack([grad.double().square().sum() for grad in grads]).sum()
        dist.all_reduce(total)
        return total.to(grads[0].device).sqrt()

    def _sharded_modules(self) -> list[FSDPModule]:
        return [module for module in self._model.modules() if isinstance(module, FSDPModule)]

    def _reshard(self) -> None:
        """Drop gathered parameters: the root stays gathered after a pass without gradients."""
        for module in self._sharded_modules():
            module.reshard()

    def _add_piece(
        self,
        kind: str,
        held: fsdp_state.ParameterShard,
        tensor: Tensor,
        base: Tensor,
        *,
        region: str,
    ) -> None:
        if tensor.numel():
            self._pieces += [
                canonical.piece(kind, part, region=region, base=base, rank=self._config.rank)
                for part in held.slices_of(tensor)
            ]


def _shares(config: WorkerConfig) -> TokenShares:
    """Join the ranks of this rank's replica, which are neighbours."""
    size = config.parallel.cp
    if size == 1:
        return ALL_TOKENS
    timeout = dt.timedelta(seconds=config.collective_timeout_s)
    group, _ = dist.new_subgroups(group_size=size, timeout=timeout)
    return TokenShares(group=group, rank=config.rank % size, size=size)


def create(config: WorkerConfig) -> FsdpBackend:
    """Return the backend of one rank; every worker module has this function."""
    return FsdpBackend(config)


def _build_model(hf: Any, *, is_critic: bool, dtype: torch.dtype) -> Any:
    from transformers import AttentionInterface, AutoModelForCausalLM

    AttentionInterface.register(ATTENTION, packed_attention)
    if hasattr(hf, "num_experts"):
        hf._experts_implementation = "grouped_mm"  # not one matrix product an expert
    model = AutoModelForCausalLM.from_config(hf, dtype=dtype, attn_implementation=ATTENTION)
    model.eval()  # no draw of a random generator in any pass
    return ValueModel(model.model, hidden=hf.hidden_size).to(dtype) if is_critic else model


def materialize(model: Any, hf: Any) -> None:
    """Give the meta model memory; its buffers, in no checkpoint, are computed anew.

    Raises:
        PlexError: `unknown_model` for a buffer that nothing here knows how to compute.
    """
    device = _device()
    model.to_empty(device=device)
    trunk = model.model
    trunk.rotary_emb = type(trunk.rotary_emb)(hf).to(device)
    known = {id(buffer) for buffer in trunk.rotary_emb.buffers()}
    if hasattr(trunk.embed_tokens, "scalar_embed_scale"):  # Gemma's
        trunk.embed_tokens.embed_scale.fill_(trunk.embed_tokens.scalar_embed_scale)
        known.add(id(trunk.embed_tokens.embed_scale))
    left = [name for name, buffer in model.named_buffers() if id(buffer) not in known]
    if left:
        raise PlexError(
            ErrorCode.UNKNOWN_MODEL,
            f"no checkpoint holds the model's buffers {', '.join(left)}, and the fsdp backend does "
            "not compute them; use a model without",
        )


def _device() -> torch.device:
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def _on_device(micro: MicroBatch) -> MicroBatch:
    """Return a micro-batch whose tokens and arrays lie on the device; nothing is waited for."""
    device = _device()
    return replace(
        micro,
        tokens=micro.tokens.to(device, non_blocking=True),
        arrays={name: a.to(device, non_blocking=True) for name, a in micro.arrays.items()},
    )


def _without_padding(output_T: Tensor, micro: MicroBatch) -> Tensor:
    return output_T[: micro.num_tokens]
