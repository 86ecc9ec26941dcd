"""Canonical pieces over raw regions: views, whole tensors and boxes of them, in any layout."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from plexclient.wire.v1.statemanager_pb2 import CanonicalPiece
from plexsvc.errors import ErrorCode, PlexError
from plexsvc.statemanager.tiers import Bytes

CARRIERS: Final[Mapping[str, np.dtype[Any]]] = {
    "F64": np.dtype("<u8"),
    "F32": np.dtype("<u4"),
    "BF16": np.dtype("<u2"),
    "F16": np.dtype("<u2"),
    "I64": np.dtype("<i8"),
    "I32": np.dtype("<i4"),
    "U8": np.dtype("u1"),
    "BOOL": np.dtype("u1"),
}
"""safetensors dtypes and the numpy type that carries their bits."""

Array = npt.NDArray[Any]
RegionBytes = Callable[[int, str], Bytes]
"""Returns the bytes of (rank, region)."""


@dataclass(frozen=True, slots=True, order=True)
class Box:
    """A rectangle of a tensor."""

    start: tuple[int, ...]
    size: tuple[int, ...]

    @property
    def volume(self) -> int:
        """Number of elements."""
        return math.prod(self.size)

    def intersection(self, other: Box) -> Box | None:
        """Return what both cover, or None.

        >>> Box((0, 0), (4, 4)).intersection(Box((2, 1), (4, 2)))
        Box(start=(2, 1), size=(2, 2))
        """
        low = tuple(map(max, self.start, other.start))
        ends = zip(self.start, self.size, other.start, other.size, strict=True)
        size = tuple(min(a + n, b + m) - at for (a, n, b, m), at in zip(ends, low, strict=True))
        return Box(low, size) if all(n > 0 for n in size) else None

    def within(self, outer: Box) -> tuple[slice, ...]:
        """Return the slices that select this box from an array over `outer`."""
        at = (a - b for a, b in zip(self.start, outer.start, strict=True))
        return tuple(slice(low, low + n) for low, n in zip(at, self.size, strict=True))


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
        return math.prod(self.shape) * CARRIERS[self.dtype].itemsize


def box_of(piece: CanonicalPiece) -> Box:
    """Return the box a piece covers."""
    return Box(tuple(piece.start), tuple(piece.size))


def check_piece(piece: CanonicalPiece, region_bytes: Mapping[str, int]) -> None:
    """Refuse a piece that contradicts itself or does not lie inside its region.

    Raises:
        PlexError: `bad_request`.
    """
    shape, start, size = piece.global_shape, piece.start, piece.size
    is_box = (
        piece.dtype in CARRIERS
        and len(shape) == len(start) == len(size) == len(piece.stride)
        and all(
            at >= 0 and n > 0 and at + n <= m for at, n, m in zip(start, size, shape, strict=False)
        )
        and all(step >= 0 for step in piece.stride)
    )
    if is_box and piece.region in region_bytes:
        reach = sum((n - 1) * step for n, step in zip(size, piece.stride, strict=True)) + 1
        if piece.offset + reach * CARRIERS[piece.dtype].itemsize <= region_bytes[piece.region]:
            return
    raise PlexError(
        ErrorCode.BAD_REQUEST,
        f"piece {piece.kind}/{piece.name} {piece.dtype} start {list(start)} size {list(size)} of "
        f"{list(shape)}, stride {list(piece.stride)} at byte {piece.offset} of region "
        f"{piece.region!r} does not fit; regions are {dict(region_bytes)}",
    )


def piece_view(region: Bytes, piece: CanonicalPiece) -> Array:
    """Return a view of a piece's elements; nothing is copied."""
    carrier = CARRIERS[piece.dtype]
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
    volume = math.prod(tensor.shape)
    boxes = [box_of(part) for part in tensor.parts]
    if sum(box.volume for box in boxes) < volume:
        return False
    if len(boxes) == 1:
        return True
    covered = np.zeros(tensor.shape, dtype=np.bool_)
    whole = Box((0,) * len(tensor.shape), tensor.shape)
    for box in boxes:
        covered[box.within(whole)] = True
    return bool(covered.all())


def assemble(
    parts: Sequence[CanonicalPiece], box: Box, *, dtype: str, region: RegionBytes
) -> Array:
    """Return the elements of `box` as one C-contiguous array, copied together from `parts`.

    Raises:
        PlexError: `not_found` when the parts do not cover the box.
    """
    target = np.empty(box.size, dtype=CARRIERS[dtype])
    covered = 0
    for part in parts:
        have = box_of(part)
        common = box.intersection(have)
        if common is not None:
            view = piece_view(region(part.rank, part.region), part)
            target[common.within(box)] = view[common.within(have)]
            covered += common.volume
    if covered < box.volume:
        text = f"{covered} of {box.volume} elements of {parts[0].name if parts else '?'} are here"
        raise PlexError(ErrorCode.NOT_FOUND, f"{text}; ask the other nodes of the WPG too")
    return target


def whole(tensor: Tensor, region: RegionBytes) -> Array:
    """Return a complete tensor as one C-contiguous array, without a copy where it lies so."""
    box = Box((0,) * len(tensor.shape), tensor.shape)
    if len(tensor.parts) == 1 and box_of(tensor.parts[0]) == box:
        part = tensor.parts[0]
        return np.ascontiguousarray(piece_view(region(part.rank, part.region), part))
    return assemble(tensor.parts, box, dtype=tensor.dtype, region=region)
