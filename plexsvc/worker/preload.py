"""Imports of the train zygote before it forks: frameworks, but no gRPC and no threads."""

from __future__ import annotations

from typing import Final

from plexsvc.worker.backends.megatron import shim

shim.install()

import numpy
import safetensors.torch
import torch
import torch.distributed
from transformers import AutoConfig
from transformers.models.auto import modeling_auto
from transformers.models.llama import LlamaConfig
from transformers.models.qwen2 import Qwen2Config
from transformers.models.qwen3 import Qwen3Config, modeling_qwen3

import plexsvc.statelink.client
import plexsvc.worker.backends.fsdp_lora
import plexsvc.worker.backends.megatron.backend
import plexsvc.worker.backends.noop
import plexsvc.worker.main

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
