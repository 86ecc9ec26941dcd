"""Construction of the vLLM core: live weights, sampling by position, what fills each weight."""

from __future__ import annotations

import importlib
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Protocol

import torch
import torch.distributed as dist
import vllm.v1.engine.core as vllm_core
from vllm import AsyncEngineArgs
from vllm import _custom_ops as vllm_ops
from vllm.distributed.weight_transfer.sharded_rdt_fake import FakeRDTTensor
from vllm.model_executor.models.registry import ModelRegistry
from vllm.platforms import current_platform
from vllm.usage.usage_lib import UsageContext
from vllm.v1.executor import Executor

from plexsvc.errors import PlexError, bad_request
from plexsvc.rollout.config import InstanceConfig
from plexsvc.rollout.engines import sizes
from plexsvc.rollout.engines.drawing import draw_by_position
from plexsvc.rollout.engines.model_dir import ModelDir, opened
from plexsvc.rollout.engines.sleeping import Span, spans
from plexsvc.rollout.engines.vllm import experts
from plexsvc.rollout.engines.weights import LiveTensor, fill
from plexsvc.weights.dtypes import DTYPES
from plexsvc.weights.reading import OpenedVersion

BLOCK_TOKENS: Final = 32
"""Tokens a KV block holds: the least the CPU backend takes, so that short prompts share."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VllmConfig:
    """How one engine is built."""

    model: Path
    dtype: str
    """`float32`, `bfloat16`; empty: fp32 on CPUs, bf16 on GPUs."""
    max_model_len: int
    """0: the model's own limit."""
    kv_cache_bytes: int
    """0: a default of the device's kind (`engines.sizes`)."""
    max_num_seqs: int
    """0: likewise."""
    device_bytes: int = 0
    """Budget of the device, which may be a part of its GPU; 0: all of it."""
    lora_rank: int = 0
    """Adapters of this rank and below are applied to it; 0: none, it has one set of weights."""
    lora_targets: tuple[str, ...] = ()
    """Linear layers that may have one."""
    max_seats: int = 1
    """Adapters that it has at once."""
    tp: int = 1
    """Tensor ranks, each a process of its own if there are several."""


def config_of(config: InstanceConfig) -> VllmConfig:
    """Return how the engine of an instance is built."""
    return VllmConfig(
        model=Path(config.model),
        dtype=config.dtype,
        max_model_len=config.max_model_len,
        kv_cache_bytes=config.kv_cache_bytes,
        max_num_seqs=config.max_num_seqs,
        device_bytes=config.device_bytes,
        lora_rank=config.lora_rank,
        tp=config.tp,
    )


class LiveWeights(Protocol):
    """The weights of an engine, replaced in place."""

    @property
    def device_bytes(self) -> int:
        """Return the bytes of weights and KV cache together."""

    def filling(self, version: OpenedVersion, *, is_on_model: bool) -> Iterator[int]:
        """Return what fills the live tensors part by part, by the bytes of each (`weights.fill`).

        Raises:
            PlexError: `bad_request` when the model's loader cannot be planned.
        """

    def memory(self) -> list[Span]:
        """Return the memory of weights and KV cache.

        Raises:
            PlexError: `bad_request` for memory that cannot be given back, or filled again.
        """


@dataclass(frozen=True, slots=True)
class PreparedWeights:
    """What a worker told about its weights after loading."""

    found: list[LiveTensor]
    refusal: str
    kv_caches: list[torch.Tensor]
    device_bytes: int
    model: ModelDir

    def filling(self, version: OpenedVersion, *, is_on_model: bool) -> Iterator[int]:
        """Return what fills the live tensors."""
        return fill(
            self._targets(),
            version.parts,
            model=lambda: opened(self.model),
            is_on_model=is_on_model,
        )

    def memory(self) -> list[Span]:
        """Return the memory of weights and KV cache."""
        return spans([*(target.live for target in self._targets()), *self.kv_caches])

    def _targets(self) -> list[LiveTensor]:
        if self.refusal:
            raise not_replaceable(self.refusal)
        return self.found


def not_replaceable(why: str) -> PlexError:
    """Return the refusal to replace weights of a model whose loader cannot be planned."""
    return bad_request(
        f"weights of this model cannot be replaced in place: {why}; deploy another model, or "
        "generate with the weights that it came with"
    )


def build_core(config: VllmConfig, model: ModelDir) -> vllm_core.EngineCore:
    """Build the core with live, unpacked weights. Runs on the executor's thread."""
    prepare_process(model.architectures, num_ranks=config.tp)
    vllm_ops._supports_onednn = False
    arguments = AsyncEngineArgs(
        skip_tokenizer_init=True,
        generation_config="vllm",
        disable_log_stats=True,
        **arguments_of(config),
    )
    engine_config = arguments.create_engine_config(UsageContext.ENGINE_CONTEXT)
    # The platform of CPUs asks for `spawn`: workers then import all anew, and unchanged.
    os.environ["VLLM_WORKER_MULTIPROC_METHOD"] = "fork"  # noqa: TID251 - vLLM reads it
    return vllm_core.EngineCore(engine_config, Executor.get_class(engine_config), log_stats=False)


