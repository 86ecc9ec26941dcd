"""Canonical keys: which box of which Hugging Face tensor local memory holds, and where.

A local parameter is cut into runs: consecutive rows that are a box of one Hugging Face tensor.
Everything else follows from runs: loading, publishing, digests, restoring into another layout.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from plexclient.wire.v1 import statemanager_pb2

if TYPE_CHECKING:
    import torch

WIRE_DTYPES: Final = {
    "torch.float32": "F32",
    "torch.bfloat16": "BF16",
    "torch.float16": "F16",
    "torch.float64": "F64",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
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
class Box:
    """A box of one logical tensor: the canonical key."""

    name: str
    global_shape: tuple[int, ...]
    start: tuple[int, ...]
    size: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Slice:
    """A box and the view of local memory that holds it."""

    box: Box
    view: torch.Tensor


def whole(name: str, shape: Iterable[int]) -> list[Run]:
    """Return the one run of a tensor that is held whole."""
    shape = tuple(shape)
    return [Run(row=0, num_rows=shape[0], name=name, global_shape=shape)]


def slices(tensor: torch.Tensor, runs: Iterable[Run]) -> Iterator[Slice]:
    """Yield each run's box with the aliasing view of `tensor` (1-D or 2-D) that holds it."""
    for run in runs:
        view = tensor.narrow(0, run.row, run.num_rows)
        start: tuple[int, ...] = (run.hf_row,)
        if tensor.dim() == 2:
            start = (run.hf_row, run.hf_col)
        box = Box(name=run.name, global_shape=run.global_shape, start=start, size=tuple(view.shape))
        yield Slice(box=box, view=view)


def piece(
    kind: str, held: Slice, *, region: str, base: torch.Tensor, rank: int
) -> statemanager_pb2.CanonicalPiece:
    """Return the wire form of a slice that lies in `region`, whose memory is `base`."""
    view, box = held.view, held.box
    offset = view.data_ptr() - base.data_ptr()
    assert 0 <= offset <= base.numel() - view.numel() * view.element_size(), (kind, box, offset)
    return statemanager_pb2.CanonicalPiece(
        kind=kind,
        name=box.name,
        global_shape=box.global_shape,
        start=box.start,
        size=box.size,
        dtype=WIRE_DTYPES[str(view.dtype)],
        region=region,
        offset=offset,
        stride=view.stride(),
        rank=rank,
    )
