"""Imports of the rollout zygote before it forks: vLLM's slow modules, no gRPC, no threads.

The node agent starts the zygote with `ZYGOTE_ENV`; vLLM reads most of it once, at import.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Final

ZYGOTE_ENV: Final[Mapping[str, str]] = {
    "TORCHDYNAMO_DISABLE": "1",  # the logprob kernel compiles even in eager mode, and needs g++
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",  # one process: the core runs where its caller lives
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",  # the default pins every engine to core 0
    "OMP_NUM_THREADS": "1",
    "HF_HUB_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_LOGGING_LEVEL": "ERROR",
}

MODULES: Final = (
    "plexsvc.rollout.engines.vllm",
    "vllm.v1.executor.uniproc_executor",
    "vllm.v1.worker.cpu_worker",
    "vllm.v1.worker.cpu_model_runner",
    "vllm.v1.attention.backends.cpu_attn",
    "vllm.model_executor.models.qwen3",
)


def preload() -> None:
    """Import what engines need; the zygote calls this once its environment is set."""
    for module in MODULES:
        importlib.import_module(module)
