"""A small character-level Qwen3 as an ordinary Hugging Face directory, made without torch."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt
from safetensors.numpy import save_file
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers

SPECIALS: Final = ("<pad>", "<eos>")
ALPHABET: Final = "0123456789abcdefghijklmnopqrstuvwxyz+-*/=#<>?:,. ()'_"
CHAT_TEMPLATE: Final = (
    "{% for message in messages %}{{ message.role }}: {{ message.content }} {% endfor %}"
    "{% if add_generation_prompt %}assistant: {% endif %}"
)
EOS: Final = 1
VOCAB_SIZE: Final = 64
"""More than the characters need: a size that divides over tensor-parallel ranks."""
STATE_COPIES: Final = 4
"""Training keeps parameters, gradients and two moments, all fp32."""

Weights = dict[str, npt.NDArray[np.float32]]


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelShape:
    """Sizes of a Qwen3 with tied embeddings; the default has 1.2 M parameters."""

    hidden: int = 192
    layers: int = 3
    heads: int = 6
    kv_heads: int = 2
    head_dim: int = 32
    ffn: int = 512
    max_positions: int = 128


def make_model(directory: Path, *, seed: int, shape: ModelShape = ModelShape()) -> int:
    """Write config, weights and tokenizer of a random model; return its number of parameters."""
    directory.mkdir(parents=True)
    dice = np.random.default_rng(seed)
    weights = {name: _random(dice, name, size) for name, size in _sizes(shape).items()}
    config = {
        "architectures": ["Qwen3ForCausalLM"],
        "model_type": "qwen3",
        "hidden_size": shape.hidden,
        "intermediate_size": shape.ffn,
        "num_hidden_layers": shape.layers,
        "num_attention_heads": shape.heads,
        "num_key_value_heads": shape.kv_heads,
        "head_dim": shape.head_dim,
        "vocab_size": VOCAB_SIZE,
        "max_position_embeddings": shape.max_positions,
        "rms_norm_eps": 1e-6,
        "rope_theta": 10000.0,
        "rope_parameters": {"rope_theta": 10000.0, "rope_type": "default"},
        "tie_word_embeddings": True,
        "attention_bias": False,
        "hidden_act": "silu",
        "dtype": "float32",
        "eos_token_id": EOS,
        "pad_token_id": 0,
    }
    (directory / "config.json").write_text(json.dumps(config, indent=2))
    save_file(weights, directory / "model.safetensors", metadata={"format": "pt"})
    _tokenizer().save(str(directory / "tokenizer.json"))
    tokenizer_config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": SPECIALS[EOS],
        "chat_template": CHAT_TEMPLATE,
    }
    (directory / "tokenizer_config.json").write_text(json.dumps(tokenizer_config))
    return sum(array.size for array in weights.values())


def state_bytes(num_parameters: int) -> int:
    """Return what training of a model takes on a device: fp32 weights, gradients, two moments."""
    return STATE_COPIES * 4 * num_parameters


def device_bytes_for_one(num_parameters: int) -> int:
    """Return a device memory that holds the training state of one job and not of two."""
    return state_bytes(num_parameters) * 5 // 4


def _sizes(shape: ModelShape) -> dict[str, tuple[int, ...]]:
    queries, keys = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
    sizes: dict[str, tuple[int, ...]] = {
        "model.embed_tokens.weight": (VOCAB_SIZE, shape.hidden),
        "model.norm.weight": (shape.hidden,),
    }
    for layer in range(shape.layers):
        prefix = f"model.layers.{layer}."
        sizes |= {
            f"{prefix}input_layernorm.weight": (shape.hidden,),
            f"{prefix}post_attention_layernorm.weight": (shape.hidden,),
            f"{prefix}self_attn.q_proj.weight": (queries, shape.hidden),
            f"{prefix}self_attn.k_proj.weight": (keys, shape.hidden),
            f"{prefix}self_attn.v_proj.weight": (keys, shape.hidden),
            f"{prefix}self_attn.o_proj.weight": (shape.hidden, queries),
            f"{prefix}self_attn.q_norm.weight": (shape.head_dim,),
            f"{prefix}self_attn.k_norm.weight": (shape.head_dim,),
            f"{prefix}mlp.gate_proj.weight": (shape.ffn, shape.hidden),
            f"{prefix}mlp.up_proj.weight": (shape.ffn, shape.hidden),
            f"{prefix}mlp.down_proj.weight": (shape.hidden, shape.ffn),
        }
    return sizes


def _random(dice: np.random.Generator, name: str, size: tuple[int, ...]) -> npt.NDArray[np.float32]:
    if "norm" in name:
        return np.ones(size, np.float32)
    return (0.05 * dice.standard_normal(size)).astype(np.float32)


def _tokenizer() -> Tokenizer:
    vocab = {token: index for index, token in enumerate((*SPECIALS, *ALPHABET))}
    tokenizer = Tokenizer(models.WordLevel(vocab, unk_token=SPECIALS[0]))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex("."), "isolated")
    tokenizer.decoder = decoders.Fuse()
    tokenizer.add_special_tokens(list(SPECIALS))
    return tokenizer
