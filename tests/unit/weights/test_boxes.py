"""Boxes race a naive model: a tensor painted element by element."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from plexsvc.weights.boxes import Box, cover

SHAPE = (7, 5)


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
def test_a_cover_takes_every_element_exactly_once_and_says_what_is_missing(
    wanted: Box, given_boxes: list[Box]
) -> None:
    available = sum((paint(box) for box in given_boxes), start=np.zeros(SHAPE, int)) > 0
    found = cover(wanted, given_boxes)
    painted = sum((paint(overlap.box) for overlap in found.overlaps), start=np.zeros(SHAPE, int))
    assert np.array_equal(painted, paint(wanted) * available)
    missing = sum((paint(box) for box in found.missing), start=np.zeros(SHAPE, int))
    assert np.array_equal(missing, paint(wanted) * ~available)
    for overlap in found.overlaps:
        assert given_boxes[overlap.index].intersect(overlap.box) == overlap.box


@given(boxes(), boxes())
def test_a_box_selects_its_elements_from_an_array_over_another(whole: Box, part: Box) -> None:
    common = whole.intersect(part)
    if common is None:
        return
    grid = np.arange(35).reshape(SHAPE)
    everything = Box.whole(SHAPE)
    held = grid[whole.within(everything)]
    assert np.array_equal(held[common.within(whole)], grid[common.within(everything)])


def test_nothing_is_missing_of_an_empty_box() -> None:
    assert cover(Box((0, 0), (0, 5)), []).missing == []
    assert cover(Box((), ()), [Box((), ())]).missing == []
