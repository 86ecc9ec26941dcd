"""What cannot be served is refused with its field before anything starts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from plexsvc.errors import ErrorCode, PlexError
from plexsvc.rollout.core.lending import Objectives
from plexsvc.rollout.serving.config import ServingConfig, check_fits
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
            config(model, kv_bytes=1 << 20, guest=guest), available_bytes=(1 << 20) + weights
        )


def test_what_is_no_model_is_refused(tmp_path: Path) -> None:
    with pytest.raises(PlexError) as refused:
        check_fits(config(tmp_path), available_bytes=1 << 30)
    assert refused.value.code is ErrorCode.UNKNOWN_MODEL
