"""Free extents of a device arena."""

from __future__ import annotations

from bisect import insort
from collections.abc import Iterable

from plexsvc.errors import internal
from plexsvc.statelink.mapping import Extent


class ExtentPool:
    """Free extents of an arena: first fit, whole where possible, in pieces otherwise. `O(n)`.

    All whole units of a region (huge pages) are taken at multiples of the unit while there are
    any, so that they map as such; what is left over comes from where it breaks the fewest units.

    >>> pool = ExtentPool(12288)
    >>> first = pool.take(8192); pool.take(4096)
    (Extent(offset=8192, nbytes=4096),)
    >>> pool.give(first); pool.take(4096)
    (Extent(offset=0, nbytes=4096),)
    """

    def __init__(self, nbytes: int, *, unit: int = 1) -> None:
        self._free: list[tuple[int, int]] = [(0, nbytes)] if nbytes else []
        self._unit = unit

    @property
    def free_bytes(self) -> int:
        """Bytes not taken."""
        return sum(nbytes for _, nbytes in self._free)

    def take(self, nbytes: int) -> tuple[Extent, ...]:
        """Return extents of `nbytes` in all; the caller knows that they fit."""
        assert nbytes <= self.free_bytes, (nbytes, self._free)
        taken = self._take_units(nbytes // self._unit * self._unit)
        taken += self._take_rest(nbytes - sum(size for _, size in taken))
        return tuple(Extent(offset=at, nbytes=size) for at, size in _joined(taken))

    def give(self, extents: tuple[Extent, ...]) -> None:
        """Take extents back and join neighbours."""
        for extent in extents:
            insort(self._free, (extent.offset, extent.nbytes))
        self._free = _joined(self._free)

    def claim(self, extents: Iterable[Extent]) -> None:
        """Take exactly these extents.

        Raises:
            PlexError: `internal` when one is not free.
        """
        for extent in extents:
            end = extent.offset + extent.nbytes
            if not any(at <= extent.offset and end <= at + size for at, size in self._free):
                raise internal(
                    f"device bytes [{extent.offset}, {end}) are claimed twice, or are none"
                )
            self._cut(extent.offset, extent.nbytes)

    def free_extents(self) -> list[Extent]:
        """Return what is not taken."""
        return [Extent(offset=at, nbytes=size) for at, size in self._free]

    def widened(self, extent: Extent) -> Extent:
        """Return a free extent widened to whole units as far as its neighbours are free."""
        start, end = extent.offset, extent.offset + extent.nbytes
        at, size = next(run for run in self._free if run[0] <= start < sum(run))
        low = max(at, start // self._unit * self._unit)
        high = min(at + size, -(-end // self._unit) * self._unit)
        return Extent(offset=low, nbytes=high - low)

    def _take_units(self, nbytes: int) -> list[tuple[int, int]]:
        runs = [_whole_units(run, self._unit) for run in self._free]
        whole = next((run for run in runs if run[1] >= nbytes), None)
        return self._take_from(runs if whole is None else [whole], nbytes)

    def _take_rest(self, nbytes: int) -> list[tuple[int, int]]:
        fitting = [run for run in self._free if run[1] >= nbytes]
        if not fitting:
            return self._take_from(list(self._free), nbytes)
        # From the end of the shortest: the beginnings of long runs stay whole units.
        at, size = min(fitting, key=lambda run: (run[1], run[0]))
        return self._take_from([(at + size - nbytes, nbytes)], nbytes)

    def _take_from(self, runs: list[tuple[int, int]], nbytes: int) -> list[tuple[int, int]]:
        """Take up to `nbytes` from the starts of `runs`, which lie in free ones."""
        taken: list[tuple[int, int]] = []
        for offset, size in runs:
            used = min(size, nbytes)
            if used > 0:
                self._cut(offset, used)
                taken.append((offset, used))
                nbytes -= used
        return taken

    def _cut(self, offset: int, nbytes: int) -> None:
        run = next(run for run in self._free if run[0] <= offset < sum(run))
        self._free.remove(run)
        for at, end in ((run[0], offset), (offset + nbytes, sum(run))):
            if at < end:
                insort(self._free, (at, end - at))


def _joined(runs: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return (offset, size) runs with those joined that follow each other without a gap."""
    joined: list[tuple[int, int]] = []
    for offset, nbytes in runs:
        if joined and sum(joined[-1]) == offset:
            joined[-1] = (joined[-1][0], joined[-1][1] + nbytes)
        else:
            joined.append((offset, nbytes))
    return joined


def _whole_units(run: tuple[int, int], unit: int) -> tuple[int, int]:
    start, end = -(-run[0] // unit) * unit, sum(run) // unit * unit
    return start, max(0, end - start)
