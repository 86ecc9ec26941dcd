"""What the table of families admits and refuses; that it is right, the process tests show."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoConfig

from plexsvc.errors import ErrorCode, PlexError
from plexsvc.families import FAMILIES, check, read
from tests.rigs.model_families import BOTH, EXPERTS, FSDP, LLAMA3, config_of

BACKENDS = ("fsdp", "megatron")
COMMON = {"initializer_range": 0.02, "torch_dtype": "bfloat16", "transformers_version": "4.44.0"}
PUBLISHED: dict[str, dict[str, Any]] = {
    "Qwen2.5-0.5B": {
        "architectures": ["Qwen2ForCausalLM"],
        "attention_dropout": 0.0,
        "hidden_act": "silu",
        "max_window_layers": 24,
        "model_type": "qwen2",
        "rms_norm_eps": 1e-06,
        "rope_theta": 1000000.0,
        "sliding_window": 32768,
        "tie_word_embeddings": True,
        "use_cache": True,
        "use_mrope": False,
        "use_sliding_window": False,
    },
    "Qwen3-0.6B": {
        "architectures": ["Qwen3ForCausalLM"],
        "attention_bias": False,
        "head_dim": 128,
        "model_type": "qwen3",
        "rope_scaling": None,
        "rope_theta": 1000000,
        "sliding_window": None,
        "use_sliding_window": False,
    },
    "Qwen3-30B-A3B": {
        "architectures": ["Qwen3MoeForCausalLM"],
        "attention_bias": False,
        "decoder_sparse_step": 1,
        "head_dim": 128,
        "max_window_layers": 48,
        "mlp_only_layers": [],
        "model_type": "qwen3_moe",
        "moe_intermediate_size": 768,
        "norm_topk_prob": True,
        "num_experts": 128,
        "num_experts_per_tok": 8,
        "output_router_logits": False,
        "rope_scaling": None,
        "rope_theta": 1000000.0,
        "router_aux_loss_coef": 0.001,
        "sliding_window": None,
        "use_sliding_window": False,
    },
    "Llama-3.1-8B": {
        "architectures": ["LlamaForCausalLM"],
        "attention_bias": False,
        "eos_token_id": [128001, 128008, 128009],
        "mlp_bias": False,
        "model_type": "llama",
        "pretraining_tp": 1,
        "rope_scaling": {name: x for name, x in LLAMA3.items() if name != "rope_theta"},
        "rope_theta": 500000.0,
    },
    "Mistral-7B-v0.3": {
        "architectures": ["MistralForCausalLM"],
        "model_type": "mistral",
        "sliding_window": None,
    },
    "gemma-2-2b": {
        "architectures": ["Gemma2ForCausalLM"],
        "attn_logit_softcapping": 50.0,
        "cache_implementation": "hybrid",
        "final_logit_softcapping": 30.0,
        "hidden_act": "gelu_pytorch_tanh",
        "hidden_activation": "gelu_pytorch_tanh",
        "model_type": "gemma2",
        "query_pre_attn_scalar": 256,
        "sliding_window": 4096,
    },
    "gemma-3-1b": {
        "architectures": ["Gemma3ForCausalLM"],
        "attn_logit_softcapping": None,
        "final_logit_softcapping": None,
        "model_type": "gemma3_text",
        "query_pre_attn_scalar": 256,
        "rope_local_base_freq": 10000,
        "rope_scaling": None,
        "rope_theta": 1000000,
        "sliding_window": 512,
        "sliding_window_pattern": 6,
    },
    "Phi-3-mini-4k": {
        "architectures": ["Phi3ForCausalLM"],
        "auto_map": {"AutoConfig": "configuration_phi3.Phi3Config"},
        "embd_pdrop": 0.0,
        "model_type": "phi3",
        "original_max_position_embeddings": 4096,
        "resid_pdrop": 0.0,
        "rope_scaling": None,
        "sliding_window": 2047,
    },
    "OLMo-2-7B": {
        "architectures": ["Olmo2ForCausalLM"],
        "attention_bias": False,
        "model_type": "olmo2",
        "rope_scaling": None,
        "rope_theta": 500000,
    },
}
"""Keys of published models, beside their sizes."""

REFUSED: dict[str, tuple[str, dict[str, Any], str]] = {
    "llama's attention biases": ("megatron", {"attention_bias": True}, "attention_bias = True"),
    "llama's mlp biases": ("megatron", {"mlp_bias": True}, "mlp_bias = True"),
    "another activation": ("megatron", {"hidden_act": "gelu"}, "hidden_act = 'gelu'"),
    "another activation, fsdp": ("fsdp", {"hidden_act": "gelu"}, "hidden_act = 'gelu'"),
    "qwen2's windows": (
        "megatron",
        {"model_type": "qwen2", "use_sliding_window": True},
        "use_sliding_window = True",
    ),
    "qwen2's windowed layers": (
        "megatron",
        {"model_type": "qwen2", "layer_types": ["sliding_attention"] * 4},
        "layer_types",
    ),
    "qwen3's biases": (
        "megatron",
        {"model_type": "qwen3", "attention_bias": True},
        "attention_bias = True",
    ),
    "a router's own loss": (
        "megatron",
        {"model_type": "qwen3_moe", **EXPERTS, "output_router_logits": True},
        "output_router_logits = True, it may be False",
    ),
    "layers without experts": (
        "fsdp",
        {"model_type": "qwen3_moe", **EXPERTS, "mlp_only_layers": [0]},
        "mlp_only_layers = [0]",
    ),
    "fewer experts than each token takes": (
        "megatron",
        {"model_type": "qwen3_moe", **EXPERTS, "num_experts": 1},
        "each token takes 2 of 1 experts",
    ),
    "experts twice": (
        "fsdp",
        {"model_type": "qwen3_moe", **EXPERTS, "num_local_experts": 8},
        "num_experts and num_local_experts differ",
    ),
    "attention dropout": ("fsdp", {"attention_dropout": 0.1}, "attention_dropout = 0.1"),
    "phi3's dropout": ("fsdp", {"model_type": "phi3", "resid_pdrop": 0.1}, "resid_pdrop = 0.1"),
    "phi": ("fsdp", {"model_type": "phi"}, "'phi'"),
    "gemma3's caps": (
        "fsdp",
        {"model_type": "gemma3_text", "attn_logit_softcapping": 50.0},
        "attn_logit_softcapping = 50.0",
    ),
    "gemma looking ahead": (
        "fsdp",
        {"model_type": "gemma2", "use_bidirectional_attention": True},
        "use_bidirectional_attention = True",
    ),
    "dynamic ropes": (
        "fsdp",
        {"rope_scaling": {"type": "dynamic", "factor": 1.0}},
        "rope_scaling = {'type': 'dynamic'",
    ),
    "long ropes": (
        "megatron",
        {"rope_parameters": {"rope_type": "longrope", "factor": 1.0}},
        "rope_parameters = {'rope_type': 'longrope'",
    ),
    "a rope with a key of its own": (
        "fsdp",
        {"rope_scaling": {"rope_type": "linear", "factor": 2.0, "mscale": 2.0}},
        "rope_scaling = {",
    ),
    "a key that nobody looked at": ("fsdp", {"logit_scale": 0.5}, "logit_scale = 0.5, which no"),
    "quantised weights": ("megatron", {"quantization_config": {}}, "quantization_config"),
    "another class": ("fsdp", {"architectures": ["Qwen3ForCausalLM"]}, "LlamaForCausalLM"),
    "heads that do not divide": ("fsdp", {"num_key_value_heads": 3}, "do not divide into 3"),
    "a hidden size that does not divide": ("fsdp", {"hidden_size": 33}, "no head_dim"),
    "an odd head": ("megatron", {"head_dim": 15}, "head_dim = 15 is odd"),
    "an old family": ("megatron", {"model_type": "gpt2"}, "'gpt2'"),
    "no family": ("megatron", {"model_type": ["llama"]}, "['llama']"),
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_models_are_admitted(name: str) -> None:
    check(config_of(COMMON | PUBLISHED[name]), backend="fsdp", directory="/m")


@pytest.mark.parametrize("case", BOTH | FSDP)
def test_what_transformers_writes_of_a_family_is_admitted(case: str) -> None:
    """Its configuration names every key it knows, so a new version's key is seen here."""
    asked = config_of((BOTH | FSDP)[case])
    written = AutoConfig.for_model(**asked).to_dict()
    for backend in BACKENDS if case in BOTH else ("fsdp",):
        check({**written, "architectures": None}, backend=backend, directory="/m")


