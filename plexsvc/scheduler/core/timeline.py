"""Timeline of devices: a bounded list of spans, the oldest dropped first."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from itertools import islice
from typing import Final, NamedTuple

from plexsvc.ids import DeploymentId, JobId, OperationId
from plexsvc.scheduler.core.vocabulary import Place


class Stretch(NamedTuple):
    """What all devices of a gang did at the same time: an operation's kind, `load` or `offload`."""

    places: tuple[Place, ...]
    kind: str
    job_id: JobId
    deployment_id: DeploymentId
    operation_id: OperationId | None
    start_us: int
    end_us: int
    nbytes: int
    """Bytes moved on each device."""


class Span(NamedTuple):
    """The part of a stretch that one device did."""

    number: int
    place: Place
    of: Stretch


MAX_SPANS: Final = 65_536
"""Spans that are kept."""


class Timeline:
    """Spans numbered 1, 2, 3, ...; at least the last `limit` are kept.

    A gang's stretch is one entry whatever its size; spans are made when they are read.
    """

    def __init__(self, limit: int = MAX_SPANS) -> None:
        self._limit = limit
        self._stretches: deque[Stretch] = deque()
        self._num_kept = 0
        self.next_index = 1

    def add(self, stretch: Stretch) -> None:
        """Append the spans of a stretch; the first is numbered `next_index`."""
        size = len(stretch.places)
        self._stretches.append(stretch)
        self._num_kept += size
        self.next_index += size
        while self._num_kept - len(self._stretches[0].places) >= self._limit:
            self._num_kept -= len(self._stretches.popleft().places)

    def after(self, index: int, *, limit: int) -> list[Span]:
        """Return at most `limit` kept spans numbered above `index`, oldest first."""
        return list(islice(self._after(index), limit))

    def _after(self, index: int) -> Iterator[Span]:
        end = self.next_index
        newer: list[tuple[int, Stretch]] = []
        for stretch in reversed(self._stretches):
            if end <= index + 1:
                break
            end -= len(stretch.places)
            newer.append((end, stretch))
        for first, stretch in reversed(newer):
            for at, place in enumerate(stretch.places, start=first):
                if at > index:
                    yield Span(at, place, stretch)
