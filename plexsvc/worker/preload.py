"""Imports of the train zygote before it forks: frameworks, but no gRPC and no threads."""

from __future__ import annotations

from typing import Final

from plexsvc.worker.backends.megatron import shim

shim.install()

import numpy  # noqa: E402, F401, ICN001 - preloaded; the shim comes first
import safetensors.torch  # noqa: E402, F401 - preloaded
import torch  # noqa: E402 - preloaded
import torch.distributed  # noqa: E402 - preloaded
from transformers import AutoConfig  # noqa: E402, F401 - resolves a lazy import now
from transformers.models.llama import LlamaConfig  # noqa: E402, F401 - as above
from transformers.models.qwen2 import Qwen2Config  # noqa: E402, F401 - as above
from transformers.models.qwen3 import Qwen3Config  # noqa: E402, F401 - as above

import plexsvc.statelink.client  # noqa: E402 - preloaded
import plexsvc.worker.backends.megatron.backend  # noqa: E402
import plexsvc.worker.backends.noop  # noqa: E402
import plexsvc.worker.executor  # noqa: E402, F401

ZYGOTE_ENV: Final = {
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
    "CUDA_DEVICE_MAX_CONNECTIONS": "1",
    "CUBLAS_WORKSPACE_CONFIG": ":4096:8",
    "PYTORCH_NVML_BASED_CUDA_CHECK": "1",
    "TORCHDYNAMO_DISABLE": "1",
}
"""The zygote's environment: one thread a rank, deterministic kernels, no CUDA before the fork."""

torch.set_num_threads(1)
