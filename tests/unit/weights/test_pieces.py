"""Pieces of tensors: any cut of a tensor assembles to the same tensor."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from plexclient.wire.v1.statemanager_pb2 import CanonicalPiece
from plexsvc.errors import PlexError
from plexsvc.weights import pieces
from plexsvc.weights.boxes import Box

Cut = tuple[list[CanonicalPiece], dict[int, np.ndarray]]
Case = tuple[np.ndarray, list[Box]]


def cut(array: np.ndarray, boxes: list[Box], *, transposed: bool = False) -> Cut:
    """Lay each box of `array` into a region of its own rank; column-major when `transposed`."""
    index, regions = [], {}
    for rank, box in enumerate(boxes):
        whole = Box((0,) * array.ndim, array.shape)
        part = array[box.within(whole)]
        stored = np.ascontiguousarray(part.T if transposed else part)
        strides = [n // 4 for n in stored.strides[: array.ndim]]
        regions[rank] = np.concatenate(
            [np.full(64, 255, np.uint8), stored.reshape(-1).view(np.uint8)]
        )
        index.append(
            CanonicalPiece(
                kind="param", name="w", dtype="F32", region="r", offset=64, rank=rank,
                global_shape=array.shape, start=box.start, size=box.size,
                stride=strides[::-1] if transposed else strides,
            )
        )  # fmt: skip
    return index, regions


@st.composite
def cuts(draw: st.DrawFn) -> Case:
    rows, columns = draw(st.integers(1, 6)), draw(st.integers(1, 6))
    array = np.arange(rows * columns, dtype=np.float32).reshape(rows, columns)
    at, split = draw(st.integers(0, rows)), draw(st.integers(0, columns))
    boxes = [
        Box((r0, c0), (r1 - r0, c1 - c0))
        for r0, r1 in ((0, at), (at, rows))
        for c0, c1 in ((0, split), (split, columns))
        if r1 > r0 and c1 > c0
    ]
    copies = draw(st.lists(st.sampled_from(boxes), max_size=3))
    return array, draw(st.permutations([*boxes, *copies]))


@given(cuts(), st.booleans())
def test_every_cut_assembles_to_the_whole_tensor(case: Case, transposed: bool) -> None:
    array, boxes = case
    index, regions = cut(array, boxes, transposed=transposed)
    (tensor,) = pieces.tensors(index)
    assert pieces.is_complete(tensor)
    got = pieces.whole(tensor, lambda rank, _name: regions[rank])
    assert got.flags.c_contiguous
    assert got.tobytes() == array.tobytes()


@given(cuts())
def test_every_cut_without_one_box_is_incomplete(case: Case) -> None:
    array, boxes = case
    index, regions = cut(array, [box for box in boxes if box != boxes[0]])
    if index:
        (tensor,) = pieces.tensors(index)
        assert not pieces.is_complete(tensor)
        with pytest.raises(PlexError, match="not_found"):
            pieces.assemble(tensor, boxes[0], region=lambda rank, _name: regions[rank])


@given(cuts())
def test_published_pieces_are_aligned_disjoint_and_each_box_once(case: Case) -> None:
    array, boxes = case
    index, _ = cut(array, boxes)
    placed, nbytes = pieces.pack(pieces.distinct(index), region="published")
    ends = 0
    for _, target in placed:
        assert target.offset % 64 == 0
        assert target.offset >= ends
        ends = target.offset + int(np.prod(target.size)) * 4
    assert ends <= nbytes
    assert sorted(pieces.box_of(target) for _, target in placed) == sorted(set(boxes))


def test_a_scalar_tensor_is_one_element() -> None:
    index, regions = cut(np.array(3.0, np.float32), [Box((), ())])
    (tensor,) = pieces.tensors(index)
    assert pieces.is_complete(tensor)
    assert (
        pieces.whole(tensor, lambda rank, _name: regions[rank]).tobytes() == np.float32(3).tobytes()
    )


@pytest.mark.parametrize(
    "change",
    [
        {"dtype": "F8"},
        {"region": "elsewhere"},
        {"offset": 4},
        {"start": [3, 0]},
        {"size": [0, 4]},
        {"stride": [4]},
        {"stride": [-4, 1]},
    ],
)
def test_a_piece_that_contradicts_itself_or_its_region_is_refused(
    change: dict[str, object],
) -> None:
    fields: dict[str, Any] = {
        "kind": "param", "name": "w", "dtype": "F32", "region": "r", "offset": 0,
        "global_shape": [4, 4], "start": [0, 0], "size": [4, 4], "stride": [4, 1],
    }  # fmt: skip
    pieces.check_piece(CanonicalPiece(**fields), {"r": 64})
    with pytest.raises(PlexError, match="bad_request"):
        pieces.check_piece(CanonicalPiece(**{**fields, **change}), {"r": 64})
