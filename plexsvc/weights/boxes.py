"""Boxes of tensors: intersection, difference and covering, on coordinates alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod


@dataclass(frozen=True, slots=True, order=True)
class Box:
    """A rectangular part of a tensor: one (start, size) pair per dimension.

    >>> Box((0, 2), (4, 4)).intersect(Box((2, 0), (4, 4)))
    Box(start=(2, 2), size=(2, 2))
    """

    start: tuple[int, ...]
    size: tuple[int, ...]

    @classmethod
    def whole(cls, shape: Sequence[int]) -> Box:
        """Return the box that is all of a tensor of `shape`."""
        return cls((0,) * len(shape), tuple(shape))

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
            # So that what is cut off along later axes overlaps none of it.
            start[axis], size[axis] = low, length
        return parts

    def within(self, outer: Box) -> tuple[slice, ...]:
        """Return the slices that select this box from an array over `outer`.

        >>> Box((2, 5), (1, 3)).within(Box((2, 4), (6, 6)))
        (slice(0, 1, None), slice(1, 4, None))
        """
        at = (a - b for a, b in zip(self.start, outer.start, strict=True))
        return tuple(slice(low, low + n) for low, n in zip(at, self.size, strict=True))

    @property
    def _end(self) -> tuple[int, ...]:
        return tuple(a + n for a, n in zip(self.start, self.size, strict=True))


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorBox:
    """A box of a named tensor of global shape `shape`: the canonical key."""

    name: str
    shape: tuple[int, ...]
    box: Box


@dataclass(frozen=True, slots=True, kw_only=True)
class Overlap:
    """The part `box` of a wanted box that the given box number `index` provides."""

    index: int
    box: Box


@dataclass(frozen=True, slots=True, kw_only=True)
class Cover:
    """Disjoint overlaps with a wanted box, and the parts of it that no given box has."""

    overlaps: list[Overlap]
    missing: list[Box]


def cover(wanted: Box, given: Sequence[Box]) -> Cover:
    """Return how `given` boxes fill `wanted`; earlier boxes win over later ones.

    >>> cover(Box((0,), (4,)), [Box((0,), (3,))]).missing
    [Box(start=(3,), size=(1,))]
    """
    missing, overlaps = [wanted] if wanted.volume else [], []  # no elements are missing of none
    for index, box in enumerate(given):
        if not missing:
            break
        rest: list[Box] = []
        for part in missing:
            common = part.intersect(box)
            if common is None:
                rest.append(part)
            else:
                overlaps.append(Overlap(index=index, box=common))
                rest.extend(part.minus(common))
        missing = rest
    return Cover(overlaps=overlaps, missing=missing)


def _with(start: list[int], size: list[int], axis: int, *, at: int, length: int) -> Box:
    low, extent = list(start), list(size)
    low[axis], extent[axis] = at, length
    return Box(tuple(low), tuple(extent))
