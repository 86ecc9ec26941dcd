"""Tiny random models of the families that backends compute, made by transformers itself."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

TINY: Final[dict[str, Any]] = {
    "vocab_size": 51,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}
LLAMA3: Final = {
    "rope_type": "llama3",
    "rope_theta": 500.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 16,
}
LINEAR: Final = {"rope_type": "linear", "rope_theta": 500.0, "factor": 4.0}
GEMMA: Final = {"head_dim": 16, "sliding_window": 5, "query_pre_attn_scalar": 24}
BY_LAYER: Final = {
    "full_attention": LINEAR,
    "sliding_attention": {"rope_type": "default", "rope_theta": 100.0},
}
EXPERTS: Final = {
    "head_dim": 16,
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 24,
    "router_aux_loss_coef": 0.001,
}

BOTH: Final[dict[str, dict[str, Any]]] = {
    "qwen2": {"model_type": "qwen2"},
    "qwen2.5 untied": {"model_type": "qwen2", "rope_theta": 1e6, "rms_norm_eps": 1e-5},
    "qwen2 tied": {"model_type": "qwen2", "tie_word_embeddings": True},
    "qwen3": {"model_type": "qwen3", "head_dim": 16, "tie_word_embeddings": True},
    "qwen3_moe": {"model_type": "qwen3_moe", **EXPERTS, "norm_topk_prob": True},
    "qwen3_moe shares": {"model_type": "qwen3_moe", **EXPERTS, "tie_word_embeddings": True},
    "llama": {"model_type": "llama"},
    "llama tied": {"model_type": "llama", "head_dim": 16, "tie_word_embeddings": True},
    "llama3 rope": {"model_type": "llama", "rope_parameters": LLAMA3},
    "llama linear rope": {"model_type": "llama", "rope_parameters": LINEAR},
}
"""Cases of the families that fsdp and megatron compute: `config.json`'s keys beside TINY."""

FSDP: Final[dict[str, dict[str, Any]]] = {
    "qwen2 window": {
        "model_type": "qwen2",
        "use_sliding_window": True,
        "sliding_window": 5,
        "max_window_layers": 2,
    },
    "qwen3 window": {
        "model_type": "qwen3",
        "head_dim": 16,
        "use_sliding_window": True,
        "sliding_window": 5,
        "max_window_layers": 1,
    },
    "qwen3 biases": {"model_type": "qwen3", "head_dim": 16, "attention_bias": True},
    "llama biases": {"model_type": "llama", "attention_bias": True, "mlp_bias": True},
    "mistral": {"model_type": "mistral", "sliding_window": None},
    "mistral window": {"model_type": "mistral", "head_dim": 16, "sliding_window": 5},
    "gemma2": {"model_type": "gemma2", **GEMMA},
    "gemma2 strong caps": {
        "model_type": "gemma2",
        **GEMMA,
        "attn_logit_softcapping": 0.5,
        "final_logit_softcapping": 1.0,
    },
    "gemma2 no caps": {
        "model_type": "gemma2",
        **GEMMA,
        "attn_logit_softcapping": None,
        "final_logit_softcapping": None,
    },
    "gemma3": {
        "model_type": "gemma3_text",
        **GEMMA,
        "sliding_window_pattern": 2,
        "rope_local_base_freq": 100.0,
        "rope_theta": 500.0,
    },
    "gemma3 linear rope": {
        "model_type": "gemma3_text",
        **GEMMA,
        "layer_types": ["sliding_attention", "full_attention"] * 2,
        "rope_parameters": BY_LAYER,
    },
    "phi3": {"model_type": "phi3"},
    "phi3 window and partial rope": {
        "model_type": "phi3",
        "sliding_window": 5,
        "partial_rotary_factor": 0.5,
        "tie_word_embeddings": True,
    },
    "olmo2": {"model_type": "olmo2"},
}
"""Cases of what fsdp alone computes."""


def config_of(case: dict[str, Any]) -> dict[str, Any]:
    """Return the `config.json` of a case."""
    return {**TINY, **case}


def make_model(path: Path, case: dict[str, Any], *, seed: int = 0) -> Path:
    """Write a random fp32 model of `case`; return its directory."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    path.mkdir(parents=True)
    (path / "config.json").write_text(json.dumps(config_of(case)))
    model = AutoModelForCausalLM.from_config(
        AutoConfig.from_pretrained(path), dtype=torch.float32, attn_implementation="eager"
    )
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for param in model.parameters():
            param.copy_(torch.randn(param.shape, generator=generator) * 0.3)
    model.save_pretrained(path)
    (path / "config.json").write_text(json.dumps(config_of(case)))
    return path
