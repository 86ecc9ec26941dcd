"""Adapters by configuration: their layers, PEFT's names and file, and what is another's."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from plexsvc import lora
from plexsvc.errors import ErrorCode, PlexError
from plexsvc.lora import Lora

CONFIG: dict[str, Any] = {
    "hidden_size": 8,
    "intermediate_size": 16,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
}
MINE = Lora(rank=2, alpha=8.0)
SHAPES = {lora.names_of("model.layers.0.self_attn.q_proj.weight")[0]: (2, 8)}


def test_elements_are_those_of_the_targets() -> None:
    assert Lora(rank=2, alpha=1, targets=("q_proj", "up_proj")).elements(CONFIG) == 3 * 2 * (
        16 + 24
    )
    sides = 2 * (8 + 8) + 2 * (8 + 4) + 3 * (8 + 16)
    assert MINE.elements(CONFIG) == 3 * 2 * sides
    fused = Lora(rank=2, alpha=1, targets=("qkv_proj", "gate_up_proj"))
    assert fused.elements({**CONFIG, "model_type": "phi3"}) == 3 * 2 * (24 + 40)


def write(directory: Path, **changes: object) -> Path:
    table = lora.peft_config(SHAPES, scale=MINE.scale, base="/models/m") | changes
    (directory / lora.CONFIG_FILE).write_text(json.dumps(table))
    return directory


def test_what_is_saved_is_taken_back(tmp_path: Path) -> None:
    lora.check_checkpoint(write(tmp_path), MINE, base="/models/m")
    table = json.loads((tmp_path / lora.CONFIG_FILE).read_text())
    assert (table["r"], table["lora_alpha"], table["target_modules"]) == (2, 8.0, ["q_proj"])


@pytest.mark.parametrize(
    "changes",
    [
        {"r": 4},
        {"lora_alpha": 4},
        {"lora_alpha": None},
        {"base_model_name_or_path": "/models/other"},
        {"use_rslora": True},
        {"rank_pattern": {"q_proj": 4}},
    ],
    ids=lambda changes: next(iter(changes)),
)
def test_adapters_of_another_kind_are_refused_by_key(
    tmp_path: Path, changes: dict[str, object]
) -> None:
    with pytest.raises(PlexError, match=next(iter(changes))) as caught:
        lora.check_checkpoint(write(tmp_path, **changes), MINE, base="/models/m")
    assert caught.value.code == ErrorCode.UNKNOWN_MODEL


@pytest.mark.parametrize("text", ["", "[1]", "{"])
def test_a_directory_without_adapters_is_refused(tmp_path: Path, text: str) -> None:
    if text:
        (tmp_path / lora.CONFIG_FILE).write_text(text)
    with pytest.raises(PlexError, match=lora.CONFIG_FILE) as caught:
        lora.check_checkpoint(tmp_path, MINE, base="/models/m")
    assert caught.value.code == ErrorCode.UNKNOWN_MODEL
