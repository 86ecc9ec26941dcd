"""Live weights are filled from pieces of any layout, by boxes or by replayed view operations."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from plexclient.errors import ErrorCode, PlexError
from plexsvc.weights.reading import Published
from tests.rigs.vllm_process import publish_arrays

pytestmark = pytest.mark.filterwarnings("ignore")  # importing torch warns of this and that

ARRAY = np.arange(24, dtype=np.float32).reshape(6, 4)


def fill(tmp_path: Path, *, ops: tuple[Any, ...], live: object, shards: int = 1) -> int:
    from plexsvc.rollout.engines.weights import Target, fill

    manifest = publish_arrays(tmp_path / "v", {"w": ARRAY}, version=1, shards=shards)
    data = memoryview((tmp_path / "v").read_bytes())
    target = Target(live=live, name="w", shape=(6, 4), ops=ops)
    return sum(fill([target], [Published(manifest=manifest, data=data)]))


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

    from plexsvc.rollout.engines.weights import Target
    from plexsvc.rollout.engines.weights import fill as fill_all

    manifest = publish_arrays(tmp_path / "v", {"w": ARRAY}, version=1)
    data = memoryview((tmp_path / "v").read_bytes())
    live = torch.full((6, 4), -1.0)
    targets = [
        Target(live=live, name="w", shape=(6, 4), ops=()),
        Target(live=torch.zeros(3), name="other", shape=(3,), ops=()),
    ]
    with pytest.raises(PlexError) as caught:
        next(fill_all(targets, [Published(manifest=manifest, data=data)]))
    assert caught.value.code == ErrorCode.BAD_REQUEST
    assert torch.all(live == -1)
