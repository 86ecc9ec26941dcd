"""A model directory is read without a framework, and refused with what is missing."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

from plexclient.errors import ErrorCode, PlexError
from plexsvc.rollout.engines.model_dir import opened, read_model_dir
from plexsvc.weights.boxes import Box
from plexsvc.weights.reading import VersionReader
from tests.rigs.tiny_models import make_qwen3


def test_the_facts_of_a_checkpoint_are_found(tmp_path: Path) -> None:
    model = read_model_dir(make_qwen3(tmp_path / "m", seed=0))
    assert (model.vocab_size, model.max_positions, model.eos_token_ids) == (50, 512, (1,))
    assert model.architectures == ("Qwen3ForCausalLM",)
    assert model.tensors["model.embed_tokens.weight"].shape == (50, 64)
    assert model.tokenizer == tmp_path / "m" / "tokenizer.json"


def test_generation_config_overrides_the_end_tokens(tmp_path: Path) -> None:
    path = make_qwen3(tmp_path / "m", seed=0)
    (path / "generation_config.json").write_text(json.dumps({"eos_token_id": [4, 9]}))
    assert read_model_dir(path).eos_token_ids == (4, 9)


@pytest.mark.parametrize(
    ("broken", "says"),
    [("config.json", "cannot read"), ("model.safetensors", r"no \*\.safetensors")],
)
def test_what_is_missing_is_named(tmp_path: Path, broken: str, says: str) -> None:
    path = make_qwen3(tmp_path / "m", seed=0)
    (path / broken).unlink()
    with pytest.raises(PlexError, match=says) as caught:
        read_model_dir(path)
    assert caught.value.code == ErrorCode.UNKNOWN_MODEL


def test_the_models_own_weights_are_read_like_a_version(tmp_path: Path) -> None:
    model = read_model_dir(make_qwen3(tmp_path / "m", seed=0))
    reader = VersionReader(opened(model))
    arrays = load_file(model.path / "model.safetensors")
    assert set(reader.names) == set(arrays)
    for name, array in arrays.items():
        tensor = reader.find(name)
        assert tensor is not None
        found = reader.read(tensor, Box.whole(array.shape))
        assert np.array_equal(found.view(array.dtype).reshape(array.shape), array)
