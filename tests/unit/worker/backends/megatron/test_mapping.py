"""The Hugging Face ↔ Megatron mapping: every row of every tensor is held by exactly one box."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from plexsvc.worker.backends.megatron.mapping import Geometry, names_of, runs_of
from plexsvc.worker.canonical import RowRun

LAYERS = {0: 4}


def geometry(rank: int, *, kv_heads: int, vocab: int = 51, tied: bool = False) -> Geometry:
    return Geometry(
        hidden=16,
        head_dim=4,
        num_heads=8,
        num_kv_heads=kv_heads,
        ffn=24,
        vocab=vocab,
        is_tied=tied,
        tp_rank=rank,
    )


def runs(name: str, shape: tuple[int, ...], where: Geometry) -> list[RowRun]:
    return runs_of(name, shape, layer_of=LAYERS, geometry=where)


def covered(parts: list[tuple[RowRun, int]]) -> dict[str, np.ndarray]:
    """Count how often each element of each tensor is held by runs of local width `columns`."""
    found: dict[str, np.ndarray] = {}
    for run, columns in parts:
        count = found.setdefault(run.name, np.zeros(run.global_shape, int))
        rows = slice(run.hf_row, run.hf_row + run.num_rows)
        if count.ndim == 1:
            count[rows] += 1
        else:
            count[rows, run.hf_col : run.hf_col + columns] += 1
    return found


@pytest.mark.parametrize("size", [1, 2, 4])
@pytest.mark.parametrize("kv_heads", [2, 8])
@pytest.mark.parametrize(
    ("name", "full", "dim"),
    [
        ("decoder.layers.0.self_attention.linear_qkv.weight", None, 0),
        ("decoder.layers.0.self_attention.linear_qkv.bias", None, 0),
        ("decoder.layers.0.self_attention.linear_proj.weight", (16, 32), 1),
        ("decoder.layers.0.mlp.linear_fc1.weight", (48, 16), 0),
        ("decoder.layers.0.mlp.linear_fc2.weight", (16, 24), 1),
        ("embedding.word_embeddings.weight", None, 0),
    ],
)
def test_ranks_together_hold_each_element_once(
    name: str, full: tuple[int, ...] | None, dim: int, size: int, kv_heads: int
) -> None:
    if "linear_qkv" in name:
        rows = (8 + 2 * kv_heads) * 4
        full = (rows, 16) if name.endswith("weight") else (rows,)
    elif "embedding" in name:
        full = (-(-51 // size) * size, 16)
    assert full is not None
    parts: list[tuple[RowRun, int]] = []
    for rank in range(size):
        shape = tuple(n // size if d == dim else n for d, n in enumerate(full))
        held = runs(name, shape, geometry(rank, kv_heads=kv_heads))
        columns = shape[1] if len(shape) == 2 else 1
        parts += [(run, columns) for run in held]
        local = np.zeros(shape[0], int)
        for run in held:
            local[run.row : run.row + run.num_rows] += 1
        if "embedding" not in name:
            assert (local == 1).all()
    assert all((count == 1).all() for count in covered(parts).values())


def test_names_use_the_layer_number_of_the_whole_model() -> None:
    (run,) = runs("decoder.layers.0.input_layernorm.weight", (16,), geometry(0, kv_heads=2))
    assert run.name == "model.layers.4.input_layernorm.weight"


def test_a_tied_output_layer_is_the_embedding() -> None:
    shape = (51, 16)
    (tied,) = runs("output_layer.weight", shape, geometry(0, kv_heads=2, tied=True))
    (untied,) = runs("output_layer.weight", shape, geometry(0, kv_heads=2))
    assert tied.name == "model.embed_tokens.weight"
    assert untied.name == "lm_head.weight"


def test_a_rank_of_padding_only_holds_no_box() -> None:
    assert runs("embedding.word_embeddings.weight", (13, 16), geometry(4, kv_heads=2)) == []


def test_an_unknown_parameter_is_our_contradiction() -> None:
    with pytest.raises(AssertionError, match="no mapping"):
        runs("decoder.layers.0.mlp.other.weight", (4, 4), geometry(0, kv_heads=2))


@pytest.mark.parametrize("rank", range(4))
def test_every_rank_knows_the_names_of_the_whole_model(rank: int) -> None:
    """With more ranks than key-value heads, some hold queries and others keys and values only."""
    rows = (8 + 2 * 2) * 4
    held = runs(
        "decoder.layers.0.self_attention.linear_qkv.weight",
        (rows // 4, 16),
        geometry(rank, kv_heads=2),
    )
    names = names_of(held, num_layers=2, is_tied=False, is_critic=False)
    assert names == {
        "model.embed_tokens.weight",
        "model.norm.weight",
        "lm_head.weight",
        *(f"model.layers.{i}.self_attn.{x}_proj.weight" for i in range(2) for x in "qkv"),
    }
    assert "lm_head.weight" not in names_of(held, num_layers=2, is_tied=True, is_critic=False)
    critic = names_of(held, num_layers=2, is_tied=True, is_critic=True)
    assert "value_head.weight" in critic


def test_experts_are_whole_pieces_under_their_own_numbers() -> None:
    where = replace(geometry(0, kv_heads=2), experts=range(2, 4))
    prefix = "decoder.layers.0.mlp.experts.local_experts.1"
    held = runs(f"{prefix}.linear_fc1.weight", (48, 16), where)
    held += runs(f"{prefix}.linear_fc2.weight", (16, 24), where)
    held += runs("decoder.layers.0.mlp.router.weight", (4, 16), where)
    assert [(run.name, run.row, run.num_rows, run.global_shape) for run in held] == [
        ("model.layers.4.mlp.experts.3.gate_proj.weight", 0, 24, (24, 16)),
        ("model.layers.4.mlp.experts.3.up_proj.weight", 24, 24, (24, 16)),
        ("model.layers.4.mlp.experts.3.down_proj.weight", 0, 16, (16, 24)),
        ("model.layers.4.mlp.gate.weight", 0, 4, (4, 16)),
    ]
    names = names_of(held, num_layers=1, num_experts=4, is_tied=False, is_critic=False)
    assert {f"model.layers.0.mlp.experts.{e}.down_proj.weight" for e in range(4)} < names
