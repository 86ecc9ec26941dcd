"""Slices of local memory: the box of a Hugging Face tensor that each one holds.

A local parameter is cut into runs: consecutive rows that are a box of one Hugging Face tensor.
A rank that holds only a range of a parameter's elements holds up to three boxes of each run.
Loading, publishing, digests and restoring into another layout all work from runs.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from plexclient.wire.v1 import statemanager_pb2
from plexsvc.weights.boxes import Box, TensorBox
from plexsvc.weights.dtypes import NAMES_IN_TORCH

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True, slots=True, kw_only=True)
class RowRun:
    """`num_rows` rows of a local tensor from `row` on: a box of the Hugging Face tensor `name`.

    The box spans rows `[hf_row, hf_row + num_rows)` and, for matrices, columns from `hf_col` on, as
    many as the local tensor has.
    """

    row: int
    num_rows: int
    name: str
    global_shape: tuple[int, ...]
    hf_row: int = 0
    hf_col: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorSlice:
    """A box of a named tensor and the view of local memory that holds it."""

    key: TensorBox
    view: torch.Tensor


def whole(name: str, shape: Iterable[int]) -> list[RowRun]:
    """Return the one run of a tensor that is held whole."""
    shape = tuple(shape)
    return [RowRun(row=0, num_rows=shape[0], name=name, global_shape=shape)]


def slices(tensor: torch.Tensor, runs: Iterable[RowRun]) -> Iterator[TensorSlice]:
    """Yield each run's box with the aliasing view of `tensor` (1-D or 2-D) that holds it."""
    return slices_of_range(tensor.view(-1), runs, shape=tensor.shape, first=0)


def slices_of_range(
    flat: torch.Tensor, runs: Iterable[RowRun], *, shape: Sequence[int], first: int
) -> Iterator[TensorSlice]:
    """Yield the boxes that `flat` holds: elements from number `first` on of a tensor of `shape`."""
    width = math.prod(shape[1:])
    for run in runs:
        low = max(run.row * width, first)
        high = min((run.row + run.num_rows) * width, first + flat.numel())
        for at, *size in _rectangles(low, high, width):
            row, column = divmod(at, width)
            start = (run.hf_row + row - run.row, run.hf_col + column)[: len(shape)]
            box = Box(start, tuple(size[: len(shape)]))
            view = flat[at - first : at - first + box.volume].view(box.size)
            yield TensorSlice(
                key=TensorBox(name=run.name, shape=run.global_shape, box=box), view=view
            )


def _rectangles(low: int, high: int, width: int) -> Iterator[tuple[int, int, int]]:
    """Yield the rectangles of elements `[low, high)` in rows of `width`: first, rows, columns."""
    head_end = min(high, -(-low // width) * width)
    body_end = max(head_end, high // width * width)
    if low < head_end:
        yield low, 1, head_end - low
    if head_end < body_end:
        yield head_end, (body_end - head_end) // width, width
    if body_end < high:
        yield body_end, 1, high - body_end


def piece(
    kind: str, held: TensorSlice, *, region: str, base: torch.Tensor, rank: int
) -> statemanager_pb2.CanonicalPiece:
    """Return the wire form of a slice that lies in `region`, whose memory is `base`."""
    view, key = held.view, held.key
    offset = view.data_ptr() - base.data_ptr()
    assert 0 <= offset <= base.numel() - view.numel() * view.element_size(), (kind, key, offset)
    return statemanager_pb2.CanonicalPiece(
        kind=kind,
        name=key.name,
        global_shape=key.shape,
        start=key.box.start,
        size=key.box.size,
        dtype=NAMES_IN_TORCH[str(view.dtype)],
        region=region,
        offset=offset,
        stride=view.stride(),
        rank=rank,
    )
