"""Construction of the vLLM core: live weights, sampling by position, what fills each weight."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import torch
import vllm.v1.engine.core as vllm_core
from vllm import AsyncEngineArgs
from vllm import _custom_ops as vllm_ops
from vllm.distributed.weight_transfer.sharded_rdt_fake import FakeRDTTensor
from vllm.model_executor.models.registry import ModelRegistry
from vllm.platforms import current_platform
from vllm.usage.usage_lib import UsageContext
from vllm.v1.executor import Executor

from plexsvc.errors import ErrorCode, PlexError
from plexsvc.rollout.engines.model_dir import ModelDir
from plexsvc.rollout.engines.weights import Target
from plexsvc.rollout.sampling import draw_seed
from plexsvc.weights.dtypes import DTYPES

BLOCK_TOKENS: Final = 32
"""Tokens a KV block holds: the least the CPU backend takes, so that short prompts share."""

DRAW_ORIGIN: Final = "plex_draw_origin"
"""Key of a request's extra arguments: the position in the sequence that draw 0 belongs to."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VllmConfig:
    """How one engine is built."""

    model: Path
    dtype: str
    """`float32`, `bfloat16`; empty: fp32 on CPUs, bf16 on GPUs."""
    max_model_len: int
    """0: the model's own limit."""
    kv_cache_bytes: int
    max_num_seqs: int


@dataclass(frozen=True, slots=True)
class PreparedWeights:
    """What a worker told about its weights after loading."""

    found: list[Target]
    refusal: str
    weight_bytes: int

    def targets(self) -> list[Target]:
        """Return the plan.

        Raises:
            PlexError: `bad_request` when the model's loader cannot be planned.
        """
        if self.refusal:
            raise PlexError(
                ErrorCode.BAD_REQUEST,
                f"weights of this model cannot be replaced in place: {self.refusal}",
            )
        return self.found


def build_core(config: VllmConfig, model: ModelDir) -> vllm_core.EngineCore:
    """Build the core with live, unpacked weights. Runs on the executor's thread."""
    _register_loaded(model.architectures)
    vllm_ops._supports_onednn = False  # noqa: SLF001 - its only switch: keeps CPU weights in place
    vllm_core.cleanup_dist_env_and_memory = lambda *_, **__: None
    arguments = AsyncEngineArgs(
        model=str(config.model),
        dtype=config.dtype or ("float32" if current_platform.is_cpu() else "bfloat16"),
        enforce_eager=True,
        max_model_len=config.max_model_len,
        max_num_seqs=config.max_num_seqs,
        kv_cache_memory_bytes=config.kv_cache_bytes,
        block_size=BLOCK_TOKENS,
        logprobs_mode="processed_logprobs",
        skip_tokenizer_init=True,
        generation_config="vllm",
        disable_log_stats=True,
    )
    engine_config = arguments.create_engine_config(UsageContext.ENGINE_CONTEXT)
    return vllm_core.EngineCore(engine_config, Executor.get_class(engine_config), log_stats=False)


def _register_loaded(architectures: Sequence[str]) -> None:
    """Register models by class: by name, vLLM inspects each in a fresh process, for seconds."""
    for name in architectures:
        entry = ModelRegistry.models.get(name)
        if entry is not None:
            ModelRegistry.register_model(name, entry.load_model_cls())


def prepare_worker(worker: Any, model: ModelDir) -> PreparedWeights:  # noqa: ANN401 - vLLM's wrapper
    """Make sampling a function of position, and learn what fills each weight."""
    _draw_by_position(worker.model_runner)
    module = worker.get_model()
    weight_bytes = sum(p.numel() * p.element_size() for p in module.parameters())
    try:
        found, refusal = _bake(module, model), ""
    except NotImplementedError as error:
        found, refusal = [], str(error)
    return PreparedWeights(found, refusal, weight_bytes)


def _bake(module: torch.nn.Module, model: ModelDir) -> list[Target]:
    """Run the model's own loaders on fakes that record which slices land where; copies nothing."""
    sink = _Sink(model)
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


class _Sink:
    """Takes the place of the copy at the end of each loader."""

    def __init__(self, model: ModelDir) -> None:
        self._model = model
        self.targets: list[Target] = []

    def accept_copy(self, live: torch.Tensor, fake: Any) -> torch.Tensor:  # noqa: ANN401 - a fake
        if live.numel() != fake.numel():
            raise NotImplementedError(f"{fake._name} is broadcast into its weight")  # noqa: SLF001
        name, ops = fake._key()  # noqa: SLF001 - the recorder has no public reader
        shape = self._model.tensors[name].shape
        self.targets.append(Target(live=live.detach(), name=name, shape=shape, ops=ops))
        return live


def _draw_by_position(runner: Any) -> None:  # noqa: ANN401 - vLLM's model runner
    """Reseed each request's generator before each step from (seed, position of its next token)."""
    update_states, bookkeep = runner._update_states, runner._bookkeeping_sync  # noqa: SLF001

    def update_and_seed(scheduled: Any) -> Any:  # noqa: ANN401 - vLLM's own types
        result = update_states(scheduled)
        for request_id, count in scheduled.num_scheduled_tokens.items():
            state = runner.requests[request_id]
            if state.generator is not None:
                origin = state.sampling_params.extra_args[DRAW_ORIGIN]
                position = max(0, state.num_computed_tokens + count - origin)
                seed = draw_seed(state.sampling_params.seed, position=position)
                state.generator.manual_seed(seed)
        return result

    def bookkeep_without_rewind(*args: Any, **kwargs: Any) -> Any:  # noqa: ANN401 - pass-through
        # A draw for an unfinished prefill is normally taken back, which CPU generators cannot do.
        batch = runner.input_batch
        generators, batch.generators = batch.generators, {}
        try:
            return bookkeep(*args, **kwargs)
        finally:
            batch.generators = generators

    runner._update_states = update_and_seed  # noqa: SLF001 - the hook vLLM has not
    runner._bookkeeping_sync = bookkeep_without_rewind  # noqa: SLF001