def prepare_process(architectures: Sequence[str], *, num_ranks: int = 1) -> None:
    """Make this process one that holds any number of engines of one rank, or one of several."""
    # By name, vLLM inspects each class of a model in a fresh process, for seconds.
    for name in architectures:
        entry = ModelRegistry.models.get(name)
        if entry is not None:
            ModelRegistry.register_model(name, entry.load_model_cls())
    if current_platform.is_cpu():
        if num_ranks == 1:  # else its workers, which are forked, meet by themselves
            _be_alone()
        experts.compute_unpacked()
    vllm_core.cleanup_dist_env_and_memory = lambda *_, **__: None


def arguments_of(config: VllmConfig) -> dict[str, Any]:
    """Return the arguments that every engine is built with."""
    is_cpu = current_platform.is_cpu()
    chosen = sizes.choose(
        kv_cache_bytes=config.kv_cache_bytes // config.tp,
        max_num_seqs=config.max_num_seqs,
        device_bytes=config.device_bytes // config.tp,
        gpu_bytes=0 if is_cpu else current_platform.get_device_total_memory(),
    )
    common: dict[str, Any] = {
        "model": str(config.model),
        "max_model_len": config.max_model_len,
        "logprobs_mode": "processed_logprobs",
        "max_num_seqs": chosen.max_num_seqs,
        "kv_cache_memory_bytes": chosen.kv_cache_bytes,
        # GPUs run as CPUs do: batches in flight were tried on a CPU alone, where they are forced
        # (`tests/process/rollout/test_batches_in_flight.py`).
        "async_scheduling": False,
    }
    if config.tp > 1:
        common |= {"tensor_parallel_size": config.tp, "distributed_executor_backend": "mp"}
    if config.lora_rank:
        common |= {
            "enable_lora": True,
            "max_lora_rank": config.lora_rank,
            "max_loras": config.max_seats,
            "lora_target_modules": list(config.lora_targets),
        }
    if is_cpu:
        dtype = config.dtype or "float32"
        return common | {"dtype": dtype, "enforce_eager": True, "block_size": BLOCK_TOKENS}
    dtype = config.dtype or "bfloat16"
    # Other kernels reorder the weights of experts, which are then replaced in place.
    return common | {
        "dtype": dtype,
        "gpu_memory_utilization": chosen.gpu_share,
        "moe_backend": "triton",
    }


def _be_alone() -> None:
    """Make the process groups of an engine of one process without a port: each of gloo has one.

    torch's backend "fake" copies inputs to outputs, which is what any collective of one rank does.
    vLLM keeps a group that it finds, and names gloo for the ones it adds.
    """
    if dist.is_initialized():
        return
    importlib.import_module("torch.testing._internal.distributed.fake_pg")  # registers it
    dist.init_process_group("fake", store=dist.HashStore(), rank=0, world_size=1)
    new_group = dist.new_group

    def new_group_of_one(*arguments: Any, **named: Any) -> Any:
        return new_group(*arguments, **{**named, "backend": "fake"})

    dist.new_group = new_group_of_one


def prepare_worker(worker: Any, model: ModelDir) -> PreparedWeights:
    """Make sampling a function of position, and learn what fills each weight."""
    draw_by_position(worker.model_runner)
    module = worker.get_model()
    kv_caches = worker.model_runner.kv_caches
    held = [*module.parameters(), *kv_caches]
    device_bytes = sum(tensor.numel() * tensor.element_size() for tensor in held)
    if worker.model_runner.lora_config is not None:
        return PreparedWeights([], "it is shared by adapters", kv_caches, device_bytes, model)
    try:
        found, refusal = _bake(module, model), ""
    except NotImplementedError as error:
        found, refusal = [], str(error)
    return PreparedWeights(found, refusal, kv_caches, device_bytes, model)


def _bake(module: torch.nn.Module, model: ModelDir) -> list[LiveTensor]:
    """Run the model's own loaders on fakes that record which slices land where; copies nothing."""
    sink = _CopySink(model)
    cpu = torch.device("cpu")
    module.load_weights(
        (
            name,
            FakeRDTTensor(
                name,
                torch.Size(t.shape),
                getattr(torch, DTYPES[t.dtype].torch),
                cpu,
                sink=sink,
            ),
        )
        for name, t in model.tensors.items()
    )
    return sink.targets


class _CopySink:
    """Takes the place of the copy at the end of each loader."""

    def __init__(self, model: ModelDir) -> None:
        self._model = model
        self.targets: list[LiveTensor] = []

    def accept_copy(self, live: torch.Tensor, fake: Any) -> torch.Tensor:
        if live.numel() != fake.numel():
            # As the fakes do themselves with what they cannot record; `prepare_worker` catches it.
            raise NotImplementedError(f"{fake._name} is broadcast into its weight")
        name, ops = fake._key()
        shape = self._model.tensors[name].shape
        self.targets.append(LiveTensor(live=live.detach(), name=name, shape=shape, ops=ops))
        return live
