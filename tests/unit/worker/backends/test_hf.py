"""Weights that hold more than the model uses."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from safetensors.torch import save_file

from plexsvc.errors import ErrorCode, PlexError
from plexsvc.worker import sources
from plexsvc.worker.backends.hf import EMBEDDINGS, HEAD, check_leftovers

TABLE = torch.arange(6.0).reshape(3, 2)
NORM = {"model.norm.weight": torch.ones(2)}


def check(
    path: Path, tensors: dict[str, torch.Tensor], *, is_tied: bool = True, is_critic: bool = False
) -> None:
    save_file({EMBEDDINGS: TABLE, **NORM, **tensors}, path / "model.safetensors")
    hf = SimpleNamespace(
        model_type="llama", tie_word_embeddings=is_tied, vocab_size=3, hidden_size=2
    )
    known = {EMBEDDINGS, *NORM, *(() if is_tied or is_critic else (HEAD,))}
    with sources.open_checkpoint(path) as weights:
        check_leftovers(weights, known, hf=hf, is_critic=is_critic)


@pytest.mark.parametrize(
    ("tensors", "options"),
    [
        ({}, {}),
        ({HEAD: TABLE.clone()}, {}),
        ({HEAD: TABLE + 1}, {"is_tied": False}),
        ({HEAD: TABLE + 1}, {"is_tied": False, "is_critic": True}),
        ({"model.layers.0.self_attn.rotary_emb.inv_freq": torch.ones(1)}, {}),
    ],
    ids=["all", "tied twice", "untied", "a critic's trunk", "frequencies"],
)
def test_what_the_model_uses_or_knows_itself_is_taken(
    tmp_path: Path, tensors: dict[str, torch.Tensor], options: dict[str, bool]
) -> None:
    check(tmp_path, tensors, **options)


@pytest.mark.parametrize(
    "tensors",
    [
        {"model.layers.0.self_attn.q_norm.weight": torch.ones(2)},
        {HEAD: TABLE + 1},
        {"score.weight": torch.ones(1)},
        {"value_head.weight": torch.ones(1)},
    ],
    ids=lambda tensors: next(iter(tensors)),
)
def test_what_the_model_would_leave_out_is_refused_by_name(
    tmp_path: Path, tensors: dict[str, torch.Tensor]
) -> None:
    with pytest.raises(PlexError, match="1 tensors") as caught:
        check(tmp_path, tensors)
    assert caught.value.code == ErrorCode.UNKNOWN_MODEL
    assert next(iter(tensors)) in caught.value.message