def test_every_family_is_proved_on_each_backend_that_admits_it() -> None:
    on_fsdp = {case["model_type"] for case in (BOTH | FSDP).values()}
    on_megatron = {case["model_type"] for case in BOTH.values()}
    assert on_fsdp == set(FAMILIES)
    assert on_megatron == {name for name, f in FAMILIES.items() if f.rules("megatron")}


@pytest.mark.parametrize("name", REFUSED)
def test_what_was_not_proved_is_refused_by_name(name: str) -> None:
    backend, changes, words = REFUSED[name]
    with pytest.raises(PlexError) as caught:
        check(config_of({"model_type": "llama", **changes}), backend=backend, directory="/m")
    assert caught.value.code == ErrorCode.UNKNOWN_MODEL
    assert words in caught.value.message
    assert backend in caught.value.message


def test_a_backend_that_fits_is_named() -> None:
    with pytest.raises(PlexError, match="use backend 'fsdp'"):
        check(config_of(FSDP["gemma2"]), backend="megatron", directory="/m")
    with pytest.raises(PlexError, match="use another model"):
        check(config_of({"model_type": "gpt2"}), backend="megatron", directory="/m")


def test_a_refusal_is_short_whatever_the_configuration(tmp_path: Path) -> None:
    nested: object = 0
    for _ in range(900):
        nested = [nested, "x" * 50]
    table = {f"key-{i}" + "k" * 200: ["x"] * 20 for i in range(500)} | {"deep": nested}
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "qwen3", **table}))
    with pytest.raises(PlexError, match="and 469 more") as refused:
        check(read(tmp_path), backend="fsdp", directory=tmp_path)
    assert len(refused.value.message) < 16_000
