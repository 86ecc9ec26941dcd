"""Reading boxes of checkpoints and of published versions."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import save_file

from plexclient.wire.v1 import statemanager_pb2
from plexsvc.errors import ErrorCode, PlexError
from plexsvc.weights import checkpoints
from plexsvc.weights.boxes import Box, TensorBox
from plexsvc.weights.reading import OpenedPart
from plexsvc.worker import sources
from plexsvc.worker.canonical import RowRun, TensorSlice, piece, slices

SHAPE = (6, 5)
VALUES = torch.arange(30, dtype=torch.float32).reshape(SHAPE)


def box(
    start: tuple[int, ...],
    size: tuple[int, ...],
    *,
    name: str = "w",
    shape: tuple[int, ...] = SHAPE,
) -> TensorBox:
    return TensorBox(name=name, shape=shape, box=Box(start, size))


def version(cuts: list[int], *, without: int = 0) -> sources.VersionTensors:
    """Return a version of `VALUES` that ranks hold in row bands ending at `cuts`."""
    bounds = sorted({0, *cuts, 6})
    memory = torch.zeros(4096, dtype=torch.uint8)
    pieces, offset = [], 0
    for rank, (low, high) in enumerate(pairwise(bounds)):
        count = (high - low) * 5
        view = memory[offset : offset + 4 * count].view(torch.float32).view(high - low, 5)
        view.copy_(VALUES[low:high])
        run = RowRun(row=0, num_rows=high - low, name="w", global_shape=SHAPE, hf_row=low)
        (held,) = slices(view, [run])
        pieces.append(piece("param", held, region="params", base=memory, rank=rank))
        offset += 4 * count
    kept = pieces[: len(pieces) - without]
    manifest = statemanager_pb2.VersionManifest(pieces=kept, nbytes=4096)
    return sources.VersionTensors([OpenedPart(manifest=manifest, data=memoryview(memory.numpy()))])


@given(
    cuts=st.lists(st.integers(1, 5), max_size=3),
    low=st.tuples(st.integers(0, 5), st.integers(0, 4)),
    size=st.tuples(st.integers(1, 6), st.integers(1, 5)),
)
@settings(max_examples=60, deadline=None)
def test_any_box_is_assembled_from_any_cut(
    cuts: list[int], low: tuple[int, int], size: tuple[int, int]
) -> None:
    size = (min(size[0], 6 - low[0]), min(size[1], 5 - low[1]))
    found = version(cuts).read(box(low, size))
    assert torch.equal(found, VALUES[low[0] : low[0] + size[0], low[1] : low[1] + size[1]])


def test_a_version_with_a_hole_is_refused() -> None:
    with pytest.raises(PlexError, match="covers only part") as caught:
        version([3], without=1).check(box((0, 0), SHAPE))
    assert caught.value.code == ErrorCode.UNKNOWN_MODEL


def test_a_version_of_another_model_is_refused() -> None:
    wrong = box((0, 0), (1, 1), shape=(6, 6))
    for asked in (wrong, box((0, 0), (1, 1), name="other")):
        with pytest.raises(PlexError) as caught:
            version([]).check(asked)
        assert caught.value.code == ErrorCode.UNKNOWN_MODEL


def test_a_checkpoint_fills_memory_box_by_box(tmp_path: Path) -> None:
    save_file({"w": VALUES}, tmp_path / "model-00001.safetensors")
    save_file({"b": torch.ones(3)}, tmp_path / "model-00002.safetensors")
    target = torch.zeros(2, 2)
    with sources.open_checkpoint(tmp_path) as source:
        assert "w" in source.names
        assert "b" in source.names
        assert "c" not in source.names
        planned = sources.reads([TensorSlice(key=box((1, 2), (2, 2)), view=target)], source)
        assert not target.any(), "nothing is copied yet"
        sources.copy(planned)
    assert torch.equal(target, VALUES[1:3, 2:4])


@pytest.mark.parametrize("wrong", [float("nan"), float("inf"), -float("inf")])
def test_weights_that_are_no_finite_numbers_are_refused_before_they_are_copied(
    tmp_path: Path, wrong: float
) -> None:
    values = VALUES.clone()
    values[1, 2] = wrong
    save_file({"w": values}, tmp_path / "model.safetensors")
    target = torch.zeros(2, 2)
    with sources.open_checkpoint(tmp_path) as source:
        planned = sources.reads([TensorSlice(key=box((1, 2), (2, 2)), view=target)], source)
        with pytest.raises(PlexError, match="'w'") as caught:
            sources.check_finite(planned)
        assert caught.value.code == ErrorCode.UNKNOWN_MODEL
        assert not target.any()
        sources.check_finite(planned, is_copied=True)
        sources.copy(planned)
        with pytest.raises(PlexError, match="'w'"):
            sources.check_finite(planned, is_copied=True)


@pytest.mark.parametrize(
    "asked",
    [
        box((0, 0), SHAPE, name="missing"),
        box((0, 0), (5, 6), shape=(5, 6)),
    ],
)
def test_a_checkpoint_that_does_not_fit_names_the_tensor(tmp_path: Path, asked: TensorBox) -> None:
    save_file({"w": VALUES}, tmp_path / "model.safetensors")
    with sources.open_checkpoint(tmp_path) as source, pytest.raises(PlexError) as caught:
        source.check(asked)
    assert caught.value.code == ErrorCode.UNKNOWN_MODEL
    assert caught.value.facts["tensor"] == asked.name


def test_missing_and_broken_files_are_unknown_models(tmp_path: Path) -> None:
    for content in (None, b"not safetensors"):
        if content is not None:
            (tmp_path / "model.safetensors").write_bytes(content)
        with pytest.raises(PlexError) as caught, sources.open_checkpoint(tmp_path):
            pass
        assert caught.value.code == ErrorCode.UNKNOWN_MODEL
        assert str(tmp_path) in caught.value.message
    with pytest.raises(PlexError, match=r"optimizer=False"):
        sources.read_scalars(tmp_path)


def test_a_path_that_cannot_be_looked_at_is_a_bad_request() -> None:
    with pytest.raises(PlexError) as caught, sources.open_checkpoint(Path("/" + "d" * 300)):
        pass
    assert caught.value.code == ErrorCode.BAD_REQUEST


def test_scalars_that_are_no_whole_numbers_are_refused(tmp_path: Path) -> None:
    (tmp_path / "plex_state.json").write_text(json.dumps({"scalars": {"adam_step": "three"}}))
    checkpoints.seal(tmp_path, {})
    with pytest.raises(PlexError, match="whole numbers"):
        sources.read_scalars(tmp_path)


def test_saved_scalars_are_read_back(tmp_path: Path) -> None:
    table = {"applied_seq": 9, "scalars": {"adam_step": 3, "nested": {}}}
    (tmp_path / "plex_state.json").write_text(json.dumps(table))
    checkpoints.seal(tmp_path, {})
    assert sources.read_scalars(tmp_path) == {"adam_step": 3}
