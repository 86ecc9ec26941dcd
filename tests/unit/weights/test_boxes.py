"""Boxes race a naive model: a tensor painted element by element."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from plexclient.errors import ErrorCode, PlexError
from plexclient.wire.v1 import statemanager_pb2
from plexsvc.weights.boxes import Box, Need, cover, element_offset, piece_box

SHAPE = (7, 5)


def piece(box: Box, *, shape: tuple[int, ...] = SHAPE) -> statemanager_pb2.CanonicalPiece:
    strides = [int(s) // 8 for s in np.zeros(box.size).strides]
    return statemanager_pb2.CanonicalPiece(
        kind="param", name="w", global_shape=shape, start=box.start, size=box.size, stride=strides
    )


def paint(box: Box) -> np.ndarray:
    grid = np.zeros(SHAPE, int)
    grid[tuple(slice(a, a + n) for a, n in zip(box.start, box.size, strict=True))] = 1
    return grid


@st.composite
def boxes(draw: st.DrawFn) -> Box:
    start = tuple(draw(st.integers(0, n - 1)) for n in SHAPE)
    size = tuple(draw(st.integers(1, n - a)) for a, n in zip(start, SHAPE, strict=True))
    return Box(start, size)


@given(boxes(), boxes())
def test_intersection_and_difference_paint_what_sets_would(a: Box, b: Box) -> None:
    common = a.intersect(b)
    assert np.array_equal(paint(a) & paint(b), 0 * paint(a) if common is None else paint(common))
    if common is not None:
        parts = sum((paint(part) for part in a.minus(common)), start=np.zeros(SHAPE, int))
        assert np.array_equal(parts, paint(a) - paint(common))


@given(boxes(), st.lists(boxes(), max_size=6))
def test_a_cover_takes_every_element_exactly_once_or_says_what_is_missing(
    need: Box, given_boxes: list[Box]
) -> None:
    pieces = [piece(box) for box in given_boxes]
    available = sum((paint(box) for box in given_boxes), start=np.zeros(SHAPE, int)) > 0
    wanted = Need(name="w", shape=SHAPE, box=need)
    if not available[paint(need) == 1].all():
        with pytest.raises(PlexError) as caught:
            cover(wanted, pieces)
        assert caught.value.code == ErrorCode.BAD_REQUEST
        assert "'w'" in caught.value.message
        return
    overlaps = cover(wanted, pieces)
    painted = sum((paint(overlap.box) for overlap in overlaps), start=np.zeros(SHAPE, int))
    assert np.array_equal(painted, paint(need))
    for overlap in overlaps:
        assert piece_box(pieces[overlap.index]).intersect(overlap.box) == overlap.box


@given(boxes(), boxes())
def test_an_element_offset_finds_the_element_in_the_piece(whole: Box, part: Box) -> None:
    common = whole.intersect(part)
    if common is None:
        return
    grid = np.arange(35).reshape(SHAPE)
    held = grid[tuple(slice(a, a + n) for a, n in zip(whole.start, whole.size, strict=True))]
    assert held.ravel()[element_offset(piece(whole), common)] == grid[common.start]


def test_a_piece_of_another_shape_is_refused() -> None:
    with pytest.raises(PlexError, match=r"shape \[8, 5\]"):
        cover(
            Need(name="w", shape=SHAPE, box=Box.whole(SHAPE)),
            [piece(Box.whole((8, 5)), shape=(8, 5))],
        )
