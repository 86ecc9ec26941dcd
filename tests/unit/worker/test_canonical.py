"""Boxes of local memory, whole and cut without regard to rows."""

from __future__ import annotations

import itertools

import torch
from hypothesis import given
from hypothesis import strategies as st

from plexsvc.weights.boxes import Box
from plexsvc.worker.canonical import RowRun, slices, slices_of_range

ROWS, WIDTH = 6, 4
RUNS = [
    RowRun(row=0, num_rows=2, name="q", global_shape=(8, 12), hf_row=4, hf_col=8),
    RowRun(row=2, num_rows=3, name="k", global_shape=(3, 12), hf_col=4),  # row 5 is padding
]


@given(cuts=st.lists(st.integers(0, ROWS * WIDTH), max_size=4))
def test_boxes_of_ranges_hold_each_element_once_where_it_belongs(cuts: list[int]) -> None:
    local = torch.arange(ROWS * WIDTH)
    wanted = {name: torch.full(shape, -1) for name, shape in (("q", (8, 12)), ("k", (3, 12)))}
    for held in slices(local.view(ROWS, WIDTH), RUNS):
        wanted[held.key.name][held.key.box.within(Box.whole(held.key.shape))] = held.view
    assert wanted["q"][5, 9] == 5
    assert wanted["k"][2, 7] == 19
    found = {name: torch.full_like(tensor, -1) for name, tensor in wanted.items()}
    bounds = [0, *sorted(cuts), ROWS * WIDTH]
    for low, high in itertools.pairwise(bounds):
        parts = list(slices_of_range(local[low:high], RUNS, shape=(ROWS, WIDTH), first=low))
        assert len(parts) <= 3 * len(RUNS)
        for held in parts:
            target = found[held.key.name][held.key.box.within(Box.whole(held.key.shape))]
            assert (target == -1).all(), "held twice"
            target.copy_(held.view)
            assert held.view.data_ptr() >= local.data_ptr(), "a view, not a copy"
    assert all(torch.equal(found[name], wanted[name]) for name in wanted)


def test_a_range_of_a_vector_is_one_box() -> None:
    run = RowRun(row=0, num_rows=6, name="b", global_shape=(12,), hf_row=6)
    (held,) = slices_of_range(torch.arange(2, 5), [run], shape=(6,), first=2)
    assert (held.key.box.start, held.key.box.size) == ((8,), (3,))
    assert held.view.tolist() == [2, 3, 4]
