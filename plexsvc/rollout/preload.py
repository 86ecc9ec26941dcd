"""Imports of the rollout zygote before it forks: vLLM's slow modules, no gRPC, no threads.

The node agent starts the zygote with `ZYGOTE_ENV`; vLLM reads most of it once, at import. What a
build of vLLM for the other kind of device lacks is not imported.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Mapping
from types import ModuleType
from typing import Final, cast

ZYGOTE_ENV: Final[Mapping[str, str]] = {
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",  # one process: the core runs where its caller lives
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",  # the default pins every engine to core 0
    "OMP_NUM_THREADS": "1",
    "HF_HUB_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_LOGGING_LEVEL": "ERROR",
    "PYTORCH_NVML_BASED_CUDA_CHECK": "1",  # asking for a GPU must not start CUDA before the fork
}

CPU_ENV: Final[Mapping[str, str]] = {
    "TORCHDYNAMO_DISABLE": "1",  # the logprob kernel compiles even in eager mode, and needs g++
}
"""Further environment of a build without CUDA, read when `torch._dynamo` is imported."""

COMPILER: Final = "torch._inductor.lowering"
"""vLLM imports it to patch it, if it is there; what does not compile saves the second it takes."""

CPU_MODULES: Final = (
    "vllm.v1.worker.cpu_worker",
    "vllm.v1.worker.cpu_model_runner",
    "vllm.v1.attention.backends.cpu_attn",
    "vllm.model_executor.layers.fused_moe.experts.cpu_moe",
    "vllm.model_executor.layers.quantization.online.base",
    "vllm.v1.core.sched.scheduler",
)
CUDA_MODULES: Final = (
    "vllm.v1.worker.gpu_worker",
    "vllm.v1.worker.gpu.model_runner",
    "vllm.v1.attention.backends.flash_attn",
)
MODULES: Final = (
    "plexsvc.rollout.engines.vllm",
    "vllm.v1.executor.uniproc_executor",
    "vllm.model_executor.models.qwen3",
)


def modules(*, has_cuda: bool) -> tuple[str, ...]:
    """Return what a zygote imports, in order."""
    return (*MODULES, *(CUDA_MODULES if has_cuda else CPU_MODULES))


def preload() -> None:
    """Import what engines need; the zygote calls this once its environment is set."""
    has_cuda = importlib.import_module("torch").version.cuda is not None
    if not has_cuda:
        os.environ.update(CPU_ENV)  # noqa: TID251 - torch reads it; there is no other way to say it
        _import_without_compiler()
    for module in modules(has_cuda=has_cuda):
        importlib.import_module(module)
    if not has_cuda:
        _replace_kernels()


def _replace_kernels() -> None:
    """Replace Triton's kernels by the CPU's, once for all engines.

    Each engine would look through all modules for them, which is half of what its start takes.
    """
    platform = importlib.import_module("vllm.platforms").current_platform
    platform.register_triton_kernel_overrides()
    type(platform).register_triton_kernel_overrides = lambda _: None


def _import_without_compiler() -> None:
    if COMPILER not in sys.modules:
        sys.modules[COMPILER] = cast("ModuleType", None)  # "is not there", until vLLM has looked
        importlib.import_module("vllm")
        del sys.modules[COMPILER]
