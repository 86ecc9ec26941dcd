"""Boxes of logical tensors: which part of which published piece fills which part of a weight.

A box is one (start, size) pair a dimension. A trainer publishes pieces that are boxes of Hugging
Face tensors, in its own layout; an engine needs other boxes of the same tensors. Both meet here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

from plexclient.wire.v1 import statemanager_pb2
from plexsvc.errors import ErrorCode, PlexError


@dataclass(frozen=True, slots=True)
class Box:
    """A rectangular part of a tensor.

    >>> Box((0, 2), (4, 4)).intersect(Box((2, 0), (4, 4)))
    Box(start=(2, 2), size=(2, 2))
    """

    start: tuple[int, ...]
    size: tuple[int, ...]

    @classmethod
    def whole(cls, shape: Sequence[int]) -> Box:
        """Return the box that is all of a tensor of `shape`."""
        return cls(tuple(0 for _ in shape), tuple(shape))

    @property
    def volume(self) -> int:
        """Number of elements."""
        return prod(self.size)

    def intersect(self, other: Box) -> Box | None:
        """Return the common part, None when there is none."""
        low = tuple(map(max, self.start, other.start))
        high = tuple(map(min, self._end, other._end))
        if any(end <= at for at, end in zip(low, high, strict=True)):
            return None
        return Box(low, tuple(end - at for at, end in zip(low, high, strict=True)))

    def minus(self, hole: Box) -> list[Box]:
        """Return disjoint boxes that cover `self` without `hole`, which lies inside. At most 2n.

        >>> Box((0,), (6,)).minus(Box((2,), (3,)))
        [Box(start=(0,), size=(2,)), Box(start=(5,), size=(1,))]
        """
        parts, start, size = [], list(self.start), list(self.size)
        for axis, (low, length) in enumerate(zip(hole.start, hole.size, strict=True)):
            before, after = low - start[axis], start[axis] + size[axis] - (low + length)
            if before:
                parts.append(_with(start, size, axis, at=start[axis], length=before))
            if after:
                parts.append(_with(start, size, axis, at=low + length, length=after))
            start[axis], size[axis] = low, length
        return parts

    def relative_to(self, origin: Box) -> Box:
        """Return the same box in the coordinates of `origin`."""
        return Box(tuple(a - b for a, b in zip(self.start, origin.start, strict=True)), self.size)

    @property
    def _end(self) -> tuple[int, ...]:
        return tuple(a + n for a, n in zip(self.start, self.size, strict=True))


@dataclass(frozen=True, slots=True, kw_only=True)
class Need:
    """A box of a logical tensor that an engine wants."""

    name: str
    shape: tuple[int, ...]
    box: Box


@dataclass(frozen=True, slots=True, kw_only=True)
class Overlap:
    """The part `box` (global coordinates) of a need that piece number `index` provides."""

    index: int
    box: Box


def piece_box(piece: statemanager_pb2.CanonicalPiece) -> Box:
    """Return the box that `piece` is."""
    return Box(tuple(piece.start), tuple(piece.size))


def cover(need: Need, pieces: Sequence[statemanager_pb2.CanonicalPiece]) -> list[Overlap]:
    """Return disjoint overlaps that fill `need` exactly; earlier pieces win over later copies.

    Raises:
        PlexError: `bad_request` when a piece has another global shape or elements are missing.
    """
    missing, found = [need.box], []
    for index, piece in enumerate(pieces):
        if not missing:
            break
        _check_shape(need, piece)
        rest: list[Box] = []
        for part in missing:
            common = part.intersect(piece_box(piece))
            if common is None:
                rest.append(part)
            else:
                found.append(Overlap(index=index, box=common))
                rest.extend(part.minus(common))
        missing = rest
    if missing:
        raise PlexError(
            ErrorCode.BAD_REQUEST,
            f"the published version lacks {sum(b.volume for b in missing)} of {need.box.volume} "
            f"elements of {need.name!r}, first at {list(missing[0].start)}; publish a deployment "
            f"of the same model",
            tensor=need.name,
        )
    return found


def element_offset(piece: statemanager_pb2.CanonicalPiece, box: Box) -> int:
    """Return where the first element of `box` (global coordinates) lies in `piece`, in elements."""
    inside = box.relative_to(piece_box(piece))
    return sum(a * s for a, s in zip(inside.start, piece.stride, strict=True))


def _check_shape(need: Need, piece: statemanager_pb2.CanonicalPiece) -> None:
    if tuple(piece.global_shape) != need.shape:
        raise PlexError(
            ErrorCode.BAD_REQUEST,
            f"{need.name!r} was published with shape {list(piece.global_shape)} and this engine's "
            f"model has {list(need.shape)}; publish a deployment of the same model",
            tensor=need.name,
        )


def _with(start: list[int], size: list[int], axis: int, *, at: int, length: int) -> Box:
    low, extent = list(start), list(size)
    low[axis], extent[axis] = at, length
    return Box(tuple(low), tuple(extent))
