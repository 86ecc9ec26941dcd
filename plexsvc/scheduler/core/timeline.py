"""Timeline of devices: a bounded list of spans, the oldest dropped first."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from itertools import islice
from typing import Final

from plexsvc.ids import DeploymentId, JobId, OperationId
from plexsvc.scheduler.core.vocabulary import Place


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """One stretch of one device: an operation's kind, `load` or `offload`."""

    index: int
    place: Place
    kind: str
    job_id: JobId
    deployment_id: DeploymentId
    operation_id: OperationId | None
    start_us: int
    end_us: int
    nbytes: int


MAX_SPANS: Final = 65_536
"""Spans that are kept."""


class Timeline:
    """Spans numbered 1, 2, 3, ...; the last `limit` are kept."""

    def __init__(self, limit: int = MAX_SPANS) -> None:
        self._spans: deque[Span] = deque(maxlen=limit)
        self.next_index = 1

    def add(self, span: Span) -> None:
        """Append one span, numbered `next_index`."""
        assert span.index == self.next_index, span
        self._spans.append(span)
        self.next_index += 1

    def after(self, index: int, *, limit: int) -> list[Span]:
        """Return at most `limit` kept spans numbered above `index`, oldest first."""
        first_kept = self.next_index - len(self._spans)
        skip = max(0, index + 1 - first_kept)
        return list(islice(self._spans, skip, skip + limit))
