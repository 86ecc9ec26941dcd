"""Random Qwen3 checkpoints as ordinary Hugging Face directories, written without torch."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import numpy.typing as npt
from safetensors.numpy import save_file
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers

ALPHABET = "0123456789+-*/=() abcdefghijklmnopqrstuvwxyz?.,:"
SPECIALS = ("<pad>", "<eos>")
CHAT_TEMPLATE = (
    "{% for message in messages %}{{ message.role }}: {{ message.content }}. {% endfor %}"
    "{% if add_generation_prompt %}assistant: {% endif %}"
)


def make_qwen3(
    path: Path,
    *,
    seed: int,
    hidden: int = 64,
    layers: int = 2,
    heads: int = 4,
    kv_heads: int = 2,
    head_dim: int = 32,
    ffn: int = 96,
    vocab: int | None = None,
    tied: bool = True,
    scale: float = 0.1,
    alphabet: str = ALPHABET,
) -> Path:
    """Write a checkpoint; the default vocabulary (50) divides by 2. Return its directory."""
    path.mkdir(parents=True)
    vocab = vocab or len(SPECIALS) + len(alphabet)
    config = {
        "architectures": ["Qwen3ForCausalLM"],
        "model_type": "qwen3",
        "hidden_size": hidden,
        "intermediate_size": ffn,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "head_dim": head_dim,
        "vocab_size": vocab,
        "max_position_embeddings": 512,
        "rms_norm_eps": 1e-6,
        "rope_theta": 1000000.0,
        "rope_parameters": {"rope_theta": 1000000.0, "rope_type": "default"},
        "tie_word_embeddings": tied,
        "attention_bias": False,
        "hidden_act": "silu",
        "torch_dtype": "float32",
        "dtype": "float32",
        "eos_token_id": 1,
        "pad_token_id": 0,
    }
    (path / "config.json").write_text(json.dumps(config, indent=2))
    shapes = _shapes(config)
    rng = np.random.default_rng(seed)
    arrays = {name: _random(rng, name, shape, scale=scale) for name, shape in shapes.items()}
    save_file(arrays, path / "model.safetensors", metadata={"format": "pt"})
    (path / "chat_template.jinja").write_text(CHAT_TEMPLATE)
    _tokenizer(alphabet).save(str(path / "tokenizer.json"))
    (path / "tokenizer_config.json").write_text(
        json.dumps({"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "<eos>"})
    )
    return path


def _shapes(config: dict[str, object]) -> dict[str, tuple[int, ...]]:
    def size(key: str) -> int:
        return int(str(config[key]))

    hidden, ffn, head = size("hidden_size"), size("intermediate_size"), size("head_dim")
    q, kv = size("num_attention_heads") * head, size("num_key_value_heads") * head
    shapes: dict[str, tuple[int, ...]] = {
        "model.embed_tokens.weight": (size("vocab_size"), hidden),
        "model.norm.weight": (hidden,),
    }
    if not config["tie_word_embeddings"]:
        shapes["lm_head.weight"] = (size("vocab_size"), hidden)
    for layer in range(size("num_hidden_layers")):
        prefix = f"model.layers.{layer}."
        shapes |= {
            f"{prefix}input_layernorm.weight": (hidden,),
            f"{prefix}post_attention_layernorm.weight": (hidden,),
            f"{prefix}self_attn.q_proj.weight": (q, hidden),
            f"{prefix}self_attn.k_proj.weight": (kv, hidden),
            f"{prefix}self_attn.v_proj.weight": (kv, hidden),
            f"{prefix}self_attn.o_proj.weight": (hidden, q),
            f"{prefix}self_attn.q_norm.weight": (head,),
            f"{prefix}self_attn.k_norm.weight": (head,),
            f"{prefix}mlp.gate_proj.weight": (ffn, hidden),
            f"{prefix}mlp.up_proj.weight": (ffn, hidden),
            f"{prefix}mlp.down_proj.weight": (hidden, ffn),
        }
    return shapes


def _random(
    rng: np.random.Generator, name: str, shape: tuple[int, ...], *, scale: float
) -> npt.NDArray[np.float32]:
    if "norm" in name:
        return rng.uniform(0.5, 1.5, shape).astype(np.float32)
    return (rng.standard_normal(shape) * scale).astype(np.float32)


def _tokenizer(alphabet: str) -> Tokenizer:
    vocab = {token: index for index, token in enumerate((*SPECIALS, *alphabet))}
    tokenizer = Tokenizer(models.WordLevel(vocab, unk_token="<pad>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex("."), "isolated")
    tokenizer.decoder = decoders.Sequence([decoders.ByteFallback(), decoders.Fuse()])
    tokenizer.add_special_tokens(list(SPECIALS))
    return tokenizer
