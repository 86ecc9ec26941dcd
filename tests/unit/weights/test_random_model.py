"""The demo's model: an ordinary Hugging Face directory of the promised size."""

from __future__ import annotations

import json
from pathlib import Path

import jinja2
import numpy as np
import pytest
from safetensors.numpy import load_file
from tokenizers import Tokenizer

from plexsvc.weights.random_model import (
    ALPHABET,
    EOS,
    VOCAB_SIZE,
    device_bytes_for_one,
    make_model,
    state_bytes,
)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("demo") / "model"
    make_model(path, seed=0)
    return path


def test_a_model_has_one_to_three_million_parameters(model: Path, tmp_path: Path) -> None:
    count = make_model(tmp_path / "again", seed=0)
    weights = load_file(model / "model.safetensors")
    assert count == sum(array.size for array in weights.values())
    assert 1_000_000 <= count <= 3_000_000
    assert json.loads((model / "config.json").read_text())["model_type"] == "qwen3"


def test_the_same_seed_gives_the_same_weights_and_another_gives_others(
    model: Path, tmp_path: Path
) -> None:
    make_model(tmp_path / "same", seed=0)
    make_model(tmp_path / "other", seed=1)
    weights = load_file(model / "model.safetensors")
    same = load_file(tmp_path / "same" / "model.safetensors")
    other = load_file(tmp_path / "other" / "model.safetensors")
    name = "model.embed_tokens.weight"
    assert all(np.array_equal(weights[key], same[key]) for key in weights)
    assert not np.array_equal(weights[name], other[name])


def test_every_character_is_one_token_and_comes_back(model: Path) -> None:
    tokenizer = Tokenizer.from_file(str(model / "tokenizer.json"))
    ids = tokenizer.encode(ALPHABET).ids
    assert len(set(ids)) == len(ALPHABET)
    assert max(ids) < VOCAB_SIZE
    assert tokenizer.decode([*ids, EOS]) == ALPHABET


def test_the_chat_template_writes_what_the_tokenizer_knows(model: Path) -> None:
    template = json.loads((model / "tokenizer_config.json").read_text())["chat_template"]
    said = [{"role": "user", "content": "find it."}]
    text = jinja2.Template(template).render(messages=said, add_generation_prompt=True)
    assert text == "user: find it. assistant: "
    assert set(text) <= set(ALPHABET)


def test_a_device_for_one_job_does_not_hold_two() -> None:
    one = state_bytes(1_200_000)
    assert one < device_bytes_for_one(1_200_000) < 2 * one
