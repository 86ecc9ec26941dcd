"""Live weights are filled from pieces of any layout, by boxes or by replayed view operations."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from plexclient.errors import ErrorCode, PlexError
from plexsvc import lora
from plexsvc.weights.reading import OpenedPart
from tests.rigs.vllm_process import publish_arrays

pytestmark = pytest.mark.filterwarnings("ignore")  # importing torch warns of this and that

ARRAY = np.arange(24, dtype=np.float32).reshape(6, 4)


def fill(tmp_path: Path, *, ops: tuple[Any, ...], live: object, shards: int = 1) -> int:
    from plexsvc.rollout.engines.weights import LiveTensor, fill

    manifest = publish_arrays(tmp_path / "v", {"w": ARRAY}, version=1, shards=shards)
    data = memoryview((tmp_path / "v").read_bytes())
    target = LiveTensor(live=live, name="w", shape=(6, 4), ops=ops)
    return sum(fill([target], [OpenedPart(manifest=manifest, data=data)]))


@pytest.mark.parametrize("shards", [1, 2, 3])
@pytest.mark.parametrize(
    ("ops", "expected"),
    [
        ((), ARRAY),
        ((("narrow", (0, 1, 4), ()),), ARRAY[1:5]),
        ((("narrow", (0, 1), (("length", 4),)), ("narrow", (1, 2, 2), ())), ARRAY[1:5, 2:]),
        ((("t", (), ()),), ARRAY.T),
        ((("__getitem__", (3,), ()),), ARRAY[3]),
    ],
)
def test_a_weight_gets_exactly_what_its_loader_would_take(
    tmp_path: Path, shards: int, ops: tuple[Any, ...], expected: np.ndarray
) -> None:
    import torch

    live = torch.full(expected.shape, -1.0)
    assert fill(tmp_path, ops=ops, live=live, shards=shards) == 4 * expected.size
    assert np.array_equal(live.numpy(), expected)


def test_nothing_is_touched_when_something_is_missing(tmp_path: Path) -> None:
    import torch

    from plexsvc.rollout.engines.weights import LiveTensor
    from plexsvc.rollout.engines.weights import fill as fill_all

    manifest = publish_arrays(tmp_path / "v", {"w": ARRAY}, version=1)
    data = memoryview((tmp_path / "v").read_bytes())
    live = torch.full((6, 4), -1.0)
    targets = [
        LiveTensor(live=live, name="w", shape=(6, 4), ops=()),
        LiveTensor(live=torch.zeros(3), name="other", shape=(3,), ops=()),
    ]
    with pytest.raises(PlexError) as caught:
        next(fill_all(targets, [OpenedPart(manifest=manifest, data=data)]))
    assert caught.value.code == ErrorCode.BAD_REQUEST
    assert torch.all(live == -1)


A, B = np.arange(8, dtype=np.float32).reshape(2, 4), np.ones((6, 2), np.float32)
NAMES = lora.names_of("w.weight")
VERSION = {NAMES[0]: A, NAMES[1]: B, lora.SCALE: np.array([0.5], np.float32)}
MERGED = ARRAY + 0.5 * (B @ A)


def published(path: Path, arrays: dict[str, np.ndarray], *, shards: int = 1) -> list[OpenedPart]:
    manifest = publish_arrays(path, arrays, version=1, shards=shards)
    return [OpenedPart(manifest=manifest, data=memoryview(path.read_bytes()))]


def merge(tmp_path: Path, lives: dict[str, Any], *, ops: tuple[Any, ...] = (), **more: Any) -> int:
    """Fill weights from a model that has `w` and `v`, and a version with an adapter of `w`."""
    from plexsvc.rollout.engines.weights import LiveTensor, fill

    model = published(tmp_path / "m", {"w.weight": ARRAY, "v.weight": ARRAY}, shards=2)
    targets = [
        LiveTensor(live=live, name=f"{name}.weight", shape=(6, 4), ops=ops)
        for name, live in lives.items()
    ]
    version = published(tmp_path / "v", more.pop("version", VERSION))
    return sum(fill(targets, version, model=lambda: model, **more))


@pytest.mark.parametrize(
    ("ops", "expected"),
    [
        ((), MERGED),
        ((("narrow", (0, 1, 4), ()), ("narrow", (1, 2, 2), ())), MERGED[1:5, 2:]),
        ((("t", (), ()),), MERGED.T),
    ],
)
def test_adapters_are_merged_into_the_model_s_weights_in_float32(
    tmp_path: Path, ops: tuple[Any, ...], expected: np.ndarray
) -> None:
    import torch

    live = torch.full(expected.shape, -1.0, dtype=torch.bfloat16)
    merge(tmp_path, {"w": live}, ops=ops)
    assert torch.equal(live, torch.from_numpy(expected.copy()).bfloat16())


@pytest.mark.parametrize("is_on_model", [True, False])
def test_weights_without_an_adapter_are_the_model_s(tmp_path: Path, is_on_model: bool) -> None:
    import torch

    lives = {"w": torch.full((6, 4), -1.0), "v": torch.full((6, 4), -1.0)}
    nbytes = merge(tmp_path, lives, is_on_model=is_on_model)
    assert np.array_equal(lives["w"].numpy(), MERGED)
    rest = np.full((6, 4), -1.0) if is_on_model else ARRAY
    assert np.array_equal(lives["v"].numpy(), rest), "where they are the model's, they stay"
    assert nbytes == 96 * (1 if is_on_model else 2)


@pytest.mark.parametrize(
    "version",
    [
        {**VERSION, NAMES[0]: A[:, :3]},
        {**VERSION, lora.names_of("other.weight")[0]: A},
        {NAMES[0]: A, lora.SCALE: VERSION[lora.SCALE]},
    ],
    ids=["shape", "layer", "half"],
)
def test_adapters_of_another_model_touch_nothing(
    tmp_path: Path, version: dict[str, np.ndarray]
) -> None:
    import torch

    live = torch.full((6, 4), -1.0)
    with pytest.raises(PlexError, match="same model") as caught:
        merge(tmp_path, {"w": live}, version=version)
    assert caught.value.code == ErrorCode.BAD_REQUEST
    assert torch.all(live == -1)
