"""What cannot be served is refused with its field before anything starts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from plexsvc.errors import ErrorCode, PlexError
from plexsvc.rollout.core.lending import Objectives
from plexsvc.rollout.serving.config import MAX_GUESTS, ServingConfig, check_fits
from tests.rigs.tiny_models import make_qwen3


def config(model: Path, **given: object) -> ServingConfig:
    facts: dict[str, Any] = {
        "model": model,
        "name": "chat",
        "objectives": Objectives(ttft_us=500_000, tpot_us=150_000),
        "socket": model / "chat.sock",
    }
    return ServingConfig(**(facts | given))


@pytest.mark.parametrize(
    ("given", "field"),
    [({"port": 70_000}, "port"), ({"kv_bytes": -1}, "kv_bytes"), ({"port": -1}, "port")],
)
def test_impossible_numbers_are_refused(tmp_path: Path, given: dict[str, int], field: str) -> None:
    with pytest.raises(PlexError, match=field) as refused:
        config(tmp_path, **given)
    assert refused.value.code is ErrorCode.BAD_REQUEST
    assert refused.value.facts["field"] == field


def test_two_models_must_fit_beside_each_other(tmp_path: Path) -> None:
    model, guest = make_qwen3(tmp_path / "a", seed=1), make_qwen3(tmp_path / "b", seed=2)
    weights = (model / "model.safetensors").stat().st_size  # and a header of some KiB
    alone = config(model, kv_bytes=1 << 20)
    check_fits(alone, available_bytes=(1 << 20) + weights)
    with pytest.raises(PlexError, match=r"memory_bytes: chat needs \d+ bytes"):
        check_fits(
            config(model, kv_bytes=1 << 20, guests=(guest,)), available_bytes=(1 << 20) + weights
        )


def test_what_is_no_model_is_refused(tmp_path: Path) -> None:
    with pytest.raises(PlexError) as refused:
        check_fits(config(tmp_path), available_bytes=1 << 30)
    assert refused.value.code is ErrorCode.UNKNOWN_MODEL


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"guests": ("a/policy", "b/policy")}, "lend_model names policy, policy"),
        ({"guests": [str(i) for i in range(MAX_GUESTS + 1)]}, "lend_model is given 11 times"),
        ({"guests": "ab", "instances": ("host:1",)}, "instance is given 1 times, for 2 models"),
    ],
)
def test_guests_that_cannot_be_told_apart_or_reached_are_refused(
    tmp_path: Path, given: dict[str, Any], said: str
) -> None:
    given["guests"] = tuple(tmp_path / one for one in given["guests"])
    with pytest.raises(PlexError, match=said) as refused:
        config(tmp_path, **given)
    assert refused.value.facts["field"] == said.split(maxsplit=1)[0]


def test_several_guests_are_named_by_their_models_too(tmp_path: Path) -> None:
    assert config(tmp_path, guests=(tmp_path / "a",)).guest_names == ("chat",)
    several = config(tmp_path, guests=(tmp_path / "a", tmp_path / "b"))
    assert several.guest_names == ("chat.a", "chat.b")
