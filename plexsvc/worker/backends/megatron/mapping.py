"""Mapping of Megatron's local parameters to Hugging Face tensors, row by row.

| Megatron local parameter | Hugging Face checkpoint tensors |
|---|---|
| embedding.word_embeddings.weight | model.embed_tokens.weight, this rank's vocabulary rows |
| output_layer.weight | lm_head.weight, or (tied) a replica of model.embed_tokens.weight |
| self_attention.linear_qkv | per key-value group: its q rows, its k rows, its v rows |
| self_attention.linear_proj, mlp.linear_fc2 | o_proj, down_proj: this rank's columns |
| mlp.linear_fc1 | this rank's gate_proj rows, then its up_proj rows |
| input_layernorm, pre_mlp_layernorm | input_layernorm, post_attention_layernorm |
| mlp.router | mlp.gate |
| mlp.experts.local_experts.e | mlp.experts.e, this rank's: as an mlp, whole |

Padded vocabulary rows belong to no Hugging Face tensor and so to no run.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from plexsvc.worker.canonical import RowRun, whole

VALUE_HEAD: Final = "value_head.weight"

_SIMPLE: Final[Mapping[str, str]] = {
    "input_layernorm.weight": "input_layernorm.weight",
    "pre_mlp_layernorm.weight": "post_attention_layernorm.weight",
    "mlp.router.weight": "mlp.gate.weight",
    "self_attention.q_layernorm.weight": "self_attn.q_norm.weight",
    "self_attention.k_layernorm.weight": "self_attn.k_norm.weight",
}
_HF_LAYER: Final = re.compile(r"model\.layers\.\d+\.(.*)")
_LAYER: Final = re.compile(r"decoder\.layers\.(\d+)\.(.*)")
_EXPERT: Final = re.compile(r"mlp\.experts\.local_experts\.(\d+)\.(.*)")
_HF_EXPERT: Final = re.compile(r"mlp\.experts\.\d+\.(.*)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Geometry:
    """What the mapping needs of a model and of this rank."""

    hidden: int
    head_dim: int
    num_heads: int
    num_kv_heads: int
    ffn: int
    vocab: int
    is_tied: bool
    tp_rank: int
    experts: range = range(0)
    """Those of a layer that this rank holds; `ffn` is theirs, and not split."""


def runs_of(
    name: str, shape: tuple[int, ...], *, layer_of: Mapping[int, int], geometry: Geometry
) -> list[RowRun]:
    """Return the runs of Megatron parameter `name`, whose local shape is `shape`.

    `layer_of` gives the model's layer number of each local one.
    """
    if name in ("embedding.word_embeddings.weight", "output_layer.weight"):
        return _vocabulary(name, shape, geometry)
    if name == "output_layer.value_head":
        return whole(VALUE_HEAD, shape)
    if name == "decoder.final_layernorm.weight":
        return whole("model.norm.weight", shape)
    match = _LAYER.fullmatch(name)
    assert match is not None, f"no mapping for Megatron parameter {name}"
    prefix = f"model.layers.{layer_of[int(match.group(1))]}."
    return _layer(match.group(2), shape, prefix=prefix, geometry=geometry)


def names_of(
    runs: Iterable[RowRun], *, num_layers: int, num_experts: int = 0, is_tied: bool, is_critic: bool
) -> frozenset[str]:
    """Return the Hugging Face tensors of the whole model, of which a rank holds `runs`.

    Every rank holds a layer, layers are alike, and who holds a query, key or value has all three.
    Experts are alike, too.
    """
    parts = {_HF_LAYER.fullmatch(run.name) for run in runs}
    held = {match.group(1) for match in parts if match is not None}
    in_layer = {re.sub(r"[qkv]_proj", f"{one}_proj", name) for name in held for one in "qkv"}
    in_expert = {match.group(1) for match in map(_HF_EXPERT.fullmatch, held) if match is not None}
    in_layer |= {f"mlp.experts.{e}.{rest}" for e in range(num_experts) for rest in in_expert}
    layers = {f"model.layers.{i}.{rest}" for i in range(num_layers) for rest in in_layer}
    head = VALUE_HEAD if is_critic else "lm_head.weight"
    outer = {"model.embed_tokens.weight", "model.norm.weight"}
    return frozenset(layers | outer | ({head} if is_critic or not is_tied else set()))


def _vocabulary(name: str, shape: tuple[int, ...], geometry: Geometry) -> list[RowRun]:
    is_embedding = name.startswith("embedding") or geometry.is_tied
    first = geometry.tp_rank * shape[0]
    rows = max(0, min(shape[0], geometry.vocab - first))
    if rows == 0:
        return []
    run = RowRun(
        row=0,
        num_rows=rows,
        name="model.embed_tokens.weight" if is_embedding else "lm_head.weight",
        global_shape=(geometry.vocab, geometry.hidden),
        hf_row=first,
    )
    return [run]


def _layer(rest: str, shape: tuple[int, ...], *, prefix: str, geometry: Geometry) -> list[RowRun]:
    if rest in _SIMPLE:
        return whole(prefix + _SIMPLE[rest], shape)
    if rest.startswith("self_attention.linear_qkv."):
        return _qkv(shape, kind=rest.rsplit(".", 1)[1], prefix=prefix, geometry=geometry)
    expert, tp_rank = _EXPERT.fullmatch(rest), geometry.tp_rank
    if expert is not None:
        tp_rank = 0  # an expert is whole
        number = geometry.experts[int(expert.group(1))]
        prefix, rest = f"{prefix}mlp.experts.{number}.", f"mlp.{expert.group(2)}"
    mlp = prefix if expert is not None else f"{prefix}mlp."
    if rest == "mlp.linear_fc1.weight":
        half = shape[0] // 2
        return [
            RowRun(
                row=at,
                num_rows=half,
                name=f"{mlp}{part}.weight",
                global_shape=(geometry.ffn, geometry.hidden),
                hf_row=tp_rank * half,
            )
            for at, part in ((0, "gate_proj"), (half, "up_proj"))
        ]
    columns = {
        "self_attention.linear_proj.weight": (
            f"{prefix}self_attn.o_proj.weight",
            geometry.num_heads * geometry.head_dim,
        ),
        "mlp.linear_fc2.weight": (f"{mlp}down_proj.weight", geometry.ffn),
    }
    assert rest in columns, f"no mapping for Megatron parameter {prefix}{rest}"
    name, width = columns[rest]
    run = RowRun(
        row=0,
        num_rows=shape[0],
        name=name,
        global_shape=(geometry.hidden, width),
        hf_col=tp_rank * shape[1],
    )
    return [run]


def _qkv(shape: tuple[int, ...], *, kind: str, prefix: str, geometry: Geometry) -> list[RowRun]:
    """Cut the fused rows: per key-value group its queries, its key, its value."""
    tail = (geometry.hidden,) if kind == "weight" else ()
    hd, kv = geometry.head_dim, geometry.num_kv_heads
    per_group = geometry.num_heads // kv
    group_rows = (per_group + 2) * hd
    first = geometry.tp_rank * shape[0]
    last = first + shape[0]
    runs = []
    for group in range(first // group_rows, (last - 1) // group_rows + 1):
        base = group * group_rows
        for part, at, rows, heads in (
            ("q_proj", 0, per_group * hd, geometry.num_heads),
            ("k_proj", per_group * hd, hd, kv),
            ("v_proj", (per_group + 1) * hd, hd, kv),
        ):
            low, high = max(base + at, first), min(base + at + rows, last)
            if low < high:
                run = RowRun(
                    row=low - first,
                    num_rows=high - low,
                    name=f"{prefix}self_attn.{part}.{kind}",
                    global_shape=(heads * hd, *tail),
                    hf_row=group * rows + low - (base + at),
                )
                runs.append(run)
    return runs
