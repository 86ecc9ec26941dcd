"""Pieces of tensors in raw memory: views of them, and whole tensors or boxes built from them.

A piece is a box of a tensor and the place of its elements in a region. Ranks publish pieces in
their own layout; whoever reads them may want any other.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from plexclient.wire.tensors import ALIGNMENT
from plexclient.wire.v1.statemanager_pb2 import CanonicalPiece
from plexsvc.errors import bad_request, not_found
from plexsvc.weights.boxes import Box, Overlap, cover
from plexsvc.weights.dtypes import DTYPES

Array = npt.NDArray[Any]
Bytes = npt.NDArray[np.uint8]
RegionBytes = Callable[[int, str], Bytes]
"""Returns the bytes of (rank, region)."""

GRADIENTS = "grad"
"""Kind of the partial sums of each rank until a step: keyed by rank, never assembled."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tensor:
    """One logical tensor and the distinct pieces that hold it, ordered by box."""

    kind: str
    name: str
    dtype: str
    shape: tuple[int, ...]
    parts: tuple[CanonicalPiece, ...]

    @property
    def nbytes(self) -> int:
        """Bytes of the whole tensor."""
        return math.prod(self.shape) * DTYPES[self.dtype].carrier.itemsize


def box_of(piece: CanonicalPiece) -> Box:
    """Return the box a piece covers."""
    return Box(tuple(piece.start), tuple(piece.size))


def nbytes_of(piece: CanonicalPiece) -> int:
    """Return the bytes of a piece's elements."""
    return math.prod(piece.size) * DTYPES[piece.dtype].carrier.itemsize


def check_piece(piece: CanonicalPiece, region_bytes: Mapping[str, int]) -> None:
    """Refuse a piece that contradicts itself or does not lie inside its region.

    Raises:
        PlexError: `bad_request`.
    """
    shape, start, size = piece.global_shape, piece.start, piece.size
    is_box = (
        piece.dtype in DTYPES
        and len(shape) == len(start) == len(size) == len(piece.stride)
        and all(
            at >= 0 and n > 0 and at + n <= m for at, n, m in zip(start, size, shape, strict=False)
        )
        and all(step >= 0 for step in piece.stride)
    )
    if is_box and piece.region in region_bytes:
        reach = sum((n - 1) * step for n, step in zip(size, piece.stride, strict=True)) + 1
        if (
            piece.offset + reach * DTYPES[piece.dtype].carrier.itemsize
            <= region_bytes[piece.region]
        ):
            return
    raise bad_request(
        f"piece {piece.kind}/{piece.name} {piece.dtype} start {list(start)} size {list(size)} of "
        f"{list(shape)}, stride {list(piece.stride)} at byte {piece.offset} of region "
        f"{piece.region!r} does not fit; regions are {dict(region_bytes)}"
    )


def piece_view(region: Bytes, piece: CanonicalPiece) -> Array:
    """Return a view of a piece's elements; nothing is copied."""
    carrier = DTYPES[piece.dtype].carrier
    strides = [step * carrier.itemsize for step in piece.stride]
    view: Array = np.ndarray(
        tuple(piece.size), carrier, buffer=region.data, offset=piece.offset, strides=strides
    )
    return view


def tensors(index: Iterable[CanonicalPiece]) -> list[Tensor]:
    """Return the logical tensors of an index by (kind, name); copies of a box count once."""
    groups: dict[tuple[str, str], dict[Box, CanonicalPiece]] = {}
    for piece in index:
        groups.setdefault((piece.kind, piece.name), {}).setdefault(box_of(piece), piece)
    found = []
    for (kind, name), boxes in sorted(groups.items()):
        parts = tuple(boxes[box] for box in sorted(boxes))
        found.append(
            Tensor(
                kind=kind,
                name=name,
                dtype=parts[0].dtype,
                shape=tuple(parts[0].global_shape),
                parts=parts,
            )
        )
    return found


def is_complete(tensor: Tensor) -> bool:
    """Whether the parts cover the whole tensor."""
    return not cover(Box.whole(tensor.shape), [box_of(part) for part in tensor.parts]).missing


def overlap_view(tensor: Tensor, overlap: Overlap, region: RegionBytes) -> Array:
    """Return a view of the elements that an overlap takes from a part of `tensor`."""
    part = tensor.parts[overlap.index]
    view: Array = piece_view(region(part.rank, part.region), part)
    return view[overlap.box.within(box_of(part))]


def assemble(tensor: Tensor, box: Box, *, region: RegionBytes) -> Array:
    """Return the elements of `box` as one C-contiguous array, copied together from the parts.

    Raises:
        PlexError: `not_found` when the parts do not cover the box.
    """
    found = cover(box, [box_of(part) for part in tensor.parts])
    if found.missing:
        have = box.volume - sum(part.volume for part in found.missing)
        text = f"{have} of {box.volume} elements of {tensor.name} are here"
        raise not_found(f"{text}; ask the other nodes of the WPG too")
    target = np.empty(box.size, dtype=DTYPES[tensor.dtype].carrier)
    for overlap in found.overlaps:
        target[overlap.box.within(box)] = overlap_view(tensor, overlap, region)
    return target


def whole(tensor: Tensor, region: RegionBytes) -> Array:
    """Return a complete tensor as one C-contiguous array, without a copy where it lies so."""
    box = Box.whole(tensor.shape)
    part = tensor.parts[0]
    if len(tensor.parts) == 1 and box_of(part) == box:
        return np.ascontiguousarray(piece_view(region(part.rank, part.region), part))
    return assemble(tensor, box, region=region)


def distinct(index: Sequence[CanonicalPiece]) -> list[CanonicalPiece]:
    """Return one piece of each box, by tensor and box, and the gradients of every rank."""
    shared = tensors(piece for piece in index if piece.kind != GRADIENTS)
    own = [piece for piece in index if piece.kind == GRADIENTS]
    return [part for tensor in shared for part in tensor.parts] + own


def pack(
    index: Iterable[CanonicalPiece], *, region: str
) -> tuple[list[tuple[CanonicalPiece, CanonicalPiece]], int]:
    """Return each piece with its aligned place in `region`, and the bytes of all."""
    placed, offset = [], 0
    for part in index:
        box, target = box_of(part), CanonicalPiece()
        target.CopyFrom(part)
        target.region, target.offset = region, offset
        target.stride[:] = packed_strides(box)
        placed.append((part, target))
        offset += -(-nbytes_of(part) // ALIGNMENT) * ALIGNMENT
    return placed, offset


def packed_strides(box: Box) -> list[int]:
    """Return the C-order strides of a box, in elements.

    >>> packed_strides(Box((0, 0), (3, 5)))
    [5, 1]
    """
    return [math.prod(box.size[axis + 1 :]) for axis in range(len(box.size))]
